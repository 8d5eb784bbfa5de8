"""Jobs and their nodes, as they are submitted and shown."""

from typing import Annotated, Any

from pydantic import AliasChoices, Field

from dagmaster.model.outcome import Outcome
from dagmaster.model.states import EndedBy, JobEndedBy, JobStatus, NodeStatus
from dagmaster.schemas.common import Body, Id, Json, Reply, Time

Name = Annotated[str, Field(max_length=128)]


class SubmitJob(Body):
    """A job to be run. The same `idempotency_key` with the same content gives the first job again."""

    workflow_id: Annotated[str, Field(min_length=1, max_length=64)]
    input_params: Json = Field(default_factory=dict, validation_alias=AliasChoices("input_params", "input_data"))
    priority: Annotated[int, Field(ge=-32768, le=32767)] = 0
    idempotency_key: Annotated[str, Field(min_length=1, max_length=128)] | None = None
    correlation_id: Name | None = None
    submitted_by: Name | None = None
    callback_url: Annotated[str, Field(max_length=2048)] | None = None
    metadata: Json = Field(default_factory=dict)


class Reason(Body):
    """Why; it is kept in the timeline."""

    reason: Annotated[str, Field(max_length=2000)] | None = None


class JobSummary(Reply):
    job_id: Id
    workflow_id: str
    workflow_version: int
    status: JobStatus
    priority: int
    error_message: str | None
    tolerated_failures: int = Field(
        default=0, description="how many nodes have failed though the job completed; 0 for a job that has not completed"
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
    """`outcome` is how the node stands together with its `children`, which are counted by status.

    A fan-out has the status `completed` as soon as it has expanded. Its outcome is `running` until its children have
    ended, then `completed`, `completed_with_failures` where those are tolerated, `failed`, or `cancelled` when the job
    ended before them.
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
    ended_by: EndedBy | None = Field(default=None, description="how it ended; null while it has not")
    error_message: str | None
    last_error: str | None
    not_before: Time | None
    created_at: Time
    dispatched_at: Time | None
    started_at: Time | None
    completed_at: Time | None
    duration_seconds: float | None
    output: Any = Field(
        default=None, description="in lists only while it is small, and the outputs together; the node shows it whole"
    )
    output_bytes: int | None = Field(default=None, description="of the output as JSON")


class NodeCounts(Reply):
    """How many nodes are in each state, fan-outs' children included; they sum to `total`.

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
    """One job, whole."""

    workflow_hash: str
    failed_node: str | None = Field(default=None, description="the node with which it failed")
    ended_by: JobEndedBy | None = Field(default=None, description="how it ended; null while it has not")
    deadline_at: Time | None = Field(default=None, description="when it is failed if it has not ended")
    input_params: Json
    result_data: Json | None
    value: Any = Field(default=None, description="What the function of a workflow in Python has returned.")
    metadata: Json
    idempotency_key: str | None
    callback_url: str | None
    asset_id: str | None
    paused_by: str | None
    parent_node_id: str | None = None
    updated_at: Time
    summary: NodeCounts
    nodes: list[NodeReply]
    nodes_has_more: bool = Field(default=False, description="more nodes follow: ask with a larger `offset`")


class JobCreated(Reply):
    """`is_new` is false when the job was submitted before under the same key."""

    job_id: Id
    workflow_id: str
    workflow_version: int
    status: JobStatus
    is_new: bool
    warnings: list[str] = Field(default_factory=list)


class JobSteered(Reply):
    """What became of it. `is_done` is false when the job's owner had not yet acted when we answered."""

    job_id: Id
    status: JobStatus
    is_paused: bool
    is_done: bool
