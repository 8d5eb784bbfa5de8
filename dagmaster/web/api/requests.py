"""Look up requests by the ids that their senders chose."""

from typing import Annotated

from fastapi import APIRouter, Query

from dagmaster.errors import UnknownRequest
from dagmaster.http.errors import documented
from dagmaster.model.states import JobStatus
from dagmaster.schemas.assets import RequestReply
from dagmaster.schemas.common import Page
from dagmaster.store.api_requests import get_request
from dagmaster.store.api_requests import list_requests as list_request_rows
from dagmaster.web.access import ASSET_READERS, Admitted
from dagmaster.web.assets import platform_of
from dagmaster.web.paging import Limit, Offset, to_page
from dagmaster.web.services import Conn

router = APIRouter(prefix="/api/v1/requests", tags=["assets"])


@router.get("", dependencies=[ASSET_READERS])
async def list_requests(
    caller: Admitted,
    conn: Conn,
    platform_id: str | None = None,
    status: JobStatus | None = None,
    asset_id: Annotated[str | None, Query(max_length=64)] = None,
    limit: Limit = 50,
    offset: Offset = 0,
) -> Page[RequestReply]:
    """List requests, newest first."""
    own = platform_of(caller)
    if own is not None and platform_id not in (None, own):
        return to_page([], limit, offset)
    rows = await list_request_rows(
        conn, platform_id=own or platform_id, status=status, asset_id=asset_id, limit=limit + 1, offset=offset
    )
    return to_page([RequestReply.model_validate(row) for row in rows], limit, offset)


@router.get("/{request_id}", responses=documented(404), dependencies=[ASSET_READERS])
async def show_request(request_id: str, caller: Admitted, conn: Conn) -> RequestReply:
    """Get a request: what was submitted, its job and its status."""
    row = await get_request(conn, request_id)
    own = platform_of(caller)
    if own is not None and row["platform_id"] != own:
        raise UnknownRequest(f"there is no request {request_id!r}")
    return RequestReply.model_validate(row)
