"""The cache of task results."""

from typing import Annotated

from fastapi import APIRouter, Query

from dagmaster.schemas.task_cache import CacheCleared
from dagmaster.store.task_cache import clear_results
from dagmaster.web.access import OPERATORS, Admitted
from dagmaster.web.services import Conn

router = APIRouter(prefix="/api/v1/cache", tags=["system"])


@router.delete("", dependencies=[OPERATORS])
async def clear_cache(
    caller: Admitted, conn: Conn, handler: Annotated[str | None, Query(min_length=1, max_length=128)] = None
) -> CacheCleared:
    """Remove cached results of one handler or of all, so that the next tasks run again."""
    removed = await clear_results(conn, handler, actor=caller.name or None, source_app="api")
    return CacheCleared(handler=handler, removed=removed)
