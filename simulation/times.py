"""The times of an attempt, as its worker measured them, and the deadline of the job, without the engine."""

from datetime import datetime, timedelta

from dagmaster.engine.change_set import Event, Result, Rules
from dagmaster.model.states import EndedBy, NodeStatus, TaskStatus
from dagmaster.model.workflow import ApprovalNode, WaitNode, Workflow, WorkflowNode
from simulation.ground import Ground, require
from simulation.store import NodeRow
from simulation.workers import TOOK_MS

# The ends that a worker reports, and the status of the result.
REPORTED = {EndedBy.RESULT: TaskStatus.COMPLETED, EndedBy.FAILURE: TaskStatus.FAILED}


def check_times(ground: Ground, row: NodeRow) -> None:
    """A node has only the times of its current attempt: the time between two attempts belongs to neither."""
    waited, began, ended = row.dispatched_at, row.started_at, row.completed_at
    match row.status:
        case NodeStatus.PENDING | NodeStatus.READY:
            is_right = waited is None and began is None and ended is None
        case NodeStatus.DISPATCHED:
            is_right = waited is not None and began is None and ended is None
        case NodeStatus.RUNNING:
            is_right = waited is not None and began is not None and waited <= began and ended is None
        case NodeStatus.SKIPPED:
            is_right = waited is None and began is None and ended is not None
        case _:
            is_right = ended is not None and (began is None or (waited is not None and waited <= began <= ended))
    require(is_right, "{} is {} with the times {}, {}, {}", row.node_id, row.status, waited, began, ended)
    result = ground.store.results.get(row.task_id or "")
    if result is None or row.ended_by is None or not is_measured(ground, row.node_id):
        return
    if REPORTED.get(row.ended_by) is result.status:
        _check_measured(row, result)


def _check_measured(row: NodeRow, result: Result) -> None:
    """However late it was written."""
    assert row.dispatched_at is not None
    began = max(result.reported_at - timedelta(milliseconds=TOOK_MS), row.dispatched_at)
    same = (row.started_at, row.completed_at) == (began, result.reported_at)
    require(same, "{} ran from {} to {}, its worker says: {}", row.node_id, row.started_at, row.completed_at, result)


def check_duration(ground: Ground, event: Event) -> None:
    """The duration of an attempt that a worker's report ended."""
    is_told = event.event_type == "node_completed" or "worker_id" in (event.event_data or {})
    ended_by = (event.event_data or {}).get("ended_by")
    if is_told and ended_by in REPORTED and event.node_id is not None and is_measured(ground, event.node_id):
        require(event.duration_ms == TOOK_MS, "{} took {} ms, not {}", event.task_id, event.duration_ms, TOOK_MS)


def is_measured(ground: Ground, node_id: str) -> bool:
    """Whether a worker's report ends it; not if it then waits for the result of another node."""
    addition = ground.case.additions.get(node_id)
    return node_id in ground.case.plans and (addition is None or addition.result_of is None)


def seconds_allowed(workflow: Workflow, rules: Rules) -> float | None:
    """The workflow's timeout; the operator's default does not apply to jobs that may wait for days."""
    may_wait = any(isinstance(node, WaitNode | ApprovalNode | WorkflowNode) for node in workflow.nodes.values())
    return workflow.timeout_seconds or (None if may_wait else rules.default_job_timeout_seconds)


class Deadline:
    """`at` moves with every pause: only the time in which the job may run counts."""

    def __init__(self, workflow: Workflow, rules: Rules) -> None:
        self.at: datetime | None = None
        self._seconds = seconds_allowed(workflow, rules)
        self._paused_since: datetime | None = None

    @property
    def is_moving(self) -> bool:
        """During a pause the deadline is not known yet."""
        return self._paused_since is not None

    def has_passed(self, now: datetime) -> bool:
        return self.at is not None and not self.is_moving and now >= self.at

    def follow(self, event: Event) -> None:
        at = event.created_at
        match event.event_type:
            case "job_started" | "job_reopened":
                self.at = at + timedelta(seconds=self._seconds) if self._seconds is not None else None
                self._paused_since = at if self.is_moving else None
            case "job_paused":
                self._paused_since = at
            case "job_resumed":
                if self.at is not None and self._paused_since is not None:
                    self.at += at - self._paused_since
                self._paused_since = None
