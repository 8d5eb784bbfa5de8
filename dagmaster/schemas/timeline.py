"""Timelines, graphs, attempts and logs."""

from typing import Any, Literal

from pydantic import Field

from dagmaster.model.outcome import Outcome
from dagmaster.model.states import EndedBy, EventStatus
from dagmaster.schemas.common import Id, Json, Reply, Time


class TimelineEntry(Reply):
    """One event. `message` describes it for people, `data` for programs."""

    event_id: Id
    timestamp: Time
    event_type: str
    node_id: str | None
    task_id: str | None
    status: EventStatus
    message: str
    duration_ms: int | None
    error_message: str | None
    source_app: str
    data: Json | None


class TimelineSummary(Reply):
    """Covers all events of the job or node, not only those on this page."""

    total_events: int
    first_event: Time | None
    last_event: Time | None
    duration_seconds: float | None
    event_counts: dict[str, int]
    nodes_with_retries: list[str]


class TimelineReply(Reply):
    """Oldest first. If `has_more`, continue with `after=next_after`."""

    job_id: Id
    node_id: str | None = None
    events: list[TimelineEntry]
    summary: TimelineSummary
    limit: int
    has_more: bool
    next_after: Id | None


class AuditEntry(TimelineEntry):
    """An event of the system rather than of a job."""

    actor: str | None
    command: str | None


class GraphNode(Reply):
    node_id: str
    type: str
    status: str
    outcome: Outcome = Field(description="combined state of the node and the nodes drawn inside it")
    handler: str | None
    queue: str | None
    retry_count: int
    ended_by: EndedBy | None = None
    error_message: str | None
    max_retries: int
    not_before: Time | None
    started_at: Time | None
    completed_at: Time | None
    duration_seconds: float | None
    taken_branch: str | None
    waits_for: str | None = Field(description="approval, signal, time, job or retry, while the node waits for it")
    runs_last: str | None = Field(description="on_failure or finally, if the node starts such a chain")
    children: dict[str, int] = Field(default_factory=dict)
    added: dict[str, int] = Field(default_factory=dict, description="number of nodes that its task added, by status")
    last_ended_at: Time | None = Field(default=None, description="when the last of these nodes ended")


class GraphEdge(Reply):
    """`kind` is live, dead or undecided; `branch` is the name of its branch.

    The target waits for all edges with the `rule` `all_of`, and for one with the `rule` `any_of`.
    """

    source: str
    target: str
    kind: str
    branch: str | None
    rule: Literal["all_of", "any_of"] = "all_of"


class GraphGroup(Reply):
    """A group of nodes added at run time; `nodes` does not count those of nested groups."""

    group_id: Id
    parent_group_id: Id | None
    name: str
    created_at: Time
    nodes: int


class GraphDependency(Reply):
    """`next` waits for `previous`. Groups have no node id."""

    previous_id: Id
    previous_type: Literal["task", "group"]
    previous_node_id: str | None
    next_id: Id
    next_type: Literal["task", "group"]
    next_node_id: str | None


class GraphReply(Reply):
    """Later changes have events after `last_event_id`."""

    job_id: Id
    workflow_id: str
    workflow_version: int
    status: str
    last_event_id: Id
    nodes: list[GraphNode]
    edges: list[GraphEdge]
    groups: list[GraphGroup] = Field(default_factory=list, description="groups added at run time")
    dependencies: list[GraphDependency] = Field(
        default_factory=list, description="between nodes and groups added at run time"
    )


class AttemptReply(Reply):
    """`metrics` come from the handler; `cached` in it means that the result is that of an earlier task."""

    task_id: str
    status: str
    ended_by: EndedBy | None = None
    worker_id: str | None
    error_type: str | None
    error_message: str | None
    execution_duration_ms: int | None
    peak_memory_bytes: int | None
    cpu_seconds: float | None
    metrics: Json | None = None
    log_path: str | None
    progress_current: float | None
    progress_total: float | None
    progress_percent: float | None
    progress_message: str | None
    reported_at: Time


class AttemptOfNode(AttemptReply):
    """Attempts count from 1. `log_bytes` is null if there is no log, or none that the server can read."""

    attempt: int | None
    log_bytes: int | None


class LogLine(Reply):
    """Lines count from 1."""

    number: int
    text: str


class LogMatches(Reply):
    """`total` of `log_lines` lines match; `lines` are the first matches."""

    attempt: int
    lines: list[LogLine]
    total: int
    log_lines: int


class LoggedNode(Reply):
    """A node that a worker has or had; `attempt` is its latest."""

    node_id: str
    status: str
    attempt: int
    ended_by: EndedBy | None = None
    error_message: str | None


class CheckpointReply(Reply):
    checkpoint_id: Id
    task_id: str
    phase_name: str
    phase_index: int | None
    phase_total: int | None
    progress_current: float | None
    progress_total: float | None
    progress_message: str | None
    state_data: Any
    artifacts_completed: list[Any] | None
    artifacts_total: int | None
    memory_bytes: int | None
    disk_bytes: int | None
    error_count: int
    is_final: bool
    is_valid: bool
    created_at: Time
