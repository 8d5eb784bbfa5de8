"""Alternative paths for some operations."""

from typing import Any

from fastapi import APIRouter, Response

from dagmaster.errors import Invalid
from dagmaster.schemas.jobs import JobCreated, JobReply, SubmitJob
from dagmaster.schemas.system import PlatformSubmit
from dagmaster.web.access import READERS_OF_OWN, SUBMITTERS, Admitted
from dagmaster.web.api import jobs, nodes, timeline
from dagmaster.web.errors import documented
from dagmaster.web.service_context import Context
from dagmaster.web.services import Given

router = APIRouter(tags=["other names"])

CREATED: Any = {
    "status_code": 201,
    "response_model": JobCreated,
    "responses": {200: {"model": JobCreated}, **documented(404, 409, 413)},
    "dependencies": [SUBMITTERS],
}
SHOWN: Any = {"responses": documented(404), "dependencies": [READERS_OF_OWN]}


@router.post("/api/v1/submit", **CREATED)
async def submit(
    body: PlatformSubmit, caller: Admitted, services: Given, context: Context, response: Response
) -> JobCreated:
    """Submit a plain job."""
    if body.platform_id is not None:
        raise Invalid("this version does not support assets; omit platform_id to submit a plain job")
    plain = SubmitJob.model_validate(body.model_dump(exclude={"platform_id"}))
    return await jobs.create_job(plain, caller, services, context, response)


def _add(path: str, function: Any, name: str, **options: Any) -> None:
    router.add_api_route(path, function, name=name, **options)


_add("/api/v1/status/job/{job_id}", jobs.get_job, "status_job", response_model=JobReply, **SHOWN)
_add("/api/v1/status/job/{job_id}/nodes", nodes.list_job_nodes, "status_job_nodes", **SHOWN)
_add("/api/v1/status/job/{job_id}/events", timeline.get_timeline, "status_job_events", **SHOWN)
_add("/api/dag/submit", submit, "dag_submit", methods=["POST"], **CREATED)
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
