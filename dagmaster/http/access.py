"""The key of a request, and the access rules of routes."""

from collections.abc import Iterable
from typing import Any, TypeVar

from fastapi import APIRouter
from fastapi.requests import HTTPConnection
from fastapi.routing import APIRoute, APIWebSocketRoute

Decision = TypeVar("Decision")


def presented_key(request: HTTPConnection) -> str:
    """The API key of `Authorization: Bearer` or `X-API-Key`; empty if there is none."""
    scheme, _, value = request.headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer":
        return value.strip()
    return request.headers.get("x-api-key", "").strip()


def find_decision(route: Any, kind: type[Decision]) -> Decision | None:
    """The access rule of a route; None if it declares none."""
    for dependency in getattr(route, "dependencies", ()):
        if isinstance(dependency.dependency, kind):
            return dependency.dependency
    return None


def check_decisions(routers: Iterable[APIRouter], kind: type[Any]) -> None:
    """Checks the routers, because the routes of an application differ between versions of FastAPI."""
    for route in (route for router in routers for route in router.routes):
        assert isinstance(route, APIRoute | APIWebSocketRoute), f"{route} cannot declare its roles"
        assert find_decision(route, kind) is not None, f"{route.path} declares no roles; see {kind.__module__}"
