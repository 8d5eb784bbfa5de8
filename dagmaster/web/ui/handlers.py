"""Handlers: their contracts, the workers that have them and the workflows that use them."""

from collections.abc import Mapping
from typing import Annotated, Any, Final

from fastapi import APIRouter, Query
from fastapi.responses import HTMLResponse

from dagmaster.authoring.preparation import tasks_of
from dagmaster.model.workflow import Workflow
from dagmaster.store.handlers import view_handlers
from dagmaster.web.access import READERS
from dagmaster.web.services import Conn
from dagmaster.web.ui.pages import Shown, paged

router = APIRouter(prefix="/ui", include_in_schema=False)

PAGE_SIZE: Final = 100
MAX_PARAMETERS: Final = 50


@router.get("/handlers", dependencies=[READERS])
async def show_handlers(
    page: Shown,
    conn: Conn,
    offset: Annotated[int, Query(ge=0, le=1_000_000)] = 0,
) -> HTMLResponse:
    seconds = page.services.settings.worker_lost_after_seconds
    rows = await view_handlers(conn, lost_after_seconds=seconds, limit=PAGE_SIZE + 1, offset=offset)
    await page.services.learn(conn)
    used = page.services.workflows_by(_handlers_of)
    unregistered = [] if offset else sorted(used.keys() - page.services.contracts.keys())
    return page.render(
        "handlers.html",
        {
            "handlers": [_line(row, used) for row in rows[:PAGE_SIZE]],
            "unregistered": [(name, used[name]) for name in unregistered],
            **paged(rows, PAGE_SIZE, offset),
        },
    )


def _handlers_of(workflow: Workflow) -> set[str]:
    return {handler for _, handler in tasks_of(workflow)}


def _line(row: Mapping[str, Any], used: Mapping[str, list[str]]) -> dict[str, Any]:
    name = row["name"]
    return {
        **row,
        "retries": row["retry"]["max_attempts"] if row["retry"] else None,
        "parameters": _parameters(row["params"]),
        "summary": row["documentation"].strip().split("\n\n")[0],
        "workflows": sorted({*used.get(name, ()), *used.get(name.replace(":", "."), ())}),
    }


def _parameters(schema: Any) -> list[tuple[str, str, bool]] | None:
    """Name, type, and whether it is required; None without a schema. A worker may register any schema."""
    properties = schema.get("properties") if isinstance(schema, dict) else None
    if not isinstance(properties, dict):
        return None
    required = schema.get("required")
    needed = set(map(str, required)) if isinstance(required, list) else set()
    return [
        (str(name), _type(member) if isinstance(member, dict) else "", name in needed)
        for name, member in list(properties.items())[:MAX_PARAMETERS]
    ]


def _type(schema: Mapping[str, Any]) -> str:
    if isinstance(schema.get("enum"), list):
        return " | ".join(map(repr, schema["enum"][:5]))
    if isinstance(options := schema.get("anyOf"), list):
        return " | ".join(dict.fromkeys(_type(option) for option in options if isinstance(option, dict)))
    if isinstance(reference := schema.get("$ref"), str):
        return reference.rpartition("/")[2]
    return str(schema.get("type", "any"))
