"""Start ready nodes, by type."""

from collections import deque
from datetime import datetime, timedelta
from typing import assert_never

from dagmaster.engine import transitions
from dagmaster.engine.change_set import ChangeSet
from dagmaster.engine.edges import complete, make_ready
from dagmaster.engine.failures import fail_attempt
from dagmaster.engine.fan import (
    aggregate,
    child_params,
    expand_slice,
    fan_out_output,
    has_slot,
    open_fan,
)
from dagmaster.engine.job_end import WAITING_TYPES, start_job
from dagmaster.engine.messages import TimerKind
from dagmaster.engine.needs import ValuesNotLoaded, check_size, require_values
from dagmaster.engine.scope import added_params, encode, scope_of
from dagmaster.engine.state import NodeState, is_executed
from dagmaster.engine.wait_nodes import begin_approval, begin_child_job, begin_wait, resume_waiting
from dagmaster.errors import ExpressionFailed, ValuesTooLarge
from dagmaster.model.finalizers import Phase
from dagmaster.model.graph import NodeType
from dagmaster.model.states import EventStatus, JobStatus, NodeStatus

MIN_DISPATCH_TIMEOUT_SECONDS = 1800.0
EXPRESSION_FAILED = ("ExpressionFailed", "dagmaster.errors.ExpressionFailed", "Exception")


def run_ready(changes: ChangeSet) -> None:
    """Start every ready node, and every node that becomes ready as a result."""
    if changes.job.is_paused:
        changes.ready.clear()  # Their status stays ready; resuming the job finds them.
    while changes.ready:
        node = changes.ready.popleft()
        if node.status is not NodeStatus.READY or is_backing_off(changes, node):
            continue
        if changes.job.status is JobStatus.PENDING:
            start_job(changes, node.node_id)
        try:
            _run(changes, node)
        except ValuesNotLoaded:
            changes.job.postponed[node.node_id] = None
        except ExpressionFailed as error:
            permanent = isinstance(error, ValuesTooLarge)
            fail_attempt(changes, node, str(error), permanent=permanent, error_types=EXPRESSION_FAILED)


def run_postponed(changes: ChangeSet) -> None:
    """Run the postponed nodes, as many as one change set may hold."""
    job = changes.job
    for node_id in list(job.postponed)[: changes.rules.slice_size]:
        del job.postponed[node_id]
        node = job.nodes[node_id]
        if node.status is NodeStatus.READY:
            changes.ready.append(node)
        else:
            expand(changes, node)


def is_backing_off(changes: ChangeSet, node: NodeState) -> bool:
    return node.not_before is not None and node.not_before > changes.now


def _run(changes: ChangeSet, node: NodeState) -> None:
    if is_executed(node):
        dispatch(changes, node)
        return
    require_values(changes, node)
    match node.spec.type:
        case NodeType.START | NodeType.END | NodeType.GATE:
            complete_here(changes, node, None)
        case NodeType.CONDITIONAL:
            complete_here(changes, node, route(changes, node))
        case NodeType.FAN_IN:
            assert node.spec.fan_in is not None
            complete_here(changes, node, aggregate(changes, node.spec.fan_in))
        case NodeType.FAN_OUT:
            if node.output is None:
                open_fan(changes, node)
            transitions.start_here(changes, node)
            expand(changes, node)
        case NodeType.WAIT:
            begin_wait(changes, node)
        case NodeType.APPROVAL:
            begin_approval(changes, node)
        case NodeType.WORKFLOW:
            begin_child_job(changes, node)
        case NodeType.TASK:
            raise AssertionError("a task is executed by a worker")
        case _:
            assert_never(node.spec.type)


def dispatch(changes: ChangeSet, node: NodeState) -> None:
    """Put the node's task on its queue, unless `max_parallel` or a full queue prevents it."""
    job = changes.job
    if node.is_child and not has_slot(job, node):
        job.fans[node.parent or ""].waiting.append(node.node_id)
        return
    queue = node.task_queue
    if queue in changes.closed_queues:
        job.backlog.setdefault(queue, deque()).append(node.node_id)
        return
    if not node.has_params or _may_differ(changes, node):
        require_values(changes, node)
        node.params = _encoded_params(changes, node)
        node.has_params = True
    transitions.dispatch(changes, node, queue, node.task.handler)
    changes.arm(TimerKind.DISPATCH, dispatch_deadline(changes, node), node)


def _encoded_params(changes: ChangeSet, node: NodeState) -> bytes:
    if node.is_child:
        resolved = child_params(changes, node)
    else:
        resolved = added_params(changes, node) if node.is_added else node.task.params.resolve(scope_of(changes))
    params = encode(resolved, f"the parameters of {node.node_id}")
    check_size(f"the parameters of {node.node_id}", len(params), changes.rules)
    changes.bytes += len(params)
    return params


