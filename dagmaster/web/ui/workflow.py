"""The page of a workflow: graph, runs, inputs, versions and definition."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import quote

import yaml
from fastapi import APIRouter
from fastapi.responses import HTMLResponse

from dagmaster.errors import Conflict, Invalid, UnknownSchedule, UnknownWorkflow
from dagmaster.ids import NodeId
from dagmaster.model.outcome import NO_CHILDREN, Children, outcome_of
from dagmaster.model.redact import redact, redact_text
from dagmaster.model.workflow import Workflow
from dagmaster.store.nodes import grid_nodes
from dagmaster.store.schedules import get_schedule
from dagmaster.store.workflows import (
    SCAN_RUNS,
    find_newest_definition,
    nodes_of_definitions,
    runs_of_workflow,
    workflow_versions,
)
from dagmaster.web.access import READERS
from dagmaster.web.graph_view import workflow_edges, workflow_nodes
from dagmaster.web.services import Conn
from dagmaster.web.ui.charts import draw_durations, draw_ticks, median_seconds
from dagmaster.web.ui.filters import duration, first_line, pretty
from dagmaster.web.ui.forms import allowed_values
from dagmaster.web.ui.pages import Page, Shown
from dagmaster.web.ui.workflows import last_run, schedule_state, waiting_runs
from dagmaster.web.views import run_seconds, seconds_between

router = APIRouter(prefix="/ui", include_in_schema=False)

Row = Mapping[str, Any]

RUNS: Final = 50
GRID_RUNS: Final = 25
GRID_NODES: Final = 200


@dataclass(frozen=True, slots=True)
class Input:
    """`values` describes the accepted values, if they are restricted."""

    name: str
    type: str
    values: str
    required: bool
    default: str | None
    description: str


@router.get("/workflows/{workflow_id:path}", dependencies=[READERS])
async def show_workflow(workflow_id: str, page: Shown, conn: Conn) -> HTMLResponse:
    workflow = await _find(page, conn, workflow_id)
    runs = await runs_of_workflow(conn, workflow_id, runs=RUNS)
    definition, current = redact(without_defaults(workflow)), _current_hash(page, workflow)
    return page.render(
        "workflow.html",
        {
            "workflow": workflow,
            "is_loaded": workflow_id in page.services.catalog.workflows,
            "inputs": _inputs(workflow),
            "schedule": await _schedule(conn, workflow_id),
            "last": last_run(runs, await waiting_runs(conn, [runs])),
            "ticks_drawn": draw_ticks(runs),
            "seconds": median_seconds(runs),
            "durations": draw_durations(runs),
            "grid": await _grid(page, conn, workflow, runs[:GRID_RUNS]),
            "versions": [_version(row, current) for row in await workflow_versions(conn, workflow_id)],
            "most_runs": SCAN_RUNS,
            "as_yaml": yaml.safe_dump(definition, sort_keys=False, allow_unicode=True, width=110),
            "as_json": pretty(definition),
        },
    )


@router.get("/workflow-graphs/{workflow_id:path}", dependencies=[READERS])
async def get_graph(workflow_id: str, page: Shown, conn: Conn) -> dict[str, Any]:
    """The graph as in the API, also for workflows whose files no longer exist."""
    workflow = await _find(page, conn, workflow_id)
    return {
        "workflow_id": workflow_id,
        "nodes": [node.model_dump(mode="json") for node in workflow_nodes(workflow)],
        "edges": [edge.model_dump(mode="json") for edge in workflow_edges(workflow)],
    }


async def _find(page: Page, conn: Conn, workflow_id: str) -> Workflow:
    """The loaded workflow, otherwise the definition of the last run. Raises UnknownWorkflow."""
    catalog = page.services.catalog
    if workflow_id in catalog.workflows:
        return catalog.get(workflow_id)
    definition = await find_newest_definition(conn, workflow_id)
    if definition is None:
        raise UnknownWorkflow(f"no workflow is named {workflow_id[:64]!r}, and no job of that name exists")
    return Workflow.model_validate_json(definition)


def _current_hash(page: Page, workflow: Workflow) -> str | None:
    """The hash of the definition that a new job would use; None if a job cannot be started."""
    if workflow.workflow_id not in page.services.catalog.workflows:
        return None
    try:
        return page.services.definitions.graph_of(workflow).workflow.content_hash
    except (Conflict, Invalid):  # It is inactive, or needs a handler or a workflow that is not loaded.
        return None


def without_defaults(workflow: Workflow) -> dict[str, Any]:
    """Omits defaults, except for the types of nodes and inputs, for readability."""
    definition = workflow.model_dump(mode="json", exclude_defaults=True)
    for key, typed in (("inputs", workflow.inputs), ("nodes", workflow.nodes)):
        if typed:
            members = definition[key].items()
            definition[key] = {name: {"type": str(typed[name].type), **member} for name, member in members}
    return definition


async def _schedule(conn: Conn, workflow_id: str) -> Row | None:
    try:
        return schedule_state(await get_schedule(conn, workflow_id))
    except UnknownSchedule:
        return None


def _inputs(workflow: Workflow) -> list[Input]:
    rows = []
    for name, spec in workflow.inputs.items():
        # By name: the default of a password is a secret.
        default = redact({name: spec.default})[name]
        written = None if spec.default is None else json.dumps(default, ensure_ascii=False, default=str)
        values = redact_text(allowed_values(spec))
        rows.append(Input(name, spec.type, values, spec.required, written, redact_text(spec.description)))
    return rows


def _version(row: Row, current: str | None) -> Row:
    return {
        **row,
        "hash": row["workflow_hash"],
        "first_at": row["created_at"],
        "is_current": row["workflow_hash"] == current,
    }


async def _grid(page: Page, conn: Conn, workflow: Workflow, runs: Sequence[Row]) -> Row | None:
    """Columns are runs, newest on the right. `hidden` is the number of nodes that are not shown."""
    if not runs:
        return None
    once = await nodes_of_definitions(conn, {run["workflow_hash"] for run in runs})
    node_ids = [NodeId(name) for name in (*workflow.nodes, *sorted(once - set(workflow.nodes)))]
    visible = node_ids[:GRID_NODES]
    states = await grid_nodes(conn, [run["job_id"] for run in runs], visible)
    known = await page.services.node_counts.of(conn, runs)
    columns = list(reversed(runs))
    grid_rows = []
    for node_id in visible:
        cells = [
            _cell(run, node_id, states.get((run["job_id"], node_id)), known[run["job_id"]].children.get(node_id))
            for run in columns
        ]
        grid_rows.append(
            {
                "node_id": node_id,
                "type": workflow.nodes[node_id].type if node_id in workflow.nodes else "no longer exists",
                "cells": cells,
                "failures": sum(cell is not None and cell["status"] == "failed" for cell in cells),
            }
        )
    return {"runs": [_grid_run(run) for run in columns], "rows": grid_rows, "hidden": len(node_ids) - len(visible)}


def _grid_run(run: Row) -> Row:
    tip = f"Job {run['job_id']}: {run['status']}, {duration(run_seconds(run))}"
    return {"job_id": run["job_id"], "status": run["status"], "at": run["created_at"], "tip": tip}


def _cell(run: Row, node_id: NodeId, row: Row | None, children: Children | None) -> Row | None:
    """None if the run has no such node."""
    if row is None:
        return None
    outcome = outcome_of(row["status"], children or NO_CHILDREN, row["ended_by"])
    facts = [f"{node_id}: {outcome.replace('_', ' ')}"]
    if children is not None and children.failed:
        facts.append(f"{children.failed} of {children.total} failed")
    if row["started_at"] is not None:
        facts.append(duration(seconds_between(row["started_at"], row["completed_at"])))
    if row["retry_count"]:
        facts.append(f"attempt {row['retry_count'] + 1}")
    if row["error_message"]:
        facts.append(first_line(redact_text(row["error_message"]), 160))
    href = f"/ui/jobs/{run['job_id']}/nodes/{quote(node_id, safe='')}"
    return {"status": outcome, "tip": f"{', '.join(facts)} (job {run['job_id']})", "href": href}
