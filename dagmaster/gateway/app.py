"""The gateway's HTTP application."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import cache
from importlib.metadata import version

from fastapi import APIRouter, FastAPI
from starlette.routing import BaseRoute

from dagmaster.gateway.access import Allow, Keyring, admit
from dagmaster.gateway.api import admin, assets, layers, platform, probes, proxy, status, submission
from dagmaster.gateway.health import Readiness, ReadyGate
from dagmaster.gateway.services import opened_services
from dagmaster.http.access import check_decisions
from dagmaster.http.admission import Admission, BodyLimit
from dagmaster.http.errors import ErrorResponses, documented
from dagmaster.http.request_log import RequestLog
from dagmaster.settings import Settings

ROUTERS = (
    probes.router,
    platform.router,
    assets.router,
    submission.router,
    status.router,
    admin.router,
    layers.router,
    proxy.router,
)


def create_app(settings: Settings) -> FastAPI:
    """The lifespan opens the database and the connections to the API."""

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        async with opened_services(settings) as services:
            app.state.services = services
            app.state.readiness = Readiness(services)
            app.state.keyring = Keyring(services)
            yield

    # Partners must not see the operators' operations.
    app = FastAPI(title="dagmaster gateway", version=version("dagmaster"), openapi_url=None, lifespan=lifespan)
    app.state.is_stopping = False
    errors = ErrorResponses()
    errors.install(app)
    app.router.routes.extend(_routes())
    app.add_middleware(Admission, admit=admit, errors=errors)
    app.add_middleware(ReadyGate)
    app.add_middleware(BodyLimit, max_bytes=settings.max_body_bytes)
    app.add_middleware(RequestLog)
    return app


@cache
def _routes() -> Sequence[BaseRoute]:
    """The same for all applications of a process."""
    check_decisions(ROUTERS, Allow)
    api = APIRouter(responses=documented(401, 403, 422, 429, 503))
    for router in ROUTERS:
        api.include_router(router)
    return api.routes
