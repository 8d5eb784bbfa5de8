"""The requests of partners and of the gateway, under ids that the sender chose."""

from dataclasses import asdict, dataclass
from datetime import datetime
from typing import TypedDict

from dagmaster.errors import IdempotencyConflict, UnknownRequest
from dagmaster.ids import JobId
from dagmaster.store.connect import Connection, required
from dagmaster.store.statements import fetch, fetch_as, fetch_one_as, run


class RequestRow(TypedDict):
    request_id: str
    platform_id: str | None
    workflow_id: str
    asset_id: str | None
    version_ordinal: int | None
    job_id: JobId | None
    status: str
    error_message: str | None
    submitted_by: str
    idempotency_key: str | None
    request_hash: str
    created_at: datetime
    completed_at: datetime | None


@dataclass(frozen=True, slots=True)
class NewRequest:
    request_id: str
    workflow_id: str
    request_hash: str
    submitted_by: str = ""
    platform_id: str | None = None
    asset_id: str | None = None
    idempotency_key: str | None = None


async def get_request(conn: Connection, request_id: str) -> RequestRow:
    return required(await _find(conn, request_id), UnknownRequest(f"there is no request {request_id!r}"))


async def list_requests(
    conn: Connection,
    *,
    platform_id: str | None = None,
    status: str | None = None,
    asset_id: str | None = None,
    text: str | None = None,
    limit: int,
    offset: int = 0,
) -> list[RequestRow]:
    """The newest first. `text` is a request id, an idempotency key or a job's correlation id."""
    where = {"platform_id": platform_id, "status": status, "asset_id": asset_id, "text": text}
    return await fetch_as(conn, RequestRow, "list_requests", {**where, "limit": limit, "offset": offset})


async def add_request(conn: Connection, request: NewRequest) -> RequestRow | None:
    """None if it is new; otherwise the earlier request with the same id or key.

    Raises IdempotencyConflict if the earlier request has other content.
    """
    if await fetch(conn, "add_request", asdict(request)):
        return None
    removed = UnknownRequest("the request that used this id or key before was removed; submit again")
    first = required(await _find(conn, request.request_id, request.submitted_by, request.idempotency_key), removed)
    content = (request.request_hash, request.submitted_by, request.platform_id)
    if (first["request_hash"], first["submitted_by"], first["platform_id"]) != content:
        name = "request id" if first["request_id"] == request.request_id else "idempotency key"
        raise IdempotencyConflict(
            f"the {name} was used before with other content, by request {first['request_id']!r}; use a new one"
        )
    return first


async def answer_request(conn: Connection, request_id: str, *, job_id: JobId, ordinal: int | None) -> None:
    """Record the job and the version that the request created."""
    await run(conn, "answer_request", {"request_id": request_id, "job_id": job_id, "version_ordinal": ordinal})


async def _find(
    conn: Connection, request_id: str, submitted_by: str | None = None, idempotency_key: str | None = None
) -> RequestRow | None:
    values = {"request_id": request_id, "submitted_by": submitted_by, "idempotency_key": idempotency_key}
    return await fetch_one_as(conn, RequestRow, "find_request", values)