def _may_differ(changes: ChangeSet, node: NodeState) -> bool:
    """Whether a rerun finalizer may get other parameters. An added node's change only with the results it refers to."""
    return changes.job.phase_of(node) is not Phase.MAIN and (not node.is_added or bool(node.task.params.raw))


def dispatch_timeout(changes: ChangeSet, node: NodeState) -> timedelta:
    """The longest time that the task may wait in its queue."""
    seconds = changes.rules.dispatch_timeout_seconds
    return timedelta(seconds=seconds or max(node.task.timeout_seconds, MIN_DISPATCH_TIMEOUT_SECONDS))


def dispatch_deadline(changes: ChangeSet, node: NodeState) -> datetime:
    """Counted from the end of the last pause."""
    assert node.dispatched_at is not None
    since = max(node.dispatched_at, changes.job.resumed_at or node.dispatched_at)
    return since + dispatch_timeout(changes, node)


def complete_here(changes: ChangeSet, node: NodeState, output: bytes | None) -> None:
    transitions.start_here(changes, node)
    complete(changes, node, output)


def expand(changes: ChangeSet, node: NodeState) -> None:
    """Create the next slice of children; the fan-out is completed when all exist."""
    if node.status is not NodeStatus.RUNNING:
        return
    fan = changes.job.fans[node.node_id]
    if fan.items is None:
        try:
            require_values(changes, node)
        except ValuesNotLoaded:
            changes.job.postponed[node.node_id] = None
            return
    if expand_slice(changes, node):
        complete(changes, node, fan_out_output(fan, node.node_id), fan_out_count=fan.total)


def route(changes: ChangeSet, node: NodeState) -> bytes:
    """Take the first branch whose condition holds."""
    scope = scope_of(changes)
    for taken in node.spec.branches:
        if taken.condition is None:
            break
        verdict = taken.condition.evaluate(scope)
        if verdict.warning:
            data = {"warning": verdict.warning, "branch": taken.name}
            changes.note("node_warning", EventStatus.WARNING, node, data)
        if verdict.matched:
            break
    else:
        raise ExpressionFailed("no branch matches and there is no default branch")
    output = {
        "condition_result": taken.condition is not None,
        "taken": list(taken.targets),
        "taken_branch": taken.name,
        "skipped_branches": [branch.name for branch in node.spec.branches if branch is not taken],
    }
    return encode(output, "the conditional")


def load_job(changes: ChangeSet) -> None:
    """Start the job, or continue where its former owner left it."""
    job = changes.job
    zombie_after = timedelta(seconds=changes.rules.zombie_after_seconds)
    changes.arm(TimerKind.ZOMBIE, (job.last_progress_at or changes.now) + zombie_after)
    if job.deadline_at is not None:
        changes.arm(TimerKind.DEADLINE, job.deadline_at)
    if job.status is JobStatus.PENDING:
        if not job.is_paused:
            start(changes)
        return
    for node in list(job.nodes.values()):
        resume_node(changes, node)


def resume_node(changes: ChangeSet, node: NodeState) -> None:
    """Arm the node's timer again, or continue its start."""
    match node.status:
        case NodeStatus.READY if node.not_before is not None and is_backing_off(changes, node):
            changes.arm(TimerKind.RETRY, node.not_before, node)
        case NodeStatus.READY:
            changes.ready.append(node)
        case NodeStatus.DISPATCHED:
            changes.arm(TimerKind.DISPATCH, dispatch_deadline(changes, node), node)
        case NodeStatus.RUNNING if node.result_of is not None:
            pass
        case NodeStatus.RUNNING if is_executed(node):
            arm_timeout(changes, node)
        case NodeStatus.RUNNING if node.spec.type in WAITING_TYPES:
            resume_waiting(changes, node)
        case NodeStatus.RUNNING:
            expand(changes, node)


def arm_timeout(changes: ChangeSet, node: NodeState) -> None:
    """The worker enforces the timeout; the owner steps in if the worker does not."""
    changes.arm(TimerKind.TIMEOUT, (node.started_at or changes.now) + timeout(changes, node), node)


def timeout(changes: ChangeSet, node: NodeState) -> timedelta:
    """The longest run time, after which the owner fails the attempt."""
    return timedelta(seconds=node.task.timeout_seconds + changes.rules.timeout_grace_seconds)


def start(changes: ChangeSet) -> None:
    for root in changes.job.graph.roots:
        make_ready(changes, changes.job.nodes[root])
