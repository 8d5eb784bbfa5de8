"""Prepare a workflow for submission: fill in all defaults for the lifetime of the job, and compile the graph."""

from collections.abc import Callable, Iterator
from dataclasses import replace

from dagmaster.authoring.defaults import settle_defaults
from dagmaster.errors import Conflict, Invalid, MissingQueue, UnknownWorkflow
from dagmaster.model.compile import compile_graph
from dagmaster.model.contracts import Contracts
from dagmaster.model.graph import Graph
from dagmaster.model.retry import RetryPolicy
from dagmaster.model.workflow import ChildTask, FanOutNode, TaskNode, Workflow, WorkflowNode
from dagmaster.settings import Settings

Find = Callable[[str], Workflow]
"""Find a workflow by id; raises UnknownWorkflow."""


def prepare(workflow: Workflow, settings: Settings, known: Contracts, find: Find | None = None) -> Graph:
    """`known` are the handlers' contracts; `find` returns child workflows, which are pinned too."""
    return _Preparing(settings, known, find).prepare(workflow, ())


class _Preparing:
    def __init__(self, settings: Settings, known: Contracts, find: Find | None) -> None:
        self._settings, self._known, self._find = settings, known, find
        self._called: dict[str, Graph] = {}

    def prepare(self, workflow: Workflow, path: tuple[str, ...]) -> Graph:
        path = (*path, workflow.workflow_id)
        nodes = dict(workflow.nodes)
        called: dict[str, Graph] = {}
        for node_id, node in nodes.items():
            if isinstance(node, WorkflowNode):
                graph = self._call(node_id, node, path)
                called |= {child.workflow.content_hash: child for child in (*graph.called, graph)}
                nodes[node_id] = node.model_copy(update={"workflow_hash": graph.workflow.content_hash})
        pinned = workflow.model_copy(update={"nodes": nodes}) if called else workflow
        return replace(_settle(pinned, self._settings, self._known), called=tuple(called.values()))

    def _call(self, node_id: str, node: WorkflowNode, path: tuple[str, ...]) -> Graph:
        name = node.workflow
        if name in path:
            circle = " -> ".join((*path[path.index(name) :], name))
            raise Invalid(f"workflows must not call each other in a cycle: {circle}")
        if name not in self._called:
            if self._find is None:
                raise Invalid(f"node {node_id!r} calls the workflow {name!r}, but no other workflows are loaded here")
            try:
                self._called[name] = self.prepare(self._find(name), path)
            except (UnknownWorkflow, Conflict) as error:
                raise Invalid(f"node {node_id!r} of workflow {path[-1]!r} calls {name!r}: {error}") from error
        return self._called[name]


def _settle(workflow: Workflow, settings: Settings, known: Contracts) -> Graph:
    if not workflow.is_active:
        raise Conflict(f"workflow {workflow.workflow_id!r} is not active (is_active: false)")
    if len(workflow.nodes) > settings.max_nodes:
        raise Invalid(
            f"workflow {workflow.workflow_id!r} has {len(workflow.nodes)} nodes; the limit is {settings.max_nodes} "
            "(DAGMASTER_MAX_NODES)"
        )
    for path, task in workflow.tasks():
        if task.queue:
            continue
        raise MissingQueue(
            f"node {path[1]!r} of workflow {workflow.workflow_id!r} has no queue: give it a 'queue', register the "
            f"handler {task.handler!r} with one, or set a default queue (DAGMASTER_WORKER_QUEUE)"
        )
    settled = settle_defaults(
        workflow,
        handler_timeouts={name: contract.timeout_seconds for name, contract in known.items()},
        handler_retries={name: contract.retry for name, contract in known.items()},
        timeout_seconds=settings.default_task_timeout_seconds,
        max_retries=settings.default_max_retries,
    )
    return compile_graph(settled)


def queues_of(workflow: Workflow) -> set[str]:
    """The queues of its tasks, including those for attempts after one ran out of memory."""
    return {queue for queue, _ in tasks_of(workflow)}


def tasks_of(workflow: Workflow) -> set[tuple[str, str]]:
    """The queue and handler of each task."""
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
