"""The operations on assets, as values."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from dagmaster.ids import JobId
from dagmaster.model.asset import ClearanceState, DataType, ExposureMode, Platform
from dagmaster.service.contract import Row, SubmitRequest


@dataclass(frozen=True, slots=True)
class RequestOrigin:
    """A request under an id that its sender chose; `platform_id` is the partner's, also for a plain job."""

    request_id: str
    platform_id: str | None = None


@dataclass(frozen=True, slots=True)
class AssetSubmission:
    """A job, and the asset version that it processes. `resubmit` replaces a rejected or failed version."""

    job: SubmitRequest
    platform_id: str
    platform_refs: Mapping[str, Any]
    data_type: DataType
    version_label: str | None = None
    resubmit: bool = False
    request_id: str | None = None


@dataclass(frozen=True, slots=True)
class AssetSubmitResult:
    """`is_new` is false for a repeated request with the same id or key."""

    request_id: str
    job_id: JobId
    workflow_id: str
    workflow_version: int
    status: str
    is_new: bool
    asset_id: str | None = None
    version_ordinal: int | None = None
    revision: int | None = None
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Approve:
    """Without an ordinal, the version in review. `level` clears the asset in the same step."""

    ordinal: int | None = None
    level: ClearanceState | None = None
    comment: str | None = None


@dataclass(frozen=True, slots=True)
class Reject:
    reason: str
    ordinal: int | None = None


@dataclass(frozen=True, slots=True)
class Clear:
    level: ClearanceState
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class Expose:
    mode: ExposureMode


@dataclass(frozen=True, slots=True)
class DeleteVersion:
    ordinal: int
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class DeleteAsset:
    reason: str | None = None


AssetCommand = Approve | Reject | Clear | Expose | DeleteVersion | DeleteAsset


@dataclass(frozen=True, slots=True)
class AssetResult:
    """`ordinal` is the decided version; `export_job_id` the job that publishes it, if one was queued."""

    asset_id: str
    ordinal: int | None = None
    export_job_id: JobId | None = None
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Reprocess:
    """Process a version again: by default with the workflow and the inputs of its last job.

    `resubmits` sends a rejected or failed version back to review.
    """

    ordinal: int
    workflow: str | None = None
    inputs: Mapping[str, Any] | None = None
    priority: int = 0
    version_label: str | None = None
    resubmits: bool = False
    metadata: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class AssetQuery:
    """All conditions must hold; None matches every asset."""

    platform_id: str | None = None
    data_type: str | None = None
    clearance_state: str | None = None
    approval_state: str | None = None
    processing_status: str | None = None
    include_deleted: bool = False


class AssetService(Protocol):
    """Over the database it is a `DatabaseAssetService`, over HTTP an `HttpAssetService` of the client."""

    async def assets(self, query: AssetQuery, *, limit: int) -> Sequence[Row]:
        """The newest first."""

    async def asset(self, asset_id: str) -> Row:
        """With its `versions`, the latest first."""

    async def history(self, asset_id: str, *, limit: int) -> Sequence[Row]:
        """The oldest first."""

    async def decide(self, asset_id: str, command: AssetCommand) -> AssetResult: ...

    async def reprocess(self, asset_id: str, command: Reprocess) -> AssetSubmitResult: ...

    async def platforms(self) -> Sequence[Row]: ...

    async def add_platform(self, platform: Platform) -> Row: ...

    async def layers(self, *, limit: int) -> Sequence[Row]:
        """In display order."""

    async def publish_layer(self, asset_id: str) -> Row:
        """Returns the outcome of each projection."""

    async def publish_layers(self) -> Row:
        """Publish all layers; returns how many changed, and which failed."""

    async def unpublish_layer(self, asset_id: str) -> Row:
        """Returns the outcome of each projection."""
