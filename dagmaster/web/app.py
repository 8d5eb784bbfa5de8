"""The HTTP application."""

from collections.abc import Sequence
from functools import cache
from importlib.metadata import version
from typing import Any

from fastapi import APIRouter, FastAPI
from fastapi.middleware.cors import CORSMiddleware
from fastapi.routing import APIRoute
from starlette.routing import BaseRoute

from dagmaster.http.access import check_decisions
from dagmaster.http.admission import Admission
from dagmaster.http.limits import BodyLimit
from dagmaster.http.request_log import Requests
from dagmaster.web.access import Allow, Keyring, admit
from dagmaster.web.api import (
    aliases,
    asset_review,
    asset_service,
    assets,
    audit,
    bootstrap,
    callbacks,
    commands,
    data,
    doctor,
    dynamic_nodes,
    explain,
    graph,
    handler_test,
    handlers,
    health,
    jobs,
    keys,
    layers,
    logs,
    metrics,
    nodes,
    orchestrator,
    platforms,
    progress,
    queues,
    requests,
    schedules,
    signals,
    stac,
    streams,
    submission,
    task_cache,
    tiles,
    timeline,
    workers,
    workflows,
)
from dagmaster.web.compression import Compressed
from dagmaster.web.document import describe_access
from dagmaster.web.errors import ERRORS, documented
from dagmaster.web.services import Services
from dagmaster.web.streams import Streams
from dagmaster.web.ui import app as pages

ROUTERS = (
    health.router,
    jobs.router,
    dynamic_nodes.router,
    signals.router,
    nodes.router,
    logs.router,
    timeline.router,
    graph.router,
    progress.router,
    explain.router,
    streams.router,
    workflows.router,
    schedules.router,
    queues.router,
    handlers.router,
    workers.router,
    orchestrator.router,
    platforms.router,
    layers.router,
    metrics.router,
    callbacks.router,
    submission.router,
    assets.router,
    asset_review.router,
    asset_service.router,
    tiles.router,
    stac.router,
    requests.router,
    commands.router,
    data.router,
    task_cache.router,
    bootstrap.router,
    doctor.router,
    audit.router,
    keys.router,
    handler_test.router,
    aliases.router,
)

DESCRIPTION = """
Durable workflows on PostgreSQL: submit, watch, control and measure jobs.

Ids are decimal strings, times are RFC 3339 in UTC, lists are paged with `limit` and `offset`, and every error has the
form `{"error": {"code", "message", "details"}}`. Send an API key as `Authorization: Bearer dm_...`.
"""


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
    describe_access(app, ROUTERS)
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
    for router in (health.router, asset_service.router, tiles.load_tile_routes(), tiles.router):
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
    app.add_middleware(Requests)


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
