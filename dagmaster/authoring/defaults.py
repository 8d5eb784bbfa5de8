"""Write what a workflow leaves open into it, so that the pinned definition says all: timeouts and retries."""

from collections.abc import Mapping
from typing import Any

from dagmaster.model.retry import RetryPolicy
from dagmaster.model.workflow import ChildTask, FanOutNode, Node, TaskNode, Workflow


def settle_defaults(
    workflow: Workflow,
    *,
    handler_timeouts: Mapping[str, float | None],
    timeout_seconds: float,
    max_retries: int,
) -> Workflow:
    """A node's own timeout wins over its handler's, and that over the setting."""
    retry = RetryPolicy(max_attempts=max_retries)

    def missing(task: ChildTask) -> dict[str, Any]:
        update: dict[str, Any] = {}
        if task.timeout_seconds is None:
            update["timeout_seconds"] = handler_timeouts.get(task.handler) or timeout_seconds
        if task.retry is None:
            update["retry"] = retry
        return update

    def settled(node: Node) -> Node:
        match node:
            case TaskNode():
                return node.model_copy(update=missing(node))
            case FanOutNode():
                return node.model_copy(update={"task": node.task.model_copy(update=missing(node.task))})
            case _:
                return node

    return workflow.model_copy(update={"nodes": {name: settled(node) for name, node in workflow.nodes.items()}})
