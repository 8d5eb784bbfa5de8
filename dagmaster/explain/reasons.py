"""The reasons that keep a node in its state. Each is real: without any of them the node moves on."""

from collections import deque
from collections.abc import Collection, Iterator
from datetime import datetime, timedelta
from typing import NamedTuple, assert_never

import orjson

from dagmaster.engine.change_set import Rules
from dagmaster.engine.edges import is_bypassed
from dagmaster.engine.fan import has_slot
from dagmaster.engine.state import JobState, NodeState, failed_nodes, is_executed, is_live, is_settled, own_output
from dagmaster.explain.facts import Facts, Kind, OwnerFacts
from dagmaster.model.finalizers import Phase
from dagmaster.model.graph import NodeType
from dagmaster.model.states import NODE_IN_FLIGHT, NODE_TERMINAL, JobStatus, NodeStatus

# Valid reasons to wait: work is in progress, an event is awaited, or an operator wants it.
VALID_REASONS = frozenset(
    {
        Kind.PAUSED,
        Kind.EXPANDING,
        Kind.RETRY,
        Kind.BACK_PRESSURE,
        Kind.WAITING_FOR_TIME,
        Kind.WAITING_FOR_SIGNAL,
        Kind.WAITING_FOR_APPROVAL,
        Kind.WAITING_FOR_JOB,
    }
)


class Undecided(NamedTuple):
    """The undecided sources of a node: it needs all of `all_of`, and the first of `any_of` that completes."""

    all_of: list[str]
    any_of: list[str]


class Bypass(NamedTuple):
    """The branch that a conditional took instead."""

    conditional: str
    branch: str


def reasons(job: JobState, node: NodeState, facts: Facts, now: datetime) -> list[Kind]:
    """All current reasons, at least one; the most important comes first."""
    orphaned = [] if facts.owner.is_alive else [Kind.NO_OWNER]
    paused = [Kind.PAUSED] if job.is_paused else []
    if (wait_kind := _find_wait_kind(node)) is not None:
        return [wait_kind, *orphaned]
    match node.status:
        case NodeStatus.COMPLETED | NodeStatus.FAILED | NodeStatus.SKIPPED:
            return [Kind.ENDED]
        case NodeStatus.PENDING:
            waits = any(undecided(job, node))
            return [Kind.WAITING_FOR_NODES, *paused, *orphaned] if waits else _or_soon([*paused, *orphaned])
        case NodeStatus.READY:
            return _or_soon([*paused, *orphaned, *_held_back(job, node, facts, now)])
        case NodeStatus.DISPATCHED if node.node_id in facts.ahead:
            return [*paused, Kind.QUEUED, *orphaned]
        case NodeStatus.DISPATCHED:  # A worker has claimed it; the owner has not received that yet.
            return _or_soon(orphaned)
        case NodeStatus.RUNNING if node.result_of is not None:
            return [Kind.GIVING_RESULT, *orphaned]
        case NodeStatus.RUNNING if is_executed(node):
            return [Kind.RUNNING, *orphaned]
        case NodeStatus.RUNNING:
            return [*orphaned, Kind.EXPANDING]
        case _:
            assert_never(node.status)


def _find_wait_kind(node: NodeState) -> Kind | None:
    """None if it does not wait, or only for other nodes."""
    if node.status is NodeStatus.PENDING:
        is_head = not node.spec.sources and node.spec.phase is not Phase.MAIN
        return Kind.WAITING_FOR_END if is_head else None
    if node.status is not NodeStatus.RUNNING:
        return None
    match node.spec.type:
        case NodeType.WAIT:
            is_signal = node.spec.wait is not None and node.spec.wait.signal is not None
            return Kind.WAITING_FOR_SIGNAL if is_signal else Kind.WAITING_FOR_TIME
        case NodeType.APPROVAL:
            return Kind.WAITING_FOR_APPROVAL
        case NodeType.WORKFLOW:
            return Kind.WAITING_FOR_JOB
        case _:
            return None


def stands_without_reason(job: JobState, now: datetime, rules: Rules, closed_queues: Collection[str]) -> bool:
    """Whether no open node has a valid reason to wait: the job should make progress and does not."""
    if job.is_terminal or job.is_paused:
        return False
    alive = Facts(OwnerFacts(is_alive=True), orchestrators=1, threshold_seconds=0, closed_queues=closed_queues)
    open_nodes = [node for node in job.nodes.values() if node.status not in NODE_TERMINAL]
    return not any(_waits_rightly(job, node, alive, now, rules) for node in open_nodes)


def _waits_rightly(job: JobState, node: NodeState, facts: Facts, now: datetime, rules: Rules) -> bool:
    kinds = reasons(job, node, facts, now)
    if Kind.RUNNING in kinds and node.started_at is not None:
        seconds = node.task.timeout_seconds + rules.timeout_grace_seconds
        return now < node.started_at + timedelta(seconds=seconds)
    return not VALID_REASONS.isdisjoint(kinds)


def _or_soon(kinds: list[Kind]) -> list[Kind]:
    return kinds or [Kind.ABOUT_TO_RUN]


def _held_back(job: JobState, node: NodeState, facts: Facts, now: datetime) -> Iterator[Kind]:
    if node.not_before is not None and node.not_before > now:
        yield Kind.RETRY
    if node.is_child and not has_slot(job, node):
        yield Kind.HELD_BY_MAX_PARALLEL
    if is_executed(node) and node.task_queue in facts.closed_queues:
        yield Kind.BACK_PRESSURE


def undecided(job: JobState, node: NodeState) -> Undecided:
    """Once one of `any_of` is live, the others no longer matter."""
    if node.is_child:
        return Undecided([], [])
    all_of = [source for source in node.spec.all_of if not is_settled(job, job.nodes[source])]
    any_of = [source for source in node.spec.any_of if not is_settled(job, job.nodes[source])]
    return Undecided(all_of, [] if node.any_live else any_of)


def is_lost(node: NodeState) -> bool:
    """Whether it will be skipped once the rest is decided: none of its `any_of` is live."""
    return bool(node.spec.any_of) and not node.any_live and node.any_open == 0


def slot_holders(job: JobState, child: NodeState) -> list[str]:
    assert child.parent is not None
    return [sibling.node_id for sibling in job.children(child.parent) if sibling.status in NODE_IN_FLIGHT]


def bypass(job: JobState, node: NodeState) -> Bypass | None:
    """Why a node was skipped while its job continued; None if it was skipped because the job ended."""
    if not is_bypassed(node):
        return None
    seen, waiting = {node.node_id}, deque([node])
    while waiting:
        target = waiting.popleft()
        for source in (job.nodes[name] for name in target.spec.sources):
            if source.status is NodeStatus.SKIPPED and source.node_id not in seen:
                seen.add(source.node_id)
                waiting.append(source)
            elif _took_other_branch(source, target):
                return Bypass(source.node_id, orjson.loads(own_output(source)).get("taken_branch", ""))
    return None


def _took_other_branch(source: NodeState, target: NodeState) -> bool:
    is_choice = source.spec.type is NodeType.CONDITIONAL and source.status is NodeStatus.COMPLETED
    return is_choice and not is_live(source, target.node_id)


def culprits(job: JobState) -> list[str]:
    """The nodes that failed themselves, not because their job did."""
    return failed_nodes(job) if job.status is JobStatus.FAILED else []
