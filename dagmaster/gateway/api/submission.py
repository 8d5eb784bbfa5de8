"""Submissions of operators, one by one or many at once, and the health of the gateway."""

import asyncio
from typing import Any, Final

from fastapi import APIRouter
from pydantic import ValidationError

from dagmaster.errors import DagmasterError, Invalid
from dagmaster.gateway.access import OPERATORS, Caller
from dagmaster.gateway.health import HEALTH, show_health
from dagmaster.gateway.requests import send
from dagmaster.gateway.services import Services, ServicesDep
from dagmaster.http.errors import code_of, documented
from dagmaster.schemas.common import Json, Problem
from dagmaster.schemas.gateway import Accepted, Batch, BatchItem, BatchReply, OperatorSubmission
from dagmaster.store.gateway import KeyHolder

router = APIRouter(prefix="/api/gateway", tags=["gateway"])

AT_ONCE: Final = 8
FORWARDED: Any = {"status_code": 202, "dependencies": [OPERATORS]}


@router.post("/submit", responses=documented(404, 409, 502, 504), **FORWARDED)
async def submit_any(body: OperatorSubmission, caller: Caller, services: ServicesDep) -> Accepted:
    """Submit for any platform, or a plain job."""
    return await send(services, caller, body)


@router.post("/submit/batch", **FORWARDED)
async def submit_batch(body: Batch, caller: Caller, services: ServicesDep) -> BatchReply:
    """Submit 1 to 100 at once. Each has its own outcome, in the order of the batch."""
    turns = asyncio.Semaphore(AT_ONCE)

    async def submit_one(index: int, item: Json) -> BatchItem:
        async with turns:
            return await _outcome(services, caller, index, item)

    items = await asyncio.gather(*(submit_one(index, item) for index, item in enumerate(body.items)))
    accepted = sum(item.status == "accepted" for item in items)
    return BatchReply(accepted=accepted, rejected=len(items) - accepted, items=items)


router.get("/health", **HEALTH)(show_health)


async def _outcome(services: Services, caller: KeyHolder, index: int, item: Json) -> BatchItem:
    try:
        accepted = await send(services, caller, _parse(item))
    except DagmasterError as error:
        problem = Problem(code=code_of(error), message=str(error))
        return BatchItem(index=index, status="rejected", error=problem)
    return BatchItem(index=index, status="accepted", request_id=accepted.request_id)


def _parse(item: Json) -> OperatorSubmission:
    try:
        return OperatorSubmission.model_validate(item)
    except ValidationError as error:
        problems = [f"{'.'.join(map(str, fault['loc']))}: {fault['msg']}".lstrip(": ") for fault in error.errors()]
        raise Invalid("; ".join(problems)) from error
