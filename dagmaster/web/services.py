"""The resources that all routes share."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
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
from dagmaster.handlers import Registry
from dagmaster.model.contracts import Contracts, queues_by_handler
from dagmaster.model.workflow import Workflow
from dagmaster.service.context import KnownFleet, read_fleet
from dagmaster.service.definitions import Definitions
from dagmaster.service.submission import idle_warnings
from dagmaster.settings import Settings
from dagmaster.store.connect import Connection, Pool, open_pool
from dagmaster.store.estimates import Histories
from dagmaster.store.handlers import stamp_of
from dagmaster.store.instances import Instance
from dagmaster.store.node_counts import NodeCounts
from dagmaster.store.notifications import MAIL, Notifier
from dagmaster.store.workflows import PinnedGraphs
from dagmaster.tasklogs import TaskLogs, open_task_logs
from dagmaster.web.task_signal import TaskSignal

STATEMENT_SECONDS = 30.0
FLEET_SECONDS = 1.0


class LocalOrchestrator(Protocol):
    """An orchestrator in this process: woken without a notification, read without the database."""

    @property
    def me(self) -> Instance: ...

    def check_mail(self) -> None: ...

    def summary(self) -> dict[str, Any]: ...


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
