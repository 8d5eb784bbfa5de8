"""Exposure: which version of an asset an audience may see."""

from collections.abc import Mapping, Sequence
from enum import StrEnum

from dagmaster.errors import Invalid, UnknownAsset, UnknownVersion
from dagmaster.model.asset import ApprovalState, ClearanceState, ExposureMode, ProcessingStatus
from dagmaster.store.asset_versions import VersionRow
from dagmaster.store.assets import AssetRow
from dagmaster.store.stac_items import Scope

LATEST = "latest"


class Audience(StrEnum):
    """The audience: the public, internal users, or reviewers."""

    PUBLIC = "public"
    INTERNAL = "internal"
    REVIEWERS = "reviewers"


CLEARANCES: Mapping[Audience, Sequence[ClearanceState]] = {
    Audience.PUBLIC: (ClearanceState.PUBLIC,),
    Audience.INTERNAL: (ClearanceState.OUO, ClearanceState.PUBLIC),
}


def catalogue_scope(audience: Audience, platform_id: str | None = None) -> Scope:
    """The part of the catalogue that the audience sees. Unapproved versions are never in it, even for reviewers."""
    inside = CLEARANCES[Audience.INTERNAL] if audience is not Audience.PUBLIC else ()
    return Scope(CLEARANCES[Audience.PUBLIC], inside, platform_id)


def parse_version(text: str) -> int | None:
    """The ordinal, or None for `latest`."""
    if text == LATEST:
        return None
    if not (text.isascii() and text.isdecimal() and len(text) <= 9):
        raise Invalid(f"version is {LATEST!r} or the ordinal of a version, such as 0; not {text[:40]!r}")
    return int(text)


def check_asset(asset: AssetRow, audience: Audience) -> None:
    """Raises UnknownAsset, with the same message as for a missing asset, if the audience must not know of it."""
    is_hidden = audience in CLEARANCES and asset["clearance_state"] not in CLEARANCES[audience]
    if asset["deleted_at"] is not None or is_hidden:
        raise UnknownAsset(f"there is no asset {asset['asset_id']!r}")


def select_ordinal(asset: AssetRow, requested: int | None, audience: Audience) -> int:
    """`latest` is the highest approved ordinal. The public sees other versions only if the asset exposes them all."""
    latest = asset["latest_approved_version_ordinal"]
    if requested is None:
        if latest is None:
            raise UnknownVersion(f"no version of asset {asset['asset_id']!r} is approved")
        return latest
    is_exposed = requested == latest or asset["exposure_mode"] == ExposureMode.ALL_VERSIONS
    if audience is Audience.PUBLIC and not is_exposed:
        raise UnknownVersion(f"asset {asset['asset_id']!r} has no version {requested}")
    return requested


def check_version(version: VersionRow, *, is_preview: bool) -> None:
    """A preview needs a processed version, everything else an approved one."""
    is_seen = version["approval_state"] == ApprovalState.APPROVED or (
        is_preview and version["processing_status"] == ProcessingStatus.COMPLETED
    )
    if version["deleted_at"] is not None or not is_seen:
        raise UnknownVersion(f"asset {version['asset_id']!r} has no version {version['version_ordinal']}")
