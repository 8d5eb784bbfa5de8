"""The page of a job: progress, cause of failure, nodes, Gantt chart, timeline, data and related jobs."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, Final

from fastapi import APIRouter, Depends, Query, Response

from dagmaster.model.outcome import Outcome
from dagmaster.model.progress import known_work, work_percent
from dagmaster.model.redact import redact
from dagmaster.model.states import JobStatus, NodeStatus
from dagmaster.store import jobs as job_store
from dagmaster.store import nodes as node_store
from dagmaster.store.connect import Connection
from dagmaster.store.estimates import ProgressSnapshot, load_snapshot
from dagmaster.store.events import EventFilter
from dagmaster.store.jobs import get_job, returned_by
from dagmaster.store.nodes import NodeFilter
from dagmaster.store.signals import external_waits
from dagmaster.web.access import READERS_OF_OWN
from dagmaster.web.services import Conn
from dagmaster.web.ui.filters import value_of
from dagmaster.web.ui.gantt import MAX_ROWS, gantt_of
from dagmaster.web.ui.gantt_chart import draw_gantt
from dagmaster.web.ui.job_map import job_shapes, job_tiles, without_tiles
from dagmaster.web.ui.job_nodes import PAGE_SIZE, Definition, definition_of, node_page
from dagmaster.web.ui.jobs import JobLine, job_line
from dagmaster.web.ui.pages import Page, Shown, ShownJob, mark_of, unchanged
from dagmaster.web.ui.timeline import ICONS, TYPES, SelectedEvents, timeline_page
from dagmaster.web.ui.waits import QUICKLY_EXPLAINED, Waiting, waiting_for, why
from dagmaster.web.views import snapshot_counts

router = APIRouter(prefix="/ui", include_in_schema=False)

Row = Mapping[str, Any]

TABS: Final = {
    "graph": ("Graph", "share-2"),
    "gantt": ("Gantt", "bar-chart-2"),
    "timeline": ("Timeline", "list"),
    "data": ("Inputs & result", "code"),
    "related": ("Related", "git-merge"),
}
MAX_CAUSES: Final = 5
MAX_CHILDREN: Final = 100
NEIGHBOURS: Final = 8
OVERDUE_SECONDS: Final = 5.0  # A smaller delay is negligible.
COPIED: Final = (
    "asset_id",
    "version_ordinal",
    "deadline_at",
    "scheduled_for",
    "parent_job_id",
    "parent_node_id",
    "priority",
)


@dataclass(frozen=True, slots=True)
class JobView:
    """The data of the head and of every tab, read once."""

    page: Page
    conn: Connection
    job: Row
    definition: Definition
    snapshot: ProgressSnapshot
    line: JobLine
    mark: str
    offset: int
    nodes: NodeFilter
    events: EventFilter


async def node_filter(
    parent: Annotated[str, Query(max_length=200)] = "",
    status: str = "",
    text: Annotated[str, Query(max_length=200)] = "",
) -> NodeFilter:
    """From the query string."""
    status = status if status in set(Outcome) else ""
    return NodeFilter(parent or None, status or None, text.strip() or None)


@router.get("/jobs/{job_id}", dependencies=[READERS_OF_OWN])
async def show_job(
    job: ShownJob,
    page: Shown,
    conn: Conn,
    nodes: Annotated[NodeFilter, Depends(node_filter)],
    events: SelectedEvents,
    tab: str = "graph",
    offset: Annotated[int, Query(ge=0)] = 0,
) -> Response:
    tab = tab if tab in TABS else "graph"
    mark = await mark_of(conn, job) if tab != "related" else ""  # This tab shows other jobs.
    if (answer := unchanged(page, mark)) is not None:
        return answer
    snapshot = await load_snapshot(conn, job["job_id"])
    counts = snapshot_counts(snapshot.job).model_dump(exclude={"total"})
    view = JobView(
        page,
        conn,
        job,
        await definition_of(conn, job),
        snapshot,
        job_line(
            job,
            {status: number for status, number in counts.items() if number},
            (await external_waits(conn, [job["job_id"]])).get(job["job_id"]),
        ),
        mark,
        offset,
        nodes,
        events,
    )
    values = await TAB_VIEWS[tab](view)
    head = await _head(view)
    return page.render("job.html", {"head": head, "job": view.line, "tabs": TABS, "tab": tab, **values})


async def _head(view: JobView) -> Row:
    """The part above the tabs."""
    job, line, conn = view.job, view.line, view.conn
    is_open, is_small = not line.is_over, line.total <= QUICKLY_EXPLAINED
    done, known = known_work(view.snapshot.job)
    estimate = await view.page.services.histories.estimate(conn, view.snapshot)
    overdue = estimate.overdue.total_seconds() if estimate else 0.0
    return {
        **{name: job[name] for name in COPIED},
        "version": job["workflow_version"],
        "callback_url": redact(job["callback_url"]),
        "percent": work_percent(view.snapshot.job),
        "done": done,
        "known": known,
        "estimate": estimate,
        "overdue_seconds": overdue if overdue >= OVERDUE_SECONDS else 0.0,
        "causes": await _causes(view) if job["status"] != JobStatus.CANCELLED else (),
        "why": await why(conn, view.page, job["job_id"]) if is_open and is_small else None,
        "is_explained_later": is_open and not is_small,
        "waiting": await waiting_for(conn, view.page, job["job_id"], view.definition) if is_open else Waiting(),
        "mark": view.mark,
    }


async def _causes(view: JobView) -> list[Row]:
    """Nodes that may fail come last: they are rarely the cause."""
    if not view.line.counts.get(NodeStatus.FAILED):
        return []
    rows = await node_store.failed_nodes(view.conn, view.job["job_id"], limit=MAX_CAUSES)
    causes = [
        {
            "node_id": row["node_id"],
            "error": redact(row["error_message"] or ""),
            "is_allowed": bool(view.definition.get(row["parent_node_id"] or row["node_id"], {}).get("allow_failure")),
        }
        for row in rows
    ]
    return sorted(causes, key=lambda cause: cause["is_allowed"])


async def _graph(view: JobView) -> dict[str, Any]:
    snapshot = view.snapshot.job
    outcomes = {name: node.outcome for name, node in snapshot.nodes.items() if node.outcome.value != node.status.value}
    filter = replace(view.nodes, order=await _order(view), outcomes=outcomes)
    nodes = await node_page(view.conn, view.job, view.definition, snapshot, filter, offset=view.offset)
    return {"nodes": nodes, "page_size": PAGE_SIZE, "node_statuses": list(Outcome)}


async def _order(view: JobView) -> list[str]:
    """The nodes in topological order."""
    graph = await view.page.services.pinned.find(view.conn, view.job["workflow_hash"])
    return list(graph.nodes) if graph else []


async def _gantt(view: JobView) -> dict[str, Any]:
    nodes, order = view.line.total, await _order(view)
    gantt = await gantt_of(
        view.conn,
        view.job,
        view.definition,
        nodes=nodes,
        offset=view.offset,
        order=order,
        outcomes={name: node.outcome for name, node in view.snapshot.job.nodes.items()},
    )
    return {"gantt": gantt, "chart": draw_gantt(gantt), "page_size": MAX_ROWS}


async def _timeline(view: JobView) -> dict[str, Any]:
    timeline = await timeline_page(view.conn, view.job, view.events)
    return {"timeline": timeline, "types": TYPES, "icons": ICONS}


async def _data(view: JobView) -> dict[str, Any]:
    metadata = {key: value for key, value in view.job["metadata"].items() if key != "removal"}
    job = await get_job(view.conn, view.job["job_id"])
    inputs = await asyncio.to_thread(value_of, job["input_params"])
    result = await asyncio.to_thread(value_of, by_node(job["result_data"], await _order(view)))
    returned = await returned_by(view.conn, job)
    tiles = await job_tiles(view.conn, view.job["job_id"])
    shapes = without_tiles(await job_shapes(view.conn, view.job, inputs.value, result.value), tiles)
    return {
        "inputs": inputs,
        "value": None if returned is None else value_of(returned),
        "result": result,
        "metadata": value_of(metadata),
        "shapes": shapes,
        "tiles": tiles,
    }


def by_node(outputs: Row | None, order: Sequence[str]) -> Row | None:
    """In graph order, which the database does not keep."""
    if outputs is None:
        return None
    return {name: outputs[name] for name in (*order, *outputs) if name in outputs}


async def _related(view: JobView) -> dict[str, Any]:
    caller = view.page.caller
    own = caller.name if caller.is_partner else None
    children = await job_store.child_jobs(view.conn, view.job["job_id"], limit=MAX_CHILDREN)
    others = await job_store.neighbours(view.conn, view.job, submitted_by=own, limit=NEIGHBOURS)
    known = await view.page.services.node_counts.of(view.conn, [*children, *others])
    lines = [job_line(row, known[row["job_id"]].counts) for row in others]
    runs = sorted([*lines, view.line], key=lambda run: run.created_at, reverse=True)
    return {
        "children": [(row["parent_node_id"], job_line(row, known[row["job_id"]].counts)) for row in children],
        "runs": runs,
    }


TAB_VIEWS: Final = {"graph": _graph, "gantt": _gantt, "timeline": _timeline, "data": _data, "related": _related}
