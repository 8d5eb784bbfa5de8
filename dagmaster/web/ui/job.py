"""One job: how far it is, why it stands still or failed, its nodes, when they ran, what happened, what it gave."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Annotated, Any, Final

from fastapi import APIRouter, Depends, Query, Response

from dagmaster.explain.estimate import Estimate
from dagmaster.model.outcome import Outcome
from dagmaster.model.progress import known_work, work_percent
from dagmaster.model.redact import redact
from dagmaster.model.states import JOB_TERMINAL, JobStatus, NodeStatus
from dagmaster.store import jobs as job_store
from dagmaster.store import nodes as node_store
from dagmaster.store.approvals import external_waits
from dagmaster.store.connect import Connection
from dagmaster.store.estimates import Standing, standing_of
from dagmaster.store.events import EventFilter
from dagmaster.store.jobs import get_job, returned_by
from dagmaster.store.nodes import NodeFilter
from dagmaster.web.access import READERS_OF_OWN
from dagmaster.web.services import Conn
from dagmaster.web.ui.etag import mark_of, unchanged
from dagmaster.web.ui.gantt import gantt_of
from dagmaster.web.ui.job_nodes import PAGE_SIZE, Definition, definition_of, node_page
from dagmaster.web.ui.jobs import JobLine, job_line
from dagmaster.web.ui.maps import shapes_of
from dagmaster.web.ui.pages import Page, Shown, ShownJob
from dagmaster.web.ui.timeline import ICONS, TYPES, SelectedEvents, timeline_page
from dagmaster.web.ui.values import shown
from dagmaster.web.ui.waits import QUICKLY_EXPLAINED, Waiting, Why, waiting_for, why_job
from dagmaster.web.views import standing_counts

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
OVERDUE_SECONDS: Final = 5.0


@dataclass(frozen=True, slots=True)
class Cause:
    """A node that has failed."""

    node_id: str
    error: str
    is_allowed: bool


@dataclass(frozen=True, slots=True)
class JobHead:
    """What every tab shows above itself."""

    line: JobLine
    version: int
    scheduled_for: datetime | None
    deadline_at: datetime | None
    parent_job_id: str | None
    parent_node_id: str | None
    priority: int
    callback_url: str | None
    paused_by: str | None
    percent: float
    done: int
    known: int
    estimate: Estimate | None
    causes: Sequence[Cause]
    why: Why | None
    waiting: Waiting
    mark: str

    @property
    def overdue_seconds(self) -> float:
        """0 while it is not worth a word."""
        seconds = self.estimate.overdue.total_seconds() if self.estimate else 0.0
        return seconds if seconds >= OVERDUE_SECONDS else 0.0

    @property
    def is_explained_later(self) -> bool:
        return not self.line.is_over and self.line.total > QUICKLY_EXPLAINED


@dataclass(frozen=True, slots=True)
class Looked:
    """What a look at a job finds out once, for its head and for each of its tabs."""

    page: Page
    conn: Connection
    job: Row
    definition: Definition
    standing: Standing
    line: JobLine
    mark: str
    offset: int
    nodes: NodeFilter
    events: EventFilter


async def wanted_nodes(
    parent: Annotated[str, Query(max_length=200)] = "",
    status: str = "",
    text: Annotated[str, Query(max_length=200)] = "",
) -> NodeFilter:
    """As it is in the address."""
    status = status if status in set(Outcome) else ""
    return NodeFilter(parent or None, status or None, text.strip() or None)


@router.get("/jobs/{job_id}", dependencies=[READERS_OF_OWN])
async def show_job(
    job: ShownJob,
    page: Shown,
    conn: Conn,
    nodes: Annotated[NodeFilter, Depends(wanted_nodes)],
    events: SelectedEvents,
    tab: str = "graph",
    offset: Annotated[int, Query(ge=0)] = 0,
) -> Response:
    tab = tab if tab in TABS else "graph"
    mark = await mark_of(conn, job) if tab != "related" else ""  # There, other jobs are shown.
    if (answer := unchanged(page, mark)) is not None:
        return answer
    standing = await standing_of(conn, job["job_id"])
    counts = standing_counts(standing.job).model_dump(exclude={"total"})
    looked = Looked(
        page,
        conn,
        job,
        await definition_of(conn, job),
        standing,
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
    values = await LOOKS[tab](looked)
    head = await _head(looked)
    return page.render("job.html", {"head": head, "job": looked.line, "tabs": TABS, "tab": tab, **values})


async def _head(looked: Looked) -> JobHead:
    job, line, conn = looked.job, looked.line, looked.conn
    is_explained = not line.is_over and line.total <= QUICKLY_EXPLAINED
    done, known = known_work(looked.standing.job)
    return JobHead(
        line=line,
        version=job["workflow_version"],
        scheduled_for=job["scheduled_for"],
        deadline_at=job["deadline_at"],
        parent_job_id=str(job["parent_job_id"]) if job["parent_job_id"] else None,
        parent_node_id=job["parent_node_id"],
        priority=job["priority"],
        callback_url=redact(job["callback_url"]),
        paused_by=job["paused_by"],
        percent=work_percent(looked.standing.job),
        done=done,
        known=known,
        estimate=await looked.page.services.histories.estimate(conn, looked.standing),
        causes=await _causes(looked) if job["status"] != JobStatus.CANCELLED else (),
        why=await why_job(conn, looked.page, job["job_id"]) if is_explained else None,
        waiting=Waiting()
        if job["status"] in JOB_TERMINAL
        else await waiting_for(conn, looked.page, job["job_id"], looked.definition),
        mark=looked.mark,
    )


async def _causes(looked: Looked) -> list[Cause]:
    """Nodes that may fail come last: they are seldom what is looked for."""
    if not looked.line.counts.get(NodeStatus.FAILED):
        return []
    rows = await node_store.failed_nodes(looked.conn, looked.job["job_id"], limit=MAX_CAUSES)
    causes = [
        Cause(
            row["node_id"],
            redact(row["error_message"] or ""),
            bool(looked.definition.get(row["parent_node_id"] or row["node_id"], {}).get("allow_failure")),
        )
        for row in rows
    ]
    return sorted(causes, key=lambda one: one.is_allowed)


async def _graph(looked: Looked) -> dict[str, Any]:
    standing = looked.standing.job
    outcomes = {name: node.outcome for name, node in standing.nodes.items() if node.outcome.value != node.status.value}
    wanted = replace(looked.nodes, order=await _order(looked), outcomes=outcomes)
    found = await node_page(looked.conn, looked.job, looked.definition, standing, wanted, offset=looked.offset)
    return {"nodes": found, "page_size": PAGE_SIZE, "node_statuses": list(Outcome)}


async def _order(looked: Looked) -> list[str]:
    """The nodes as one leads to the next."""
    graph = await looked.page.services.pinned.find(looked.conn, looked.job["workflow_hash"])
    return list(graph.nodes) if graph else []


async def _gantt(looked: Looked) -> dict[str, Any]:
    nodes, order = looked.line.total, await _order(looked)
    gantt = await gantt_of(
        looked.conn,
        looked.job,
        looked.definition,
        nodes=nodes,
        offset=looked.offset,
        order=order,
        outcomes={name: node.outcome for name, node in looked.standing.job.nodes.items()},
    )
    return {"gantt": gantt}


async def _timeline(looked: Looked) -> dict[str, Any]:
    timeline = await timeline_page(looked.conn, looked.job, looked.events)
    return {"timeline": timeline, "types": TYPES, "icons": ICONS}


async def _data(looked: Looked) -> dict[str, Any]:
    kept = {key: value for key, value in looked.job["metadata"].items() if key != "removal"}
    job = await get_job(looked.conn, looked.job["job_id"])
    inputs = await asyncio.to_thread(shown, job["input_params"])
    result = await asyncio.to_thread(shown, by_node(job["result_data"], await _order(looked)))
    returned = await returned_by(looked.conn, job)
    shapes = shapes_of({"inputs": inputs.value, "result": result.value})
    value = None if returned is None else shown(returned)
    return {"inputs": inputs, "value": value, "result": result, "metadata": shown(kept), "shapes": shapes}


def by_node(outputs: Row | None, order: Sequence[str]) -> Row | None:
    """In the order of the graph, which the database forgets."""
    if outputs is None:
        return None
    return {name: outputs[name] for name in (*order, *outputs) if name in outputs}


async def _related(looked: Looked) -> dict[str, Any]:
    caller = looked.page.caller
    own = caller.name if caller.is_partner else None
    children = await job_store.child_jobs(looked.conn, looked.job["job_id"], limit=MAX_CHILDREN)
    others = await job_store.neighbours(looked.conn, looked.job, submitted_by=own, limit=NEIGHBOURS)
    known = await looked.page.services.node_counts.of(looked.conn, [*children, *others])
    lines = [job_line(row, known[row["job_id"]].counts) for row in others]
    runs = sorted([*lines, looked.line], key=lambda one: one.created_at, reverse=True)
    return {
        "children": [(row["parent_node_id"], job_line(row, known[row["job_id"]].counts)) for row in children],
        "runs": runs,
    }


LOOKS: Final = {"graph": _graph, "gantt": _gantt, "timeline": _timeline, "data": _data, "related": _related}
