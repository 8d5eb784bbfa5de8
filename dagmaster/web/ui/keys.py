"""API keys: list, create and revoke."""

from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any, Final

from fastapi import APIRouter
from fastapi.responses import HTMLResponse

from dagmaster.model.access import PLATFORM_ROLES, Role
from dagmaster.store.keys import Key, list_keys
from dagmaster.store.platforms import list_platforms
from dagmaster.web.access import ADMINS
from dagmaster.web.services import Conn
from dagmaster.web.ui.pages import Shown

router = APIRouter(prefix="/ui", include_in_schema=False)

ROLES: Final = {
    Role.ADMIN: "full access, including keys",
    Role.OPERATOR: "submit jobs; control jobs, workers and schedules",
    Role.VIEWER: "read-only access",
    Role.REVIEWER: "read-only access; approve and clear assets",
    Role.PARTNER: "submit jobs and see only their own",
    Role.WORKER: "run tasks; no access to pages",
}
EXPIRIES: Final = ((0, "never"), (7, "in a week"), (30, "in 30 days"), (90, "in 90 days"), (365, "in a year"))


@router.get("/keys", dependencies=[ADMINS])
async def show_keys(page: Shown, conn: Conn) -> HTMLResponse:
    lines = [key_line(key, page.caller.key_id) for key in await list_keys(conn)]
    lines.sort(key=lambda line: (line["state"] != "active", -line["created_at"].timestamp()))
    values = {
        "keys": lines,
        "roles": ROLES,
        "platforms": await list_platforms(conn),
        "platform_roles": " ".join(sorted(PLATFORM_ROLES)),
        "expiries": EXPIRIES,
    }
    return page.render("keys.html", values)


def key_line(key: Key, own: str | None) -> dict[str, Any]:
    state, badge = _state(key)
    return {**asdict(key), "state": state, "badge": badge, "is_own": key.key_id == own}


def _state(key: Key) -> tuple[str, str]:
    if key.revoked_at is not None:
        return "revoked", "cancelled"
    if key.expires_at is not None and key.expires_at <= datetime.now(UTC):
        return "expired", "warning"
    return "active", "active"
