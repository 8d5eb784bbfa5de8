"""The nodes of a job as rows of a table; the children of a fan-out are folded into its row."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from dagmaster.ids import NodeId
from dagmaster.model.outcome import ENDED, NO_CHILDREN, Children, children_of, outcome_of
from dagmaster.model.progress import JobSnapshot
from dagmaster.model.redact import redact
from dagmaster.model.states import NODE_TERMINAL, NodeStatus
from dagmaster.store.connect import Connection
from dagmaster.store.node_counts import count_outside
from dagmaster.store.nodes import NodeFilter, find_nodes
from dagmaster.store.workflows import load_definitions
from dagmaster.web.views import node_seconds, seconds_between

Row = Mapping[str, Any]
Definition = Mapping[str, Row]

PAGE_SIZE: Final = 100


@dataclass(frozen=True, slots=True)
class NodePage:
    lines: Sequence[Row]
    has_more: bool
    filter: NodeFilter
    offset: int

    @property
    def is_filtered(self) -> bool:
        return bool(self.filter.status or self.filter.text)


async def definition_of(conn: Connection, job: Row) -> Definition:
    """The nodes of the pinned definition; empty if it no longer exists."""
    pinned: dict[str, Any] = {**await load_definitions(conn, [job["workflow_hash"]])}
    nodes: Definition = pinned.get(job["workflow_hash"], {}).get("nodes", {})
    return nodes


async def node_page(
    conn: Connection, job: Row, definition: Definition, snapshot: JobSnapshot, filter: NodeFilter, *, offset: int
) -> NodePage:
    rows = await find_nodes(conn, job["job_id"], filter, limit=PAGE_SIZE + 1, offset=offset)
    is_any_from_outside = any(row["is_added"] and row["parent_node_id"] is None for row in rows)
    outside = await count_outside(conn, job["job_id"]) if is_any_from_outside else {}
    lines = [node_line(row, definition, _children(row["node_id"], snapshot, outside)) for row in rows[:PAGE_SIZE]]
    return NodePage(lines, len(rows) > PAGE_SIZE, filter, offset)


def node_line(row: Row, definition: Definition, children: Children = NO_CHILDREN) -> Row:
    """`children` are folded into this line; `queued` and `ran` are seconds."""
    type, handler = kind_of(row, definition)
    is_running = row["status"] == NodeStatus.RUNNING
    outcome = outcome_of(row["status"], children, row["ended_by"])
    return {
        **{name: row[name] for name in ("node_id", "status", "started_at", "worker_id")},
        "outcome": outcome,
        "is_over": outcome in ENDED,
        "type": type,
        "handler": handler,
        "attempts": row["retry_count"] + 1 if row["dispatched_at"] or row["retry_count"] else 0,
        "max_attempts": row["max_retries"] + 1,
        "queued": _queued(row),
        "ran": node_seconds(row, children),
        "error": redact(row["error_message"] if row["status"] in NODE_TERMINAL else row["last_error"]),
        "progress_percent": row["progress_percent"] if is_running else None,
        "progress_message": redact(row["progress_message"]) if is_running else None,
        "children": children,
        "waits_for": waits_for(row, type, definition.get(row["node_id"], {}).get("signal")),
    }


def waits_for(row: Row, type: str | None, signal: str | None) -> str | None:
    """What an unfinished node waits for, in the words of the graph."""
    if row["status"] == NodeStatus.READY and row["not_before"] is not None:
        return "awaits retry"
    if row["status"] != NodeStatus.RUNNING:
        return None
    if type == "wait":
        return "awaits signal" if signal else "awaits timer"
    return {"approval": "needs approval", "workflow": "awaits child job"}.get(type or "")


def kind_of(row: Row, definition: Definition) -> tuple[str, str | None]:
    """Type and handler: its own, that of its fan-out, or that of the node that added it."""
    if row["is_added"]:
        return row["type"] or "task", row["handler"]
    parent = row["parent_node_id"]
    node = definition.get(parent or row["node_id"], {})
    task = node.get("task") or node
    return "task" if parent else node.get("type", "task"), task.get("handler") or node.get("workflow")


def _queued(row: Row) -> float | None:
    if row["dispatched_at"] is None or row["status"] in ("skipped", "ready", "pending"):
        return None
    return seconds_between(row["dispatched_at"], row["started_at"] or row["completed_at"])


def _children(node_id: NodeId, snapshot: JobSnapshot, outside: Mapping[str, Mapping[str, int]]) -> Children:
    if node_id in outside:
        return children_of({}, outside[node_id])
    node = snapshot.nodes.get(node_id)
    return node.children if node is not None else NO_CHILDREN
