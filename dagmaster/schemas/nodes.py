"""Nodes and tasks of all jobs, and how far they are."""

from typing import Any, Literal

from dagmaster.model.outcome import Outcome
from dagmaster.model.states import EndedBy, JobStatus, NodeStatus
from dagmaster.schemas.common import Id, Reply, Time
from dagmaster.schemas.jobs import NodeCounts, NodeReply
from dagmaster.schemas.timeline import AttemptReply


class NodeOfJob(NodeReply):
    """A node in a list over all jobs."""

    workflow_id: str


class NodeDetail(NodeReply):
    """One node with what it was given and every attempt at it."""

    params: Any
    checkpoint_phase: str | None
    checkpoint_data: Any
    checkpoint_saved_at: Time | None
    attempts: list[AttemptReply]


class TaskReply(Reply):
    """An attempt that waits in its queue (`waiting`, or `held` while its job is paused), that a worker has (`running`),
    or that has ended (`completed` or `failed`): then `since` is when, and what is known only of the others is null.
    """

    task_id: str
    job_id: Id
    node_id: str
    state: str
    queue: str | None
    handler: str | None
    priority: int | None
    retry_count: int
    worker_id: str | None
    since: Time
    dispatched_at: Time | None
    error_message: str | None = None
    execution_duration_ms: int | None = None


class CurrentTask(Reply):
    node_id: str
    task_id: str
    status: NodeStatus
    progress_current: float | None
    progress_total: float | None
    progress_percent: float | None
    progress_message: str | None


class JobProgress(Reply):
    """`nodes` counts the children of fan-outs too. `current_tasks` names at most a hundred.

    `overall_percent` takes each node of the definition for as much as any other, a fan-out as far as its children are,
    and never falls while the job runs, unless something is added to it. `work_percent` counts all nodes that are known,
    the children of fan-outs among them; skipped ones are no work. `estimate_basis` says what `estimated_completion`
    rests on: the last jobs of the workflow, or, as a guess, what was done of this job so far. `overdue_seconds` is by
    how much a running task has taken longer than usual.
    """

    job_id: Id
    workflow_id: str
    job_status: JobStatus
    overall_percent: float
    work_percent: float = 0.0
    nodes: NodeCounts
    current_tasks: list[CurrentTask]
    estimated_completion: Time | None
    estimate_basis: Literal["history", "so_far"] | None
    overdue_seconds: float = 0.0


class NodeProgress(Reply):
    job_id: Id
    node_id: str
    status: NodeStatus
    ended_by: EndedBy | None = None
    outcome: Outcome
    retry_count: int
    max_retries: int
    task_id: str | None
    progress_current: float | None
    progress_total: float | None
    progress_percent: float | None
    progress_message: str | None
    checkpoint_phase: str | None
    checkpoint_saved_at: Time | None
    children: NodeCounts
