"""A job or a workflow as nodes and edges that can be drawn."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Final

from dagmaster.errors import NotFound
from dagmaster.model.added_nodes import OUTSIDE
from dagmaster.model.edges import find_inbound, find_targets
from dagmaster.model.finalizers import find_heads
from dagmaster.model.graph import Graph
from dagmaster.model.graph import GraphNode as CompiledNode
from dagmaster.model.outcome import Children, children_of, outcome_of
from dagmaster.model.redact import redact
from dagmaster.model.states import NODE_TERMINAL, NodeStatus, read_ended_by
from dagmaster.model.workflow import (
    ApprovalNode,
    ChildTask,
    ConditionalNode,
    FanOutNode,
    Node,
    TaskNode,
    WaitNode,
    Workflow,
)
from dagmaster.model.workflow import WorkflowNode as WorkflowCall
from dagmaster.schemas.timeline import GraphReply
from dagmaster.schemas.workflows import WorkflowEdge, WorkflowNode
from dagmaster.store.connect import Connection
from dagmaster.store.events import last_event_of_job
from dagmaster.store.node_counts import count_folded
from dagmaster.store.nodes import view_graph
from dagmaster.web.services import Services
from dagmaster.web.views import node_seconds, seconds_between

Row = Mapping[str, Any]
Column = list[Any] | dict[str, Any]

MAX_ERROR: Final = 200  # Shown in the tooltip of a node; its panel shows the rest.
TIMES: Final = ("started_at", "completed_at", "last_ended_at")
DRAWN_OF_NODES: Final = (
    *("node_id", "type", "status", "outcome", "handler", "retry_count", "error_message", "waits_for", "runs_last"),
    *("children", "added", *TIMES),
)
DRAWN_OF_EDGES: Final = ("kind", "branch")
DIGITS: Final = "0123456789abcdefghijklmnopqrstuvwxyz"


def workflow_nodes(workflow: Workflow) -> list[WorkflowNode]:
    last = _running_last(workflow)
    return [
        WorkflowNode(
            node_id=node_id,
            type=node.type,
            description=node.description,
            handler=task.handler if (task := task_of(node)) else None,
            queue=task.queue if task else None,
            timeout_seconds=task.timeout_seconds if task else None,
            runs_last=last.get(node_id),
        )
        for node_id, node in workflow.nodes.items()
    ]


def workflow_edges(workflow: Workflow) -> Iterator[WorkflowEdge]:
    inbound = find_inbound(workflow.nodes)
    for source, targets in find_targets(inbound).items():
        node = workflow.nodes[source]
        branches = node.branches if isinstance(node, ConditionalNode) else ()
        for target in targets:
            names = [branch.name for branch in branches if target in branch.next]
            rule = "any_of" if source in inbound[target].any_of else "all_of"
            yield WorkflowEdge(source=source, target=target, branch=", ".join(names) or None, rule=rule)


@dataclass(slots=True)
class Folded:
    """The counts drawn inside a node: children of a fan-out and nodes that its task added, by status."""

    children: dict[str, int] = field(default_factory=dict)
    added: dict[str, int] = field(default_factory=dict)
    began_at: datetime | None = None
    last_ended_at: datetime | None = None

    def of(self, node: Node) -> Children:
        may_fail = getattr(node, "allow_failure", False)
        return children_of(self.children, self.added, may_fail=may_fail, last_ended_at=self.last_ended_at)

    def take(self, count: Row) -> None:
        counts = self.added if count["is_added"] else self.children
        counts[count["status"]] = count["nodes"]
        self.began_at = min(filter(None, (self.began_at, count["began_at"])), default=None)
        self.last_ended_at = max(filter(None, (self.last_ended_at, count["last_ended_at"])), default=None)


NOTHING = Folded()


@dataclass(frozen=True, slots=True)
class JobGraph:
    """The rows of a job's graph; `counts` are those of `count_folded`."""

    job: Row
    graph: Graph
    rows: Iterable[Row]
    counts: Iterable[Row]
    last_event_id: int


