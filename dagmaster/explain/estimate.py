"""When a job may end: the longest path through its remaining nodes."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import StrEnum
from math import ceil
from statistics import fmean

from dagmaster.model.finalizers import Phase
from dagmaster.model.graph import Graph, GraphNode, NodeType
from dagmaster.model.progress import FanSnapshot, JobSnapshot, NodeSnapshot
from dagmaster.model.states import NODE_TERMINAL, JobStatus, NodeStatus

# A node past its usual time is assumed to run for another fifth of the time it has taken.
OVERTIME = 0.2
# The engine completes all other types at once.
TIMED = (NodeType.TASK, NodeType.FAN_OUT, NodeType.WAIT, NodeType.APPROVAL, NodeType.WORKFLOW)


class Basis(StrEnum):
    """The basis of an estimate: earlier jobs of the workflow, or the finished part of this job."""

    HISTORY = "history"
    SO_FAR = "so_far"


@dataclass(frozen=True, slots=True)
class Usual:
    """The usual duration of a node.

    For a fan-out `run_seconds` is that of one child, and `parallel` is how many complete in that time: less than one if
    they mostly wait. `run_seconds` is None for a fan-out without items and for a node that never completed; the latter
    is `is_skipped` if all earlier jobs skipped it.
    """

    run_seconds: float | None
    wait_seconds: float = 0.0
    items: int | None = None
    parallel: float = 1.0
    is_skipped: bool = False


@dataclass(frozen=True, slots=True)
class Estimate:
    """`overdue` is how far running nodes exceed their usual duration."""

    ends_at: datetime
    basis: Basis
    overdue: timedelta = timedelta()


class _UnknownLength(Exception):
    """The duration of a remaining node is unknown."""


def estimate(graph: Graph, job: JobSnapshot, usual: Mapping[str, Usual]) -> Estimate | None:
    """From the workflow's history, or else from the finished part of this job. None if neither is enough."""
    if job.status is not JobStatus.RUNNING or job.paused_at is not None:
        return None
    if any(node.open_added for node in job.nodes.values()):  # Their duration is unknown.
        return None
    left = time_left(graph, job, usual)
    if left is not None:
        return Estimate(job.now + left, Basis.HISTORY, _overdue(job, usual))
    left = time_left(graph, job, _filled(usual, so_far(graph, job)))
    return Estimate(job.now + left, Basis.SO_FAR) if left is not None else None


def _overdue(job: JobSnapshot, usual: Mapping[str, Usual]) -> timedelta:
    """How late the latest task is. Fan-outs do not count: most of their children may be still to come."""
    late = [
        (job.now - node.started_at).total_seconds() - known.run_seconds
        for name, node in job.nodes.items()
        if node.status is NodeStatus.RUNNING and node.fan is None and node.started_at is not None
        if (known := usual.get(name)) is not None and known.run_seconds is not None
    ]
    return timedelta(seconds=max([0.0, *late]))


def time_left(graph: Graph, job: JobSnapshot, usual: Mapping[str, Usual]) -> timedelta | None:
    """None if the duration of a remaining node is unknown.

    Parallel nodes do not slow each other down here: the usual times already include the wait for workers.
    """
    ends: dict[str, float] = {}
    try:
        for node in graph.nodes.values():  # In topological order: sources come first.
            ends[node.node_id] = _end(node, job, usual.get(node.node_id), ends)
    except _UnknownLength:
        return None
    return timedelta(seconds=max(ends.values(), default=0.0))


def so_far(graph: Graph, job: JobSnapshot) -> dict[str, Usual]:
    """Guess from the finished part: a task takes as long as the tasks so far, a child as long as its siblings."""
    guesses = {}
    lengths = [
        max((snapshot.completed_at - snapshot.started_at).total_seconds(), 0.0)
        for node in graph.nodes.values()
        if node.type is NodeType.TASK and (snapshot := job.nodes[node.node_id]).status is NodeStatus.COMPLETED
        if snapshot.started_at is not None and snapshot.completed_at is not None
    ]
    for node in graph.nodes.values():
        fan = job.nodes[node.node_id].fan
        if node.type is NodeType.TASK and lengths:
            guesses[node.node_id] = Usual(fmean(lengths))
        elif fan is not None and fan.child_seconds is not None:
            guesses[node.node_id] = Usual(fan.child_seconds)
    return guesses


