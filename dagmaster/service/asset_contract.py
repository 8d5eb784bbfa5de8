"""What can be asked of assets, as values."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from dagmaster.ids import JobId
from dagmaster.model.asset import ClearanceState, DataType, ExposureMode
from dagmaster.service.contract import SubmitRequest


@dataclass(frozen=True, slots=True)
class RequestOrigin:
    """A request by an id that its sender chose; `platform_id` is the partner's, also for a plain job."""

    request_id: str
    platform_id: str | None = None


@dataclass(frozen=True, slots=True)
class AssetSubmission:
    """A job, and the version of an asset that it processes. `resubmit` replaces a rejected or failed version."""

    job: SubmitRequest
    platform_id: str
    platform_refs: Mapping[str, Any]
    data_type: DataType
    version_label: str | None = None
    resubmit: bool = False
    request_id: str | None = None


@dataclass(frozen=True, slots=True)
class AssetSubmitResult:
    """`is_new` is false for a request that was made before under the same id or key."""

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
    """Without an ordinal, the version that waits for review. `level` clears the asset in the same step."""

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
    """`ordinal` is the version that was decided on; `export_job_id` the job that publishes it, if one was queued."""

    asset_id: str
    ordinal: int | None = None
    export_job_id: JobId | None = None
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Reprocess:
    """Process a version once more: by default with the workflow and the inputs of its last job.

    `resubmits` sends a rejected or failed version back to review.
    """

    ordinal: int
    workflow: str | None = None
    inputs: Mapping[str, Any] | None = None
    priority: int = 0
    version_label: str | None = None
    resubmits: bool = False
    metadata: Mapping[str, Any] = field(default_factory=dict)
