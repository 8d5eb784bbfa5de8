"""API keys."""

from dataclasses import asdict

from fastapi import APIRouter

from dagmaster.schemas.system import KeyCreate, KeyCreated, KeyList, KeyReply
from dagmaster.store import keys as key_store
from dagmaster.web.access import ADMINS, Admitted
from dagmaster.web.errors import documented
from dagmaster.web.services import Conn

router = APIRouter(prefix="/api/v1/keys", tags=["system"])


@router.get("", dependencies=[ADMINS])
async def list_keys(conn: Conn) -> KeyList:
    """List all keys, including revoked ones, without their secrets."""
    return KeyList(keys=[_reply(key) for key in await key_store.list_keys(conn)])


@router.post("", status_code=201, responses=documented(404, 409), dependencies=[ADMINS])
async def create_key(body: KeyCreate, caller: Admitted, conn: Conn) -> KeyCreated:
    """Create a key. Only this response contains it. The first key must have the role admin."""
    await key_store.check_first_key(conn, body.role)
    key = await key_store.new_key(
        conn,
        name=body.name,
        role=body.role,
        platform_id=body.platform_id,
        created_by=caller.name,
        expires_at=body.expires_at,
        source_app="api",
    )
    return KeyCreated(key_id=key.key_id, name=body.name, role=body.role, platform_id=body.platform_id, key=key.text)


@router.delete("/{key_id}", responses=documented(404), dependencies=[ADMINS])
async def revoke_key(key_id: str, caller: Admitted, conn: Conn) -> KeyReply:
    """Revoke a key. All servers reject it within seconds."""
    return _reply(await key_store.revoke_key(conn, key_id, actor=caller.name, source_app="api"))


def _reply(key: key_store.Key) -> KeyReply:
    return KeyReply(**{**asdict(key), "created_by": key.created_by or None})
