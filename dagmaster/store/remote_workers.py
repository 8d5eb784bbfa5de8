"""Workers without database access: they use HTTP, each with its own API key."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from dagmaster.errors import Forbidden, UnknownWorker, WorkerGone
from dagmaster.ids import TaskId, WorkerId
from dagmaster.snowflakes import new_id
from dagmaster.store.connect import Connection, encode_json, encode_rows, required
from dagmaster.store.instances import Instance, register_worker
from dagmaster.store.mail_codec import MailRow
from dagmaster.store.statements import fetch, fetch_one
from dagmaster.store.workers import WorkerHead, find_worker

HOST_PREFIX = "http-"


async def register_remote(
    conn: Connection,
    *,
    hostname: str,
    pid: int,
    queues: Sequence[str],
    handlers: Collection[str],
    concurrency: int,
    key_id: str | None,
) -> WorkerId:
    """Returns the id. The host key is unique: only the worker itself can tell whether its process lives."""
    worker_id = WorkerId(str(new_id()))
    instance = Instance(worker_id, hostname, pid, HOST_PREFIX + worker_id)
    await register_worker(conn, instance, queues, concurrency, handlers, key_id=key_id)
    return worker_id


async def get_remote(conn: Connection, worker_id: WorkerId, key_id: str | None) -> WorkerHead:
    """Raises UnknownWorker, Forbidden for a worker of another key, WorkerGone for one that has left or was lost."""
    unknown = UnknownWorker(f"there is no worker {worker_id[:40]!r}; register one with POST /api/v1/workers")
    row = required(await find_worker(conn, worker_id), unknown)
    if not row["host_key"].startswith(HOST_PREFIX):
        raise Forbidden(f"worker {worker_id} is connected to the database and cannot be used through this API")
    if row["key_id"] != key_id:
        raise Forbidden(f"worker {worker_id} was registered with another API key; use that key")
    if row["status"] != "active":
        raise gone(worker_id)
    return row


def gone(worker_id: WorkerId) -> WorkerGone:
    return WorkerGone(f"worker {worker_id} has left or was declared lost; register again and continue under the new id")


async def beat_remote(
    conn: Connection, worker_id: WorkerId, *, completed: int | None, failed: int | None, stats: Mapping[str, Any] | None
) -> str:
    """Returns the desired state. Raises WorkerGone."""
    encoded = encode_json(stats) if stats is not None else None
    values = {"worker_id": worker_id, "completed": completed, "failed": failed, "stats": encoded}
    row = required(await fetch_one(conn, "beat_remote_worker", values), gone(worker_id))
    return str(row["wanted"])


async def take_reports(conn: Connection, key_id: str | None, reports: Sequence[MailRow]) -> set[str]:
    """Mail the reports to the owners; returns the tasks that were not reported before."""
    values = {"key_id": key_id, "reports": encode_rows(reports)}
    return {row["task_id"] for row in await fetch(conn, "take_reports", values)}


async def leave_remote(conn: Connection, worker_id: WorkerId) -> int:
    """Returns how many tasks were given back, which costs them no attempt."""
    return len(await fetch(conn, "leave_remote_worker", {"worker_id": worker_id}))


async def own_tasks(conn: Connection, worker_id: WorkerId, task_ids: Sequence[TaskId], *, seconds: float) -> set[str]:
    values = {"worker_id": worker_id, "task_ids": list(task_ids), "seconds": seconds}
    return {row["task_id"] for row in await fetch(conn, "own_tasks", values)}
