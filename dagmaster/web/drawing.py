"""A job or a workflow as nodes and edges that can be drawn."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from dagmaster.model.edges import find_inbound, find_targets
from dagmaster.model.redact import redact
from dagmaster.model.states import NODE_TERMINAL, NodeStatus
from dagmaster.model.workflow import ChildTask, ConditionalNode, FanOutNode, Node, TaskNode, Workflow
from dagmaster.schemas.timeline import GraphEdge, GraphNode, GraphReply
from dagmaster.schemas.workflows import WorkflowEdge, WorkflowNode
from dagmaster.web.views import seconds_between

Row = Mapping[str, Any]


def workflow_nodes(workflow: Workflow) -> list[WorkflowNode]:
    return [
        WorkflowNode(
            node_id=node_id,
            type=node.type,
            description=node.description,
            handler=task.handler if (task := task_of(node)) else None,
            queue=task.queue if task else None,
            timeout_seconds=task.timeout_seconds if task else None,
        )
        for node_id, node in workflow.nodes.items()
    ]


def workflow_edges(workflow: Workflow) -> list[WorkflowEdge]:
    return [
        WorkflowEdge(source=source, target=target, branch=", ".join(branches) or None)
        for source, target, branches in _edges(workflow)
    ]


def draw(job: Row, workflow: Workflow, rows: Iterable[Row], counts: Iterable[Row]) -> GraphReply:
    known = {row["node_id"]: row for row in rows}
    children: dict[str, dict[str, int]] = {}
    added: dict[str, dict[str, int]] = {}
    for count in counts:
        if count["parent_node_id"] is not None:
            counted = added if count["is_added"] else children
            counted.setdefault(count["parent_node_id"], {})[count["status"]] = count["nodes"]
    return GraphReply(
        job_id=job["job_id"],
        workflow_id=job["workflow_id"],
        workflow_version=job["workflow_version"],
        status=job["status"],
        nodes=[
            _node(node_id, node, known[node_id], children.get(node_id, {}), added.get(node_id, {}))
            for node_id, node in workflow.nodes.items()
            if node_id in known
        ],
        edges=[
            GraphEdge(
                source=source,
                target=target,
                kind=_kind(known[source], branches, children.get(source, {})),
                branch=", ".join(branches) or None,
            )
            for source, target, branches in _edges(workflow)
            if source in known
        ],
    )


def _node(node_id: str, node: Node, row: Row, children: dict[str, int], added: dict[str, int]) -> GraphNode:
    task = task_of(node)
    return GraphNode(
        **{**row, "error_message": redact(row["error_message"])},
        type=node.type,
        handler=task.handler if task else None,
        queue=task.queue if task else None,
        duration_seconds=seconds_between(row["started_at"], row["completed_at"]),
        children=children,
        added=added,
    )


def task_of(node: Node) -> ChildTask | None:
    match node:
        case TaskNode():
            return node
        case FanOutNode():
            return node.task
        case _:
            return None


def _edges(workflow: Workflow) -> Iterator[tuple[str, str, list[str]]]:
    """Source, target, and the names of the branches that lead there."""
    for source, targets in find_targets(find_inbound(workflow.nodes)).items():
        node = workflow.nodes[source]
        branches = node.branches if isinstance(node, ConditionalNode) else ()
        for target in targets:
            yield source, target, [branch.name for branch in branches if target in branch.next]


def _kind(source: Row, branches: list[str], children: Mapping[str, int]) -> str:
    """As the engine decides it: nothing comes from what was skipped or failed, or along a branch not taken."""
    status = NodeStatus(source["status"])
    is_open = any(state not in NODE_TERMINAL for state, number in children.items() if number)
    if status not in NODE_TERMINAL or (status is NodeStatus.COMPLETED and is_open):
        return "undecided"
    if status is not NodeStatus.COMPLETED or (branches and source["taken_branch"] not in branches):
        return "dead"
    return "live"
