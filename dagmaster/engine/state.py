"""A job in its owner's memory: the graph, the state of each node, and the counters that make each step cheap."""

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import orjson

from dagmaster.engine.values import JobResult, StoredValue, Value
from dagmaster.ids import JobId
from dagmaster.model.finalizers import FINALIZERS, Phase
from dagmaster.model.graph import Graph, GraphNode, NodeType, TaskSpec
from dagmaster.model.shapes import Box
from dagmaster.model.states import (
    ENDED_WITH_JOB,
    JOB_TERMINAL,
    NODE_IN_FLIGHT,
    NODE_TERMINAL,
    EndedBy,
    JobEndedBy,
    JobStatus,
    NodeStatus,
)
from dagmaster.model.workflow import CHILD_SEPARATOR

# An output of a child may be this many times smaller than that of a defined node to be kept in memory.
CHILD_SHARE = 64


@dataclass(frozen=True, slots=True)
class Checkpoint:
    phase: str
    data: Value | None
    saved_at: datetime


@dataclass(slots=True, eq=False)
class NodeState:
    """A node or a fan-out's child. The four counters are of inbound edges; a child has none."""

    node_id: str
    spec: GraphNode
    max_retries: int
    status: NodeStatus = NodeStatus.PENDING
    attempt: int = 0
    times_lost: int = 0  # in a row, because its worker died
    parent: str | None = None
    index: int | None = None
    item_key: str | None = None  # of a child that is about to be written
    item_box: Box | None = None  # likewise
    params: bytes | None = None
    has_params: bool = False
    output: Value | None = None
    error: str | None = None
    ended_by: EndedBy | None = None
    dispatched_at: datetime | None = None
    started_at: datetime | None = None
    completed_at: datetime | None = None
    not_before: datetime | None = None
    queue: str | None = None  # replaces the task's queue after an attempt ran out of memory
    checkpoint: Checkpoint | None = None  # saved in this change set; the rows keep the last one
    version: int = 0
    all_open: int = 0
    any_open: int = 0
    any_live: int = 0
    live: int = 0
    is_added: bool = False  # at run time, by the task of node `added_by` or by an external caller
    added_by: str | None = None
    snowflake: int | None = None  # its id in the Python API
    definition: bytes | None = None  # of an added node, when its row is to be written
    followers: list[str] | None = None  # added nodes that wait for this node
    result_of: str | None = None  # the node whose output becomes this node's; its own task is done

    @property
    def task(self) -> TaskSpec:
        """The task that a worker executes for this node."""
        spec = self.spec.fan_out.child if self.parent is not None and self.spec.fan_out else self.spec.task
        assert spec is not None, f"{self.node_id} is not executed by a worker"
        return spec

    @property
    def task_queue(self) -> str:
        """The queue of the current or the next task."""
        return self.queue or self.task.queue

    @property
    def is_child(self) -> bool:
        return self.parent is not None

    def open_edges(self) -> None:
        """All inbound edges are undecided."""
        self.all_open, self.any_open = len(self.spec.all_of), len(self.spec.any_of)
        self.any_live = self.live = 0


@dataclass(slots=True)
class FanState:
    """The children of one fan-out. `waiting` are ready children over `max_parallel`."""

    total: int = 0
    created: int = 0
    open: int = 0
    in_flight: int = 0
    waiting: deque[str] = field(default_factory=deque)
    items: list[Any] | None = None


