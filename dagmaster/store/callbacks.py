"""Callbacks that are due because a job has ended: claim, deliver, give up."""

from dataclasses import dataclass

from dagmaster.ids import JobId
from dagmaster.model.states import JobStatus
from dagmaster.store.connect import Connection, storable
from dagmaster.store.statements import fetch, fetch_one, run


@dataclass(frozen=True, slots=True)
class Callback:
    """`attempts` includes this one. A later claim has a higher count and voids the earlier claim.

    `request_id` is that of the API request behind the job, if any.
    """

    callback_id: int
    job_id: JobId
    url: str
    job_status: JobStatus
    attempts: int
    request_id: str | None = None


async def claim_callbacks(conn: Connection, *, limit: int, lease_seconds: float) -> list[Callback]:
    rows = await fetch(conn, "claim_callbacks", {"limit": limit, "lease_seconds": lease_seconds})
    return [Callback(**row | {"job_status": JobStatus(row["job_status"])}) for row in rows]


async def close_callback(
    conn: Connection, callback: Callback, *, host: str, error: str | None = None, response_status: int | None = None
) -> bool:
    """Record the delivery, or with an error the failure. False if another claim has superseded this one."""
    values = {
        "callback_id": callback.callback_id,
        "attempts": callback.attempts,
        "status": "failed" if error else "delivered",
        "error": storable(error) if error else None,
        "response_status": response_status,
        "host": storable(host),
    }
    return await fetch_one(conn, "close_callback", values) is not None


async def postpone_callback(
    conn: Connection, callback: Callback, *, delay_seconds: float, error: str, response_status: int | None = None
) -> None:
    values = {
        "callback_id": callback.callback_id,
        "attempts": callback.attempts,
        "delay_seconds": delay_seconds,
        "error": storable(error),
        "response_status": response_status,
    }
    await run(conn, "postpone_callback", values)
