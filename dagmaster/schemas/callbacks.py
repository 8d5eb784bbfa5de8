"""What those who execute tasks report."""

from typing import Annotated, Any, Literal

from pydantic import Field

from dagmaster.schemas.common import Body, Id, Json, Reply

TaskId = Annotated[str, Field(min_length=1, max_length=128)]
Text = Annotated[str, Field(max_length=2000)]
Finite = Annotated[float, Field(allow_inf_nan=False)]
Integer = Annotated[int, Field(ge=0, lt=2**31)]
Long = Annotated[int, Field(ge=0, lt=2**63)]


class TaskResultCreate(Body):
    """How an attempt ended. A failed one is tried again unless it is `permanent`."""

    task_id: TaskId
    status: Literal["completed", "failed"]
    output: Json | None = None
    error_message: Annotated[str, Field(max_length=20_000)] | None = None
    permanent: bool = False
    retry_after_seconds: Annotated[float, Field(ge=0, le=604_800)] | None = None
    worker_id: Annotated[str, Field(max_length=128)] | None = None
    execution_duration_ms: Long | None = None


class TaskProgressCreate(Body):
    """How far an attempt is; the percentage is reckoned when it is not given."""

    task_id: TaskId
    progress_current: Finite | None = None
    progress_total: Finite | None = None
    progress_percent: Annotated[float, Field(ge=0, le=100)] | None = None
    progress_message: Text | None = None
    worker_id: Annotated[str, Field(max_length=128)] | None = None


class CheckpointCreate(Body):
    """A phase is done: a later attempt goes on behind it."""

    task_id: TaskId
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


class Accepted(Reply):
    task_id: str
    accepted: bool = True


class CheckpointSaved(Accepted):
    checkpoint_id: Id


class TaskToken(Reply):
    """Lets whoever has it report for this one attempt: send it as `Authorization: Bearer dmt_...`."""

    task_id: str
    token: str
