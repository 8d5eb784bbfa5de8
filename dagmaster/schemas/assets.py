"""Platforms, assets, their versions and the requests of partners."""

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from dagmaster.model.asset import (
    PLATFORM_ID_PATTERN,
    ApprovalState,
    ClearanceState,
    DataType,
    ExposureMode,
    ProcessingStatus,
)
from dagmaster.model.states import JobStatus
from dagmaster.schemas.common import Body, Id, Json, Reply, Time
from dagmaster.schemas.jobs import JobCreated, SubmitJob

Refs = Annotated[dict[str, Any], Field(examples=[{"dataset_id": "0038272", "resource_id": "shapefile"}])]
Label = Annotated[str, Field(min_length=1, max_length=256)]
Text = Annotated[str, Field(max_length=2000)]
PlatformId = Annotated[str, Field(pattern=PLATFORM_ID_PATTERN)]
# Part of a URL: no slashes, no spaces, no `.` or `..`.
RequestId = Annotated[str, Field(max_length=128, pattern=r"^\w[\w.:@+=~-]*$", examples=["order-17"])]
RefName = Annotated[str, Field(min_length=1, max_length=64)]


class Submission(SubmitJob):
    """A version of an asset if `platform_id` is set, otherwise a plain job.

    `request_id` is the sender's own id of the submission: repeating it with the same content returns the first result.
    """

    platform_id: Annotated[str, Field(max_length=64)] | None = None
    platform_refs: Refs = Field(default_factory=dict)
    data_type: DataType | None = None
    version_label: Label | None = None
    resubmit: bool = Field(default=False, description="replace the rejected or failed version")
    request_id: RequestId | None = None

    @model_validator(mode="after")
    def _is_an_asset_or_a_job(self) -> "Submission":
        if self.platform_id is None:
            extra = [
                name for name in ("platform_refs", "data_type", "version_label", "resubmit") if getattr(self, name)
            ]
            if extra:
                raise ValueError(f"{', '.join(extra)}: only with platform_id, the platform of the asset")
        elif self.data_type is None:
            raise ValueError("data_type: raster or vector, is needed with platform_id")
        return self


class Submitted(JobCreated):
    """The job and its version: `asset_id` and `version_ordinal` are null for a plain job."""

    request_id: str | None = None
    asset_id: str | None = None
    version_ordinal: int | None = None
    revision: int | None = None


class PlatformReply(Reply):
    platform_id: str
    display_name: str
    required_refs: list[str]
    optional_refs: list[str]
    is_active: bool
    allowed_workflows: list[str] | None = Field(default=None, description="null: every workflow")
    created_at: Time
    updated_at: Time


class PlatformList(Reply):
    platforms: list[PlatformReply]


class PlatformsSeeded(PlatformList):
    """`added` is the number of default platforms that were missing."""

    added: int


class NewPlatform(Body):
    platform_id: PlatformId
    display_name: Annotated[str, Field(min_length=1, max_length=128)]
    required_refs: Annotated[list[RefName], Field(min_length=1, max_length=20)]
    optional_refs: Annotated[list[RefName], Field(max_length=50)] = Field(default_factory=list)
    is_active: bool = True
    allowed_workflows: list[str] | None = None


class PlatformChange(Body):
    """Omitted fields stay the same. The required references cannot change: the identity of assets depends on them."""

    display_name: Annotated[str, Field(min_length=1, max_length=128)] | None = None
    optional_refs: Annotated[list[RefName], Field(max_length=50)] | None = None
    is_active: bool | None = None
    allowed_workflows: list[str] | None = None


class VersionFields(Reply):
    """A version without internal fields: its jobs and the people who decided."""

    asset_id: str
    version_ordinal: int
    version_label: str | None
    platform_refs: Json
    approval_state: ApprovalState
    approval_at: Time | None
    approval_reason: str | None
    processing_status: ProcessingStatus
    processing_started_at: Time | None
    processing_completed_at: Time | None
    processing_error: str | None
    revision: int
    blob_path: str | None
    table_name: str | None
    stac_item_id: str | None
    stac_collection_id: str | None
    content_hash: str | None
    bbox: list[float] | None
    external_blob_path: str | None
    exported_at: Time | None
    created_at: Time
    updated_at: Time


