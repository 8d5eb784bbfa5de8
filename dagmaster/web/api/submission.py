"""Submit a version of an asset, or a plain job, by a request id."""

from dataclasses import asdict
from typing import Annotated, Any

from fastapi import APIRouter, Header, Response

from dagmaster.errors import Forbidden
from dagmaster.http.errors import documented
from dagmaster.schemas.assets import Submission, Submitted
from dagmaster.schemas.jobs import SubmitJob
from dagmaster.service.asset_contract import AssetSubmission, AssetSubmitResult, RequestOrigin
from dagmaster.service.asset_submission import submit_request, submit_version
from dagmaster.service.context import ServiceContext
from dagmaster.web.access import OPERATING, SUBMITTERS, Admitted, Caller
from dagmaster.web.api.jobs import create_job, submit_request_of
from dagmaster.web.assets import check_platform
from dagmaster.web.service_context import Context
from dagmaster.web.services import Services, ServicesDep

router = APIRouter(tags=["assets"])

OF_ASSETS = {"platform_id", "platform_refs", "data_type", "version_label", "resubmit", "request_id"}
CREATED: Any = {
    "status_code": 201,
    "response_model": Submitted,
    "responses": {200: {"model": Submitted}, **documented(404, 409, 413)},
    "dependencies": [SUBMITTERS],
}
Platform = Annotated[
    str | None, Header(alias="X-Dagmaster-Platform", max_length=64, description="The partner's platform; for gateways.")
]


@router.post("/api/v1/submit", **CREATED)
async def submit(
    body: Submission,
    caller: Admitted,
    services: ServicesDep,
    context: Context,
    response: Response,
    platform: Platform = None,
) -> Submitted:
    """Submit a version of an asset (with `platform_id`) or a plain job: 201 if new, 200 if already submitted."""
    await services.learn(context.conn)
    plain = SubmitJob.model_validate(body.model_dump(exclude=OF_ASSETS))
    if body.platform_id is not None:
        check_platform(caller, body.platform_id)
        result = await _submit_version(body, plain, caller, services, context)
    elif body.request_id is not None:
        origin = RequestOrigin(body.request_id, _platform_of_request(caller, platform))
        result = await submit_request(context, services.definitions, submit_request_of(plain, caller), origin)
    else:
        created = await create_job(plain, caller, services, context, response)
        return Submitted.model_validate(created.model_dump())
    response.headers["Location"] = f"/api/v1/jobs/{result.job_id}"
    response.status_code = 201 if result.is_new else 200
    return submitted_reply(result)


async def _submit_version(
    body: Submission, plain: SubmitJob, caller: Caller, services: Services, context: ServiceContext
) -> AssetSubmitResult:
    assert body.platform_id is not None and body.data_type is not None
    submission = AssetSubmission(
        submit_request_of(plain, caller),
        body.platform_id,
        body.platform_refs,
        body.data_type,
        version_label=body.version_label,
        resubmit=body.resubmit,
        request_id=body.request_id,
    )
    return await submit_version(context, services.definitions, submission)


def _platform_of_request(caller: Caller, platform: str | None) -> str | None:
    if caller.is_partner:
        return caller.platform_id
    if platform is not None and caller.role not in OPERATING:
        raise Forbidden("only an operator's key may name the platform of a request")
    return platform


def submitted_reply(result: AssetSubmitResult) -> Submitted:
    return Submitted.model_validate({**asdict(result), "job_id": str(result.job_id)})
