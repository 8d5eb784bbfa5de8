"""Platforms."""

from fastapi import APIRouter

from dagmaster.errors import UnknownPlatform
from dagmaster.http.errors import documented
from dagmaster.model.asset import Platform
from dagmaster.schemas.assets import NewPlatform, PlatformChange, PlatformList, PlatformReply
from dagmaster.store import platforms as platform_store
from dagmaster.web.access import ADMINS, ASSET_READERS, Admitted, Caller
from dagmaster.web.services import Conn

router = APIRouter(prefix="/api/v1/platforms", tags=["assets"])


@router.get("", dependencies=[ASSET_READERS])
async def list_platforms(caller: Admitted, conn: Conn) -> PlatformList:
    """List the platforms and the references that identify their assets. A key with a platform sees only that one."""
    rows = await platform_store.list_platforms(conn)
    visible = [PlatformReply(**row) for row in rows if _is_visible(caller, row["platform_id"])]
    return PlatformList(platforms=visible)


@router.post("", status_code=201, responses=documented(409), dependencies=[ADMINS])
async def add_platform(body: NewPlatform, caller: Admitted, conn: Conn) -> PlatformReply:
    """Add a platform."""
    platform = Platform(
        body.platform_id,
        body.display_name,
        tuple(body.required_refs),
        tuple(body.optional_refs),
        body.is_active,
        None if body.allowed_workflows is None else tuple(body.allowed_workflows),
    )
    row = await platform_store.add_platform(conn, platform, actor=caller.name or None, source_app="api")
    return PlatformReply(**row)


@router.get("/{platform_id}", responses=documented(404), dependencies=[ASSET_READERS])
async def get_platform(platform_id: str, caller: Admitted, conn: Conn) -> PlatformReply:
    """Get a platform."""
    if not _is_visible(caller, platform_id):
        raise UnknownPlatform(f"there is no platform {platform_id[:80]!r} for this key")
    return PlatformReply(**await platform_store.get_platform(conn, platform_id))


@router.patch("/{platform_id}", responses=documented(404), dependencies=[ADMINS])
async def change_platform(platform_id: str, body: PlatformChange, caller: Admitted, conn: Conn) -> PlatformReply:
    """Change a platform. While it is not active, nothing can be submitted for it."""
    changes = body.model_dump(exclude_unset=True)
    row = await platform_store.change_platform(conn, platform_id, changes, actor=caller.name or None, source_app="api")
    return PlatformReply(**row)


def _is_visible(caller: Caller, platform_id: str) -> bool:
    return caller.platform_id in (None, platform_id)