@dataclass(slots=True, eq=False)
class JobState:
    job_id: JobId
    graph: Graph
    inputs: Mapping[str, Any] | StoredValue
    created_at: datetime
    status: JobStatus = JobStatus.PENDING
    priority: int = 0
    correlation_id: str | None = None
    trace_parent: str | None = None
    paused_at: datetime | None = None
    paused_by: str | None = None
    resumed_at: datetime | None = None
    started_at: datetime | None = None
    completed_at: datetime | None = None
    idle_seconds: float = 0.0  # paused, or failed before it was reopened
    error: str | None = None
    failed_node: str | None = None  # the node that made it fail
    ended_by: JobEndedBy | None = None  # also set while it is failing
    result: JobResult | None = None
    deadline_at: datetime | None = None  # it fails if it has not ended by then
    last_progress_at: datetime | None = None
    spared_for: datetime | None = None  # the deadline whose timer is given time to fire first; only in memory
    version: int = 0
    has_version: bool = False  # of an asset; its row is updated with the job
    nodes: dict[str, NodeState] = field(default_factory=dict)
    fans: dict[str, FanState] = field(default_factory=dict)
    backlog: dict[str, deque[str]] = field(default_factory=dict)  # ready nodes whose queue is full, by queue
    postponed: dict[str, None] = field(default_factory=dict)  # ready nodes whose values are not in memory
    has_stored: bool = False  # some value is only in the database
    awaited: dict[str, list[str]] = field(default_factory=dict)  # by node, the nodes that return its result
    signals: list[dict[str, Any]] = field(default_factory=list)  # not yet awaited by a node
    open: int = 0
    open_finalizers: dict[Phase, int] = field(default_factory=dict)  # open nodes by phase; empty without finalizers

    @property
    def open_main(self) -> int:
        return self.open - sum(self.open_finalizers.values())

    def phase_of(self, node: "NodeState") -> Phase:
        """An added node belongs to the phase of the task that added it."""
        if not self.open_finalizers:  # Chains of added tasks may be thousands long.
            return Phase.MAIN
        while node.added_by is not None:
            node = self.nodes[node.added_by]
        return node.spec.phase

    def count_open(self, node: "NodeState", change: int) -> None:
        self.open += change
        if (phase := self.phase_of(node)) is not Phase.MAIN:
            self.open_finalizers[phase] += change

    @property
    def is_paused(self) -> bool:
        return self.paused_at is not None

    @property
    def is_terminal(self) -> bool:
        return self.status in JOB_TERMINAL

    @property
    def duration_seconds(self) -> float | None:
        """Without idle time; None until the job has ended."""
        if self.started_at is None or self.completed_at is None:
            return None
        ended_at = min(self.completed_at, self.paused_at or self.completed_at)
        return round(max((ended_at - self.started_at).total_seconds() - self.idle_seconds, 0.0), 3)

    def task_id(self, node: NodeState) -> str:
        return f"{self.job_id}_{node.node_id}_{node.attempt}"

    def children(self, fan_out: str) -> Iterator[NodeState]:
        """The children created so far, in the order of their items."""
        for index in range(self.fans[fan_out].created if fan_out in self.fans else 0):
            yield self.nodes[child_id(fan_out, index)]


def is_executed(node: NodeState) -> bool:
    """Whether a worker executes it; the engine handles all other nodes."""
    return node.parent is not None or node.spec.type is NodeType.TASK


def is_deciding(node: NodeState) -> bool:
    """Whether its output steers the engine, which reads it repeatedly."""
    return node.parent is None and node.spec.type in (NodeType.CONDITIONAL, NodeType.FAN_OUT)


def own_output(node: NodeState) -> bytes:
    assert is_deciding(node) and isinstance(node.output, bytes), f"the output of {node.node_id} is not in memory"
    return node.output


