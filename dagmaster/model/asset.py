"""Assets and their versions: the states of review, clearance and processing, and the legal moves between them."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from hashlib import sha256
from typing import Any, Generic, TypeVar

from dagmaster.errors import Invalid
from dagmaster.ids import JobId
from dagmaster.model.states import JobStatus

MAX_REF_LENGTH = 256
PLATFORM_ID_PATTERN = r"^[a-z][a-z0-9_-]{0,63}$"


class ApprovalState(StrEnum):
    PENDING_REVIEW = "pending_review"
    APPROVED = "approved"
    REJECTED = "rejected"


class ClearanceState(StrEnum):
    """The audience of an asset: nobody outside, official use only, or everybody."""

    UNCLEARED = "uncleared"
    OUO = "ouo"
    PUBLIC = "public"


class ProcessingStatus(StrEnum):
    QUEUED = "queued"
    PROCESSING = "processing"
    COMPLETED = "completed"
    FAILED = "failed"


class DataType(StrEnum):
    RASTER = "raster"
    VECTOR = "vector"


class ExposureMode(StrEnum):
    """Which approved versions are served to the outside."""

    LATEST_ONLY = "latest_only"
    ALL_VERSIONS = "all_versions"


UNRESOLVED = frozenset({ApprovalState.PENDING_REVIEW, ApprovalState.REJECTED})
UNFINISHED = frozenset({ProcessingStatus.QUEUED, ProcessingStatus.PROCESSING})
FINISHED = frozenset({ProcessingStatus.COMPLETED, ProcessingStatus.FAILED})

S = TypeVar("S", ApprovalState, ClearanceState, ProcessingStatus)


@dataclass(frozen=True, eq=False)
class AssetMove(Generic[S]):
    """One legal change of state; its name is the event that records it in the asset's history."""

    event: str
    sources: frozenset[S]
    target: S


APPROVE = AssetMove("version_approved", frozenset({ApprovalState.PENDING_REVIEW}), ApprovalState.APPROVED)
REJECT = AssetMove("version_rejected", frozenset({ApprovalState.PENDING_REVIEW}), ApprovalState.REJECTED)
# Also for a version under review whose processing failed: there is nothing to review.
RESUBMIT = AssetMove("version_resubmitted", UNRESOLVED, ApprovalState.PENDING_REVIEW)

CLEAR = AssetMove("asset_cleared", frozenset({ClearanceState.UNCLEARED}), ClearanceState.OUO)
MAKE_PUBLIC = AssetMove("asset_made_public", frozenset({ClearanceState.OUO}), ClearanceState.PUBLIC)

# A job that is cancelled before it starts fails its version without ever processing it.
START_PROCESSING = AssetMove(
    "processing_started", frozenset({ProcessingStatus.QUEUED, ProcessingStatus.FAILED}), ProcessingStatus.PROCESSING
)
COMPLETE_PROCESSING = AssetMove("processing_completed", UNFINISHED, ProcessingStatus.COMPLETED)
FAIL_PROCESSING = AssetMove("processing_failed", UNFINISHED, ProcessingStatus.FAILED)
REPROCESS = AssetMove("version_reprocessed", FINISHED, ProcessingStatus.PROCESSING)

# The move that a job's new status implies for its version; a trigger applies it in the job's transaction.
PROCESSING_BY_JOB_STATUS = {
    JobStatus.RUNNING: START_PROCESSING,
    JobStatus.COMPLETED: COMPLETE_PROCESSING,
    JobStatus.FAILED: FAIL_PROCESSING,
    JobStatus.CANCELLED: FAIL_PROCESSING,
}

# The outputs of a job that are copied to its version, and those of its export job.
VERSION_OUTPUTS = ("blob_path", "table_name", "stac_item_id", "stac_collection_id", "content_hash")
EXPORT_OUTPUTS = ("external_blob_path", "adf_run_id")

REVIEW_REQUESTED = "review_requested"
EXPORT_REMOVED = "export_removed"

ASSET_EVENTS = (
    "asset_created",
    "version_submitted",
    APPROVE.event,
    REJECT.event,
    RESUBMIT.event,
    REPROCESS.event,
    "version_deleted",
    "asset_deleted",
    "exposure_changed",
    CLEAR.event,
    MAKE_PUBLIC.event,
    START_PROCESSING.event,
    COMPLETE_PROCESSING.event,
    FAIL_PROCESSING.event,
    "export_queued",
    "export_completed",
    "export_failed",
    "metadata_published",
    "metadata_unpublished",
    REVIEW_REQUESTED,
    EXPORT_REMOVED,
)