async def read_graph(conn: Connection, services: Services, job: dict[str, Any]) -> JobGraph:
    graph = await services.pinned.find(conn, job["workflow_hash"])
    if graph is None:
        raise NotFound(f"the pinned definition of job {job['job_id']} is not in dag_workflows")
    seen = await last_event_of_job(conn, job)  # Read first: a duplicate event is harmless, a missing one is not.
    rows = await view_graph(conn, job["job_id"])
    return JobGraph(job, graph, rows, await count_folded(conn, job["job_id"]), seen)


def draw(read: JobGraph) -> GraphReply:
    nodes, edges = _draw_rows(read)
    seen = str(read.last_event_id)
    return GraphReply.model_validate({**read.job, "last_event_id": seen, "nodes": nodes, "edges": edges})


def draw_columns(read: JobGraph) -> Row:
    """The data that a page draws, in column form, with times in milliseconds after `since`: a tenth of `draw`."""
    nodes, edges = _draw_rows(read)
    times = [node[name] for node in nodes for name in TIMES if node.get(name) is not None]
    since = _milliseconds(min(times)) if times else 0
    places = {node["node_id"]: place for place, node in enumerate(nodes)}
    return {
        "status": read.job["status"],
        "last_event_id": str(read.last_event_id),
        "since": since,
        "nodes": {"length": len(nodes), **columns([_short(node, since) for node in nodes], DRAWN_OF_NODES)},
        "edges": {
            "length": len(edges),
            "source": [places[edge["source"]] for edge in edges],
            "target": [places[edge["target"]] for edge in edges],
            **columns(edges, DRAWN_OF_EDGES),
        },
    }


def columns(rows: Sequence[Row], names: Sequence[str]) -> dict[str, Column]:
    """Rows in column form: field names and repeated values of thousands of rows are sent once.

    Missing values are None, and columns of only None are omitted. static/graph/columns.js decodes them.
    """
    by_name = {name: column([row.get(name) for row in rows]) for name in names}
    return {name: values for name, values in by_name.items() if values != {"same": None}}


def column(values: list[Any]) -> Column:
    """A column with few distinct values lists each once, with a digit for each row."""
    places: dict[Any, int] = {}
    try:
        for value in values:
            if places.setdefault(value, len(places)) >= len(DIGITS):
                return values
    except TypeError:  # Some values are not hashable, such as counts by status.
        return values
    if len(places) <= 1:
        return {"same": next(iter(places), None)}
    if len(places) == len(values):
        return values
    return {"values": list(places), "at": "".join(DIGITS[places[value]] for value in values)}


def _short(node: Row, since: int) -> Row:
    times = {name: _after(since, node["started_at"], node.get(name)) for name in TIMES}
    filled = {name: node.get(name) or None for name in ("children", "added")}
    return {**node, **times, **filled, "error_message": (node["error_message"] or "")[:MAX_ERROR] or None}


def _after(since: int, started_at: datetime | None, at: datetime | None) -> int | None:
    """In milliseconds. Counted from the start of the node, so that its duration is the same as in lists."""
    if at is None or started_at is None:
        return None if at is None else _milliseconds(at) - since
    return _milliseconds(started_at) - since + round((at - started_at) / timedelta(milliseconds=1))


def _milliseconds(at: datetime) -> int:
    return round(at.timestamp() * 1000)


def _draw_rows(read: JobGraph) -> tuple[list[Row], list[Row]]:
    """All nodes and edges; there may be thousands."""
    graph, rows_by_id = read.graph, {row["node_id"]: row for row in read.rows}
    folded: defaultdict[str, Folded] = defaultdict(Folded)
    for count in read.counts:
        folded[count["parent_node_id"]].take(count)
    last = _running_last(graph.workflow)
    nodes = [
        _node(graph.workflow.nodes[node_id], rows_by_id[node_id], folded.get(node_id, NOTHING), last.get(node_id))
        for node_id in graph.nodes  # in graph order
        if node_id in rows_by_id
    ]
    if OUTSIDE in folded and OUTSIDE not in rows_by_id:
        nodes.append(_outside(folded[OUTSIDE]))
    edges = [
        edge
        for node_id in graph.workflow.nodes
        if node_id in rows_by_id
        for edge in _edges_from(graph, graph.nodes[node_id], rows_by_id[node_id], folded.get(node_id, NOTHING).children)
    ]
    return nodes, edges


