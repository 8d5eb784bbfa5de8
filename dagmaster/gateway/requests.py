"""Send a submission to the API with a new request id."""

from datetime import UTC, datetime
from uuid import uuid4

from dagmaster.client import asset_calls
from dagmaster.errors import Invalid
from dagmaster.gateway.access import check_platform
from dagmaster.gateway.services import Services
from dagmaster.schemas.assets import Submission
from dagmaster.schemas.gateway import Accepted, PartnerSubmission
from dagmaster.store.gateway import KeyHolder, get_request


async def send(services: Services, caller: KeyHolder, body: PartnerSubmission) -> Accepted:
    """With a known idempotency key, returns the first request."""
    check_platform(caller, body.platform_id)
    platform_id = caller.platform_id or body.platform_id
    request_id = str(uuid4())
    submission = _submission(body, platform_id, request_id, caller.name)
    submitted = await services.ask(asset_calls.submit(submission, platform_id))
    known_id = submitted.request_id or request_id
    return Accepted(
        request_id=known_id,
        workflow_id=submitted.workflow_id,
        submitted_at=datetime.now(UTC) if submitted.is_new else await _submitted_at(services, caller, known_id),
        asset_id=submitted.asset_id,
        version_ordinal=submitted.version_ordinal,
    )


def _submission(body: PartnerSubmission, platform_id: str | None, request_id: str, name: str) -> Submission:
    """A version of an asset if there are references, otherwise a plain job."""
    fields = body.model_dump(exclude={"platform_id", "platform_refs"})
    if body.platform_refs is not None:
        if platform_id is None:
            raise Invalid("platform_id is needed with platform_refs: this key is for all platforms")
        fields |= {"platform_id": platform_id, "platform_refs": body.platform_refs}
    return Submission.model_validate(
        {**fields, "request_id": request_id, "correlation_id": request_id, "submitted_by": name}
    )


async def _submitted_at(services: Services, caller: KeyHolder, request_id: str) -> datetime:
    async with services.connection() as conn:
        submitted_at: datetime = (await get_request(conn, request_id, caller.platform_id))["submitted_at"]
    return submitted_at
