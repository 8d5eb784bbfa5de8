"""Signals and decisions: what the waiting nodes of a job are told."""

from typing import Any

from fastapi import APIRouter, Response

from dagmaster.model.states import NodeStatus
from dagmaster.schemas.signals import Decide, DecisionReply, SendSignal, SignalReply
from dagmaster.store import signals
from dagmaster.web.access import OPERATORS, SUBMITTERS, Admitted, Job
from dagmaster.web.errors import documented
from dagmaster.web.services import Conn, Given, Services

router = APIRouter(prefix="/api/v1/jobs", tags=["jobs"])

WAIT_SECONDS = 3.0
DECIDED: Any = {200: {"model": DecisionReply}, 202: {"model": DecisionReply}, **documented(404, 409)}


@router.post("/{job_id}/signals/{name}", status_code=202, responses=documented(404, 409), dependencies=[SUBMITTERS])
async def send_signal(
    job: Job, name: str, caller: Admitted, services: Given, conn: Conn, body: SendSignal | None = None
) -> SignalReply:
    """Wake the nodes that wait for this signal; if none does, it is kept for the first that will."""
    data = body.data if body else None
    await signals.send_signal(conn, job["job_id"], name, data=data, actor=caller.name or None)
    services.wake()
    return SignalReply(job_id=str(job["job_id"]), name=name, status=job["status"])


@router.post("/{job_id}/nodes/{node_id}/approve", responses=DECIDED, dependencies=[OPERATORS])
async def approve_node(
    job: Job,
    node_id: str,
    caller: Admitted,
    services: Given,
    conn: Conn,
    response: Response,
    body: Decide | None = None,
) -> DecisionReply:
    """Let the job go on behind an approval. Where it names approvers, only their keys may."""
    await _request(conn, job, node_id, caller, body, approved=True)
    return await _await(services, conn, job, node_id, response, approved=True)


@router.post("/{job_id}/nodes/{node_id}/reject", responses=DECIDED, dependencies=[OPERATORS])
async def reject_node(
    job: Job,
    node_id: str,
    caller: Admitted,
    services: Given,
    conn: Conn,
    response: Response,
    body: Decide | None = None,
) -> DecisionReply:
    """Fail an approval for good, and with it the job, unless the node is allowed to fail."""
    await _request(conn, job, node_id, caller, body, approved=False)
    return await _await(services, conn, job, node_id, response, approved=False)


async def _request(
    conn: Conn, job: Job, node_id: str, caller: Admitted, body: Decide | None, *, approved: bool
) -> None:
    comment = body.comment if body else None
    await signals.request_decision(
        conn, job["job_id"], node_id, approved=approved, actor=caller.name or None, comment=comment
    )


async def _await(
    services: Services, conn: Conn, job: dict[str, Any], node_id: str, response: Response, *, approved: bool
) -> DecisionReply:
    """The owner acts within milliseconds; where there is none it makes no sense to wait."""
    services.wake()
    seconds = WAIT_SECONDS if (await services.fleet(conn)).is_orchestrated else 0
    status = await signals.until_decided(conn, job["job_id"], node_id, approved=approved, seconds=seconds)
    is_done = status is not NodeStatus.RUNNING
    response.status_code = 200 if is_done else 202
    return DecisionReply(job_id=str(job["job_id"]), node_id=node_id, status=status, is_done=is_done)