class VersionReply(VersionFields):
    """`revision` is the number of times that the version was processed; the label is the partner's own."""

    approval_by: str | None
    current_job_id: Id | None
    export_job_id: Id | None
    adf_run_id: str | None
    export_error: str | None
    submitted_by: str
    deleted_at: Time | None
    version: int


class AssetFields(Reply):
    """An asset without internal fields."""

    asset_id: str
    platform_id: str
    platform_refs: Json
    data_type: DataType
    clearance_state: ClearanceState
    cleared_at: Time | None
    made_public_at: Time | None
    exposure_mode: ExposureMode
    latest_approved_version_ordinal: int | None
    unresolved_ordinal: int | None = Field(
        description="the version that waits for review or was rejected; it must be resolved before the next submission"
    )
    version_count: int
    created_at: Time
    updated_at: Time


class AssetSummary(AssetFields):
    """An asset without its versions."""

    cleared_by: str | None
    made_public_by: str | None
    deleted_at: Time | None
    version: int


class AssetReply(AssetSummary):
    """An asset with its versions, latest first."""

    versions: list[VersionReply]


class AssetEventReply(Reply):
    event_id: Id
    asset_id: str
    version_ordinal: int | None
    event_type: str
    actor: str | None
    reason: str | None
    job_id: Id | None
    event_data: Json | None
    created_at: Time


class ReviewedVersion(Reply):
    """The version and its asset after a decision."""

    asset: AssetSummary
    version: VersionReply
    warnings: list[str] = Field(default_factory=list)


class DecidedAsset(AssetSummary):
    """The asset after a decision. `warnings` list failed follow-up actions; the decision stands."""

    warnings: list[str] = Field(default_factory=list)


class ClearedAsset(DecidedAsset):
    """The asset after its clearance. `export_job_id` is the job that exports its latest version, if any."""

    export_job_id: Id | None = None


class ReviewItem(Reply):
    """A version that waits for review."""

    asset_id: str
    version_ordinal: int
    version_label: str | None
    platform_refs: Json
    processing_status: ProcessingStatus
    processing_error: str | None
    current_job_id: Id | None
    revision: int
    submitted_by: str
    created_at: Time
    platform_id: str
    data_type: DataType
    clearance_state: ClearanceState
    latest_approved_version_ordinal: int | None


class Review(Body):
    version_ordinal: Annotated[int, Field(ge=0)] | None = Field(
        default=None, description="the version; if omitted, the one that waits for review"
    )
    reviewer: Annotated[str, Field(max_length=128)] | None = None


class Approval(Review):
    """`clearance_level` clears the asset in the same step; without it the asset must be cleared already."""

    clearance_level: Literal["ouo", "public"] | None = None
    comment: Text | None = None


class Rejection(Review):
    reason: Annotated[str, Field(min_length=1, max_length=2000)]


class Decision(Body):
    """The actor, if it differs from the name of the key, and the reason."""

    actor: Annotated[str, Field(max_length=128)] | None = None
    reason: Text | None = None


class Reprocessing(Body):
    """The workflow and the inputs; by default those of the last job."""

    workflow_id: Annotated[str, Field(min_length=1, max_length=64)] | None = None
    input_params: Json | None = None
    priority: Annotated[int, Field(ge=-32768, le=32767)] = 0
    version_label: Label | None = None


class ExposureChange(Body):
    exposure_mode: ExposureMode


class ServiceReply(Reply):
    """The location of the data of a version."""

    asset_id: str
    version_ordinal: int
    version_label: str | None
    data_type: DataType
    approval_state: ApprovalState
    clearance_state: ClearanceState
    is_preview: bool = Field(description="the version is not approved; only reviewers see it")
    blob_path: str | None
    table_name: str | None
    stac_item_id: str | None
    stac_collection_id: str | None
    bbox: list[float] | None


class RequestReply(Reply):
    """A request and its state."""

    request_id: str
    platform_id: str | None
    workflow_id: str
    asset_id: str | None
    version_ordinal: int | None
    job_id: Id | None
    status: JobStatus
    error_message: str | None
    submitted_by: str
    idempotency_key: str | None
    created_at: Time
    completed_at: Time | None
