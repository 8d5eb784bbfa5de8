"""What one batch of messages does to one job: moves, and the rows that follow from them."""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from random import Random
from typing import Any

from dagmaster.engine.messages import Message, TimerKind
from dagmaster.engine.state import FanState, JobState, NodeState, is_executed, kept_output
from dagmaster.engine.values import LoadedValues, StoredValue, Value
from dagmaster.errors import IllegalMove
from dagmaster.model.added import AddedDependency, AddedGroup
from dagmaster.model.retry import RetryPolicy
from dagmaster.model.states import (
    NODE_DISPATCHED,
    NODE_FAILED,
    NODE_IN_FLIGHT,
    NODE_STARTED,
    NODE_SUCCESSFUL,
    NODE_TERMINAL,
    EndedBy,
    EventStatus,
    JobStatus,
    Move,
    NodeStatus,
    TaskStatus,
)
from dagmaster.model.workflow import DEFAULT_TIMEOUT_SECONDS

MAX_ERROR_LENGTH = 2000


@dataclass(frozen=True, slots=True)
class Rules:
    """What the operator sets; the same for all jobs of an orchestrator."""

    dispatch_timeout_seconds: float | None = None
    timeout_grace_seconds: float = 5.0
    zombie_after_seconds: float = 86_400.0
    default_job_timeout_seconds: float | None = None
    max_worker_deaths: int | None = None
    max_fan_out: int = 1_000_000
    slice_size: int = 2_000
    inline_bytes: int = 64 * 1024  # larger values are not kept in memory
    max_turn_bytes: int = 16 * 1024 * 1024  # what one change set may write or read, as far as it can be divided
    max_fan_in_bytes: int = 64 * 1024 * 1024  # what a fan-in or an expression may gather
    max_result_bytes: int = 64 * 1024 * 1024
    default_timeout_seconds: float = DEFAULT_TIMEOUT_SECONDS  # of added tasks; definitions say it
    default_retry: RetryPolicy = field(default_factory=RetryPolicy)
    closed_queues: set[str] = field(default_factory=set)
    env: Mapping[str, str] = field(default_factory=dict)
    rng: Random = field(default_factory=Random)


@dataclass(slots=True)
class Event:
    """A line of the timeline, named as its columns."""

    job_id: int
    event_type: str
    event_status: EventStatus
    created_at: datetime
    node_id: str | None = None
    task_id: str | None = None
    event_data: Mapping[str, Any] | None = None
    error_message: str | None = None
    duration_ms: int | None = None
    source_app: str = "orchestrator"
    checkpoint_name: str | None = None


@dataclass(slots=True)
class Dispatch:
    """A task that is to be put on its queue. Whoever writes it may put it into a trace."""

    node: NodeState
    task_id: str
    attempt: int
    at: datetime
    trace_parent: str | None = None


@dataclass(frozen=True, slots=True)
class Call:
    """A job that is to be submitted for a node, under the name of its attempt.

    `inputs` is JSON; None when they were written before, as the parameters of the node.
    """

    node_id: str
    task_id: str
    workflow_id: str
    workflow_hash: str | None
    inputs: bytes | None


@dataclass(frozen=True, slots=True)
class Result:
    """What a worker reported, as it is kept."""

    task_id: str
    job_id: int
    node_id: str
    status: TaskStatus
    worker_id: str | None
    output: Value | None
    error_message: str | None
    execution_duration_ms: int | None
    reported_at: datetime
    error_type: str | None = None
    details: Mapping[str, Any] | None = None
    ended_by: EndedBy | None = None


@dataclass(frozen=True, slots=True)
class Timer:
    at: datetime
    kind: TimerKind
    node_id: str = ""
    attempt: int = 0


