"""Tasks and workers of the Python jobs API, by the snowflake ids that it assigns before they are stored."""

from dagmaster.errors import UnknownTask, WorkerGone
from dagmaster.ids import JobId, WorkerId
from dagmaster.store.connect import Connection, Row, required
from dagmaster.store.statements import fetch, fetch_one

# The submitter of jobs of the Python API. Their idempotency key is the id of their entry task.
SUBMITTED_BY = "dagmaster.python"
ENTRY = "entry"


async def get_task_state(conn: Connection, task_id: int, job_id: JobId | None = None) -> Row:
    """Raises UnknownTask. The lookup is much faster if the job is known."""
    values = {"task_id": str(task_id), "job_id": job_id, "entry": ENTRY, "submitted_by": SUBMITTED_BY}
    place = f" in job {job_id}" if job_id is not None else ""
    return required(await fetch_one(conn, "find_task_state", values), UnknownTask(f"there is no task {task_id}{place}"))


async def touch_worker(conn: Connection, worker_id: WorkerId) -> None:
    await _alive(conn, "touch_worker", worker_id)


async def retire_worker(conn: Connection, worker_id: WorkerId) -> None:
    await _alive(conn, "retire_worker", worker_id)


async def _alive(conn: Connection, statement: str, worker_id: WorkerId) -> None:
    if not await fetch(conn, statement, {"worker_id": worker_id}):
        raise WorkerGone(f"worker {worker_id[:40]!r} is not registered, has left, or was declared lost; register again")