def _node(node: Node, row: Row, folded: Folded, runs_last: str | None) -> Row:
    """The fields of GraphNode."""
    task, children = task_of(node), folded.of(node)
    return {
        **row,
        "ended_by": read_ended_by(NodeStatus(row["status"]), row["ended_by"]),
        "error_message": redact(row["error_message"]),
        "type": node.type,
        "outcome": outcome_of(row["status"], children, row["ended_by"]),
        "handler": task.handler if task else None,
        "queue": task.queue if task else None,
        "duration_seconds": node_seconds(row, children),
        "waits_for": _waits_for(node, row),
        "runs_last": runs_last,
        "children": folded.children,
        "added": folded.added,
        "last_ended_at": folded.last_ended_at,
    }


def _edges_from(graph: Graph, node: CompiledNode, row: Row, children: Mapping[str, int]) -> Iterator[Row]:
    """The fields of GraphEdge."""
    plain = _kind(row, [], children)
    for target in node.targets:
        branches = [branch.name for branch in node.branches if target in branch.targets]
        kind = _kind(row, branches, children) if branches else plain
        rule = "any_of" if node.node_id in graph.nodes[target].any_of else "all_of"
        branch = ", ".join(branches) or None
        yield {"source": node.node_id, "target": target, "kind": kind, "branch": branch, "rule": rule}


def _running_last(workflow: Workflow) -> dict[str, str]:
    return {head: phase.value for phase, heads in find_heads(workflow).items() for head in heads}


def _waits_for(node: Node, row: Row) -> str | None:
    if row["status"] == NodeStatus.READY and row["not_before"] is not None:
        return "retry"
    if row["status"] != NodeStatus.RUNNING:
        return None
    match node:
        case ApprovalNode():
            return "approval"
        case WaitNode():
            return "signal" if node.signal else "time"
        case WorkflowCall():
            return "job"
        case _:
            return None


def _outside(folded: Folded) -> Row:
    """One node that represents all nodes added from outside."""
    is_open = any(status not in NODE_TERMINAL for status in folded.added)
    failed = NodeStatus.FAILED if NodeStatus.FAILED in folded.added else NodeStatus.COMPLETED
    ended_at = None if is_open else folded.last_ended_at
    status = NodeStatus.RUNNING if is_open else failed
    return {
        "node_id": OUTSIDE,
        "type": "added",
        "status": status,
        "outcome": status,
        "handler": None,
        "queue": None,
        "retry_count": 0,
        "max_retries": 0,
        "error_message": None,
        "not_before": None,
        "started_at": folded.began_at,
        "completed_at": ended_at,
        "duration_seconds": seconds_between(folded.began_at, ended_at),
        "taken_branch": None,
        "waits_for": None,
        "runs_last": None,
        "added": folded.added,
        "last_ended_at": folded.last_ended_at,
    }


def task_of(node: Node) -> ChildTask | None:
    match node:
        case TaskNode():
            return node
        case FanOutNode():
            return node.task
        case _:
            return None


def _kind(source: Row, branches: Sequence[str], children: Mapping[str, int]) -> str:
    """As the engine decides: edges from skipped or failed nodes and from branches not taken are dead."""
    status = NodeStatus(source["status"])
    is_open = any(state not in NODE_TERMINAL for state, number in children.items() if number)
    if status not in NODE_TERMINAL or (status is NodeStatus.COMPLETED and is_open):
        return "undecided"
    if status is not NodeStatus.COMPLETED or (branches and source["taken_branch"] not in branches):
        return "dead"
    return "live"
