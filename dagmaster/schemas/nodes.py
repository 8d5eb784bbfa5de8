"""Nodes, tasks and their progress."""

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
    """A node with its parameters and attempts."""

    params: Any
    checkpoint_phase: str | None
    checkpoint_data: Any
    checkpoint_saved_at: Time | None
    attempts: list[AttemptReply]


class TaskReply(Reply):
    """An attempt: in its queue (`waiting`, or `held` while its job is paused), on a worker (`running`), or ended
    (`completed` or `failed`). `since` is when it was dispatched, claimed or reported. An ended attempt has nulls.
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
    """`nodes` includes the children of fan-outs. `current_tasks` lists at most a hundred.

    `overall_percent` gives every node of the definition the same weight, a fan-out according to its children, and never
    falls while the job runs, unless nodes are added. `work_percent` counts all known nodes, including children of
    fan-outs but not skipped nodes. `estimate_basis` is the basis of `estimated_completion`: the last jobs of the
    workflow, or, as a guess, the progress of this job so far. `overdue_seconds` is how much longer than usual a running
    task has taken.
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
