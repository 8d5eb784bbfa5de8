"""From a workflow to a graph that can be run: what it leaves open is settled for the life of the job."""

from collections.abc import Iterator

from dagmaster.authoring.defaults import settle_defaults
from dagmaster.errors import Conflict, Invalid
from dagmaster.handlers import Registry
from dagmaster.model.compile import compile_graph
from dagmaster.model.graph import Graph
from dagmaster.model.retry import RetryPolicy
from dagmaster.model.workflow import ChildTask, FanOutNode, TaskNode, Workflow
from dagmaster.settings import Settings


def prepare(workflow: Workflow, settings: Settings, known: Registry) -> Graph:
    if not workflow.is_active:
        raise Conflict(f"workflow {workflow.workflow_id!r} is not active (is_active: false)")
    if len(workflow.nodes) > settings.max_nodes:
        raise Invalid(
            f"workflow {workflow.workflow_id!r} has {len(workflow.nodes)} nodes, the limit is {settings.max_nodes} "
            "(DAGMASTER_MAX_NODES)"
        )
    settled = settle_defaults(
        workflow,
        handler_timeouts={handler.name: handler.timeout_seconds for handler in known},
        timeout_seconds=settings.default_task_timeout_seconds,
        max_retries=settings.default_max_retries,
    )
    return compile_graph(settled)


def queues_of(workflow: Workflow) -> set[str]:
    """Those that its tasks are put on, or may be when they run out of memory."""
    return {queue for queue, _ in tasks_of(workflow)}


def tasks_of(workflow: Workflow) -> set[tuple[str, str]]:
    """Queue and handler of each of its tasks."""
    return {(queue, task.handler) for task, retry in _tasks(workflow) for queue in _queues(task, retry)}


def _queues(task: ChildTask, retry: RetryPolicy | None) -> Iterator[str]:
    if task.queue:
        yield task.queue
    if retry and retry.on_oom:
        yield retry.on_oom.queue


def _tasks(workflow: Workflow) -> Iterator[tuple[ChildTask, RetryPolicy | None]]:
    for node in workflow.nodes.values():
        match node:
            case TaskNode():
                yield node, node.retry
            case FanOutNode():
                yield node.task, node.task.retry or node.retry
