"""Orchestrators and workers in the test's own process, on a real database, with short intervals."""

import asyncio
import select
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from time import monotonic
from typing import Any
from unittest.mock import patch

import psycopg
from psycopg.rows import dict_row

import dagmaster.handlers.basic
from dagmaster.engine.change_set import Rules
from dagmaster.engine.messages import Cancel
from dagmaster.handlers import Handler, Registry, registry
from dagmaster.ids import JobId, WorkerId
from dagmaster.model.compile import compile_graph
from dagmaster.model.graph import Graph
from dagmaster.model.retry import RetryPolicy
from dagmaster.model.workflow import (
    ChildTask,
    EndNode,
    FanInNode,
    FanOutNode,
    InputSpec,
    Node,
    StartNode,
    TaskNode,
    Workflow,
)
from dagmaster.orchestrator import process
from dagmaster.orchestrator.chores import Intervals
from dagmaster.orchestrator.orchestrator import Orchestrator
from dagmaster.queues.postgres import PostgresTransport
from dagmaster.settings import load_settings
from dagmaster.store import submission
from dagmaster.store.connect import Connection, connect, opened
from dagmaster.store.mail_codec import encode
from dagmaster.store.mailbox import add_mail
from dagmaster.store.notifications import MAIL, Notifier
from dagmaster.tasklogs.factory import open_task_logs
from dagmaster.worker.options import WorkerOptions
from dagmaster.worker.worker import Worker

assert dagmaster.handlers.basic  # imported for the handlers that it registers

SOON = 60.0  # The limit for a busy machine; a wait ends as soon as its condition holds.
ASK_AGAIN_SECONDS, MAX_ASK_AGAIN_SECONDS = 0.005, 0.05
TERMINAL = ("completed", "failed", "cancelled")
POLL = 0.05
INTERVALS = Intervals(
    heartbeat_seconds=0.3,
    orphan_scan_seconds=0.3,
    orphan_threshold_seconds=30.0,
    worker_lost_after_seconds=30.0,
    late_mail_seconds=0.1,
    vacuum_seconds=60.0,
)
NEVER = 3600.0


# Workflows.

NO_RETRY = RetryPolicy(max_attempts=0)


def retry(times: int, delay: float = 0.0, **policy: Any) -> RetryPolicy:
    return RetryPolicy(max_attempts=times, initial_delay_seconds=delay, **policy)


def task(handler: str = "echo", *next_nodes: str, **options: Any) -> TaskNode:
    """A task on queue `q` without retries, unless the options override it."""
    return TaskNode(**{"handler": handler, "queue": "q", "next": next_nodes, "retry": NO_RETRY, **options})


def child(handler: str = "echo", **options: Any) -> ChildTask:
    return ChildTask(**{"handler": handler, "queue": "q", "retry": NO_RETRY, "params": {"x": "{{ item }}"}, **options})


def graph(nodes: Mapping[str, Node], workflow_id: str = "test", *, start: str | None = None, **fields: Any) -> Graph:
    """Compile the graph; `start` adds START before that node, and END is added if a node names it."""
    all_nodes = dict(nodes)
    if start is not None:
        all_nodes["START"] = StartNode(next=(start,))
    if any("END" in _targets(node) for node in nodes.values()):
        all_nodes["END"] = EndNode()
    inputs = {name: InputSpec(type=kind) for name, kind in fields.pop("inputs", {}).items()}
    return compile_graph(Workflow(workflow_id=workflow_id, name=workflow_id, inputs=inputs, nodes=all_nodes, **fields))


def _targets(node: Node) -> set[str]:
    branches = getattr(node, "branches", ())
    return {*node.next, *(name for branch in branches for name in branch.next)}


def single(handler: str = "echo", *, workflow_id: str = "single", **options: Any) -> Graph:
    return graph({"work": task(handler, "END", **options)}, workflow_id, start="work")


def chain(length: int, handler: str = "echo", **options: Any) -> Graph:
    names = [f"n{number}" for number in range(length)]
    nodes = {
        name: task(handler, following, **options) for name, following in zip(names, [*names[1:], "END"], strict=True)
    }
    return graph(nodes, "chain", start="n0")


