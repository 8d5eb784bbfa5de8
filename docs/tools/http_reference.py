"""Write the operations of the API and of the gateway into their references, with the roles that may use them."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from fastapi import APIRouter
from fastapi.routing import APIRoute, APIWebSocketRoute

from dagmaster.gateway import access as gateway_access
from dagmaster.gateway import app as gateway_app
from dagmaster.http.access import find_decision
from dagmaster.model.access import Role
from dagmaster.web import access, app

REFERENCE = Path(__file__).parents[1] / "reference"
# The routers of each page, and the type of the dependency that says whom a route allows.
PAGES: dict[Path, tuple[Sequence[APIRouter], type[Any]]] = {
    REFERENCE / "http-api.md": (app.ROUTERS, access.Allow),
    REFERENCE / "gateway.md": (gateway_app.ROUTERS, gateway_access.Allow),
}
BEGIN, END = "<!-- begin of what docs/tools/http_reference.py writes -->", "<!-- end -->"
ROLES = (Role.ADMIN, Role.OPERATOR, Role.VIEWER, Role.REVIEWER, Role.PARTNER, Role.WORKER)


def renew(path: Path) -> str:
    """The text of the page with its generated part replaced."""
    before, _, following = path.read_text(encoding="utf-8").partition(BEGIN)
    return before + "\n".join([BEGIN, "", *_lines(*PAGES[path]), END]) + following.partition(END)[2]


def _lines(routers: Sequence[APIRouter], kind: type[Any]) -> Iterator[str]:
    groups: dict[str, list[Any]] = {}
    for router in routers:
        for route in router.routes:
            if not getattr(route, "include_in_schema", True):
                continue  # Another name of an operation that is listed.
            groups.setdefault(str((*getattr(route, "tags", ()), *router.tags)[0]), []).append(route)
    for name, routes in groups.items():
        yield from [f"### {name.capitalize()}", "", "| Operation | Roles | What it does |", "|---|---|---|"]
        yield from (row for route in routes for row in _rows(route, kind))
        yield ""


def _rows(route: Any, kind: type[Any]) -> Iterator[str]:
    match route:
        case APIRoute():
            methods, description = sorted(route.methods), route.description
        case APIWebSocketRoute():
            methods, description = ["WebSocket"], route.endpoint.__doc__ or ""
        case _:
            raise AssertionError(f"nobody knows how to describe {route!r}")
    text = " ".join(description.split()).replace("|", r"\|")
    yield from (f"| `{method} {route.path}` | {_roles(route, kind)} | {text} |" for method in methods)


def _roles(route: Any, kind: type[Any]) -> str:
    allowed = find_decision(route, kind)
    assert allowed is not None, f"nobody decided who may use {route.path}"
    if allowed.roles is None:
        return "everybody"
    return ", ".join(role for role in ROLES if role in allowed.roles)


if __name__ == "__main__":
    for path in PAGES:
        path.write_text(renew(path), encoding="utf-8")
