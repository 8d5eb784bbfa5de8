"""The resources that all routes share."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from math import inf
from time import monotonic
from typing import Annotated, Any, Protocol
from weakref import WeakValueDictionary

from fastapi import Depends
from fastapi.requests import HTTPConnection

from dagmaster.authoring.catalog import Catalog
from dagmaster.authoring.contracts import known_contracts
from dagmaster.explain.facts import Explanation
from dagmaster.handlers import Registry
from dagmaster.ids import JobId, NodeId, TaskId
from dagmaster.model.contracts import Contracts, queues_by_handler
from dagmaster.model.workflow import Workflow
from dagmaster.service import schedules
from dagmaster.service.context import KnownFleet, ServiceContext, read_fleet
from dagmaster.service.definitions import Definitions
from dagmaster.service.submission import idle_warnings
from dagmaster.settings import Settings
from dagmaster.store.connect import Connection, Pool, open_pool
from dagmaster.store.estimates import Histories
from dagmaster.store.explanations import explain_job, explain_node
from dagmaster.store.handlers import stamp_of
from dagmaster.store.instances import Instance
from dagmaster.store.node_counts import NodeCounts
from dagmaster.store.notifications import MAIL, TASKS, Notifier, listen
from dagmaster.store.schedules import Synced
from dagmaster.store.workflows import PinnedGraphs
from dagmaster.tasklogs import LogUnavailable, TaskLogs, open_task_logs

STATEMENT_SECONDS = 30.0
FLEET_SECONDS = 1.0
CLAIMS_AT_ONCE = 2


class LocalOrchestrator(Protocol):
    """An orchestrator in this process: woken without a notification, read without the database."""

    @property
    def me(self) -> Instance: ...

    def check_mail(self) -> None: ...

    def summary(self) -> dict[str, Any]: ...


class TaskSignal:
    """Wakes workers that wait over HTTP when there may be tasks. Listens from the first waiter on."""

    def __init__(self, dsn: str) -> None:
        self._dsn = dsn
        self._next = asyncio.Event()
        self._listener: asyncio.Task[None] | None = None
        # However many workers are woken, other requests still get a connection.
        self.turns = asyncio.Semaphore(CLAIMS_AT_ONCE)

    def next(self) -> asyncio.Event:
        """Set when there may be tasks. Get it before you look for tasks, so that none is missed."""
        if self._listener is None or self._listener.done():
            self._listener = asyncio.create_task(listen(self._dsn, {TASKS: self._wake}))
        return self._next

    def _wake(self) -> None:
        woken, self._next = self._next, asyncio.Event()
        woken.set()

    async def close(self) -> None:
        if self._listener is not None:
            self._listener.cancel()
            with suppress(asyncio.CancelledError):
                await self._listener


@dataclass(slots=True)
class Services:
    dsn: str
    settings: Settings
    pool: Pool
    notifier: Notifier
    catalog: Catalog
    registry: Registry
    is_local: bool
    orchestrator: LocalOrchestrator | None = None
    started_at: datetime = field(default_factory=lambda: datetime.now(UTC))
    _task_logs: TaskLogs | None = None
    pinned: PinnedGraphs = field(default_factory=PinnedGraphs)
    node_counts: NodeCounts = field(default_factory=NodeCounts)
    histories: Histories = field(init=False)
    task_signal: TaskSignal = field(init=False)
    log_turns: WeakValueDictionary[str, asyncio.Lock] = field(default_factory=WeakValueDictionary)
    definitions: Definitions = field(init=False)
    _contracts_at: float = -inf
    _contracts_stamp: tuple[Any, ...] = ()
    _fleet: tuple[float, KnownFleet] | None = None

    def __post_init__(self) -> None:
        self.histories = Histories(self.pinned)
        self.task_signal = TaskSignal(self.dsn)
        self.definitions = Definitions(self.settings, self.registry.contracts(), self.find_workflow)

    @property
    def task_logs(self) -> TaskLogs:
        """Opened on the first request for a log."""
        if self._task_logs is None:
            self._task_logs = open_task_logs(self.settings)
        return self._task_logs

    def find_workflow(self, workflow_id: str) -> Workflow:
        """Raises UnknownWorkflow."""
        return self.catalog.get(workflow_id)

    async def reload_workflows(self) -> None:
        """In a thread: reading hundreds of files takes seconds."""
        await asyncio.to_thread(self.catalog.reload)

    async def log_bytes(self, task_id: TaskId) -> int | None:
        """The size of a task's log; None if there is none, or none that this server can read."""
        try:
            return await self.task_logs.size(task_id)
        except LogUnavailable:
            return None

    @property
    def contracts(self) -> Contracts:
        return self.definitions.contracts

    async def warnings_for(self, conn: Connection, workflow: Workflow) -> list[str]:
        """Warnings of a submission: no worker may run the job, or one may reject its parameters."""
        idle = idle_warnings(workflow, await self.fleet(conn), self.contracts)
        return [*(problem.message for problem in self.definitions.refused_params(workflow)), *idle]

    async def learn(self, conn: Connection) -> None:
        """Load the registered contracts, which take precedence over handlers loaded in this process."""
        if self._contracts_at + FLEET_SECONDS > monotonic():
            return
        stamp = await stamp_of(conn)
        if stamp != self._contracts_stamp:
            contracts = await known_contracts(conn, self.registry)
            queues = queues_by_handler(contracts)
            if queues != self.catalog.queues.handler_queues or contracts != self.catalog.queues.contracts:
                rules = replace(self.catalog.queues, handler_queues=queues, is_open=True, contracts=contracts)
                await asyncio.to_thread(self.catalog.use, rules)
            self.definitions.learn(contracts)
            self._contracts_stamp = stamp
        self._contracts_at = monotonic()

    async def sync_schedules(self, conn: Connection, *, prune: bool = False, actor: str | None = None) -> Synced:
        """Update the schedules from the loaded workflows."""
        await self.learn(conn)
        context = ServiceContext(conn, self.settings, source_app="api", actor=actor)
        return await schedules.sync_schedules(context, self.catalog, self.contracts, prune=prune)

    def workflows_by(self, names_of: Callable[[Workflow], set[str]]) -> dict[str, list[str]]:
        """The loaded workflows that use each of these names, such as queues."""
        used: dict[str, list[str]] = {}
        for workflow_id, workflow in sorted(self.catalog.workflows.items()):
            for name in names_of(workflow):
                used.setdefault(name, []).append(workflow_id)
        return used

    async def explain(self, conn: Connection, job_id: JobId, node_id: NodeId | None = None) -> Explanation:
        """Raises UnknownJob and UnknownNode."""
        seconds = self.settings.orphan_threshold_seconds
        if node_id is None:
            return await explain_job(conn, job_id, threshold_seconds=seconds, pinned=self.pinned)
        return await explain_node(conn, job_id, node_id, threshold_seconds=seconds, pinned=self.pinned)

    async def fleet(self, conn: Connection) -> KnownFleet:
        """The active instances, at most a second old."""
        if self._fleet is None or self._fleet[0] < monotonic():
            known = await read_fleet(conn, threshold_seconds=self.settings.orphan_threshold_seconds)
            self._fleet = (monotonic() + FLEET_SECONDS, known)
        return self._fleet[1]

    def own_stats(self) -> dict[str, dict[str, Any]]:
        """The stats of the orchestrator in this process, by its id."""
        return {self.orchestrator.me.instance_id: self.orchestrator.summary()} if self.orchestrator else {}

    def wake(self) -> None:
        """Wake the owner after a submission or a command."""
        self.notifier.notify(MAIL)
        if self.orchestrator is not None:
            self.orchestrator.check_mail()


@asynccontextmanager
async def opened_services(
    dsn: str,
    settings: Settings,
    *,
    notifier: Notifier,
    catalog: Catalog,
    registry: Registry,
    is_local: bool,
    orchestrator: LocalOrchestrator | None = None,
) -> AsyncIterator[Services]:
    pool = await open_pool(
        dsn,
        application="dagmaster api",
        size=settings.api_pool_size,
        statement_timeout_seconds=STATEMENT_SECONDS,
    )
    services = Services(dsn, settings, pool, notifier, catalog, registry, is_local, orchestrator)
    try:
        yield services
    finally:
        await services.task_signal.close()
        await pool.close()


# Async although it never waits: FastAPI runs plain functions in threads.
async def services_of(request: HTTPConnection) -> Services:
    services: Services = request.app.state.services
    return services


ServicesDep = Annotated[Services, Depends(services_of)]


async def connection(services: ServicesDep) -> AsyncIterator[Connection]:
    """For one request; returned before the response is sent."""
    async with services.pool.connection() as conn:
        yield conn


Conn = Annotated[Connection, Depends(connection, scope="function")]
