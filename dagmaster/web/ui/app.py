"""The pages as a part of the application."""

from collections.abc import Sequence
from functools import cache

from fastapi import APIRouter, FastAPI
from fastapi.responses import RedirectResponse
from starlette.routing import BaseRoute

from dagmaster.http.access import check_decisions
from dagmaster.web.access import EVERYBODY, Allow
from dagmaster.web.services import Services
from dagmaster.web.ui import (
    approvals,
    asset,
    asset_map,
    assets,
    change_feed,
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
    queues,
    requests,
    review,
    schedules,
    sql,
    submit,
    tables,
    tasks,
    timeline,
    waits,
    workers,
    workflow,
    workflows,
)
from dagmaster.web.ui.change_feed import ChangeFeed
from dagmaster.web.ui.headers import PageHeaders
from dagmaster.web.ui.static_files import PATH, PageFiles

front = APIRouter(include_in_schema=False)

ROUTERS = (
    front,
    dashboard.router,
    workflows.router,
    workflow.router,
    login.router,
    change_feed.router,
    palette.router,
    jobs.router,
    job.router,
    timeline.router,
    waits.router,
    node.router,
    graphs.router,
    nodes.router,
    tasks.router,
    queues.router,
    handlers.router,
    workers.router,
    schedules.router,
    approvals.router,
    review.router,
    assets.router,
    asset.router,
    asset_map.router,
    requests.router,
    sql.router,
    tables.router,
    health.router,
    keys.router,
    submit.router,
)


@front.get("/ui", dependencies=[EVERYBODY])
async def go_to_dashboard() -> RedirectResponse:
    return RedirectResponse("/ui/", 307)


def install(app: FastAPI, services: Services) -> None:
    app.state.change_feed = ChangeFeed(services.pool)
    app.router.routes.extend(_routes())
    app.add_middleware(PageHeaders)


@cache
def _routes() -> Sequence[BaseRoute]:
    check_decisions([*ROUTERS, failures.router], Allow)
    pages = APIRouter()
    for router in ROUTERS:
        pages.include_router(router)
    pages.mount(PATH, PageFiles(), "static")
    pages.include_router(failures.router)  # After the files: this route matches every other path.
    return pages.routes
