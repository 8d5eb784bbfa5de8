"""Write the operations of the real HTTP API into docs/reference/http-api.md, with the roles that may use them."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from fastapi.routing import APIRoute, APIWebSocketRoute

from dagmaster.model.access import Role
from dagmaster.web.access import decision
from dagmaster.web.app import ROUTERS

PAGE = Path(__file__).parents[1] / "reference" / "http-api.md"
BEGIN, END = "<!-- begin of what docs/tools/http_reference.py writes -->", "<!-- end -->"
ROLES = (Role.ADMIN, Role.OPERATOR, Role.VIEWER, Role.REVIEWER, Role.PARTNER, Role.WORKER)


def render() -> str:
    return "\n".join([BEGIN, "", *_lines(), END])


def renew(page: str) -> str:
    """The page with its generated part replaced."""
    before, _, rest = page.partition(BEGIN)
    return before + render() + rest.partition(END)[2]


def _lines() -> Iterator[str]:
    groups: dict[str, list[Any]] = {}
    for router in ROUTERS:
        for route in router.routes:
            if not getattr(route, "include_in_schema", True):
                continue  # Another name of an operation that is listed.
            groups.setdefault(str((*getattr(route, "tags", ()), *router.tags)[0]), []).append(route)
    for name, routes in groups.items():
        yield from [f"### {name.capitalize()}", "", "| Operation | Roles | What it does |", "|---|---|---|"]
        yield from (row for route in routes for row in _rows(route))
        yield ""


def _rows(route: Any) -> Iterator[str]:
    match route:
        case APIRoute():
            methods, said = sorted(route.methods), route.description
        case APIWebSocketRoute():
            methods, said = ["WebSocket"], route.endpoint.__doc__ or ""
        case _:
            raise AssertionError(f"nobody knows how to describe {route!r}")
    for method in methods:
        yield f"| `{method} {route.path}` | {_roles(route)} | {' '.join(said.split()).replace('|', chr(92) + '|')} |"


def _roles(route: Any) -> str:
    allowed = decision(route)
    assert allowed is not None, f"nobody decided who may use {route.path}"
    if allowed.roles is None:
        return "everybody"
    return ", ".join(role for role in ROLES if role in allowed.roles)


if __name__ == "__main__":
    PAGE.write_text(renew(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
