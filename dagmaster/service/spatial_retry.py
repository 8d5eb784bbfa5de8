"""Select the nodes that a retry within a box runs."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from dagmaster.errors import Conflict, JobEnded
from dagmaster.ids import JobId
from dagmaster.model.shapes import MAX_SHAPES, Box, shapes_of
from dagmaster.model.states import ENDED_WITH_JOB, JOB_TERMINAL, JobStatus, NodeStatus
from dagmaster.store.connect import Connection
from dagmaster.store.jobs import get_job_head
from dagmaster.store.node_places import (
    MAX_UNFINISHED,
    PlacedNode,
    box_of,
    has_added_nodes,
    is_in,
    unfinished_places,
)
from dagmaster.store.workflows import load_definitions


@dataclass(frozen=True, slots=True)
class Selection:
    """The nodes within the box, of all that a retry of the job would run."""

    node_ids: frozenset[str]
    unfinished: int


async def select_in_box(conn: Connection, job_id: JobId, box: Box) -> Selection:
    """Raises UnknownJob, JobEnded, and Conflict if no node can be selected."""
    job = await get_job_head(conn, job_id)
    has_failed = job["status"] == JobStatus.FAILED
    if job["status"] in JOB_TERMINAL and not has_failed:
        raise JobEnded(f"job {job_id} is {job['status']}: only a failed job can be retried")
    if has_failed and await has_added_nodes(conn, job_id):
        raise Conflict(
            f"tasks of job {job_id} have added nodes to it, which wait for each other: retry it without a bbox"
        )
    rows = await unfinished_places(conn, job_id, has_failed=has_failed)
    if len(rows) > MAX_UNFINISHED:
        raise Conflict(f"job {job_id} has more than {MAX_UNFINISHED:,} unfinished nodes: retry it without a bbox")
    tolerated = await _tolerated(conn, job["workflow_hash"])
    nodes = [row for row in rows if not _is_tolerated(row, tolerated)]
    selected = frozenset(node["node_id"] for node in nodes if is_in(node, box))
    if not selected:
        raise Conflict(_why_none(job_id, nodes, has_failed=has_failed))
    return Selection(selected, len(nodes))


async def _tolerated(conn: Connection, workflow_hash: str) -> set[str]:
    """The nodes of the definition that may fail."""
    definition: Any = (await load_definitions(conn, [workflow_hash])).get(workflow_hash)
    if isinstance(definition, bytes):  # Some connections do not decode JSON.
        definition = orjson.loads(definition)
    nodes: Mapping[str, Any] = (definition or {}).get("nodes", {})
    return {name for name, node in nodes.items() if node.get("allow_failure")}


def _is_tolerated(node: PlacedNode, tolerated: set[str]) -> bool:
    """Whether the node is unrelated to the job's failure."""
    if node["status"] != NodeStatus.FAILED or node["ended_by"] in ENDED_WITH_JOB:
        return False
    return (node["parent_node_id"] or node["node_id"]) in tolerated


def _why_none(job_id: JobId, nodes: list[PlacedNode], *, has_failed: bool) -> str:
    if not nodes:
        reason = "no node has failed" if has_failed else "no node waits for its next attempt"
        return f"nothing to retry in job {job_id}: {reason}"
    boxes = [box for node in nodes if (box := box_of(node)) is not None]
    if not boxes:
        return (
            f"none of the {len(nodes)} unfinished nodes of job {job_id} has a location: their items, parameters, "
            "outputs and checkpoints have no bbox and no geometry in degrees; retry the job without a bbox"
        )
    around = shapes_of([{"bbox": box} for box in boxes[:MAX_SHAPES]]).view or boxes[0]
    extent = ",".join(f"{degree:.6g}" for degree in around)
    return f"none of the {len(boxes)} unfinished nodes with a location touches the bbox; they lie within {extent}"
