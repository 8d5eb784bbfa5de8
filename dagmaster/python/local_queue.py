"""Workflows whose tasks all run in one process."""

from typing import Any

from dagmaster.authoring.implicit import QueueRules, resolve_queues
from dagmaster.model.problems import InvalidWorkflow
from dagmaster.model.retry import OnOom, RetryPolicy
from dagmaster.model.workflow import ChildTask, FanOutNode, Node, TaskNode, Workflow


def bind_to_queue(workflow: Workflow, queue: str, rules: QueueRules) -> Workflow:
    """The workflow with all its tasks on this queue.

    Raises InvalidWorkflow when it uses a handler that this process lacks: the job would wait for it forever.
    """
    nodes = {name: _node(node, queue) for name, node in workflow.nodes.items()}
    bound = resolve_queues(workflow.model_copy(update={"nodes": nodes}), rules)
    problems = [problem for problem in rules.find_problems(bound) if problem.is_error]
    if problems:
        raise InvalidWorkflow(problems)
    return bound


def _node(node: Node, queue: str) -> Node:
    match node:
        case TaskNode():
            return node.model_copy(update=_task(node, queue))
        case FanOutNode():
            child = node.task.model_copy(update=_task(node.task, queue))
            return node.model_copy(update={"task": child, "retry": _retry(node.retry, queue)})
        case _:
            return node


def _task(task: ChildTask, queue: str) -> dict[str, Any]:
    return {"queue": queue, "retry": _retry(task.retry, queue)}


def _retry(policy: RetryPolicy | None, queue: str) -> RetryPolicy | None:
    return policy.model_copy(update={"on_oom": OnOom(queue=queue)}) if policy and policy.on_oom else policy
