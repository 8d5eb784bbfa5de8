"""The calls about assets, platforms and layers, as values. No I/O."""

from dataclasses import asdict
from typing import Any
from uuid import uuid4

from dagmaster.client.call import PREFIX, Call, body_of, chosen, get, quoted, read, reader
from dagmaster.model.asset import Platform
from dagmaster.schemas.assets import (
    Approval,
    AssetEventReply,
    AssetReply,
    AssetSummary,
    ClearedAsset,
    DecidedAsset,
    Decision,
    ExposureChange,
    NewPlatform,
    PlatformList,
    PlatformReply,
    Rejection,
    Reprocessing,
    RequestReply,
    ReviewedVersion,
    Submission,
    Submitted,
)
from dagmaster.schemas.common import Page
from dagmaster.schemas.layers import LayerReply
from dagmaster.schemas.system import CommandCall, CommandReply
from dagmaster.service.asset_contract import (
    Approve,
    Clear,
    DeleteAsset,
    DeleteVersion,
    Expose,
    Reject,
    Reprocess,
)


def submit_version(**fields: Any) -> Call[Submitted]:
    """Always with a request id, so that a repeated submission creates one version."""
    body = body_of(Submission, chosen(**fields))
    if body.request_id is None:
        body.request_id = str(uuid4())
    return Call("POST", f"{PREFIX}/submit", reader(Submitted), body=body, is_safe=True)


def assets(**filters: Any) -> Call[Page[AssetSummary]]:
    return get(Page[AssetSummary], f"{PREFIX}/assets", **filters)


def asset(asset_id: str) -> Call[AssetReply]:
    return get(AssetReply, _asset(asset_id))


def history(asset_id: str, **page: Any) -> Call[Page[AssetEventReply]]:
    return get(Page[AssetEventReply], f"{_asset(asset_id)}/history", **page)


def request(request_id: str) -> Call[RequestReply]:
    return get(RequestReply, f"{PREFIX}/requests/{quoted(request_id)}")


def approve(asset_id: str, command: Approve) -> Call[ReviewedVersion]:
    fields = chosen(version_ordinal=command.ordinal, clearance_level=command.level, comment=command.comment)
    body = body_of(Approval, fields)
    return Call("POST", f"{_asset(asset_id)}/approve", reader(ReviewedVersion), body=body)


def reject(asset_id: str, command: Reject) -> Call[ReviewedVersion]:
    body = body_of(Rejection, chosen(version_ordinal=command.ordinal, reason=command.reason))
    return Call("POST", f"{_asset(asset_id)}/reject", reader(ReviewedVersion), body=body)


def clear(asset_id: str, command: Clear) -> Call[ClearedAsset]:
    level = "public" if command.level == "public" else "cleared"
    body = body_of(Decision, chosen(reason=command.reason))
    return Call("POST", f"{_asset(asset_id)}/clearance/{level}", reader(ClearedAsset), body=body, is_safe=True)


def expose(asset_id: str, command: Expose) -> Call[DecidedAsset]:
    body = body_of(ExposureChange, {"exposure_mode": command.mode})
    return Call("PATCH", _asset(asset_id), reader(DecidedAsset), body=body, is_safe=True)


def delete(asset_id: str, command: DeleteAsset | DeleteVersion) -> Call[DecidedAsset]:
    path = _asset(asset_id)
    if isinstance(command, DeleteVersion):
        path = f"{path}/versions/{command.ordinal}"
    return Call("DELETE", path, reader(DecidedAsset), chosen(reason=command.reason))


def reprocess(asset_id: str, command: Reprocess) -> Call[Submitted]:
    fields = chosen(
        workflow_id=command.workflow,
        input_params=None if command.inputs is None else dict(command.inputs),
        priority=command.priority,
        version_label=command.version_label,
    )
    verb = "resubmit" if command.resubmits else "reprocess"
    path = f"{_asset(asset_id)}/versions/{command.ordinal}/{verb}"
    return Call("POST", path, reader(Submitted), body=body_of(Reprocessing, fields))


def platforms() -> Call[list[PlatformReply]]:
    return Call("GET", f"{PREFIX}/platforms", lambda data: read(PlatformList, data).platforms, is_safe=True)


def add_platform(platform: Platform) -> Call[PlatformReply]:
    body = body_of(NewPlatform, asdict(platform))
    return Call("POST", f"{PREFIX}/platforms", reader(PlatformReply), body=body)


def layers(**filters: Any) -> Call[Page[LayerReply]]:
    return get(Page[LayerReply], f"{PREFIX}/domain/metadata/", **filters)


def command(name: str, **params: Any) -> Call[CommandReply]:
    """Repeating a command is safe."""
    body = CommandCall(params=params)
    return Call("POST", f"{PREFIX}/commands/{quoted(name)}", reader(CommandReply), body=body, is_safe=True)


def _asset(asset_id: str) -> str:
    return f"{PREFIX}/assets/{quoted(asset_id)}"
