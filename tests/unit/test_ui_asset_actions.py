"""Actions and descriptions on the asset pages."""

from collections.abc import Callable
from datetime import UTC, datetime
from itertools import product
from typing import Any

import pytest

from dagmaster.assets import processing, review
from dagmaster.assets.review import Decision
from dagmaster.errors import Conflict, NotFound
from dagmaster.ids import JobId
from dagmaster.model.asset import (
    ASSET_EVENTS,
    ApprovalState,
    Asset,
    AssetVersion,
    ClearanceState,
    DataType,
    ExposureMode,
    ProcessingStatus,
)
from dagmaster.store.assets import AssetEventRow
from dagmaster.web.ui.asset import (
    TITLES,
    AssetAction,
    VersionAction,
    asset_actions,
    event_view,
    extents,
    version_actions,
    version_view,
)
from dagmaster.web.ui.assets import ordered_refs, parse_references

NOW = datetime(2026, 11, 17, tzinfo=UTC)
BY_ADA = Decision("ada", NOW, "looks right")
STATES = [*product(ClearanceState, ApprovalState, ProcessingStatus, (None, NOW), (None, NOW))]


def asset_row(**columns: Any) -> Any:
    row = {
        "asset_id": "a",
        "platform_refs": {"dataset_id": "7"},
        "clearance_state": "uncleared",
        "exposure_mode": "latest_only",
        "latest_approved_version_ordinal": None,
        "deleted_at": None,
    }
    return {**row, **columns}


def version_row(**columns: Any) -> Any:
    row = {
        "version_ordinal": 0,
        "platform_refs": {"dataset_id": "7"},
        "approval_state": "pending_review",
        "approval_reason": None,
        "processing_status": "completed",
        "processing_error": None,
        "export_error": None,
        "bbox": None,
        "deleted_at": None,
        **dict.fromkeys(("blob_path", "table_name", "stac_item_id", "stac_collection_id", "content_hash")),
        **dict.fromkeys(("external_blob_path", "adf_run_id")),
    }
    return {**row, **columns}


def is_accepted(decide: Callable[..., object], *arguments: object, **options: object) -> bool:
    try:
        decide(*arguments, **options)
    except (Conflict, NotFound):
        return False
    return True


@pytest.mark.parametrize(("clearance", "approval", "status", "asset_deleted", "version_deleted"), STATES)
def test_only_valid_actions_are_offered(
    clearance: ClearanceState,
    approval: ApprovalState,
    status: ProcessingStatus,
    asset_deleted: datetime | None,
    version_deleted: datetime | None,
) -> None:
    latest = ExposureMode.LATEST_ONLY
    asset = Asset("a", "ddh", {}, DataType.RASTER, clearance, latest, 1, 1, deleted_at=asset_deleted)
    version = AssetVersion("a", 0, None, approval, status, 1, JobId(7), 1, deleted_at=version_deleted)
    level = ClearanceState.OUO
    accepted = {
        VersionAction.APPROVE: is_accepted(review.approve, asset, version, BY_ADA, level),
        VersionAction.REJECT: is_accepted(review.reject, asset, version, BY_ADA),
        VersionAction.DELETE: is_accepted(review.delete_version, asset, version, BY_ADA),
        VersionAction.RESUBMIT: approval is ApprovalState.REJECTED
        and is_accepted(processing.resubmit, asset, version, BY_ADA, JobId(8), label=None),
        VersionAction.REPROCESS: approval is not ApprovalState.REJECTED
        and is_accepted(processing.reprocess, asset, version, BY_ADA, JobId(8)),
    }
    offered = version_actions(
        asset_row(clearance_state=clearance, deleted_at=asset_deleted),
        version_row(approval_state=approval, processing_status=status, deleted_at=version_deleted),
    )
    assert offered - {VersionAction.EXPORT} == {action for action, is_possible in accepted.items() if is_possible}