def _filled(usual: Mapping[str, Usual], guesses: Mapping[str, Usual]) -> dict[str, Usual]:
    """The usual durations, with guesses for nodes that never completed."""
    never = {name: known for name, known in usual.items() if known.run_seconds is None and name in guesses}
    return {**guesses, **usual, **{name: replace(never[name], run_seconds=guesses[name].run_seconds) for name in never}}


def _end(node: GraphNode, job: JobSnapshot, usual: Usual | None, ends: Mapping[str, float]) -> float:
    """Seconds from now. Skipped nodes and untaken branches have ended."""
    snapshot = job.nodes[node.node_id]
    if snapshot.status in NODE_TERMINAL and (snapshot.fan is None or snapshot.fan.left <= 0):
        return 0.0
    begins = max((ends[source] for source in node.all_of), default=0.0)
    if node.phase is Phase.FINALLY:
        begins = max(ends.values(), default=0.0)
    if node.phase is Phase.ON_FAILURE and snapshot.status is NodeStatus.PENDING:
        return 0.0  # The job is not expected to fail.
    choices = [ends[name] for name in node.any_of if job.nodes[name].status is not NodeStatus.SKIPPED]
    if choices:
        begins = max(begins, min(choices))
    if node.type not in TIMED:
        return begins
    if (length := _wait_length(node, snapshot, job.now)) is not None:
        return begins + length
    if usual is None:
        raise _UnknownLength
    if snapshot.status is NodeStatus.PENDING and usual.is_skipped:
        return begins
    if node.type is NodeType.FAN_OUT:
        return begins + _fan_length(node, snapshot, usual, job.now)
    return begins + _task_length(snapshot, usual, job.now)


def _wait_length(node: GraphNode, snapshot: NodeSnapshot, now: datetime) -> float | None:
    """The duration of a wait for a known time; any other wait takes as long as usual."""
    if node.wait is None or node.wait.signal is not None:
        return None
    if snapshot.status is NodeStatus.RUNNING and snapshot.not_before is not None:
        return max((snapshot.not_before - now).total_seconds(), 0.0)
    seconds = node.wait.seconds.raw if node.wait.seconds is not None else None
    return float(seconds) if isinstance(seconds, int | float) else None


def _task_length(snapshot: NodeSnapshot, usual: Usual, now: datetime) -> float:
    if usual.run_seconds is None:
        raise _UnknownLength
    match snapshot.status:
        case NodeStatus.RUNNING:
            return _rest(usual.run_seconds, snapshot.started_at, now)
        case NodeStatus.DISPATCHED:
            return _rest(usual.wait_seconds, snapshot.dispatched_at, now) + usual.run_seconds
        case _:
            pause = (snapshot.not_before - now).total_seconds() if snapshot.not_before else 0.0
            return max(pause, 0.0) + usual.wait_seconds + usual.run_seconds


def _fan_length(node: GraphNode, snapshot: NodeSnapshot, usual: Usual, now: datetime) -> float:
    fan = snapshot.fan
    if fan is None:  # It is expected to have the usual number of items.
        if usual.items is None:
            raise _UnknownLength
        fan = FanSnapshot(usual.items, {})
    if fan.left <= 0:
        return 0.0
    if usual.run_seconds is None:
        raise _UnknownLength
    assert node.fan_out is not None
    at_once = max(usual.parallel, float(fan.running))
    if node.fan_out.max_parallel is not None:
        at_once = min(at_once, float(node.fan_out.max_parallel))
    running = _rest(usual.run_seconds, fan.newest_started_at, now) if fan.running else 0.0
    return running + ceil((fan.left - fan.running) / at_once) * usual.run_seconds


def _rest(usual_seconds: float, since: datetime | None, now: datetime) -> float:
    elapsed = max((now - since).total_seconds(), 0.0) if since is not None else 0.0
    return max(usual_seconds - elapsed, elapsed * OVERTIME)
