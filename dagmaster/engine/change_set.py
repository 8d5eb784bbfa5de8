"""The effect of a batch of messages on one job: the rows to write."""

from collections import deque
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, NamedTuple

from dagmaster.engine.messages import Message, TimerKind
from dagmaster.engine.state import FanState, JobState, NodeState, kept_output
from dagmaster.engine.values import LoadedValues, StoredValue, Value
from dagmaster.ids import JobId
from dagmaster.model.added_nodes import AddedDependency, AddedGroup
from dagmaster.model.retry import RetryPolicy
from dagmaster.model.states import EndedBy, EventStatus, TaskStatus
from dagmaster.model.workflow import DEFAULT_TIMEOUT_SECONDS

MAX_ERROR_LENGTH = 2000


@dataclass(frozen=True, slots=True)
class Rules:
    """The operator's settings; the same for all jobs of an orchestrator."""

    dispatch_timeout_seconds: float | None = None
    timeout_grace_seconds: float = 5.0
    zombie_after_seconds: float = 86_400.0
    default_job_timeout_seconds: float | None = None
    max_worker_deaths: int | None = None
    max_fan_out: int = 1_000_000
    slice_size: int = 2_000
    inline_bytes: int = 64 * 1024  # larger values are not kept in memory
    max_change_set_bytes: int = 16 * 1024 * 1024  # read or written by one change set; one value may exceed it
    max_fan_in_bytes: int = 64 * 1024 * 1024  # gathered by a fan-in or an expression
    max_result_bytes: int = 64 * 1024 * 1024
    default_timeout_seconds: float = DEFAULT_TIMEOUT_SECONDS  # of added tasks; compiled nodes carry theirs
    default_retry: RetryPolicy = field(default_factory=RetryPolicy)
    env: Mapping[str, str] = field(default_factory=dict)


@dataclass(slots=True)
class Event:
    """A timeline entry; the fields are the columns."""

    job_id: JobId
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
    """A task to put on its queue. The writer may add a trace."""

    node: NodeState
    task_id: str
    attempt: int
    at: datetime
    trace_parent: str | None = None


@dataclass(frozen=True, slots=True)
class NewChildJob:
    """A job to be submitted for a node, under the id of its attempt.

    `inputs` is JSON; None if they are already stored as the node's parameters.
    """

    node_id: str
    task_id: str
    workflow_id: str
    workflow_hash: str | None
    inputs: bytes | None


@dataclass(frozen=True, slots=True)
class Result:
    """A worker's report, as it is stored."""

    task_id: str
    job_id: JobId
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


class Timer(NamedTuple):
    at: datetime
    kind: TimerKind
    node_id: str = ""
    attempt: int = 0


@dataclass(slots=True)
class ChangeSet:
    """The rows to write for one job after its transitions in memory."""

    job: JobState
    now: datetime
    rules: Rules
    closed_queues: Collection[str] = ()  # full: nothing is dispatched to them
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
    new_child_jobs: dict[str, NewChildJob] = field(default_factory=dict)
    cancelled_children: list[str] = field(default_factory=list)  # attempts whose child jobs are to be cancelled
    ready: deque[NodeState] = field(default_factory=deque)
    awaited_results: deque[NodeState] = field(default_factory=deque)
    scope: dict[str, Any] | None = None
    loaded: LoadedValues = field(default_factory=LoadedValues)
    bytes: int = 0  # of the values to be written
    large_fans: list[FanState] = field(default_factory=list)  # whose items come from stored values
    job_touched: bool = False
    reopened: bool = False
    holds_tasks: bool | None = None

    @property
    def is_over(self) -> bool:
        return self.job.is_terminal

    def output_of(self, node: NodeState) -> Value | None:
        """The output, if it is in memory or loaded."""
        return self.loaded.outputs.get(node.node_id, node.output)

    def release(self) -> None:
        """Drop large values from memory once the change set is written."""
        for node in (*self.touched.values(), *self.created.values()):
            node.params = node.checkpoint = node.definition = None
            node.output = kept_output(node, self.rules.inline_bytes)
            self.job.has_stored = self.job.has_stored or isinstance(node.output, StoredValue)
        for fan in self.large_fans:
            fan.items = None
        self.loaded, self.scope = LoadedValues(), None

    def touch(self, node: NodeState) -> None:
        """Mark the node's row for writing. A created node is written anyway."""
        if node.node_id not in self.created:
            self.touched[node.node_id] = node

    def note(
        self,
        event_type: str,
        status: EventStatus,
        node: NodeState | None = None,
        data: Mapping[str, Any] | None = None,
        *,
        error: str | None = None,
        duration_ms: int | None = None,
        source_app: str = "orchestrator",
        checkpoint_name: str | None = None,
    ) -> None:
        """Add a timeline entry."""
        self.events.append(
            Event(
                self.job.job_id,
                event_type,
                status,
                self.now,
                node.node_id if node else None,
                self.job.task_id(node) if node and node.dispatched_at else None,
                data,
                error[:MAX_ERROR_LENGTH] if error else None,
                duration_ms,
                source_app,
                checkpoint_name,
            )
        )

    def close_task(self, node: NodeState) -> None:
        """End the attempt's task: remove it from its queue and from the running tasks."""
        task_id = self.job.task_id(node)
        if self.dispatches.pop(task_id, None) is not None:
            return
        self.closed_running.append(task_id)
        if node.started_at is None or node.started_at == self.now:  # Its row still says waiting.
            self.closed_waiting.append(task_id)

    def cancel_child(self, node: NodeState) -> None:
        """Cancel the job that the node has started."""
        task_id = self.job.task_id(node)
        self.new_child_jobs.pop(task_id, None)
        self.cancelled_children.append(task_id)

    def arm(self, kind: TimerKind, at: datetime, node: NodeState | None = None) -> None:
        self.timers.append(Timer(at, kind, node.node_id if node else "", node.attempt if node else 0))