def test_an_approved_version_is_exported_only_if_the_asset_is_public() -> None:
    approved = version_row(approval_state="approved")
    assert VersionAction.EXPORT in version_actions(asset_row(clearance_state="public"), approved)
    assert VersionAction.EXPORT not in version_actions(asset_row(clearance_state="ouo"), approved)
    assert VersionAction.EXPORT not in version_actions(asset_row(clearance_state="public"), version_row())


@pytest.mark.parametrize(
    ("clearance", "steps"),
    [
        ("uncleared", {AssetAction.CLEAR, AssetAction.MAKE_PUBLIC}),
        ("ouo", {AssetAction.MAKE_PUBLIC}),
        ("public", set()),
    ],
)
def test_a_clearance_can_only_be_raised(clearance: str, steps: set[AssetAction]) -> None:
    always = {AssetAction.EXPOSE, AssetAction.DELETE}
    assert asset_actions(asset_row(clearance_state=clearance)) == steps | always
    assert asset_actions(asset_row(clearance_state=clearance, deleted_at=NOW)) == set()


@pytest.mark.parametrize(
    ("text", "refs", "value"),
    [
        ("", {}, None),
        ("0038272", {}, "0038272"),
        ("dataset_id=0038272", {"dataset_id": "0038272"}, None),
        ("dataset_id=7, resource_id=a file", {"dataset_id": "7", "resource_id": "a file"}, None),
        ("dataset_id=", {}, None),
        ("two words", {}, "two words"),
        ("see dataset_id=7", {}, "see dataset_id=7"),
        ("uuid=a=b", {"uuid": "a=b"}, None),
    ],
)
def test_references_are_parsed_leniently(text: str, refs: dict[str, str], value: str | None) -> None:
    assert parse_references(text) == (refs, value)


def test_references_are_in_the_order_of_the_platform() -> None:
    refs = {"version_id": "2", "resource_id": "b", "dataset_id": "7"}
    assert ordered_refs(refs, ["dataset_id", "resource_id"]) == (
        ("dataset_id", "7"),
        ("resource_id", "b"),
        ("version_id", "2"),
    )


def test_a_version_shows_its_outputs_and_only_its_own_references() -> None:
    row = version_row(
        platform_refs={"dataset_id": "7", "version_id": "2"},
        blob_path="silver/a.tif",
        external_blob_path="public/a.tif",
        processing_error="no way to postgres://me:hunter2@db/x",
    )
    view = version_view(asset_row(latest_approved_version_ordinal=0), row, may_review=False)
    assert view.refs == (("version_id", "2"),)
    assert view.outputs == (("blob_path", "silver/a.tif"), ("external_blob_path", "public/a.tif"))
    assert view.error is not None and "hunter2" not in view.error
    assert view.is_latest
    assert view.actions == frozenset()


def test_the_extents_of_undeleted_versions_are_drawn() -> None:
    box = [5.8, 47.2, 15.1, 55.1]
    rows = [
        version_row(version_ordinal=2, bbox=box),
        version_row(version_ordinal=1, bbox=box, deleted_at=NOW),
        version_row(version_ordinal=0),
    ]
    [shape] = extents(rows)
    assert (shape.path, shape.west, shape.north) == ("version 2.bbox", 5.8, 55.1)


def test_every_asset_event_has_a_description() -> None:
    assert set(TITLES) == set(ASSET_EVENTS)


def test_an_event_names_its_version() -> None:
    row = AssetEventRow(
        event_id=1,
        asset_id="a",
        version_ordinal=3,
        event_type="version_rejected",
        actor="ada",
        reason="blurred",
        job_id=None,
        event_data=None,
        created_at=NOW,
    )
    event = event_view(row)
    assert (event["title"], event["tone"], event["reason"]) == ("Version 3 rejected", "failure", "blurred")
    changed = AssetEventRow(**{**row, "event_type": "exposure_changed", "event_data": {"to": "all_versions"}})
    assert event_view(changed)["title"] == "Exposure changed to all versions"
