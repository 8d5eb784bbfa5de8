"""Consistency checks."""

from dataclasses import asdict
from typing import Annotated, Any

from fastapi import APIRouter, Query

from dagmaster.model.redact import redact
from dagmaster.schemas.system import DoctorReply, FindingReply, PointReply
from dagmaster.service.doctor import doctor_limits
from dagmaster.store.doctor import Finding, examine
from dagmaster.store.health import examine_database
from dagmaster.web.access import ADMINS, OPERATORS, Admitted
from dagmaster.web.services import Conn, ServicesDep

router = APIRouter(prefix="/api/v1/doctor", tags=["system"])

Days = Annotated[float, Query(gt=0, le=3650, description="Check jobs of this many past days.")]


@router.get("", dependencies=[OPERATORS])
async def examine_all(services: ServicesDep, conn: Conn, days: Days = 1.0) -> DoctorReply:
    """Check the consistency of jobs and the health of the database."""
    findings = await examine(conn, limits=doctor_limits(services.settings, days))
    return await _reply(conn, findings)


@router.post("/repair", dependencies=[ADMINS])
async def repair_all(caller: Admitted, services: ServicesDep, conn: Conn, days: Days = 1.0) -> DoctorReply:
    """Run the checks and repair problems that can be repaired safely."""
    findings = await examine(conn, repair=True, actor=caller.name, limits=doctor_limits(services.settings, days))
    services.wake()
    return await _reply(conn, findings)


async def _reply(conn: Conn, findings: list[Finding]) -> DoctorReply:
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