def fan(aggregation: str = "collect", *, max_parallel: int | None = None, **options: Any) -> Graph:
    """A fan-out over the input `items`, and its fan-in."""
    nodes: dict[str, Any] = {
        "spread": FanOutNode(
            source="{{ inputs.items }}", task=child(**options), max_parallel=max_parallel, next=("gather",)
        ),
        "gather": FanInNode(aggregation=aggregation, next=("END",)),
    }
    return graph(nodes, "fan", start="spread", inputs={"items": "array"})


def handlers(**functions: Callable[..., Any]) -> Registry:
    """A registry with these handlers, the basic ones and those of the test module."""
    chosen = Registry()
    for handler in registry:
        chosen.register(handler)
    for name, function in functions.items():
        chosen.register(Handler(name, function))
    return chosen


# Processes.


class Role:
    """A process role that runs until it is stopped or killed."""

    def __init__(self) -> None:
        self._stop = asyncio.Event()
        self._helpers: list[asyncio.Task[None]] = []
        self._main: asyncio.Task[None] | None = None

    def _begin(self, main: Awaitable[None], *helpers: Awaitable[None]) -> None:
        self._helpers = [asyncio.ensure_future(helper) for helper in helpers]
        self._main = asyncio.ensure_future(main)

    @property
    def has_ended(self) -> bool:
        return self._main is None or self._main.done()

    async def stop(self) -> None:
        """Stop as after a signal; raises the error that the role failed with."""
        self._stop.set()
        await self._end()

    async def _end(self) -> None:
        main, self._main = self._main, None
        try:
            if main is not None:
                await main
        finally:
            for helper in self._helpers:
                helper.cancel()
            await asyncio.gather(*self._helpers, return_exceptions=True)

    async def _drop(self) -> None:
        assert self._main is not None
        while not self._main.done():  # A cancellation can get lost in a connection that is being closed.
            self._main.cancel()
            await asyncio.wait([self._main], timeout=1.0)
        await asyncio.gather(self._main, return_exceptions=True)
        self._main = None
        await self._end()


class OrchestratorRole(Role):
    def __init__(self, dsn: str, rules: Rules, intervals: Intervals, poll: float) -> None:
        super().__init__()
        self.dsn, self.intervals = dsn, intervals
        self.notifier = Notifier(dsn)
        self.instance = Orchestrator(rules, self.notifier, poll_interval_seconds=poll)

    @property
    def id(self) -> str:
        return self.instance.me.instance_id

    async def start(self, *, listens: bool = True) -> None:
        ready = asyncio.Event()
        running = process.run_orchestrator(
            self.dsn, self.instance, self.intervals, self.notifier, self._stop, ready=ready
        )
        if not listens:
            setattr(self.instance, "hear", _hear_nothing)  # noqa: B010 - mypy lets nobody assign a method
        self._begin(running, self.notifier.run())
        waiter = asyncio.ensure_future(ready.wait())
        await asyncio.wait([waiter, self._main], return_when=asyncio.FIRST_COMPLETED)
        waiter.cancel()
        if self._main.done():
            await self._main

    async def kill(self) -> None:
        """End without cleanup, as after SIGKILL."""
        with patch.object(process, "leave", _nothing):
            await self._drop()


class WorkerRole(Role):
    def __init__(self, dsn: str, known: Registry, options: WorkerOptions, owner: OrchestratorRole | None) -> None:
        super().__init__()
        self.dsn = dsn
        self.notifier = owner.notifier if owner else Notifier(dsn)
        self._is_local = owner is not None
        transport = PostgresTransport(dsn, self.notifier)
        logs = open_task_logs(load_settings())
        near: dict[str, Any] = {"deliver": owner.instance.deliver, "mailed": owner.instance.check_mail} if owner else {}
        self.instance = Worker(transport, known, options, logs, **near)
        if owner is not None:
            owner.instance.local = self.instance

    @property
    def id(self) -> WorkerId:
        return self.instance.worker_id

    def start(self) -> None:
        self._begin(self.instance.run(self._stop), *([] if self._is_local else [self.notifier.run()]))

    async def kill(self) -> None:
        runners = [task.runner for task in self.instance.slots.running.values()]
        with patch.object(self.instance, "_leave", _nothing):
            await self._drop()
        for runner in runners:
            runner.cancel()
        await asyncio.gather(*runners, return_exceptions=True)


