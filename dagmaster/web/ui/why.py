"""The reason for which a large job or its node waits, loaded after the page."""

from fastapi import APIRouter
from fastapi.responses import HTMLResponse

from dagmaster.ids import NodeId
from dagmaster.model.states import JOB_TERMINAL
from dagmaster.web.access import READERS_OF_OWN
from dagmaster.web.services import Conn
from dagmaster.web.ui.pages import Shown, ShownJob
from dagmaster.web.ui.waits import why_job, why_node

router = APIRouter(prefix="/ui/jobs/{job_id}", include_in_schema=False)


@router.get("/why", dependencies=[READERS_OF_OWN])
async def show_why(job: ShownJob, page: Shown, conn: Conn) -> HTMLResponse:
    """Empty for an ended job, whose page shows the cause."""
    is_over = job["status"] in JOB_TERMINAL
    return page.render("why.html", {"why": None if is_over else await why_job(conn, page, job["job_id"])})


@router.get("/nodes/{node_id}/why", dependencies=[READERS_OF_OWN])
async def show_why_node(job: ShownJob, node_id: NodeId, page: Shown, conn: Conn) -> HTMLResponse:
    return page.render("why.html", {"why": await why_node(conn, page, job["job_id"], node_id)})
