"""From ready to running: what each type of node does when its time has come."""

from collections import deque
from datetime import datetime, timedelta
from typing import Any, assert_never

import orjson

from dagmaster.engine.edges import make_ready, pass_on
from dagmaster.engine.ending import start_job
from dagmaster.engine.failing import fail_attempt
from dagmaster.engine.fan import (
    aggregate,
    child_params,
    expand_slice,
    fan_out_output,
    has_slot,
    open_fan,
    resolve_items,
)
from dagmaster.engine.messages import TimerKind
from dagmaster.engine.needs import NotAtHand, require
from dagmaster.engine.scope import added_params, encode, scope_of
from dagmaster.engine.state import NodeState, is_executed
from dagmaster.engine.turn import Dispatch, Turn
from dagmaster.engine.values import StoredValue, Value, spell_size
from dagmaster.engine.waiting import WAITING, begin_approval, begin_call, begin_wait, take_up_waiting
from dagmaster.errors import ExpressionFailed, ValuesTooLarge
from dagmaster.model.graph import BranchSpec, NodeType
from dagmaster.model.last import Phase
from dagmaster.model.states import (
    NODE_COMPLETED,
    NODE_DISPATCHED,
    EventStatus,
    JobStatus,
    NodeStatus,
)

MIN_DISPATCH_TIMEOUT_SECONDS = 1800.0
EXPRESSION_FAILED = ("ExpressionFailed", "dagmaster.errors.ExpressionFailed", "Exception")


def run_ready(turn: Turn) -> None:
    """Start every node whose time has come, and what becomes ready by it."""
    if turn.job.is_paused:
        turn.ready.clear()  # They stay ready, and are found again when the job goes on.
    while turn.ready:
        node = turn.ready.popleft()
        if node.status is not NodeStatus.READY or is_backing_off(turn, node):
            continue
        if turn.job.status is JobStatus.PENDING:
            start_job(turn, node.node_id)
        try:
            _run(turn, node)
        except NotAtHand:
            turn.job.postponed[node.node_id] = None
        except ExpressionFailed as error:
            permanent = isinstance(error, ValuesTooLarge)
            fail_attempt(turn, node, str(error), permanent=permanent, error_types=EXPRESSION_FAILED)


def go_on(turn: Turn) -> None:
    """Run what was postponed, or as much of it as one turn may."""
    job = turn.job
    for node_id in list(job.postponed)[: turn.rules.slice_size]:
        del job.postponed[node_id]
        node = job.nodes[node_id]
        if node.status is NodeStatus.READY:
            turn.ready.append(node)
        else:
            expand(turn, node)


def is_backing_off(turn: Turn, node: NodeState) -> bool:
    return node.not_before is not None and node.not_before > turn.now


def _run(turn: Turn, node: NodeState) -> None:
    if is_executed(node):
        dispatch(turn, node)
        return
    require(turn, node)
    match node.spec.type:
        case NodeType.START | NodeType.END | NodeType.GATE:
            complete_here(turn, node, None)
        case NodeType.CONDITIONAL:
            complete_here(turn, node, route(turn, node))
        case NodeType.FAN_IN:
            assert node.spec.fan_in is not None
            complete_here(turn, node, aggregate(turn, node.spec.fan_in))
        case NodeType.FAN_OUT:
            if node.output is None:
                open_fan(turn, node, resolve_items(turn, node))
            turn.begin(node)
            expand(turn, node)
        case NodeType.WAIT:
            if (output := begin_wait(turn, node)) is not None:
                complete(turn, node, output)
        case NodeType.APPROVAL:
            begin_approval(turn, node)
        case NodeType.WORKFLOW:
            begin_call(turn, node)
        case NodeType.TASK:
            raise AssertionError("a task is executed by a worker")
        case _:
            assert_never(node.spec.type)


def dispatch(turn: Turn, node: NodeState) -> None:
    """Put its task on the queue, unless `max_parallel` or a full queue holds it back."""
    job = turn.job
    if node.is_child and not has_slot(job, node):
        job.fans[node.parent or ""].waiting.append(node.node_id)
        return
    task, queue = node.task, node.task_queue
    if queue in turn.rules.closed_queues:
        job.held.setdefault(queue, deque()).append(node.node_id)
        return
    if not node.has_params or _may_differ(turn, node):
        require(turn, node)
        node.params = _encoded_params(turn, node)
        node.has_params = True
    node.not_before = None
    node.dispatched_at = turn.now
    turn.move_node(node, NODE_DISPATCHED, queue=queue, handler=task.handler)
    task_id = job.task_id(node)
    turn.dispatches[task_id] = Dispatch(node, task_id, node.attempt, turn.now)
    turn.arm(TimerKind.DISPATCH, dispatch_deadline(turn, node), node)


def _encoded_params(turn: Turn, node: NodeState) -> bytes:
    params = encode(params_of(turn, node), f"the parameters of {node.node_id}")
    if len(params) > turn.rules.max_fan_in_bytes:
        raise ValuesTooLarge(
            f"the parameters of {node.node_id} are {spell_size(len(params))}, and the limit (max_fan_in_bytes) is "
            f"{spell_size(turn.rules.max_fan_in_bytes)}; pass on where the data is, not the data, or raise the limit"
        )
    turn.bytes += len(params)
    return params


def _may_differ(turn: Turn, node: NodeState) -> bool:
    """What an earlier run of a last chain was given. An added node has its own at hand if it names results."""
    return turn.job.phase_of(node) is not Phase.MAIN and (not node.is_added or bool(node.task.params.raw))