def kept_output(node: NodeState, inline_bytes: int) -> Value | None:
    """The output to keep in memory once it is written. Children and added nodes may be very many."""
    output = node.output
    if isinstance(output, StoredValue):
        return StoredValue(output.size)
    is_numerous = node.parent is not None or node.is_added
    if (
        output is None
        or is_deciding(node)
        or len(output) <= (inline_bytes // CHILD_SHARE if is_numerous else inline_bytes)
    ):
        return output
    return StoredValue(len(output))


def child_id(fan_out: str, index: int) -> str:
    return f"{fan_out}{CHILD_SEPARATOR}{index}"


def new_job(
    job_id: JobId,
    graph: Graph,
    inputs: Mapping[str, Any] | StoredValue,
    created_at: datetime,
    *,
    priority: int = 0,
    correlation_id: str | None = None,
) -> JobState:
    """A job without history: all its nodes are pending."""
    job = JobState(job_id, graph, inputs, created_at, priority=priority, correlation_id=correlation_id)
    job.has_stored = isinstance(inputs, StoredValue)
    for spec in graph.nodes.values():
        policy = spec.task.retry if spec.task else spec.retry
        node = job.nodes[spec.node_id] = NodeState(spec.node_id, spec, policy.max_attempts)
        node.open_edges()
    count_all_open(job)
    return job


def count_all_open(job: JobState) -> None:
    job.open = 0
    job.open_finalizers = dict.fromkeys(FINALIZERS, 0) if any(job.graph.heads.values()) else {}
    for node in job.nodes.values():
        if node.status not in NODE_TERMINAL:
            job.count_open(node, 1)


def restore(job: JobState, nodes: Iterable[NodeState]) -> None:
    """Replace the new nodes by the stored ones, and count their edges again."""
    for node in nodes:
        job.nodes[node.node_id] = node
        job.has_stored = job.has_stored or isinstance(node.output, StoredValue)
        if node.spec.type is NodeType.FAN_OUT:
            fan = job.fans.setdefault(node.parent or node.node_id, FanState())
            if node.is_child:
                fan.created += 1
                fan.open += node.status not in NODE_TERMINAL
                fan.in_flight += node.status in NODE_IN_FLIGHT
            elif node.output is not None:
                fan.total = orjson.loads(own_output(node))["fan_out_count"]
        if not node.is_child:
            node.open_edges()
    count_all_open(job)
    _restore_added(job)
    for node in job.nodes.values():
        count_edges(job, node)


def _restore_added(job: JobState) -> None:
    for node in job.nodes.values():
        if node.is_added:
            for source in node.spec.all_of:
                follow(job.nodes[source], node)
        if node.result_of is not None:
            job.awaited.setdefault(node.result_of, []).append(node.node_id)


def follow(source: NodeState, target: NodeState) -> None:
    """Add an edge that the definition does not have."""
    if source.followers is None:
        source.followers = []
    source.followers.append(target.node_id)


def unfollow(source: NodeState, target: NodeState) -> None:
    assert source.followers is not None
    source.followers.remove(target.node_id)


def targets_of(node: NodeState) -> Sequence[str]:
    """The targets of a node's edges. A child has only those of added nodes that wait for it."""
    own = () if node.is_child else node.spec.targets
    return (*own, *node.followers) if node.followers else own


def is_settled(job: JobState, node: NodeState) -> bool:
    """Whether its outgoing edges are decided: the node and its children have ended."""
    if node.status not in (NodeStatus.COMPLETED, NodeStatus.SKIPPED) and not has_passed(job, node):
        return False
    return node.spec.type is not NodeType.FAN_OUT or node.node_id not in job.fans or job.fans[node.node_id].open == 0


def has_passed(job: JobState, node: NodeState) -> bool:
    """Whether it failed permanently and the job continues: it is allowed to fail, or is a finalizer."""
    if node.status is not NodeStatus.FAILED or is_revoked(node):
        return False
    return node.spec.allow_failure or job.phase_of(node) is not Phase.MAIN


def is_revoked(node: NodeState) -> bool:
    """Whether it was in flight when its job ended, and did not fail itself."""
    return node.ended_by in ENDED_WITH_JOB


def failed_nodes(job: JobState) -> list[str]:
    """The nodes that failed themselves and were not allowed to."""
    failed = (node for node in job.nodes.values() if node.status is NodeStatus.FAILED)
    return [node.node_id for node in failed if not node.spec.allow_failure and not is_revoked(node)]


def is_live(node: NodeState, target: str) -> bool:
    """Whether the edge to `target` is live: a skipped source or an untaken branch makes it dead."""
    if node.status is not NodeStatus.COMPLETED:
        return node.status is NodeStatus.FAILED and node.spec.allow_failure
    leading = [branch.name for branch in node.spec.branches if target in branch.targets]
    return not leading or orjson.loads(own_output(node))["taken_branch"] in leading


def count_edges(job: JobState, node: NodeState) -> None:
    """Count the outgoing edges, if they are decided."""
    if (targets := targets_of(node)) and is_settled(job, node):
        for target in targets:
            count_edge(job.nodes[target], node, live=is_live(node, target))


def count_edge(target: NodeState, source: NodeState, *, live: bool) -> None:
    """One edge, even if the source is named in both `any_of` and `all_of`."""
    target.live += live
    is_choice = source.node_id in target.spec.any_of
    if is_choice:
        target.any_open -= 1
        target.any_live += live
    if not is_choice or source.node_id in target.spec.all_of:
        target.all_open -= 1
