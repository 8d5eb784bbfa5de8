"""Prepare a workflow for submission: fill in all defaults for the lifetime of the job, and compile the graph."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from dagmaster.errors import Conflict, Invalid, MissingQueue, UnknownWorkflow
from dagmaster.model.compile import compile_graph
from dagmaster.model.contracts import Contract, Contracts
from dagmaster.model.graph import Graph
from dagmaster.model.retry import RetryPolicy
from dagmaster.model.workflow import (
    ChildTask,
    ConditionalNode,
    FanInNode,
    FanOutNode,
    Node,
    TaskNode,
    Workflow,
    WorkflowNode,
)
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
    timeout_seconds, max_retries = settings.default_task_timeout_seconds, settings.default_max_retries
    return compile_graph(settle_defaults(workflow, known, timeout_seconds=timeout_seconds, max_retries=max_retries))


def settle_defaults(workflow: Workflow, known: Contracts, *, timeout_seconds: float, max_retries: int) -> Workflow:
    """Write default timeouts and retries into the workflow, so that the pinned definition is complete.

    A node's own timeout and retries win over its handler's, and these over the settings.
    """
    retry = RetryPolicy(max_attempts=max_retries)

    def missing(task: ChildTask, around: RetryPolicy | None = None) -> dict[str, Any]:
        contract = known.get(task.handler) or Contract(task.handler)
        update: dict[str, Any] = {}
        if task.timeout_seconds is None:
            update["timeout_seconds"] = contract.timeout_seconds or timeout_seconds
        if task.retry is None:
            update["retry"] = around or contract.retry or retry
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


def queues_of(workflow: Workflow) -> set[str]:
    """The queues of its tasks, including those for attempts after one ran out of memory."""
    return {queue for queue, _ in tasks_of(workflow)}


def tasks_of(workflow: Workflow) -> set[tuple[str, str]]:
    """The queue and handler of each task."""
    pairs: set[tuple[str, str]] = set()
    for path, task in workflow.tasks():
        node = workflow.nodes[path[1]]
        retry = task.retry or (node.retry if isinstance(node, FanOutNode) else None)
        queues = (task.queue, retry.on_oom.queue if retry and retry.on_oom else None)
        pairs |= {(queue, task.handler) for queue in queues if queue}
    return pairs
