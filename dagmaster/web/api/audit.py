"""The audit log."""

from fastapi import APIRouter

from dagmaster.model.timeline import event_types as types_of
from dagmaster.schemas.common import Page
from dagmaster.schemas.timeline import AuditEntry
from dagmaster.store import events as event_store
from dagmaster.web.access import ADMINS
from dagmaster.web.api.timeline import Types
from dagmaster.web.entries import audit_entry
from dagmaster.web.paging import Limit, Offset, to_page
from dagmaster.web.services import Conn

router = APIRouter(prefix="/api/v1/audit", tags=["system"])


@router.get("", dependencies=[ADMINS])
async def list_audit(conn: Conn, event_types: Types = None, limit: Limit = 50, offset: Offset = 0) -> Page[AuditEntry]:
    """List the audit log, newest first: commands, keys, repairs and orchestrator events."""
    rows = await event_store.list_audit(conn, types_of(event_types), limit=limit + 1, offset=offset)
    return to_page([audit_entry(row) for row in rows], limit, offset)
