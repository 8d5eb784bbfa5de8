"""Why a job or a node is not running."""

from fastapi import APIRouter

from dagmaster.explain.facts import Explanation as JobExplanation
from dagmaster.ids import NodeId
from dagmaster.model.redact import redact, redact_text
from dagmaster.schemas.system import Explanation
from dagmaster.store import explanations
from dagmaster.web.access import READERS_OF_OWN, Job
from dagmaster.web.errors import documented
from dagmaster.web.services import Conn, ServicesDep

router = APIRouter(prefix="/api/v1/jobs/{job_id}", tags=["timeline"])


@router.get("/explain", responses=documented(404), dependencies=[READERS_OF_OWN])
async def explain_job(job: Job, services: ServicesDep, conn: Conn) -> Explanation:
    """Explain why a job is not running, or how it ended."""
    threshold = services.settings.orphan_threshold_seconds
    explanation = await explanations.explain_job(
        conn, job["job_id"], threshold_seconds=threshold, pinned=services.pinned
    )
    return _reply(job, None, explanation)


@router.get("/nodes/{node_id}/explain", responses=documented(404), dependencies=[READERS_OF_OWN])
async def explain_node(job: Job, node_id: NodeId, services: ServicesDep, conn: Conn) -> Explanation:
    """Explain why a node is not running, or how it ended."""
    threshold = services.settings.orphan_threshold_seconds
    explanation = await explanations.explain_node(
        conn, job["job_id"], node_id, threshold_seconds=threshold, pinned=services.pinned
    )
    return _reply(job, node_id, explanation)


def _reply(job: Job, node_id: NodeId | None, explanation: JobExplanation) -> Explanation:
    return Explanation(
        job_id=str(job["job_id"]),
        node_id=node_id,
        kind=explanation.kind,
        sentence=redact_text(explanation.sentence),
        data=redact(explanation.data),
    )
