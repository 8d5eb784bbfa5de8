"""Review and clearance: the decisions of a reviewer, as changes to write."""

from dataclasses import dataclass
from datetime import datetime
from typing import TypeVar

from dagmaster.errors import Conflict, Invalid, UnknownAsset, UnknownVersion
from dagmaster.ids import JobId
from dagmaster.model.asset import (
    APPROVE,
    EXPORT_REMOVED,
    MAKE_PUBLIC,
    REJECT,
    REVIEW_REQUESTED,
    UNRESOLVED,
    ApprovalState,
    Asset,
    AssetMove,
    AssetVersion,
    ClearanceState,
    ExposureMode,
    ProcessingStatus,
    clearance_steps,
)
from dagmaster.store.assets import AssetChange, AssetEvent

S = TypeVar("S", ApprovalState, ClearanceState, ProcessingStatus)


@dataclass(frozen=True, slots=True)
class Decision:
    """The actor, time and reason of a decision."""

    actor: str | None
    at: datetime
    reason: str | None = None


def check_live(asset: Asset, version: AssetVersion | None = None) -> None:
    """Raises for deleted assets and versions, which cannot be changed."""
    if asset.deleted_at is not None:
        raise UnknownAsset(f"asset {asset.asset_id!r} is deleted")
    if version is not None and version.deleted_at is not None:
        raise UnknownVersion(f"version {version.version_ordinal} of asset {asset.asset_id!r} is deleted")


def move(version: AssetVersion, state: S, step: AssetMove[S]) -> S:
    """The state after the move; raises Conflict if the move is illegal."""
    if state not in step.sources:
        raise Conflict(
            f"version {version.version_ordinal} is {state}; {step.event.removeprefix('version_')} takes "
            f"{' or '.join(sorted(step.sources))}"
        )
    return step.target


def request_review(asset: Asset, version: AssetVersion, decision: Decision, job_id: JobId) -> AssetChange:
    """Needs a processed version in review."""
    check_live(asset, version)
    move(version, version.approval_state, APPROVE)
    _check_processed(version)
    event = AssetEvent(REVIEW_REQUESTED, version.version_ordinal, decision.actor, decision.reason, job_id)
    return AssetChange(events=(event,))


def approve(asset: Asset, version: AssetVersion, decision: Decision, level: ClearanceState | None) -> AssetChange:
    """Needs a processed version, and an asset that is cleared already or by `level` in the same step."""
    check_live(asset, version)
    ordinal = version.version_ordinal
    approved = move(version, version.approval_state, APPROVE)
    _check_processed(version)
    cleared = clear(asset, decision, level) if level is not None else AssetChange()
    if level is None and asset.clearance_state is ClearanceState.UNCLEARED:
        raise Conflict(
            "the asset is not cleared; clear it first, or give a clearance_level (ouo or public) with the approval"
        )
    return AssetChange(
        asset={**cleared.asset, "latest_approved_version_ordinal": max((*asset.approved, ordinal))},
        version=_reviewed(approved, decision),
        events=(*cleared.events, AssetEvent(APPROVE.event, ordinal, decision.actor, decision.reason)),
    )


def _check_processed(version: AssetVersion) -> None:
    if version.processing_status is not ProcessingStatus.COMPLETED:
        raise Conflict(
            f"version {version.version_ordinal} cannot be approved while its processing is "
            f"{version.processing_status}; wait until it has completed"
        )


def reject(asset: Asset, version: AssetVersion, decision: Decision) -> AssetChange:
    check_live(asset, version)
    if not (decision.reason or "").strip():
        raise Invalid("a rejection needs a reason for the submitter")
    return AssetChange(
        version=_reviewed(move(version, version.approval_state, REJECT), decision),
        events=(AssetEvent(REJECT.event, version.version_ordinal, decision.actor, decision.reason),),
    )


def _reviewed(state: ApprovalState, decision: Decision) -> dict[str, object]:
    return {
        "approval_state": state,
        "approval_by": decision.actor,
        "approval_at": decision.at,
        "approval_reason": decision.reason,
    }


def clear(asset: Asset, decision: Decision, level: ClearanceState) -> AssetChange:
    """Clear up to this level, with each step recorded. No change if it is already reached."""
    check_live(asset)
    columns: dict[str, object] = {}
    events = []
    for step in clearance_steps(asset.clearance_state, level):
        is_public = step is MAKE_PUBLIC
        columns |= {
            "clearance_state": step.target,
            "made_public_at" if is_public else "cleared_at": decision.at,
            "made_public_by" if is_public else "cleared_by": decision.actor,
        }
        events.append(AssetEvent(step.event, None, decision.actor, decision.reason))
    return AssetChange(asset=columns, events=events)


def expose(asset: Asset, decision: Decision, mode: ExposureMode) -> AssetChange:
    check_live(asset)
    if mode is asset.exposure_mode:
        return AssetChange()
    data = {"from": asset.exposure_mode, "to": mode}
    return AssetChange(
        asset={"exposure_mode": mode},
        events=(AssetEvent("exposure_changed", None, decision.actor, decision.reason, event_data=data),),
    )


def delete_version(asset: Asset, version: AssetVersion, decision: Decision) -> AssetChange:
    """The next submission gets the next ordinal; `latest` falls back to the previous approved version."""
    check_live(asset, version)
    remaining = [ordinal for ordinal in asset.approved if ordinal != version.version_ordinal]
    return AssetChange(
        asset={"latest_approved_version_ordinal": max(remaining, default=None)},
        version={"deleted_at": decision.at, "deleted_by": decision.actor},
        events=(AssetEvent("version_deleted", version.version_ordinal, decision.actor, decision.reason),),
        cancelled_job_ids=[job for job in (version.current_job_id, version.export_job_id) if job is not None],
        cancel_reason="the version was deleted",
    )


def delete_asset(asset: Asset, decision: Decision, job_ids: list[JobId]) -> AssetChange:
    check_live(asset)
    return AssetChange(
        asset={"deleted_at": decision.at, "deleted_by": decision.actor},
        events=(AssetEvent("asset_deleted", None, decision.actor, decision.reason),),
        cancelled_job_ids=job_ids,
        cancel_reason="the asset was deleted",
    )


def forget_export(version: AssetVersion, decision: Decision, files: int) -> AssetChange:
    """The public copies of the version are removed."""
    event = AssetEvent(
        EXPORT_REMOVED, version.version_ordinal, decision.actor, decision.reason, event_data={"files": files}
    )
    return AssetChange(version={"external_blob_path": None, "exported_at": None}, events=(event,))


def blocking_version(version: AssetVersion) -> str:
    """Why no other version can be submitted, and the remedy."""
    assert version.approval_state in UNRESOLVED
    label = f" ({version.version_label!r})" if version.version_label else ""
    remedy = (
        "resubmit or delete it first"
        if version.approval_state is ApprovalState.REJECTED
        else "it must be approved, or rejected and resubmitted, or deleted first"
    )
    return f"version {version.version_ordinal}{label} is {version.approval_state}: {remedy}"
