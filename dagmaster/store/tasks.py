"""Waiting tasks, and tasks that a worker holds."""

from collections.abc import Collection, Sequence
from typing import Any

from dagmaster.ids import TaskId, WorkerId
from dagmaster.store.connect import Connection, Row, encode_rows, encode_texts
from dagmaster.store.hot_connection import HotConnection
from dagmaster.store.mail_codec import MailRow, mail_values
from dagmaster.store.statements import fetch, fetch_atomically, run

WARN_AT_ONCE = 500


async def claim(conn: Connection, worker_id: WorkerId, limit: int) -> list[Row]:
    """Claim tasks of the worker's queues and handlers; the caller announces their start with `tell_starts`."""
    return await fetch(conn, *_claim(worker_id, limit))


async def claim_and_announce(conn: Connection, worker_id: WorkerId, limit: int) -> list[Row]:
    """Claim tasks and tell their owners that they have started."""
    return await fetch(conn, "claim_and_announce_tasks", {"worker_id": worker_id, "limit": limit})


async def tell_starts(conn: Connection, worker_id: WorkerId, task_ids: Collection[TaskId]) -> bool:
    """Tell the owners of the tasks that the worker still holds; False if it holds none of them."""
    values = {"worker_id": worker_id, "task_ids": encode_texts(list(task_ids))}
    return bool(await fetch(conn, "tell_starts", values))


async def report(conn: Connection, worker_id: WorkerId, reports: Sequence[MailRow], *, notifies: bool = False) -> None:
    """`notifies` wakes the owners."""
    await fetch(conn, *_report(worker_id, reports, notifies=notifies))


async def report_and_claim(
    conn: HotConnection, worker_id: WorkerId, reports: Sequence[MailRow], limit: int, *, notifies: bool = False
) -> list[Row]:
    """Report and claim in one transaction."""
    [_, claimed] = await fetch_atomically(
        conn, [_report(worker_id, reports, notifies=notifies), _claim(worker_id, limit)]
    )
    return claimed


def _claim(worker_id: WorkerId, limit: int) -> tuple[str, dict[str, Any]]:
    return "claim_tasks", {"worker_id": worker_id, "limit": limit}


def _report(worker_id: WorkerId, reports: Sequence[MailRow], *, notifies: bool) -> tuple[str, dict[str, Any]]:
    if notifies and len(reports) == 1:
        return "report_task", {**mail_values(reports[0]), "worker_id": worker_id}
    return "report_tasks", {
        "worker_id": worker_id,
        "task_ids": encode_texts([task_id for row in reports if (task_id := row["task_id"])]),
        "reports": encode_rows(reports),
        "notifies": notifies,
    }


async def close_stale(conn: Connection) -> None:
    await run(conn, "close_stale_tasks")


async def orders(conn: Connection, worker_id: WorkerId, task_ids: Sequence[TaskId]) -> tuple[Any, list[TaskId]]:
    """The desired state of the worker, and the tasks among these that it no longer holds."""
    rows = await fetch(conn, "worker_orders", {"worker_id": worker_id, "task_ids": list(task_ids)})
    return (rows[0]["wanted"], rows[0]["withdrawn"]) if rows else ("run", list(task_ids))


async def held(conn: Connection, worker_id: WorkerId, known: Collection[TaskId]) -> list[Row]:
    return await fetch(conn, "held_tasks", {"worker_id": worker_id, "known": list(known)})


async def sealed_texts(conn: Connection, worker_id: WorkerId, task_id: TaskId) -> list[bytes]:
    """The texts that may refer to a task's secrets: its parameters and the checkpoints of earlier attempts."""
    rows = await fetch(conn, "sealed_texts", {"worker_id": worker_id, "task_id": task_id})
    return [row["content"].encode() for row in rows if row["content"]]


async def warn_of_stuck_tasks(conn: Connection, *, after_seconds: float) -> list[str]:
    """Warn once about each stuck task; returns the new ones."""
    # Lock in a separate statement first: in the same statement, the snapshot would be older than the lock.
    async with conn.transaction():
        [turn] = await fetch(conn, "watch_turn")
        if not turn["is_mine"]:
            return []
        values = {"stuck_after_seconds": after_seconds, "limit": WARN_AT_ONCE}
        rows = await fetch(conn, "warn_of_stuck_tasks", values)
    return [row["task_id"] for row in rows]