async def _nothing(*_: Any) -> None:
    pass


def _hear_nothing(*_: Any) -> None:
    pass


@dataclass
class Fleet:
    dsn: str
    roles: list[Role] = field(default_factory=list)
    known: Registry = field(default_factory=handlers)
    is_open: bool = False  # Only then are its resources closed.
    _conn: Connection | None = None
    _is_asking: bool = False

    @asynccontextmanager
    async def connected(self) -> AsyncIterator[Connection]:
        """The fleet's own connection, or a new one while that is in use."""
        if self._is_asking or not self.is_open:
            async with opened(self.dsn, application="test") as conn:
                yield conn
            return
        self._is_asking = True
        try:
            if self._conn is None or _is_lost(self._conn):
                await self._disconnect()
                self._conn = await connect(self.dsn, application="test")
            yield self._conn
        finally:
            self._is_asking = False

    async def close(self) -> None:
        self.is_open = False
        await self._disconnect()

    async def _disconnect(self) -> None:
        if self._conn is not None:
            await self._conn.close()
            self._conn = None

    async def orchestrator(
        self, *, rules: Rules | None = None, poll: float = POLL, listens: bool = True, **intervals: Any
    ) -> OrchestratorRole:
        role = OrchestratorRole(self.dsn, rules or Rules(), replace(INTERVALS, **intervals), poll)
        self.roles.append(role)
        await role.start(listens=listens)
        return role

    async def worker(
        self, *, owner: OrchestratorRole | None = None, known: Registry | None = None, **options: Any
    ) -> WorkerRole:
        """`owner` makes it the local worker of that orchestrator. It is registered when this returns."""
        chosen = {"queues": ("q",), "concurrency": 8, "poll_interval_seconds": POLL, "heartbeat_interval_seconds": 0.3}
        role = WorkerRole(self.dsn, known or self.known, WorkerOptions(**{**chosen, **options}), owner)
        self.roles.append(role)
        role.start()
        await self.until(
            "SELECT count(*) = 1 AS ok FROM dagapp.dag_workers WHERE worker_id = %s AND status = 'active'",
            lambda: [role.id],
        )
        return role

    async def submit(self, definition: Graph, inputs: Mapping[str, Any] | None = None, **options: Any) -> JobId:
        async with self.connected() as conn:
            submitted = await submission.submit(
                conn, submission.NewJob(definition, inputs or {}, **options), threshold_seconds=30
            )
            await conn.execute(f"NOTIFY {MAIL}")
        return submitted.job_id

    async def submit_all(self, new: list[submission.NewJob]) -> list[JobId]:
        async with self.connected() as conn:
            submitted = await submission.submit_many(conn, new, threshold_seconds=30)
            await conn.execute(f"NOTIFY {MAIL}")
        return [job.job_id for job in submitted]

    async def cancel(self, job_id: JobId, actor: str = "somebody") -> None:
        async with self.connected() as conn:
            await add_mail(conn, [encode(job_id, Cancel(actor))])
            await conn.execute(f"NOTIFY {MAIL}")

    # Queries.

    async def rows(self, query: str, *values: Any) -> list[dict[str, Any]]:
        async with self.connected() as conn:
            return await _ask(conn, query, values)

    async def value(self, query: str, *values: Any) -> Any:
        [row] = await self.rows(query, *values)
        [value] = row.values()
        return value

    async def until(self, query: str, values: Callable[[], list[Any]] = list, seconds: float = SOON) -> None:
        """Repeat the query until its columns are all true."""
        deadline, pause = monotonic() + seconds, ASK_AGAIN_SECONDS
        while True:
            answer = await self.rows(query, *values())
            if answer and all(answer[0].values()):
                return
            self._complain()
            assert monotonic() < deadline, f"waited in vain for: {query}"
            await asyncio.sleep(pause)
            pause = min(1.3 * pause, MAX_ASK_AGAIN_SECONDS)  # Longer waits poll less often.

    def _complain(self) -> None:
        """Raise the error of a role that died, if any, rather than a timeout."""
        for role in self.roles:
            if role._main is not None and role._main.done() and not role._main.cancelled():
                role._main.result()

    async def ended(self, *job_ids: int, seconds: float = SOON) -> list[dict[str, Any]]:
        """Wait until all these jobs have ended; return them in this order."""
        query = "SELECT count(*) = %s AS ok FROM dagapp.dag_jobs WHERE job_id = ANY(%s) AND status::text = ANY(%s)"
        await self.until(query, lambda: [len(job_ids), list(job_ids), list(TERMINAL)], seconds)
        jobs = {
            row["job_id"]: row
            for row in await self.rows("SELECT * FROM dagapp.dag_jobs WHERE job_id = ANY(%s)", list(job_ids))
        }
        return [jobs[job_id] for job_id in job_ids]

    async def completed(self, *job_ids: int, seconds: float = SOON) -> list[dict[str, Any]]:
        jobs = await self.ended(*job_ids, seconds=seconds)
        assert {(row["status"], row["error_message"]) for row in jobs} == {("completed", None)}
        return jobs

    async def run(self, definition: Graph, inputs: Mapping[str, Any] | None = None, **options: Any) -> dict[str, Any]:
        """Submit a job and wait for its end."""
        [row] = await self.ended(await self.submit(definition, inputs, **options))
        return row

    async def nodes(self, job_id: int) -> dict[str, dict[str, Any]]:
        selected = await self.rows("SELECT * FROM dagapp.dag_node_states WHERE job_id = %s", job_id)
        return {row["node_id"]: row for row in selected}

    async def statuses(self, job_id: int) -> dict[str, str]:
        return {node_id: row["status"] for node_id, row in (await self.nodes(job_id)).items()}

    async def events(self, job_id: int, *types: str) -> list[dict[str, Any]]:
        selected = await self.rows("SELECT * FROM dagapp.dag_job_events WHERE job_id = %s ORDER BY event_id", job_id)
        return [row for row in selected if not types or row["event_type"] in types]

    async def trace(self, job_id: int) -> list[str]:
        """The timeline as `event node`."""
        return [" ".join(filter(None, [row["event_type"], row["node_id"]])) for row in await self.events(job_id)]

    async def is_clean(self) -> None:
        """Wait until the hot tables are empty."""
        await self.until(
            """SELECT (SELECT count(*) FROM dagapp.dag_tasks_waiting) = 0 AS waiting,
                      (SELECT count(*) FROM dagapp.dag_tasks_running) = 0 AS running,
                      (SELECT count(*) FROM dagapp.dag_mailbox) = 0 AS mail"""
        )