@dataclass(slots=True)
class ChangeSet:
    """The engine's working paper for one job: it moves the job in memory and notes what must be written."""

    job: JobState
    now: datetime
    rules: Rules
    events: list[Event] = field(default_factory=list)
    touched: dict[str, NodeState] = field(default_factory=dict)
    created: dict[str, NodeState] = field(default_factory=dict)
    dispatches: dict[str, Dispatch] = field(default_factory=dict)
    closed_running: list[str] = field(default_factory=list)
    closed_waiting: list[str] = field(default_factory=list)
    results: dict[str, Result] = field(default_factory=dict)
    timers: list[Timer] = field(default_factory=list)
    follow_ups: list[Message] = field(default_factory=list)
    groups: list[AddedGroup] = field(default_factory=list)
    dependencies: list[AddedDependency] = field(default_factory=list)
    calls: dict[str, Call] = field(default_factory=dict)
    cancelled_children: list[str] = field(default_factory=list)  # attempts whose jobs are no longer wanted
    ready: deque[NodeState] = field(default_factory=deque)
    given: deque[NodeState] = field(default_factory=deque)
    scope: dict[str, Any] | None = None
    loaded: LoadedValues = field(default_factory=LoadedValues)
    bytes: int = 0  # of the values to be written
    large_fans: list[FanState] = field(default_factory=list)  # whose items came from values that are not kept
    job_touched: bool = False
    reopened: bool = False
    holds_tasks: bool | None = None

    @property
    def is_over(self) -> bool:
        return self.job.is_terminal

    def output_of(self, node: NodeState) -> Value | None:
        """As far as it is at hand."""
        return self.loaded.outputs.get(node.node_id, node.output)

    def release(self) -> None:
        """It is written: memory keeps what is small."""
        for nodes in (self.touched, self.created):
            for node in nodes.values():
                node.params = node.checkpoint = node.definition = None
                node.output = kept_output(node, self.rules.inline_bytes)
                self.job.has_stored = self.job.has_stored or isinstance(node.output, StoredValue)
        for fan in self.large_fans:
            fan.items = None
        self.loaded, self.scope = LoadedValues(), None

    def note(
        self,
        event_type: str,
        status: EventStatus,
        node: NodeState | None = None,
        *,
        error: str | None = None,
        duration_ms: int | None = None,
        source_app: str = "orchestrator",
        checkpoint_name: str | None = None,
        **data: Any,
    ) -> None:
        """Write a line into the timeline."""
        self.events.append(
            Event(
                self.job.job_id,
                event_type,
                status,
                self.now,
                node.node_id if node else None,
                self.job.task_id(node) if node and node.dispatched_at else None,
                data or None,
                error[:MAX_ERROR_LENGTH] if error else None,
                duration_ms,
                source_app,
                checkpoint_name,
            )
        )

    def move_job(self, move: Move[JobStatus], *, error: str | None = None, **data: Any) -> None:
        """The one place where a job's status is set."""
        if self.job.status not in move.sources:
            raise IllegalMove(f"{move.event}: job {self.job.job_id} is {self.job.status}")
        self.job.status = move.target
        self.job_touched = True
        self.note(move.event, move.status, error=error, **data)

    def move_node(
        self,
        node: NodeState,
        move: Move[NodeStatus],
        *,
        status: EventStatus | None = None,
        ended_by: EndedBy | None = None,
        **event: Any,
    ) -> None:
        """The one place where a node's status is set, and how it ended. The counters of open nodes follow from it."""
        if node.status not in move.sources:
            raise IllegalMove(f"{move.event}: node {node.node_id} of job {self.job.job_id} is {node.status}")
        was, node.status = node.status, move.target
        node.ended_by = ended_by or move.ended_by
        if node.ended_by is not None:
            event["ended_by"] = node.ended_by
        self._count(node, was)
        self.job.last_progress_at = self.now
        if node.node_id in self.job.awaited and node.status in NODE_SUCCESSFUL:
            self.given.append(node)
        if node.node_id not in self.created:
            self.touched[node.node_id] = node
        self.note(move.event, status or move.status, node, **event)

    def _count(self, node: NodeState, was: NodeStatus) -> None:
        opened = (node.status not in NODE_TERMINAL) - (was not in NODE_TERMINAL)
        if opened:
            self.job.count_open(node, opened)
        if node.parent is not None:
            fan = self.job.fans[node.parent]
            fan.open += opened
            fan.in_flight += (node.status in NODE_IN_FLIGHT) - (was in NODE_IN_FLIGHT)
            if fan.waiting and node.status in NODE_TERMINAL:  # Its place, or the one it failed to take, is free.
                self.ready.append(self.job.nodes[fan.waiting.popleft()])

    def begin(self, node: NodeState) -> None:
        """The engine itself is the worker of this node."""
        node.dispatched_at = node.started_at = self.now
        node.not_before = None
        self.move_node(node, NODE_DISPATCHED)
        self.move_node(node, NODE_STARTED)

    def close_task(self, node: NodeState) -> None:
        """Its attempt is over: nothing of it may stay on a queue or count as running."""
        task_id = self.job.task_id(node)
        if self.dispatches.pop(task_id, None) is not None:
            return
        self.closed_running.append(task_id)
        if node.started_at is None or node.started_at == self.now:  # As far as the rows know, it still waits.
            self.closed_waiting.append(task_id)

    def fail(self, node: NodeState, error: str, ended_by: EndedBy = EndedBy.FAILURE, **event: Any) -> None:
        """End the attempt; whether another follows is for the caller to decide."""
        if node.status in NODE_IN_FLIGHT and is_executed(node):
            self.close_task(node)
        elif node.status is NodeStatus.RUNNING and node.spec.child_job is not None:
            self._call_off(node)
        node.error = error[:MAX_ERROR_LENGTH]
        node.completed_at = self.now
        node.result_of = None
        self.move_node(node, NODE_FAILED, ended_by=ended_by, error=error, **event)

    def _call_off(self, node: NodeState) -> None:
        task_id = self.job.task_id(node)
        self.calls.pop(task_id, None)
        self.cancelled_children.append(task_id)

    def arm(self, kind: TimerKind, at: datetime, node: NodeState | None = None) -> None:
        self.timers.append(Timer(at, kind, node.node_id if node else "", node.attempt if node else 0))
