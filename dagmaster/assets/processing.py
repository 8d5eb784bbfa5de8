"""Processing: the effect of a new job on its version, as changes to write."""

from collections.abc import Mapping

from dagmaster.assets.review import Decision, check_live, move
from dagmaster.errors import Conflict
from dagmaster.ids import JobId
from dagmaster.model.asset import (
    REPROCESS,
    RESUBMIT,
    UNFINISHED,
    ApprovalState,
    Asset,
    AssetVersion,
    ProcessingStatus,
)
from dagmaster.store.assets import AssetChange, AssetEvent


def begin(asset: Asset, ordinal: int, decision: Decision, job_id: JobId, *, is_new_asset: bool) -> AssetChange:
    """The change for a new version."""
    created = (AssetEvent("asset_created", None, decision.actor),) if is_new_asset else ()
    return AssetChange(
        asset={"next_ordinal": ordinal + 1},
        version={"current_job_id": job_id},
        events=(*created, AssetEvent("version_submitted", ordinal, decision.actor, job_id=job_id)),
    )


def check_resubmission(asset: Asset, version: AssetVersion) -> None:
    """Raises Conflict unless the version was rejected, or its processing failed."""
    check_live(asset, version)
    has_failed = version.processing_status is ProcessingStatus.FAILED
    if version.approval_state is ApprovalState.APPROVED:
        raise Conflict(f"version {version.version_ordinal} is approved; submit the next version instead")
    if version.approval_state is ApprovalState.PENDING_REVIEW and not has_failed:
        raise Conflict(
            f"version {version.version_ordinal} waits for review; only a version that was rejected, or whose "
            "processing failed, can be resubmitted"
        )


def resubmit(
    asset: Asset,
    version: AssetVersion,
    decision: Decision,
    job_id: JobId,
    *,
    label: str | None,
    refs: Mapping[str, str] | None = None,
) -> AssetChange:
    """Return to review with a new revision. A job that still processes the old one is cancelled."""
    check_resubmission(asset, version)
    is_busy = version.processing_status in UNFINISHED
    return AssetChange(
        version={
            "approval_state": move(version, version.approval_state, RESUBMIT),
            "approval_by": None,
            "approval_at": None,
            "approval_reason": None,
            "version_label": label if label is not None else version.version_label,
            "platform_refs": {**version.platform_refs, **(refs or {})},
            "submitted_by": decision.actor or "",
            **_restarted(version, job_id),
        },
        events=(AssetEvent(RESUBMIT.event, version.version_ordinal, decision.actor, decision.reason, job_id),),
        cancelled_job_ids=[version.current_job_id] if is_busy and version.current_job_id is not None else [],
        cancel_reason="the version was resubmitted",
    )


def reprocess(asset: Asset, version: AssetVersion, decision: Decision, job_id: JobId) -> AssetChange:
    """A new revision; ordinal and approval stay, and the outputs stay until there are new ones."""
    check_live(asset, version)
    move(version, version.processing_status, REPROCESS)
    return AssetChange(
        version=_restarted(version, job_id),
        events=(AssetEvent(REPROCESS.event, version.version_ordinal, decision.actor, decision.reason, job_id),),
    )


def _restarted(version: AssetVersion, job_id: JobId) -> dict[str, object]:
    return {
        "processing_status": ProcessingStatus.PROCESSING,
        "processing_started_at": None,
        "processing_completed_at": None,
        "processing_error": None,
        "current_job_id": job_id,
        "revision": version.revision + 1,
    }


def export(version: AssetVersion, decision: Decision, job_id: JobId) -> AssetChange:
    """Export the version to the public zone."""
    return AssetChange(
        version={"export_job_id": job_id, "export_error": None},
        events=(AssetEvent("export_queued", version.version_ordinal, decision.actor, job_id=job_id),),
    )
