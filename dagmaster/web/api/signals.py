"""Signals and decisions for the waiting nodes of a job."""

from typing import Any

from fastapi import APIRouter, Response

from dagmaster.ids import NodeId
from dagmaster.schemas.signals import Decide, DecisionReply, SendSignal, SignalReply
from dagmaster.service import contract
from dagmaster.service.context import ServiceContext
from dagmaster.service.job_control import control_job
from dagmaster.web.access import OPERATORS, SUBMITTERS, Job
from dagmaster.web.errors import documented
from dagmaster.web.service_context import Context

router = APIRouter(prefix="/api/v1/jobs", tags=["jobs"])

DECIDED: Any = {200: {"model": DecisionReply}, 202: {"model": DecisionReply}, **documented(404, 409)}


@router.post("/{job_id}/signals/{name}", status_code=202, responses=documented(404, 409), dependencies=[SUBMITTERS])
async def send_signal(job: Job, name: str, context: Context, body: SendSignal | None = None) -> SignalReply:
    """Send a signal to the nodes that wait for it; if none does, it is kept for the first one that will."""
    signal = contract.Signal(name, body.data if body else None)
    result = await control_job(context, job["job_id"], signal)
    return SignalReply.model_validate({"job_id": str(job["job_id"]), "name": name, "status": result.status})


@router.post("/{job_id}/nodes/{node_id}/approve", responses=DECIDED, dependencies=[OPERATORS])
async def approve_node(
    job: Job, node_id: NodeId, context: Context, response: Response, body: Decide | None = None
) -> DecisionReply:
    """Approve a node, so that the job continues. If the node names approvers, only their keys may decide."""
    return await _decide(context, job, response, contract.Decide(node_id, True, _comment(body)))


@router.post("/{job_id}/nodes/{node_id}/reject", responses=DECIDED, dependencies=[OPERATORS])
async def reject_node(
    job: Job, node_id: NodeId, context: Context, response: Response, body: Decide | None = None
) -> DecisionReply:
    """Reject a node. It fails, and so does the job unless the node has `allow_failure`."""
    return await _decide(context, job, response, contract.Decide(node_id, False, _comment(body)))


async def _decide(context: ServiceContext, job: Job, response: Response, decision: contract.Decide) -> DecisionReply:
    result = await control_job(context, job["job_id"], decision)
    response.status_code = 200 if result.is_done else 202
    reply = {"node_id": decision.node_id, "status": result.status, "is_done": result.is_done}
    return DecisionReply.model_validate({"job_id": str(job["job_id"]), **reply})


def _comment(body: Decide | None) -> str | None:
    return body.comment if body else None
