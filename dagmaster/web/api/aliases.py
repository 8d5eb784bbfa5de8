"""Alternative paths for some operations."""

from typing import Any

from fastapi import APIRouter
from fastapi.routing import APIRoute

from dagmaster.http.errors import documented
from dagmaster.schemas.jobs import JobReply
from dagmaster.web.access import READERS_OF_OWN, SUBMITTERS
from dagmaster.web.api import asset_review, assets, commands, jobs, nodes, submission, tiles, timeline

router = APIRouter(tags=["other names"])

MIRRORED = ("/api/v1/assets", "/api/v1/status", "/api/v1/commands")
SHOWN: Any = {"responses": documented(404), "dependencies": [READERS_OF_OWN]}


def _add(path: str, function: Any, name: str, **options: Any) -> None:
    router.add_api_route(path, function, name=name, **options)


_add("/api/v1/status/job/{job_id}", jobs.get_job, "status_job", response_model=JobReply, **SHOWN)
_add("/api/v1/status/job/{job_id}/nodes", nodes.list_job_nodes, "status_job_nodes", **SHOWN)
_add("/api/v1/status/job/{job_id}/events", timeline.get_timeline, "status_job_events", **SHOWN)
_add("/api/dag/submit", submission.submit, "dag_submit", methods=["POST"], **submission.CREATED)
_add("/api/dag/jobs/{job_id}", jobs.get_job, "dag_job", response_model=JobReply, **SHOWN)
_add("/api/dag/jobs/{job_id}/nodes", nodes.list_job_nodes, "dag_job_nodes", **SHOWN)
_add(
    "/api/dag/jobs/{job_id}/cancel",
    jobs.cancel_job,
    "dag_cancel_job",
    methods=["POST"],
    responses=jobs.STEERED,
    dependencies=[SUBMITTERS],
)


def _add_all(*routers: APIRouter) -> None:
    """The same operations under /api/dag, not repeated in the OpenAPI document."""
    for route in [route for router in routers for route in router.routes]:
        if isinstance(route, APIRoute) and route.path.startswith(MIRRORED):
            _add(
                route.path.replace("/api/v1/", "/api/dag/", 1),
                route.endpoint,
                f"dag_{route.name}",
                methods=sorted(route.methods),
                status_code=route.status_code,
                response_model=route.response_model,
                responses=route.responses,
                dependencies=route.dependencies,
                include_in_schema=False,
            )


_add_all(assets.router, asset_review.router, tiles.locations, commands.router, router)
