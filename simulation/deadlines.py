"""The deadline of the job, computed from its workflow, the rules and the timeline, without the engine."""

from datetime import datetime, timedelta

from dagmaster.engine.change_set import Event, Rules
from dagmaster.model.workflow import ApprovalNode, WaitNode, Workflow, WorkflowNode


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
            case _:
                pass
