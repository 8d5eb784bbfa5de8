"""The pages as a part of the application."""

from collections.abc import Sequence
from functools import cache
from importlib.resources import files

from fastapi import APIRouter, FastAPI
from fastapi.responses import RedirectResponse
from starlette.routing import BaseRoute
from starlette.staticfiles import StaticFiles

from dagmaster.web.access import EVERYBODY, check_decisions
from dagmaster.web.services import Services
from dagmaster.web.ui import (
    approvals,
    dashboard,
    failures,
    graphs,
    handlers,
    health,
    job,
    jobs,
    keys,
    login,
    node,
    nodes,
    palette,
    pulse,
    queues,
    schedules,
    submit,
    tasks,
    timeline,
    why,
    workers,
    workflow,
    workflows,
)
from dagmaster.web.ui.headers import PageHeaders
from dagmaster.web.ui.pulse import Pulse

front = APIRouter(include_in_schema=False)

ROUTERS = (
    front,
    dashboard.router,
    workflows.router,
    workflow.router,
    login.router,
    pulse.router,
    palette.router,
    jobs.router,
    job.router,
    timeline.router,
    why.router,
    node.router,
    graphs.router,
    nodes.router,
    tasks.router,
    queues.router,
    handlers.router,
    workers.router,
    schedules.router,
    approvals.router,
    health.router,
    keys.router,
    submit.router,
)


@front.get("/ui", dependencies=[EVERYBODY])
async def go_to_dashboard() -> RedirectResponse:
    return RedirectResponse("/ui/", 307)


def install(app: FastAPI, services: Services) -> None:
    app.state.pulse = Pulse(services.pool)
    app.router.routes.extend(_routes())
    app.add_middleware(PageHeaders)


@cache
def _routes() -> Sequence[BaseRoute]:
    check_decisions([*ROUTERS, failures.router])
    pages = APIRouter()
    for router in ROUTERS:
        pages.include_router(router)
    pages.mount("/ui/static", StaticFiles(directory=str(files("dagmaster.web") / "static")), "static")
    pages.include_router(failures.router)  # After the files: it takes what nobody else does.
    return pages.routes
