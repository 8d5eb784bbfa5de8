"""Test a handler without a job."""

import asyncio
from time import perf_counter

from fastapi import APIRouter

from dagmaster.errors import Forbidden
from dagmaster.handlers import HandlerContext, HandlerResult
from dagmaster.handlers.invocation import call
from dagmaster.model.redact import redact
from dagmaster.schemas.system import HandlerCall, HandlerList, HandlerOutcome, HandlerReply
from dagmaster.web.access import ADMINS, Admitted, Caller
from dagmaster.web.errors import documented
from dagmaster.web.services import Services, ServicesDep

router = APIRouter(prefix="/api/v1/test", tags=["system"])


@router.get("/handlers", dependencies=[ADMINS])
async def list_handlers(caller: Admitted, services: ServicesDep) -> HandlerList:
    """List the handlers of this process with a JSON Schema of their parameters."""
    _check(services, caller)
    return HandlerList(
        handlers=[
            HandlerReply(
                name=handler.name,
                queue=handler.queue,
                timeout_seconds=handler.timeout_seconds,
                params=handler.params.model_json_schema() if handler.params else None,
            )
            for handler in sorted(services.registry, key=lambda handler: handler.name)
        ]
    )


@router.post("/handler/{name}", responses=documented(404), dependencies=[ADMINS])
async def try_handler(name: str, body: HandlerCall, caller: Admitted, services: ServicesDep) -> HandlerOutcome:
    """Run a handler once in this process and return its result."""
    _check(services, caller)
    handler = services.registry.get(name)
    ctx = HandlerContext(
        task_id="test", job_id=0, node_id="test", handler=name, params=body.params, timeout_seconds=body.timeout_seconds
    )
    began = perf_counter()
    try:
        async with asyncio.timeout(body.timeout_seconds):
            result = await call(handler, ctx, executor=None)
    except TimeoutError:
        result = HandlerResult.failed(f"timed out after {body.timeout_seconds:g} s")
    return HandlerOutcome(
        handler=name,
        success=result.success,
        output=redact(result.output),
        error_message=redact(result.error_message),
        permanent=result.permanent,
        duration_ms=round((perf_counter() - began) * 1000),
    )


def _check(services: Services, caller: Caller) -> None:
    if not services.settings.enable_handler_test:
        raise Forbidden("handler tests are disabled; set DAGMASTER_ENABLE_HANDLER_TEST to enable them")
    if not caller.name:
        raise Forbidden("handler tests require an API key")
