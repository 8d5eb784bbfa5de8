"""The calls of a gateway, on behalf of its callers. No I/O."""

from typing import Any, Literal

from dagmaster.client.call import PREFIX, Call, quoted, reader
from dagmaster.schemas.assets import (
    Approval,
    ClearedAsset,
    DecidedAsset,
    Decision,
    Rejection,
    ReviewedVersion,
    Submission,
    Submitted,
)
from dagmaster.schemas.common import Json
from dagmaster.schemas.layers import LayerReplacement, LayerReply, NewLayer
from dagmaster.schemas.system import CommandCall, CommandReply

PLATFORM_HEADER = "X-Dagmaster-Platform"


def submit_request(submission: Submission, platform_id: str | None) -> Call[Submitted]:
    """With its request id, so that a repeated submission is one request. `platform_id` is the partner's."""
    assert submission.request_id is not None
    headers = {PLATFORM_HEADER: platform_id} if platform_id is not None else {}
    path = f"{PREFIX}/submit"
    return Call("POST", path, reader(Submitted), body=submission, is_safe=True, headers=headers)


def approve(asset_id: str, approval: Approval) -> Call[ReviewedVersion]:
    return Call("POST", f"{_asset(asset_id)}/approve", reader(ReviewedVersion), body=approval)


def reject(asset_id: str, rejection: Rejection) -> Call[ReviewedVersion]:
    return Call("POST", f"{_asset(asset_id)}/reject", reader(ReviewedVersion), body=rejection)


def clear(asset_id: str, level: Literal["cleared", "public"], decision: Decision) -> Call[ClearedAsset]:
    return Call("POST", f"{_asset(asset_id)}/clearance/{level}", reader(ClearedAsset), body=decision)


def delete_asset(asset_id: str, decision: Decision) -> Call[DecidedAsset]:
    return Call("DELETE", _asset(asset_id), reader(DecidedAsset), _params(decision), is_safe=True)


def delete_version(asset_id: str, ordinal: int, decision: Decision) -> Call[DecidedAsset]:
    path = f"{_asset(asset_id)}/versions/{ordinal}"
    return Call("DELETE", path, reader(DecidedAsset), _params(decision), is_safe=True)


def add_layer(layer: NewLayer) -> Call[LayerReply]:
    return Call("POST", f"{PREFIX}/domain/metadata/", reader(LayerReply), body=layer)


def replace_layer(asset_id: str, layer: LayerReplacement) -> Call[LayerReply]:
    return Call("PUT", _layer(asset_id), reader(LayerReply), body=layer)


def remove_layer(asset_id: str, actor: str) -> Call[None]:
    return Call("DELETE", _layer(asset_id), lambda _: None, {"actor": actor}, is_safe=True)


def run_command(name: str, params: Json, actor: str) -> Call[CommandReply]:
    path = f"{PREFIX}/commands/{quoted(name)}"
    return Call("POST", path, reader(CommandReply), body=CommandCall(params=params, actor=actor))


def _asset(asset_id: str) -> str:
    return f"{PREFIX}/assets/{quoted(asset_id)}"


def _layer(asset_id: str) -> str:
    return f"{PREFIX}/domain/metadata/{quoted(asset_id)}"


def _params(decision: Decision) -> dict[str, Any]:
    return decision.model_dump(exclude_none=True)
