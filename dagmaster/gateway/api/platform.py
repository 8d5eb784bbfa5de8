"""The operations of partners: submit, poll, and decide by request id."""

import asyncio
from typing import Any

from fastapi import APIRouter

from dagmaster.gateway import decisions
from dagmaster.gateway.access import READERS, REVIEWERS, SUBMITTERS, Caller
from dagmaster.gateway.decisions import find_target
from dagmaster.gateway.requests import send
from dagmaster.gateway.services import Conn, ServicesDep
from dagmaster.http.errors import documented
from dagmaster.schemas.gateway import (
    Accepted,
    AssetOutcome,
    PartnerSubmission,
    RequestStatus,
    ReviewOutcome,
    TargetApproval,
    TargetRejection,
    TargetRemoval,
)
from dagmaster.store.gateway import get_request

router = APIRouter(prefix="/api/platform", tags=["platform"])

FORWARDED: Any = {"responses": documented(404, 409, 502, 504)}


@router.post("/submit", status_code=202, dependencies=[SUBMITTERS], **FORWARDED)
async def submit(body: PartnerSubmission, caller: Caller, services: ServicesDep) -> Accepted:
    """Submit a version of a dataset (with `platform_refs`) or a plain job."""
    return await send(services, caller, body)


@router.get("/status/{request_id}", responses=documented(404), dependencies=[READERS])
async def show_status(request_id: str, caller: Caller, services: ServicesDep, conn: Conn) -> RequestStatus:
    """Get the status of a request, and its result or its error once it has ended."""
    request = await get_request(conn, request_id, caller.platform_id)
    # A result may be several megabytes.
    result = await asyncio.to_thread(services.scrubber.value, request["result"])
    return RequestStatus.model_validate(
        {**request, "result": result, "error": services.scrubber.value(request["error"])}
    )


@router.post("/approve", dependencies=[REVIEWERS], **FORWARDED)
async def approve(body: TargetApproval, caller: Caller, services: ServicesDep) -> ReviewOutcome:
    """Approve a version."""
    return await decisions.approve(services, caller, await find_target(services, caller, body), body)


@router.post("/reject", dependencies=[REVIEWERS], **FORWARDED)
async def reject(body: TargetRejection, caller: Caller, services: ServicesDep) -> ReviewOutcome:
    """Reject a version."""
    return await decisions.reject(services, caller, await find_target(services, caller, body), body)


@router.post("/unpublish", dependencies=[READERS], **FORWARDED)
async def unpublish(body: TargetRemoval, caller: Caller, services: ServicesDep) -> AssetOutcome:
    """Withdraw a version; without an ordinal, the one that waits for review or was rejected."""
    return await decisions.delete_version(services, caller, await find_target(services, caller, body), body.reason)
