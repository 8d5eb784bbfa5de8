"""Consistency checks, the audit log, API keys, and tests of handlers."""

import asyncio
from dataclasses import asdict
from time import perf_counter
from typing import Annotated, Any

from fastapi import APIRouter, Query

from dagmaster.errors import Forbidden
from dagmaster.handlers import HandlerContext, HandlerResult
from dagmaster.handlers.invocation import call
from dagmaster.http.errors import documented
from dagmaster.model.redact import redact
from dagmaster.model.timeline import event_types as types_of
from dagmaster.schemas.common import Page
from dagmaster.schemas.system import (
    DoctorReply,
    FindingReply,
    HandlerCall,
    HandlerList,
    HandlerOutcome,
    HandlerReply,
    KeyCreate,
    KeyCreated,
    KeyList,
    KeyReply,
    PointReply,
)
from dagmaster.schemas.timeline import AuditEntry
from dagmaster.service.doctor import doctor_limits
from dagmaster.store import keys as key_store
from dagmaster.store.doctor import Finding, examine
from dagmaster.store.events import list_audit as list_audit_rows
from dagmaster.store.health import examine_database
from dagmaster.web.access import ADMINS, OPERATORS, Admitted, Caller
from dagmaster.web.api.timeline import Types
from dagmaster.web.paging import Limit, Offset, to_page
from dagmaster.web.services import Conn, Services, ServicesDep
from dagmaster.web.views import audit_entry

router = APIRouter(prefix="/api/v1", tags=["system"])

Days = Annotated[float, Query(gt=0, le=3650, description="Check jobs of this many past days.")]


@router.get("/doctor", dependencies=[OPERATORS])
async def examine_all(services: ServicesDep, conn: Conn, days: Days = 1.0) -> DoctorReply:
    """Check the consistency of jobs and the health of the database."""
    findings = await examine(conn, limits=doctor_limits(services.settings, days))
    return await _doctor_reply(conn, findings)


@router.post("/doctor/repair", dependencies=[ADMINS])
async def repair_all(caller: Admitted, services: ServicesDep, conn: Conn, days: Days = 1.0) -> DoctorReply:
    """Run the checks and repair problems that can be repaired safely."""
    findings = await examine(conn, repair=True, actor=caller.name, limits=doctor_limits(services.settings, days))
    services.wake()
    return await _doctor_reply(conn, findings)


async def _doctor_reply(conn: Conn, findings: list[Finding]) -> DoctorReply:
    points = await examine_database(conn)
    return DoctorReply(
        findings=[
            FindingReply(
                **{**asdict(finding), "examples": [_example(row) for row in finding.examples]}, is_open=finding.is_open
            )
            for finding in findings
        ],
        database=[PointReply(**asdict(point)) for point in points],
    )


def _example(row: dict[str, Any]) -> dict[str, Any]:
    """With ids as strings."""
    return redact({name: str(value) if name.endswith("_id") else value for name, value in row.items()})  # type: ignore[no-any-return]


@router.get("/audit", dependencies=[ADMINS])
async def list_audit(conn: Conn, event_types: Types = None, limit: Limit = 50, offset: Offset = 0) -> Page[AuditEntry]:
    """List the audit log, newest first: commands, keys, repairs and orchestrator events."""
    rows = await list_audit_rows(conn, types_of(event_types), limit=limit + 1, offset=offset)
    return to_page([audit_entry(row) for row in rows], limit, offset)


@router.get("/keys", dependencies=[ADMINS])
async def list_keys(conn: Conn) -> KeyList:
    """List all keys, including revoked ones, without their secrets."""
    return KeyList(keys=[_key_reply(key) for key in await key_store.list_keys(conn)])


@router.post("/keys", status_code=201, responses=documented(404, 409), dependencies=[ADMINS])
async def create_key(body: KeyCreate, caller: Admitted, conn: Conn) -> KeyCreated:
    """Create a key. Only this response contains it. The first key must have the role admin."""
    await key_store.check_first_key(conn, body.role)
    key = await key_store.new_key(
        conn,
        name=body.name,
        role=body.role,
        platform_id=body.platform_id,
        created_by=caller.name,
        expires_at=body.expires_at,
        source_app="api",
    )
    return KeyCreated(key_id=key.key_id, name=body.name, role=body.role, platform_id=body.platform_id, key=key.text)


@router.delete("/keys/{key_id}", responses=documented(404), dependencies=[ADMINS])
async def revoke_key(key_id: str, caller: Admitted, conn: Conn) -> KeyReply:
    """Revoke a key. All servers reject it within seconds."""
    return _key_reply(await key_store.revoke_key(conn, key_id, actor=caller.name, source_app="api"))


def _key_reply(key: key_store.Key) -> KeyReply:
    return KeyReply(**{**asdict(key), "created_by": key.created_by or None})


@router.get("/test/handlers", dependencies=[ADMINS])
async def list_handlers(caller: Admitted, services: ServicesDep) -> HandlerList:
    """List the handlers of this process with a JSON Schema of their parameters."""
    _check_enabled(services, caller)
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


@router.post("/test/handler/{name}", responses=documented(404), dependencies=[ADMINS])
async def try_handler(name: str, body: HandlerCall, caller: Admitted, services: ServicesDep) -> HandlerOutcome:
    """Run a handler once in this process and return its result."""
    _check_enabled(services, caller)
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


def _check_enabled(services: Services, caller: Caller) -> None:
    if not services.settings.enable_handler_test:
        raise Forbidden("handler tests are disabled; set DAGMASTER_ENABLE_HANDLER_TEST to enable them")
    if not caller.name:
        raise Forbidden("handler tests require an API key")
