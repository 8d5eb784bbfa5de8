"""Compile a workflow to the graph that the engine executes."""

from collections.abc import Collection, Mapping
from typing import Any

from dagmaster.model.checks import find_problems
from dagmaster.model.conditions import compile_condition
from dagmaster.model.edges import find_inbound, find_nearest_fan_outs, find_targets, sort_topologically
from dagmaster.model.expressions import compile_template
from dagmaster.model.finalizers import ORDER, Phase, find_heads, find_phases
from dagmaster.model.graph import (
    ApprovalSpec,
    BranchSpec,
    ChildJobSpec,
    FanInSpec,
    FanOutSpec,
    Graph,
    GraphNode,
    NodeType,
    TaskSpec,
    WaitSpec,
)
from dagmaster.model.problems import InvalidWorkflow
from dagmaster.model.retry import RetryPolicy
from dagmaster.model.workflow import (
    DEFAULT_TIMEOUT_SECONDS,
    ApprovalNode,
    Branch,
    ChildTask,
    ConditionalNode,
    FanInNode,
    FanOutNode,
    MayFail,
    Node,
    TaskNode,
    WaitNode,
    Workflow,
    WorkflowNode,
)

# Approvals and child jobs are not repeated unless the author says so.
ONCE = RetryPolicy(max_attempts=0)


def compile_graph(
    workflow: Workflow,
    *,
    known_handlers: Collection[str] | None = None,
    default_timeout_seconds: float = DEFAULT_TIMEOUT_SECONDS,
    default_retry: RetryPolicy = RetryPolicy(),
) -> Graph:
    """Raise InvalidWorkflow with all problems, if one of them is an error."""
    problems = find_problems(workflow, known_handlers=known_handlers)
    if any(problem.is_error for problem in problems):
        raise InvalidWorkflow(problems)
    return assemble_graph(workflow, default_timeout_seconds=default_timeout_seconds, default_retry=default_retry)


def assemble_graph(
    workflow: Workflow,
    *,
    default_timeout_seconds: float = DEFAULT_TIMEOUT_SECONDS,
    default_retry: RetryPolicy = RetryPolicy(),
) -> Graph:
    """The graph of a valid workflow: a job's pinned definition was checked when it was submitted."""
    compiler = _Compiler(workflow, default_timeout_seconds, default_retry)
    order = sorted(sort_topologically(compiler.inbound), key=lambda node_id: ORDER.index(compiler.phases[node_id]))
    nodes = {node_id: compiler.compile(node_id) for node_id in order}
    main = [node_id for node_id, phase in compiler.phases.items() if phase is Phase.MAIN]
    roots = tuple(node_id for node_id in main if not compiler.inbound[node_id].sources)
    return Graph(workflow, nodes, roots, find_heads(workflow))


class _Compiler:
    def __init__(self, workflow: Workflow, timeout_seconds: float, retry: RetryPolicy) -> None:
        self.inbound = find_inbound(workflow.nodes)
        self.phases = find_phases(workflow, self.inbound)
        self._targets = find_targets(self.inbound)
        self._workflow = workflow
        self._timeout_seconds = timeout_seconds
        self._retry = retry

    def compile(self, node_id: str) -> GraphNode:
        node, edges = self._workflow.nodes[node_id], self.inbound[node_id]
        retry = self._retry_of(node)
        return GraphNode(
            node_id=node_id,
            type=NodeType(node.type),
            all_of=edges.all_of,
            any_of=edges.any_of,
            targets=self._targets[node_id],
            retry=retry,
            task=self._task(node, retry) if isinstance(node, TaskNode) else None,
            branches=_branches(node) if isinstance(node, ConditionalNode) else (),
            fan_out=self._fan_out(node, retry) if isinstance(node, FanOutNode) else None,
            fan_in=self._fan_in(node_id, node) if isinstance(node, FanInNode) else None,
            wait=_wait(node) if isinstance(node, WaitNode) else None,
            approval=_approval(node) if isinstance(node, ApprovalNode) else None,
            child_job=_child_job(node) if isinstance(node, WorkflowNode) else None,
            allow_failure=isinstance(node, MayFail) and node.allow_failure,
            phase=self.phases[node_id],
        )

    def _retry_of(self, node: Node) -> RetryPolicy:
        match node:
            case TaskNode() | ConditionalNode() | FanOutNode() | FanInNode():
                return node.retry or self._retry
            case WorkflowNode():
                return node.retry or ONCE
            case WaitNode() | ApprovalNode():
                return ONCE
            case _:
                return self._retry

    def _task(self, task: ChildTask, retry: RetryPolicy) -> TaskSpec:
        params: Mapping[str, Any] = {**self._workflow.globals, **task.params}
        return TaskSpec(
            handler=task.handler,
            queue=task.queue or "",
            params=compile_template(params),
            timeout_seconds=task.timeout_seconds or self._timeout_seconds,
            retry=retry,
        )

    def _fan_out(self, node: FanOutNode, retry: RetryPolicy) -> FanOutSpec:
        child = self._task(node.task, node.task.retry or retry)
        return FanOutSpec(compile_template(node.source), child, node.max_parallel)

    def _fan_in(self, node_id: str, node: FanInNode) -> FanInSpec:
        fan_out = node.source_node or find_nearest_fan_outs(node_id, self._workflow.nodes, self.inbound)[0]
        return FanInSpec(fan_out, node.aggregation)


def _wait(node: WaitNode) -> WaitSpec:
    until = None if node.until is None else compile_template(node.until)
    seconds = None if node.seconds is None else compile_template(node.seconds)
    return WaitSpec(until, seconds, node.signal, node.timeout_seconds)


def _approval(node: ApprovalNode) -> ApprovalSpec:
    return ApprovalSpec(compile_template(node.message), node.approvers, node.timeout_seconds)


def _child_job(node: WorkflowNode) -> ChildJobSpec:
    return ChildJobSpec(node.workflow, node.workflow_hash, compile_template(node.inputs), node.timeout_seconds)


def _branches(node: ConditionalNode) -> tuple[BranchSpec, ...]:
    """The default branch is evaluated last, wherever it is written."""
    ordered = sorted(node.branches, key=lambda branch: branch.when is None)
    return tuple(_branch(branch, node.subject) for branch in ordered)


def _branch(branch: Branch, subject: str | None) -> BranchSpec:
    condition = None if branch.when is None else compile_condition(branch.when, subject=subject)
    return BranchSpec(branch.name, condition, branch.next)
