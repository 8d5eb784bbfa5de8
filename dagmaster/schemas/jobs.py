"""Jobs and their nodes."""

from typing import Annotated, Any

from pydantic import AliasChoices, Field

from dagmaster.model.outcome import Outcome
from dagmaster.model.states import EndedBy, JobEndedBy, JobStatus, NodeStatus
from dagmaster.schemas.common import Body, Id, Json, Reply, Time

Name = Annotated[str, Field(max_length=128)]


class SubmitJob(Body):
    """A job to submit. Repeating an `idempotency_key` with the same content returns the first job."""

    workflow_id: Annotated[str, Field(min_length=1, max_length=64)]
    input_params: Json = Field(default_factory=dict, validation_alias=AliasChoices("input_params", "input_data"))
    priority: Annotated[int, Field(ge=-32768, le=32767)] = 0
    idempotency_key: Annotated[str, Field(min_length=1, max_length=128)] | None = None
    correlation_id: Name | None = None
    submitted_by: Name | None = None
    callback_url: Annotated[str, Field(max_length=2048)] | None = None
    metadata: Json = Field(default_factory=dict)


class Reason(Body):
    """Reason, recorded in the timeline."""

    reason: Annotated[str, Field(max_length=2000)] | None = None


class RetryJob(Body):
    """With `bbox` (west, south, east, north in degrees), retries only nodes that intersect it, and those after them."""

    bbox: tuple[float, float, float, float] | None = None


class JobSummary(Reply):
    job_id: Id
    workflow_id: str
    workflow_version: int
    status: JobStatus
    priority: int
    error_message: str | None
    tolerated_failures: int = Field(
        default=0, description="number of failed nodes that a completed job tolerated; 0 for other jobs"
    )
    submitted_by: str | None
    correlation_id: str | None
    owner_id: str | None
    paused_at: Time | None
    parent_job_id: Id | None = None
    created_at: Time
    started_at: Time | None
    completed_at: Time | None
    duration_seconds: float | None


class NodeReply(Reply):
    """`outcome` is the combined state of the node and its `children`, which are counted by status.

    A fan-out has the status `completed` once it has expanded. Its outcome is `running` until its children have ended,
    then `completed`, `completed_with_failures` if failures are tolerated, `failed`, or `cancelled` if the job ended
    first.
    """

    job_id: Id
    node_id: str
    status: NodeStatus
    outcome: Outcome
    children: dict[str, int] = Field(default_factory=dict)
    task_id: str | None
    retry_count: int
    max_retries: int
    parent_node_id: str | None
    fan_out_index: int | None
    ended_by: EndedBy | None = Field(default=None, description="how it ended; null until then")
    error_message: str | None
    last_error: str | None
    not_before: Time | None
    created_at: Time
    dispatched_at: Time | None
    started_at: Time | None
    completed_at: Time | None
    duration_seconds: float | None
    output: Any = Field(
        default=None, description="omitted from lists if it or their total is too large; get it from the node"
    )
    output_bytes: int | None = Field(default=None, description="size of the output as JSON")


class NodeCounts(Reply):
    """The number of nodes in each state, including children of fan-outs; `total` is their sum.

    A fan-out is counted by its outcome.
    """

    total: int = 0
    pending: int = 0
    ready: int = 0
    dispatched: int = 0
    running: int = 0
    completed: int = 0
    failed: int = 0
    cancelled: int = 0
    skipped: int = 0


class JobReply(JobSummary):
    """A job with all its details."""

    workflow_hash: str
    failed_node: str | None = Field(default=None, description="the node whose failure failed the job")
    ended_by: JobEndedBy | None = Field(default=None, description="how it ended; null until then")
    deadline_at: Time | None = Field(default=None, description="deadline, after which an unfinished job fails")
    input_params: Json
    result_data: Json | None
    value: Any = Field(default=None, description="The return value of a Python workflow.")
    metadata: Json
    idempotency_key: str | None
    callback_url: str | None
    asset_id: str | None
    version_ordinal: int | None = None
    paused_by: str | None
    parent_node_id: str | None = None
    updated_at: Time
    summary: NodeCounts
    nodes: list[NodeReply]
    nodes_has_more: bool = Field(default=False, description="more nodes follow: use a larger `offset`")


class JobCreated(Reply):
    """`is_new` is false if the job was already submitted with the same key."""

    job_id: Id
    workflow_id: str
    workflow_version: int
    status: JobStatus
    is_new: bool
    warnings: list[str] = Field(default_factory=list)


class JobSteered(Reply):
    """The state of the job. `is_done` is false if the job's owner has yet to act."""

    job_id: Id
    status: JobStatus
    is_paused: bool
    is_done: bool


class JobRetried(JobSteered):
    """The state of a retried job. The numbers are set for a retry with a `bbox`."""

    selected_nodes: int | None = Field(default=None, description="number of nodes that a retry with a bbox selected")
    unfinished_nodes: int | None = Field(default=None, description="number of unfinished nodes")
