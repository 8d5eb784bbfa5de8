"""Workers: who is there, and what they take."""

from typing import Literal

from fastapi import APIRouter

from dagmaster.schemas.common import Page
from dagmaster.schemas.fleet import WorkerReply
from dagmaster.store.viewing import view_workers
from dagmaster.web.access import READERS
from dagmaster.web.paging import Limit, Offset, cut
from dagmaster.web.services import Conn

router = APIRouter(prefix="/api/v1/workers", tags=["fleet"])


@router.get("", dependencies=[READERS])
async def list_workers(
    conn: Conn,
    status: Literal["active", "stopped", "lost"] | None = None,
    limit: Limit = 50,
    offset: Offset = 0,
) -> Page[WorkerReply]:
    """Those at work first, then the newest."""
    rows = await view_workers(conn, status=status, limit=limit + 1, offset=offset)
    return cut([WorkerReply(**row) for row in rows], limit, offset)
