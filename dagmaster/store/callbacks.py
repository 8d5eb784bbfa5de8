"""Callbacks due because a job has ended: claimed, delivered, or given up."""

from dataclasses import dataclass

from dagmaster.ids import JobId
from dagmaster.model.states import JobStatus
from dagmaster.store.connect import Connection, storable
from dagmaster.store.statements import fetch, fetch_one, run


@dataclass(frozen=True, slots=True)
class Callback:
    """`attempts` counts this one too; who claims it later has a higher one, and the earlier claim is void.

    `request_id` is that of the request that the job answers, if it answers one.
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
    """Delivered, or with an error given up. False when it is no longer this claim's."""
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