@dataclass(frozen=True, slots=True)
class Platform:
    """A partner's system. With `allowed_workflows` None its partners may submit any workflow."""

    platform_id: str
    display_name: str
    required_refs: tuple[str, ...]
    optional_refs: tuple[str, ...] = ()
    is_active: bool = True
    allowed_workflows: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True)
class Asset:
    """`approved` holds the ordinals of the approved versions that are not deleted."""

    asset_id: str
    platform_id: str
    platform_refs: Mapping[str, str]
    data_type: DataType
    clearance_state: ClearanceState
    exposure_mode: ExposureMode
    next_ordinal: int
    version: int
    approved: tuple[int, ...] = ()
    deleted_at: datetime | None = None

    @property
    def latest_approved(self) -> int | None:
        return max(self.approved, default=None)


@dataclass(frozen=True, slots=True)
class AssetVersion:
    """`revision` counts the processing runs; `version` is for optimistic locking."""

    asset_id: str
    version_ordinal: int
    version_label: str | None
    approval_state: ApprovalState
    processing_status: ProcessingStatus
    revision: int
    current_job_id: JobId | None
    version: int
    platform_refs: Mapping[str, Any] = field(default_factory=dict)
    blob_path: str | None = None
    export_job_id: JobId | None = None
    deleted_at: datetime | None = None


def identifying_refs(platform: Platform, refs: Mapping[str, Any]) -> dict[str, str]:
    """The references that identify the asset, as strings. Raises Invalid with all missing names."""
    missing = [name for name in platform.required_refs if refs.get(name) in (None, "")]
    if missing:
        raise Invalid(
            f"platform {platform.platform_id!r} needs platform_refs {_quoted(platform.required_refs)}; "
            f"missing: {_quoted(missing)}"
        )
    return {name: _ref_string(name, refs[name]) for name in platform.required_refs}


def ref_strings(refs: Mapping[str, Any]) -> dict[str, str]:
    """All references of a submission, as strings, without those that are null."""
    return {name: _ref_string(name, value) for name, value in refs.items() if value is not None}


@dataclass(frozen=True, slots=True)
class AssetFilter:
    """All conditions must hold. `refs` must be contained in the references of the asset or of one of its versions.

    `text` matches the id of the asset or the value of one of these references.
    """

    platform_id: str | None = None
    refs: Mapping[str, str] = field(default_factory=dict)
    text: str | None = None
    data_type: str | None = None
    clearance_state: str | None = None
    approval_state: str | None = None
    processing_status: str | None = None
    include_deleted: bool = False


def parse_refs(text: str | None) -> dict[str, str]:
    """Parse the references of a query, a JSON object. Raises Invalid."""
    try:
        refs = json.loads(text or "{}")
    except json.JSONDecodeError as error:
        raise Invalid(f'refs: must be a JSON object such as {{"dataset_id": "7"}}: {error}') from error
    if not isinstance(refs, dict):
        raise Invalid('refs: must be a JSON object such as {"dataset_id": "7"}')
    return ref_strings(refs)


def _ref_string(name: str, value: Any) -> str:
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise Invalid(f"platform_refs.{name} must be a string or a number, not {type(value).__name__}")
    text = str(value)
    if len(text) > MAX_REF_LENGTH:
        raise Invalid(f"platform_refs.{name} may have at most {MAX_REF_LENGTH} characters, not {len(text)}")
    return text


def asset_id_of(platform_id: str, refs: Mapping[str, str]) -> str:
    """The identity of an asset: a hash of its platform and its identifying references."""
    return sha256(f"{platform_id}|{json.dumps(refs, sort_keys=True)}".encode()).hexdigest()[:32]


def clearance_steps(current: ClearanceState, target: ClearanceState) -> Sequence[AssetMove[ClearanceState]]:
    """The moves from one level up to another, each recorded; empty if the level is already reached."""
    moves = []
    for move in (CLEAR, MAKE_PUBLIC):
        if target is not current and current in move.sources:
            moves.append(move)
            current = move.target
    return moves


def _quoted(names: Sequence[str]) -> str:
    return ", ".join(repr(name) for name in names)