async def wait_until(holds: Callable[[], bool], seconds: float = SOON) -> None:
    """Wait for a condition in memory."""
    deadline = monotonic() + seconds
    while not holds():
        assert monotonic() < deadline, "waited in vain"
        await asyncio.sleep(0.01)


@asynccontextmanager
async def fleet(dsn: str, **functions: Callable[..., Any]) -> AsyncIterator[Fleet]:
    """An empty fleet whose workers have these handlers; workers stop first."""
    running = Fleet(dsn, known=handlers(**functions), is_open=True)
    try:
        yield running
    finally:
        running.roles.sort(key=lambda role: isinstance(role, OrchestratorRole))
        try:
            for role in running.roles:
                await role.stop()
        finally:
            await running.close()


def _is_lost(conn: Connection) -> bool:
    """An idle connection is readable only when the server has closed it."""
    if conn.closed:
        return True
    poll = select.poll()  # Not `select`, which refuses descriptors above 1023.
    poll.register(conn.fileno(), select.POLLIN)
    return bool(poll.poll(0))


async def rows(dsn: str, query: str, *values: Any) -> list[dict[str, Any]]:
    async with opened(dsn, application="test") as conn:
        return await _ask(conn, query, values)


async def _ask(conn: Connection, query: str, values: tuple[Any, ...]) -> list[dict[str, Any]]:
    async with psycopg.AsyncCursor(conn, row_factory=dict_row) as cursor:
        await cursor.execute(query, values or None)
        return await cursor.fetchall() if cursor.description else []
