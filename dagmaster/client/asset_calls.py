"""The calls about assets, platforms and layers, as values. No I/O."""

from dataclasses import asdict

from dagmaster.client.call import PREFIX, Call, body_of, quoted, reader
from dagmaster.model.asset import Platform
from dagmaster.schemas.assets import (
    Approval,
    ClearedAsset,
    DecidedAsset,
    Decision,
    ExposureChange,
    NewPlatform,
    PlatformReply,
    Rejection,
    Reprocessing,
    ReviewedVersion,
    Submission,
    Submitted,
)
from dagmaster.schemas.common import Json
from dagmaster.schemas.layers import LayerReplacement, LayerReply, NewLayer
from dagmaster.schemas.system import CommandCall, CommandReply
from dagmaster.service.asset_contract import Reprocess

PLATFORM_HEADER = "X-Dagmaster-Platform"
LAYERS = f"{PREFIX}/domain/metadata/"


def asset_path(asset_id: str) -> str:
    return f"{PREFIX}/assets/{quoted(asset_id)}"


def submit(submission: Submission, platform_id: str | None = None) -> Call[Submitted]:
    """With its request id, so that a repeated submission is one request. `platform_id` is a gateway's partner's."""
    assert submission.request_id is not None
    headers = {PLATFORM_HEADER: platform_id} if platform_id is not None else {}
    return Call("POST", f"{PREFIX}/submit", reader(Submitted), body=submission, is_safe=True, headers=headers)


def approve(asset_id: str, approval: Approval) -> Call[ReviewedVersion]:
    return Call("POST", f"{asset_path(asset_id)}/approve", reader(ReviewedVersion), body=approval)


def reject(asset_id: str, rejection: Rejection) -> Call[ReviewedVersion]:
    return Call("POST", f"{asset_path(asset_id)}/reject", reader(ReviewedVersion), body=rejection)


def clear(asset_id: str, decision: Decision, *, is_public: bool, is_safe: bool = False) -> Call[ClearedAsset]:
    """For the public, or for official use only."""
    path = f"{asset_path(asset_id)}/clearance/{'public' if is_public else 'cleared'}"
    return Call("POST", path, reader(ClearedAsset), body=decision, is_safe=is_safe)


def expose(asset_id: str, change: ExposureChange) -> Call[DecidedAsset]:
    return Call("PATCH", asset_path(asset_id), reader(DecidedAsset), body=change, is_safe=True)


def delete(asset_id: str, ordinal: int | None, decision: Decision) -> Call[DecidedAsset]:
    """Delete one version, or the asset."""
    path = asset_path(asset_id) if ordinal is None else f"{asset_path(asset_id)}/versions/{ordinal}"
    return Call("DELETE", path, reader(DecidedAsset), decision.model_dump(exclude_none=True), is_safe=True)


def reprocess(asset_id: str, command: Reprocess) -> Call[Submitted]:
    body = body_of(
        Reprocessing,
        workflow_id=command.workflow,
        input_params=None if command.inputs is None else dict(command.inputs),
        priority=command.priority,
        version_label=command.version_label,
    )
    verb = "resubmit" if command.resubmits else "reprocess"
    path = f"{asset_path(asset_id)}/versions/{command.ordinal}/{verb}"
    return Call("POST", path, reader(Submitted), body=body)


def add_platform(platform: Platform) -> Call[PlatformReply]:
    body = body_of(NewPlatform, **asdict(platform))
    return Call("POST", f"{PREFIX}/platforms", reader(PlatformReply), body=body)


def add_layer(layer: NewLayer) -> Call[LayerReply]:
    return Call("POST", LAYERS, reader(LayerReply), body=layer)


def replace_layer(asset_id: str, layer: LayerReplacement) -> Call[LayerReply]:
    return Call("PUT", LAYERS + quoted(asset_id), reader(LayerReply), body=layer)


def remove_layer(asset_id: str, actor: str) -> Call[None]:
    return Call("DELETE", LAYERS + quoted(asset_id), lambda _: None, {"actor": actor}, is_safe=True)


def run_command(name: str, params: Json, actor: str | None = None, *, is_safe: bool = False) -> Call[CommandReply]:
    body = CommandCall(params=params, actor=actor)
    return Call("POST", f"{PREFIX}/commands/{quoted(name)}", reader(CommandReply), body=body, is_safe=is_safe)
