"""The command palette: workflows and jobs that match the search text."""

from typing import Annotated, Any

from fastapi import APIRouter, Query

from dagmaster.store.jobs import JobFilter, list_jobs
from dagmaster.web.access import ASSET_READERS
from dagmaster.web.services import Conn
from dagmaster.web.ui.pages import Shown

router = APIRouter(prefix="/ui", include_in_schema=False)

MOST = 8


@router.get("/palette", dependencies=[ASSET_READERS])
async def look_up(page: Shown, conn: Conn, text: Annotated[str, Query(max_length=200)] = "") -> list[dict[str, Any]]:
    if page.caller.is_platform_reviewer:
        return []  # Jobs and workflows belong to all platforms.
    text = text.strip()
    own = page.caller.name if page.caller.is_partner else None
    jobs = await list_jobs(conn, JobFilter(text=text or None, submitted_by=own), limit=MOST)
    matches = [name for name in sorted(page.services.catalog.workflows) if text.lower() in name.lower()]
    workflows = [] if page.caller.is_partner else matches[:MOST]
    return [
        *({"label": name, "path": f"/ui/workflows/{name}", "hint": "workflow"} for name in workflows),
        *(
            {
                "label": f"{row['workflow_id']} · {row['job_id']}",
                "path": f"/ui/jobs/{row['job_id']}",
                "hint": row["status"],
            }
            for row in jobs
        ),
    ]
