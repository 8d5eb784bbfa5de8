"""The task queue in PostgreSQL."""

import asyncio
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import asdict
from datetime import UTC, datetime

import orjson
from psycopg.rows import DictRow

from dagmaster.errors import DatabaseUnavailable
from dagmaster.ids import TaskId, WorkerId
from dagmaster.queues.contract import (
    Heartbeat,
    Orders,
    Recalled,
    Registration,
    SavedCheckpoint,
    TaskMessage,
    TaskReport,
)
from dagmaster.snowflakes import new_id
from dagmaster.store import handlers, instances, mail_codec, task_cache, task_reports, tasks
from dagmaster.store.connect import LOST, connect_hot, keep_json
from dagmaster.store.handler_pool import HandlerPool
from dagmaster.store.hot_connection import HotConnection
from dagmaster.store.notifications import MAIL, TASKS, Notifier
from dagmaster.store.sealer import open_sealer
from dagmaster.store.task_reports import ReportedProgress

# A task that ends sooner needs no mail of its own for its start: its report says it.
QUIET_SECONDS = 0.05


class PostgresTransport:
    waits = False
    lost: tuple[type[Exception], ...] = (*LOST, DatabaseUnavailable)

    def __init__(self, dsn: str, notifier: Notifier, secret_key: bytes | None = None) -> None:
        self._dsn, self._notifier, self._secret_key = dsn, notifier, secret_key
        self.handler_pool = HandlerPool(dsn)

    @asynccontextmanager
    async def open(self, worker_id: WorkerId | None) -> "AsyncIterator[PostgresLink]":
        async with AsyncExitStack() as stack:
            durable = await stack.enter_async_context(await self._connect(durable=True))
            quick = await stack.enter_async_context(await self._connect(durable=False))
            yield PostgresLink(durable, quick, worker_id or WorkerId(""), self._notifier, self._secret_key)

    async def aclose(self) -> None:
        """Call when no handler is running any more."""
        await self.handler_pool.close()

    async def _connect(self, *, durable: bool) -> HotConnection:
        conn = await connect_hot(self._dsn, application="dagmaster worker", durable=durable)
        keep_json(conn)
        return conn


