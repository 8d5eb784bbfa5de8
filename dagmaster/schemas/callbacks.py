"""Reports from programs that execute tasks."""

from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from dagmaster import ids
from dagmaster.schemas.common import Body, Id, Json, Reply

TaskId = Annotated[ids.TaskId, Field(min_length=1, max_length=128)]
Text = Annotated[str, Field(max_length=2000)]
Finite = Annotated[float, Field(allow_inf_nan=False)]
Integer = Annotated[int, Field(ge=0, lt=2**31)]
Long = Annotated[int, Field(ge=0, lt=2**63)]


class ProgressFields(Body):
    """The progress of an attempt. `progress_percent` is calculated if it is missing."""

    progress_current: Finite | None = None
    progress_total: Finite | None = None
    progress_percent: Annotated[float, Field(ge=0, le=100)] | None = None
    progress_message: Text | None = None


class TaskProgressCreate(ProgressFields):
    """The progress of an attempt. `progress_percent` is calculated if it is missing."""

    task_id: TaskId
    worker_id: Annotated[str, Field(max_length=128)] | None = None


class CheckpointFields(Body):
    """A checkpoint: a later attempt resumes after this phase."""

    phase_name: Annotated[str, Field(min_length=1, max_length=128)]
    phase_index: Integer | None = None
    phase_total: Integer | None = None
    progress_current: Finite | None = None
    progress_total: Finite | None = None
    progress_message: Text | None = None
    state_data: Json | None = None
    artifacts_completed: list[Any] | None = None
    artifacts_total: Integer | None = None
    memory_bytes: Long | None = None
    disk_bytes: Long | None = None
    error_count: Integer = 0
    is_final: bool = False


class CheckpointCreate(CheckpointFields):
    """A checkpoint: a later attempt resumes after this phase."""

    task_id: TaskId


class TaskResultCreate(Body):
    """The result of an attempt, or `running` when it starts. A failed attempt is retried unless it is `permanent`.

    `job_id` and `node_id` are part of `task_id` and may be omitted. `progress` is a percentage or an object.
    """

    task_id: TaskId
    job_id: Id | None = None
    node_id: str | None = None
    status: Literal["received", "running", "completed", "failed"]
    output: Json | None = None
    error_message: Annotated[str, Field(max_length=20_000)] | None = None
    permanent: bool = False
    retry_after_seconds: Annotated[float, Field(ge=0, le=604_800)] | None = None
    worker_id: Annotated[str, Field(max_length=128)] | None = None
    execution_duration_ms: Long | None = None
    progress: ProgressFields | Annotated[float, Field(ge=0, le=100)] | None = None
    checkpoint: CheckpointFields | None = None

    @model_validator(mode="after")
    def _fit_together(self) -> Self:
        attempt = self.task_id.rpartition("_")[2]
        if self.job_id is not None and not self.task_id.startswith(f"{self.job_id}_"):
            raise ValueError(f"job_id {self.job_id} does not match task_id {self.task_id}")
        if self.node_id is not None and not self.task_id.endswith(f"_{self.node_id}_{attempt}"):
            raise ValueError(f"node_id {self.node_id} does not match task_id {self.task_id}")
        if self.status != "completed" and self.output:
            raise ValueError("only a completed task has an output; put the cause of a failure in error_message")
        if self.status != "failed" and self.error_message:
            raise ValueError("only a failed task has an error_message")
        return self


class Accepted(Reply):
    task_id: str
    accepted: bool = True


class ResultAccepted(Accepted):
    """`duplicate` means that the same report was accepted before."""

    duplicate: bool = False


class CheckpointSaved(Accepted):
    checkpoint_id: Id


class TaskToken(Reply):
    """A token for reports on this attempt: send it as `Authorization: Bearer dmt_...`."""

    task_id: str
    token: str
