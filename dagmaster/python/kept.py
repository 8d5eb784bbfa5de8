"""Workflows whose tasks are all kept in one process."""

from typing import Any

from dagmaster.authoring.implicit import QueueRules, resolve_queues
from dagmaster.model.problems import InvalidWorkflow
from dagmaster.model.retry import OnOom, RetryPolicy
from dagmaster.model.workflow import ChildTask, FanOutNode, Node, TaskNode, Workflow


def kept_in(workflow: Workflow, queue: str, rules: QueueRules) -> Workflow:
    """The workflow with all its tasks on this queue.

    Raises InvalidWorkflow when it names a handler that is not known here: the job would wait for it for ever.
    """
    nodes = {name: _node(one, queue) for name, one in workflow.nodes.items()}
    kept = resolve_queues(workflow.model_copy(update={"nodes": nodes}), rules)
    problems = [one for one in rules.find_problems(kept) if one.is_error]
    if problems:
        raise InvalidWorkflow(problems)
    return kept


def _node(one: Node, queue: str) -> Node:
    match one:
        case TaskNode():
            return one.model_copy(update=_task(one, queue))
        case FanOutNode():
            child = one.task.model_copy(update=_task(one.task, queue))
            return one.model_copy(update={"task": child, "retry": _retry(one.retry, queue)})
        case _:
            return one


def _task(one: ChildTask, queue: str) -> dict[str, Any]:
    return {"queue": queue, "retry": _retry(one.retry, queue)}


def _retry(policy: RetryPolicy | None, queue: str) -> RetryPolicy | None:
    return policy.model_copy(update={"on_oom": OnOom(queue=queue)}) if policy and policy.on_oom else policy
