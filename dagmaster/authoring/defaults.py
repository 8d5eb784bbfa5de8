"""Write default timeouts and retries into a workflow, so that the pinned definition is complete."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from dagmaster.model.retry import RetryPolicy
from dagmaster.model.workflow import ChildTask, ConditionalNode, FanInNode, FanOutNode, Node, TaskNode, Workflow


def settle_defaults(
    workflow: Workflow,
    *,
    handler_timeouts: Mapping[str, float | None],
    timeout_seconds: float,
    max_retries: int,
    handler_retries: Mapping[str, RetryPolicy | None] = MappingProxyType({}),
) -> Workflow:
    """A node's own timeout and retries win over its handler's, and these over the settings."""
    retry = RetryPolicy(max_attempts=max_retries)

    def missing(task: ChildTask, around: RetryPolicy | None = None) -> dict[str, Any]:
        update: dict[str, Any] = {}
        if task.timeout_seconds is None:
            update["timeout_seconds"] = handler_timeouts.get(task.handler) or timeout_seconds
        if task.retry is None:
            update["retry"] = around or handler_retries.get(task.handler) or retry
        return update

    def settled(node: Node) -> Node:
        match node:
            case TaskNode():
                return node.model_copy(update=missing(node))
            case FanOutNode():
                own = node.retry or retry  # It also applies to the children, unless they have their own.
                return node.model_copy(
                    update={"task": node.task.model_copy(update=missing(node.task, node.retry)), "retry": own}
                )
            case ConditionalNode() | FanInNode() if node.retry is None:
                return node.model_copy(update={"retry": retry})
            case _:
                return node

    return workflow.model_copy(update={"nodes": {name: settled(node) for name, node in workflow.nodes.items()}})