def params_of(turn: Turn, node: NodeState) -> Any:
    if node.is_child:
        return child_params(turn, node)
    return added_params(turn, node) if node.is_added else node.task.params.resolve(scope_of(turn))


def dispatch_timeout(turn: Turn, node: NodeState) -> timedelta:
    """How long it may wait in its queue (ruling C-32)."""
    seconds = turn.rules.dispatch_timeout_seconds
    return timedelta(seconds=seconds or max(node.task.timeout_seconds, MIN_DISPATCH_TIMEOUT_SECONDS))


def dispatch_deadline(turn: Turn, node: NodeState) -> datetime:
    """Counted anew after a pause."""
    assert node.dispatched_at is not None
    resumed = turn.job.resumed_at
    since = max(node.dispatched_at, resumed) if resumed is not None else node.dispatched_at
    return since + dispatch_timeout(turn, node)


def complete_here(turn: Turn, node: NodeState, output: bytes | None) -> None:
    turn.begin(node)
    complete(turn, node, output)


def complete(
    turn: Turn,
    node: NodeState,
    output: Value | None,
    duration_ms: int | None = None,
    ended_at: datetime | None = None,
) -> None:
    """Accept the output and decide the edges that leave the node. Without `ended_at` it ends now."""
    node.output = output
    if isinstance(output, StoredValue):
        turn.job.has_stored = True
    elif output is not None:
        turn.bytes += len(output)
    node.completed_at = ended_at or turn.now
    if duration_ms is None and node.started_at is not None:
        duration_ms = round((turn.now - node.started_at).total_seconds() * 1000)
    turn.move_node(node, NODE_COMPLETED, duration_ms=duration_ms, output_keys=_keys(output))
    pass_on(turn, node)


def _keys(output: Value | None) -> list[str] | None:
    """The summary that the timeline keeps; reading a large output again would cost more than it tells."""
    if not isinstance(output, bytes) or len(output) > 65_536:
        return None
    value = orjson.loads(output)
    return list(value)[:50] if isinstance(value, dict) else None


def expand(turn: Turn, node: NodeState) -> None:
    """Make the next slice of children; the fan-out is completed when all are made."""
    if node.status is not NodeStatus.RUNNING:
        return
    fan = turn.job.fans[node.node_id]
    if fan.items is None:
        try:
            require(turn, node)
        except NotAtHand:
            turn.job.postponed[node.node_id] = None
            return
    if expand_slice(turn, node):
        complete(turn, node, fan_out_output(fan, node.node_id))


def route(turn: Turn, node: NodeState) -> bytes:
    """Take the first branch whose condition holds."""
    scope = scope_of(turn)
    taken: BranchSpec | None = None
    for branch in node.spec.branches:
        if branch.condition is not None:
            verdict = branch.condition.evaluate(scope)
            if verdict.warning:
                turn.note("node_warning", EventStatus.WARNING, node, warning=verdict.warning, branch=branch.name)
            if not verdict.matched:
                continue
        taken = branch
        break
    if taken is None:
        raise ExpressionFailed("no branch matches and there is no default branch")
    return encode(
        {
            "condition_result": taken.condition is not None,
            "taken": list(taken.targets),
            "taken_branch": taken.name,
            "skipped_branches": [branch.name for branch in node.spec.branches if branch is not taken],
        },
        "the conditional",
    )


def resume(turn: Turn) -> None:
    """Start the job, or go on where it stood when another owner had it."""
    job = turn.job
    turn.arm(TimerKind.ZOMBIE, (job.last_progress_at or turn.now) + timedelta(seconds=turn.rules.zombie_after_seconds))
    if job.deadline_at is not None:
        turn.arm(TimerKind.DEADLINE, job.deadline_at)
    if job.status is JobStatus.PENDING:
        if not job.is_paused:
            start(turn)
        return
    for node in list(job.nodes.values()):
        take_up(turn, node)


def take_up(turn: Turn, node: NodeState) -> None:
    """Arm again the timer that a node waits for, or do what was still to be done for it."""
    match node.status:
        case NodeStatus.READY if node.not_before is not None and is_backing_off(turn, node):
            turn.arm(TimerKind.RETRY, node.not_before, node)
        case NodeStatus.READY:
            turn.ready.append(node)
        case NodeStatus.DISPATCHED:
            turn.arm(TimerKind.DISPATCH, dispatch_deadline(turn, node), node)
        case NodeStatus.RUNNING if node.result_of is not None:
            pass
        case NodeStatus.RUNNING if is_executed(node):
            arm_timeout(turn, node)
        case NodeStatus.RUNNING if node.spec.type in WAITING:
            take_up_waiting(turn, node)
        case NodeStatus.RUNNING:
            expand(turn, node)
        case _:
            pass


def arm_timeout(turn: Turn, node: NodeState) -> None:
    """The worker enforces the timeout; the owner does when the worker does not."""
    turn.arm(TimerKind.TIMEOUT, (node.started_at or turn.now) + timeout(turn, node), node)


def timeout(turn: Turn, node: NodeState) -> timedelta:
    """How long it may run before its owner gives it up."""
    return timedelta(seconds=node.task.timeout_seconds + turn.rules.timeout_grace_seconds)


def start(turn: Turn) -> None:
    for root in turn.job.graph.roots:
        make_ready(turn, turn.job.nodes[root])