class PostgresLink:
    """`durable` carries reports and checkpoints, `quick` everything that may be lost and repeated."""

    def __init__(
        self,
        durable: HotConnection,
        quick: HotConnection,
        worker_id: WorkerId,
        notifier: Notifier,
        secret_key: bytes | None = None,
    ) -> None:
        self._durable, self._quick = durable, quick
        self._secret_key = secret_key
        self.worker_id = worker_id
        self._notifier = notifier
        self._unannounced: set[TaskId] = set()
        self._unannounced_are_due = asyncio.Event()
        self._is_waking = False

    async def register(self, registration: Registration) -> WorkerId:
        me = instances.Instance(str(new_id()), registration.hostname, registration.pid, instances.host_key())
        await instances.register_worker(
            self._quick, me, registration.queues, registration.concurrency, registration.handlers
        )
        await handlers.register_contracts(self._quick, me.worker_id, registration.contracts)
        self.worker_id = me.worker_id
        return self.worker_id

    async def beat(self, heartbeat: Heartbeat) -> bool:
        return await instances.beat_worker(self._quick, self.worker_id, asdict(heartbeat)) is not None

    async def exchange(self, reports: Sequence[TaskReport], limit: int) -> list[TaskMessage]:
        if reports:
            rows = await self._report(reports, limit)
        else:
            rows = await tasks.claim(self._quick, self.worker_id, limit) if limit else []
        self._announce_later(row["task_id"] for row in rows)
        return [message_of(row) for row in rows]

    async def _report(self, reports: Sequence[TaskReport], limit: int) -> list[DictRow]:
        self._unannounced.difference_update(report.task_id for report in reports)
        notifies, now = self._notifier.can_piggyback(), datetime.now(UTC)
        rows = [mail_codec.encode(report.job_id, report.message(self.worker_id, now)) for report in reports]
        claimed: list[DictRow] = []
        if limit:
            claimed = await tasks.report_and_claim(self._durable, self.worker_id, rows, limit, notifies=notifies)
        else:
            await tasks.report(self._durable, self.worker_id, rows, notifies=notifies)
        if not notifies:
            self._notifier.notify(MAIL)
        return claimed

    async def listen(self, on_tasks: Callable[[], None]) -> None:
        """Listen on the connection that claims, so that the server's process is awake when the claim arrives."""
        await self._quick.listen(TASKS, lambda _channel, _payload: on_tasks())
        on_tasks()

    async def tell_starts(self) -> None:
        while True:
            await self._unannounced_are_due.wait()
            self._unannounced_are_due.clear()
            await self._announce(list(self._unannounced))

    def _announce_later(self, task_ids: Iterable[TaskId]) -> None:
        self._unannounced.update(task_ids)
        if self._unannounced and not self._is_waking:
            self._is_waking = True
            asyncio.get_running_loop().call_later(QUIET_SECONDS, self._wake_if_unannounced)

    def _wake_if_unannounced(self) -> None:
        self._is_waking = False
        if self._unannounced:
            self._unannounced_are_due.set()

    async def _announce(self, task_ids: Collection[TaskId]) -> None:
        """Announce the start of these tasks; tasks that were claimed a moment ago are announced together."""
        if await tasks.tell_starts(self._quick, self.worker_id, task_ids):
            self._notifier.notify(MAIL)
        self._unannounced.difference_update(task_ids)

    async def _announce_now(self, task_id: TaskId) -> None:
        """Announce a task's start before any other report on it."""
        if task_id in self._unannounced:
            await self._announce([task_id])

    async def orders(self, task_ids: Sequence[TaskId]) -> Orders:
        state, withdrawn = await tasks.orders(self._quick, self.worker_id, task_ids)
        return Orders(frozenset(withdrawn), state)

    async def forgotten(self, known: Collection[TaskId]) -> list[TaskMessage]:
        """The start of known tasks may not have been announced when the last connection was lost."""
        rows = await tasks.held(self._quick, self.worker_id, known)
        self._announce_later([*known, *(row["task_id"] for row in rows)])
        return [message_of(row) for row in rows]

    async def tell(self, task_id: TaskId, progress_of_task: ReportedProgress) -> None:
        await task_reports.tell_progress(self._quick, self.worker_id, task_id, progress_of_task)

    async def save(self, task_id: TaskId, checkpoint: SavedCheckpoint) -> None:
        fields = {
            "phase_name": checkpoint.phase,
            "state_data": orjson.Fragment(checkpoint.data),
            "artifacts_completed": orjson.Fragment(checkpoint.artifacts) if checkpoint.artifacts else None,
            "worker_id": self.worker_id,
        }
        await self._announce_now(task_id)
        await task_reports.save_checkpoint(self._durable, task_id, fields, is_claimed=True)
        self._notifier.notify(MAIL)

    async def add(self, task_id: TaskId, slices: Sequence[bytes]) -> None:
        await self._announce_now(task_id)
        await task_reports.add_nodes(self._durable, self.worker_id, task_id, slices)
        self._notifier.notify(MAIL)

    async def discard(self, task_id: TaskId, checkpoint_id: int, reason: str) -> SavedCheckpoint | None:
        row = await task_reports.discard_checkpoint(self._quick, self.worker_id, task_id, checkpoint_id, reason)
        return saved_checkpoint(row) if row is not None else None

    async def recall(self, task_id: TaskId, version: str) -> Recalled | None:
        row = await task_cache.recall_result(self._quick, self.worker_id, task_id, version)
        return Recalled(row["output"], row["job_id"], row["stored_at"]) if row is not None else None

    async def remember(self, task_id: TaskId, version: str, output: bytes, seconds: float | None) -> None:
        await task_cache.remember_result(self._quick, self.worker_id, task_id, version, output, seconds)

    async def open_secrets(self, task_id: TaskId, references: Collection[str]) -> Mapping[str, str]:
        return (await open_sealer(self._quick, self._secret_key)).open(references)

    async def leave(self, heartbeat: Heartbeat) -> None:
        await instances.stop_worker(self._quick, self.worker_id, asdict(heartbeat))


def message_of(row: DictRow) -> TaskMessage:
    return TaskMessage(**{**row, "params": row["params"] or b"{}"})


def saved_checkpoint(row: DictRow) -> SavedCheckpoint:
    return SavedCheckpoint(
        row["phase_name"], row["state_data"] or b"{}", row["artifacts_completed"], row["checkpoint_id"]
    )
