"""The HTTP application."""

from collections.abc import Iterable, Sequence
from functools import cache
from importlib.metadata import version
from typing import Any, Final

from fastapi import APIRouter, FastAPI
from fastapi.middleware.cors import CORSMiddleware
from fastapi.routing import APIRoute
from starlette.middleware.gzip import GZipMiddleware
from starlette.routing import BaseRoute
from starlette.types import ASGIApp, Receive, Scope, Send

from dagmaster.http.access import check_decisions, find_decision
from dagmaster.http.admission import Admission, BodyLimit
from dagmaster.http.errors import documented
from dagmaster.http.request_log import RequestLog
from dagmaster.model.access import Role
from dagmaster.web.access import Allow, Keyring, admit
from dagmaster.web.api import (
    aliases,
    asset_review,
    assets,
    bootstrap,
    callbacks,
    commands,
    data,
    fleet,
    health,
    jobs,
    layers,
    logs,
    metrics,
    nodes,
    orchestrators,
    platforms,
    requests,
    schedules,
    stac,
    streams,
    submission,
    system,
    tiles,
    timeline,
    workers,
    workflows,
)
from dagmaster.web.services import Services
from dagmaster.web.streams import Streams
from dagmaster.web.ui import app as pages
from dagmaster.web.ui.failures import ERRORS

ROUTERS = (
    health.router,
    jobs.router,
    nodes.router,
    logs.router,
    timeline.router,
    streams.router,
    workflows.router,
    schedules.router,
    fleet.router,
    workers.router,
    orchestrators.router,
    platforms.router,
    layers.router,
    metrics.router,
    callbacks.router,
    submission.router,
    assets.router,
    asset_review.router,
    tiles.locations,
    tiles.router,
    stac.router,
    requests.router,
    commands.router,
    data.router,
    bootstrap.router,
    system.router,
    aliases.router,
)

DESCRIPTION = """
Durable workflows on PostgreSQL: submit, watch, control and measure jobs.

Ids are decimal strings, times are RFC 3339 in UTC, lists are paged with `limit` and `offset`, and every error has the
form `{"error": {"code", "message", "details"}}`. Send an API key as `Authorization: Bearer dm_...`.
"""
SECURITY_SCHEMES: Final = {
    "bearer": {
        "type": "http",
        "scheme": "bearer",
        "description": "An API key, `dm_...`, or for reports a task's token.",
    },
    "key": {"type": "apiKey", "in": "header", "name": "X-API-Key", "description": "The same API key."},
}
_ERROR: Final = {"application/json": {"schema": {"$ref": "#/components/schemas/ErrorReply"}}}
# Responses to any body, before a route sees it.
RESPONSES_TO_BODIES: Final = {
    "400": {"description": "The body cannot be read.", "content": _ERROR},
    "413": {"description": "The body is too large.", "content": _ERROR},
}


def forget_keys(app: FastAPI) -> None:
    """Clear the cache of keys: one of them may be revoked."""
    app.state.keyring = Keyring(app.state.services.pool)


def create_app(services: Services) -> FastAPI:
    app = FastAPI(
        title="dagmaster",
        version=version("dagmaster"),
        description=DESCRIPTION,
        docs_url=None,  # Its page loads scripts from another host.
        redoc_url=None,
        openapi_url="/openapi.json",
    )
    prepare(app, services)
    app.state.streams = Streams(services.pool, lambda: app.state.is_stopping)
    app.router.routes.extend(_routes())
    _describe_access(app)
    pages.install(app, services)
    app.add_middleware(Compressed)
    protect(app, services)
    return app


def create_tiles_app(services: Services) -> FastAPI:
    """Only tiles, with the same routes and keys as in the whole application."""
    app = FastAPI(
        title="dagmaster tiles",
        version=version("dagmaster"),
        description="Tiles of approved and cleared versions, and of previews for reviewers.",
        docs_url=None,
        redoc_url=None,
    )
    prepare(app, services)
    for router in (health.router, tiles.locations, tiles.load_tile_routes(), tiles.router):
        app.include_router(router)
    protect(app, services)
    return app


def prepare(app: FastAPI, services: Services) -> None:
    """Set the state that routes and error responses need."""
    app.state.services = services
    app.state.keyring = Keyring(services.pool)
    app.state.is_stopping = False
    ERRORS.install(app)


def protect(app: FastAPI, services: Services) -> None:
    """Add the middleware of an application."""
    app.add_middleware(Admission, admit=admit, errors=ERRORS)
    app.add_middleware(BodyLimit, max_bytes=services.settings.max_body_bytes)
    if services.settings.cors_origins:
        _allow_origins(app, services.settings.cors_origins)
    app.add_middleware(RequestLog)


@cache
def _routes() -> Sequence[BaseRoute]:
    """Cached for the process: FastAPI takes half a second to prepare them."""
    check_decisions(ROUTERS, Allow)
    api = APIRouter(generate_unique_id_function=_operation_id, responses=documented(401, 403, 422, 503))
    for router in ROUTERS:
        api.include_router(router)
    return api.routes


def _operation_id(route: APIRoute) -> str:
    """Short names for generated clients: `get_job`, not the path again."""
    return route.name


def _allow_origins(app: FastAPI, origins: list[str]) -> None:
    options: dict[str, Any] = {"allow_methods": ["*"], "allow_headers": ["authorization", "content-type"]}
    app.add_middleware(CORSMiddleware, allow_origins=origins, allow_credentials="*" not in origins, **options)


def _describe_access(app: FastAPI) -> None:
    """Add the roles and the errors of any request to the OpenAPI document, so that generated clients send the key."""
    make, roles = app.openapi, _roles(ROUTERS)

    def document() -> dict[str, Any]:
        schema = make()
        schema.setdefault("components", {})["securitySchemes"] = SECURITY_SCHEMES
        for path, operations in schema["paths"].items():
            for method, operation in operations.items():
                allowed = roles[method.upper(), path]
                operation["security"] = [{name: []} for name in SECURITY_SCHEMES] if allowed is not None else []
                operation["x-roles"] = allowed if allowed is not None else ["everybody"]
                if "requestBody" in operation:
                    operation["responses"] = {**RESPONSES_TO_BODIES, **operation["responses"]}
        return schema

    app.openapi = document  # type: ignore[method-assign]


def _roles(routers: Iterable[APIRouter]) -> dict[tuple[str, str], list[str] | None]:
    roles: dict[tuple[str, str], list[str] | None] = {}
    for route in (route for router in routers for route in router.routes):
        allow = find_decision(route, Allow)
        if isinstance(route, APIRoute) and allow is not None:
            allowed = None if allow.roles is None else [role.value for role in Role if role in allow.roles]
            roles.update({(method, route.path): allowed for method in route.methods or ()})
    return roles


class Compressed:
    """Compresses static files and the graphs of jobs, which may be megabytes. Compression would buffer streams."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._compressing = GZipMiddleware(app, minimum_size=1024, compresslevel=5)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        app = self._compressing if scope["type"] == "http" and _is_large(scope["path"]) else self._app
        await app(scope, receive, send)


def _is_large(path: str) -> bool:
    is_graph = path.startswith(("/api/v1/jobs/", "/ui/jobs/")) and path.endswith("/graph")
    return is_graph or path.startswith("/ui/static/")
