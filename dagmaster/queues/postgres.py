"""The queue that needs nothing but PostgreSQL."""

from collections.abc import Collection, Sequence
from typing import Any

from psycopg.rows import DictRow

from dagmaster.queues.contract import TaskMessage, TaskReport
from dagmaster.store import tasks
from dagmaster.store.connect import Connection
from dagmaster.store.signals import MAIL, Notifier


class PostgresQueue:
    """`durable` carries reports; `quick` carries claims alone, which may be lost and repeated."""

    def __init__(
        self, durable: Connection, quick: Connection, worker_id: str, queues: Sequence[str], notifier: Notifier
    ) -> None:
        self._durable, self._quick = durable, quick
        self.worker_id = worker_id
        self._queues = list(queues)
        self._notifier = notifier

    async def exchange(self, reports: Sequence[TaskReport], limit: int) -> list[TaskMessage]:
        if not limit:
            await self._report(reports)
            return []
        if not reports:
            cursor = await tasks.start_claim(self._quick, self.worker_id, self._queues, limit)
        else:
            async with self._durable.pipeline(), self._durable.transaction():
                await self._report(reports)
                cursor = await tasks.start_claim(self._durable, self.worker_id, self._queues, limit)
        claimed = [_message(row) for row in await cursor.fetchall()]
        if claimed:
            self._notifier.notify(MAIL, urgent=False)  # That they have started can wait for that they have ended.
        return claimed

    async def _report(self, reports: Sequence[TaskReport]) -> None:
        aloud = self._notifier.may_ride()
        await tasks.report(self._durable, self.worker_id, [_report_row(report) for report in reports], aloud=aloud)
        if not aloud:
            self._notifier.notify(MAIL)

    async def withdrawn(self, task_ids: Sequence[str]) -> set[str]:
        return await tasks.withdrawn(self._quick, self.worker_id, task_ids)

    async def forgotten(self, known: Collection[str]) -> list[TaskMessage]:
        return [_message(row) for row in await tasks.held(self._quick, self.worker_id, known)]


def _message(row: DictRow) -> TaskMessage:
    return TaskMessage(
        row["task_id"],
        row["job_id"],
        row["node_id"],
        row["handler"],
        row["queue"],
        row["params"] or b"{}",
        row["timeout_seconds"],
        row["retry_count"],
        row["dispatched_at"],
        row["correlation_id"],
        row["trace_parent"],
        row["checkpoint_id"],
        row["checkpoint_phase"],
        row["checkpoint_data"],
        row["checkpoint_artifacts"],
    )


def _report_row(report: TaskReport) -> dict[str, Any]:
    return tasks.report_row(
        task_id=report.task_id,
        job_id=report.job_id,
        node_id=report.node_id,
        kind=report.kind,
        output=report.output,
        error=report.error,
        duration_ms=report.duration_ms,
        permanent=report.permanent,
        retry_after_seconds=report.retry_after_seconds,
        error_types=report.error_types,
        details=report.details,
    )
