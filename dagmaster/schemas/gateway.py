"""The request and response bodies of the gateway."""

from typing import Annotated, Any, Literal

from pydantic import AliasChoices, Field, model_validator

from dagmaster.model.asset import DataType
from dagmaster.schemas.assets import AssetFields, Label, Refs, Text, VersionFields
from dagmaster.schemas.common import Body, Id, Json, Problem, Reply, Time

MAX_BATCH = 100

Ordinal = Annotated[int, Field(ge=0)]


class PartnerSubmission(Body):
    """A version of an asset if there are `platform_refs`, otherwise a plain job.

    Repeating an `idempotency_key` with the same content returns the first request.
    """

    workflow_id: Annotated[str, Field(min_length=1, max_length=64)]
    input_params: Json = Field(default_factory=dict, validation_alias=AliasChoices("input_params", "input_data"))
    platform_id: Annotated[str, Field(max_length=64)] | None = Field(
        default=None, description="the platform of the key, if it has one"
    )
    platform_refs: Refs | None = None
    data_type: DataType | None = None
    version_label: Label | None = None
    resubmit: bool = Field(default=False, description="replace the rejected or failed version")
    idempotency_key: Annotated[str, Field(min_length=1, max_length=128)] | None = None
    callback_url: Annotated[str, Field(max_length=2048)] | None = None

    @model_validator(mode="after")
    def _is_an_asset_or_a_job(self) -> "PartnerSubmission":
        if self.platform_refs is not None:
            if self.data_type is None:
                raise ValueError("data_type: raster or vector, is needed with platform_refs")
            return self
        extra = [name for name in ("data_type", "version_label", "resubmit") if getattr(self, name)]
        if extra:
            raise ValueError(f"{', '.join(extra)}: only with platform_refs, the references of the dataset")
        return self


class OperatorSubmission(PartnerSubmission):
    """A submission with the options of an operator."""

    priority: Annotated[int, Field(ge=-32768, le=32767)] = 0
    metadata: Json = Field(default_factory=dict)


class Accepted(Reply):
    """An accepted request: poll its status by `request_id`."""

    request_id: str
    workflow_id: str
    submitted_at: Time
    status: Literal["accepted"] = "accepted"
    asset_id: str | None = None
    version_ordinal: int | None = None


class Batch(Body):
    """Up to 100 submissions. Each is checked separately: an invalid one does not affect the others."""

    items: Annotated[list[Json], Field(min_length=1, max_length=MAX_BATCH)]


class BatchItem(Reply):
    """`index` is the position in the batch."""

    index: int
    status: Literal["accepted", "rejected"]
    request_id: str | None = None
    error: Problem | None = None


class BatchReply(Reply):
    accepted: int
    rejected: int
    items: list[BatchItem]


class RequestStatus(Reply):
    """`result` has the outputs by name once the request has completed; `progress` is a percentage."""

    request_id: str
    workflow_id: str
    status: Literal["pending", "running", "completed", "failed"]
    submitted_at: Time
    completed_at: Time | None
    result: Json | None
    error: str | None
    progress: float | None


class VersionTarget(Body):
    """A version, by the request that submitted it or by its asset; without an ordinal the one that waits for review."""

    request_id: Annotated[str, Field(min_length=1, max_length=128)] | None = None
    asset_id: Annotated[str, Field(min_length=1, max_length=64)] | None = None
    version_ordinal: Ordinal | None = None

    @model_validator(mode="after")
    def _is_one_of_both(self) -> "VersionTarget":
        if (self.request_id is None) == (self.asset_id is None):
            raise ValueError("give either request_id or asset_id")
        if self.request_id is not None and self.version_ordinal is not None:
            raise ValueError("version_ordinal: only with asset_id; a request already has one")
        return self


class ReviewApproval(Body):
    """`clearance_level` clears the asset in the same step; without it the asset must be cleared already."""

    clearance_level: Literal["ouo", "public"] | None = None
    comment: Text | None = None


class ReviewRejection(Body):
    reason: Annotated[str, Field(min_length=1, max_length=2000)]


class DecisionReason(Body):
    """The reason, recorded in the history of the asset."""

    reason: Text | None = None


class TargetApproval(VersionTarget, ReviewApproval):
    pass


class TargetRejection(VersionTarget, ReviewRejection):
    pass


class TargetRemoval(VersionTarget, DecisionReason):
    pass


class GatewayVersion(VersionFields):
    """A version as partners and reviewers see it."""


class GatewayAsset(AssetFields):
    """An asset as partners and reviewers see it."""


class GatewayAssetDetail(GatewayAsset):
    """An asset with its versions, latest first."""

    versions: list[GatewayVersion]


class ReviewOutcome(Reply):
    """The version and its asset after a decision."""

    asset: GatewayAsset
    version: GatewayVersion
    warnings: list[str] = Field(default_factory=list)


class AssetOutcome(GatewayAsset):
    """The asset after a decision. `warnings` list failed follow-up actions; the decision stands."""

    warnings: list[str] = Field(default_factory=list)


class GatewayNode(Reply):
    job_id: Id
    node_id: str
    status: str
    retry_count: int
    max_retries: int
    parent_node_id: str | None
    fan_out_index: int | None
    queue: str | None
    error_message: str | None
    ended_by: str | None
    not_before: Time | None
    created_at: Time
    dispatched_at: Time | None
    started_at: Time | None
    completed_at: Time | None


class GatewayJob(Reply):
    """`is_orphaned`: the unfinished job has no live owner. `nodes` is null unless requested."""

    job_id: Id
    workflow_id: str
    workflow_version: int
    status: str
    priority: int
    error_message: str | None
    failed_node: str | None
    ended_by: str | None
    submitted_by: str
    correlation_id: str | None
    idempotency_key: str | None
    asset_id: str | None
    version_ordinal: int | None
    parent_job_id: Id | None
    schedule_id: str | None
    paused_at: Time | None
    created_at: Time
    started_at: Time | None
    completed_at: Time | None
    is_orphaned: bool
    nodes: list[GatewayNode] | None = None


class GatewayJobDetail(GatewayJob):
    """`result_data` is null if it is larger than 4 MiB."""

    deadline_at: Time | None
    updated_at: Time
    result_data: Json | None


class GatewayEvent(Reply):
    job_id: Id
    event_id: Id
    created_at: Time
    node_id: str | None
    event_type: str
    event_status: str
    checkpoint_name: str | None
    event_data: Any
    error_message: str | None
    duration_ms: int | None
    source_app: str


class GatewayWorkflow(Reply):
    """The last submitted version of a workflow."""

    workflow_id: str
    version: int
    created_at: Time


class GatewayStats(Reply):
    """Numbers of rows, and the seconds since the latest heartbeat of an orchestrator and of a worker."""

    jobs: dict[str, int]
    tasks_waiting: int
    tasks_running: int
    requests: int
    assets: int
    versions_to_review: int
    orchestrator_silent_seconds: float | None
    worker_silent_seconds: float | None


class GatewayConfig(Reply):
    version: str
    has_orchestrator: bool
    has_worker: bool
    timeout_seconds: float
    rate_per_second: float
    burst: int
    max_body_bytes: int
    orphan_threshold_seconds: float


class GatewayCheck(Reply):
    name: str
    status: Literal["healthy", "unhealthy"]
    message: str


class GatewayHealth(Reply):
    status: Literal["healthy", "unhealthy"]
    checks: list[GatewayCheck]


class ExternalPublication(Reply):
    """The result of publishing a layer externally."""

    asset_id: str
    result: Json
