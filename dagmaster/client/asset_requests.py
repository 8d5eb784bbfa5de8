"""The requests about assets, platforms and layers, shared by both clients."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypeVar
from uuid import uuid4

from dagmaster.client import asset_calls as calls
from dagmaster.client.asset_calls import LAYERS, asset_path
from dagmaster.client.call import PREFIX, Call, body_of, get, quoted
from dagmaster.model.asset import ClearanceState, Platform
from dagmaster.schemas.assets import (
    Approval,
    AssetEventReply,
    AssetReply,
    AssetSummary,
    ClearedAsset,
    DecidedAsset,
    Decision,
    ExposureChange,
    PlatformList,
    PlatformReply,
    Rejection,
    RequestReply,
    ReviewedVersion,
    Submission,
    Submitted,
)
from dagmaster.schemas.common import Page
from dagmaster.schemas.layers import LayerReply
from dagmaster.schemas.system import CommandReply
from dagmaster.service.asset_contract import Reprocess

T = TypeVar("T")


class AssetRequests(ABC):
    @abstractmethod
    async def ask(self, call: Call[T]) -> T: ...

    async def submit_version(
        self,
        workflow_id: str,
        inputs: Mapping[str, Any] | None = None,
        *,
        platform_id: str,
        platform_refs: Mapping[str, Any],
        data_type: Literal["raster", "vector"],
        version_label: str | None = None,
        resubmit: bool = False,
        request_id: str | None = None,
        priority: int = 0,
        submitted_by: str | None = None,
        callback_url: str | None = None,
    ) -> Submitted:
        """Submit a version of an asset. A repeated request creates only one version."""
        submission = body_of(
            Submission,
            workflow_id=workflow_id,
            input_params=dict(inputs or {}),
            platform_id=platform_id,
            platform_refs=dict(platform_refs),
            data_type=data_type,
            version_label=version_label,
            resubmit=resubmit,
            request_id=str(uuid4()) if request_id is None else request_id,
            priority=priority,
            submitted_by=submitted_by,
            callback_url=callback_url,
        )
        return await self.ask(calls.submit(submission))

    async def request(self, request_id: str) -> RequestReply:
        """The state of a submission, by the sender's request id."""
        return await self.ask(get(RequestReply, f"{PREFIX}/requests/{quoted(request_id)}"))

    async def assets(
        self,
        *,
        platform_id: str | None = None,
        data_type: str | None = None,
        clearance_state: str | None = None,
        approval_state: str | None = None,
        processing_status: str | None = None,
        include_deleted: bool = False,
        limit: int = 50,
        offset: int = 0,
    ) -> Page[AssetSummary]:
        """Newest first."""
        call = get(
            Page[AssetSummary],
            f"{PREFIX}/assets",
            platform_id=platform_id,
            data_type=data_type,
            clearance_state=clearance_state,
            approval_state=approval_state,
            processing_status=processing_status,
            include_deleted=include_deleted or None,
            limit=limit,
            offset=offset,
        )
        return await self.ask(call)

    async def asset(self, asset_id: str) -> AssetReply:
        return await self.ask(get(AssetReply, asset_path(asset_id)))

    async def asset_history(self, asset_id: str, *, limit: int = 200, offset: int = 0) -> Page[AssetEventReply]:
        """Oldest first."""
        path = f"{asset_path(asset_id)}/history"
        return await self.ask(get(Page[AssetEventReply], path, limit=limit, offset=offset))

    async def approve_version(
        self,
        asset_id: str,
        ordinal: int | None = None,
        *,
        clearance_level: Literal["ouo", "public"] | None = None,
        comment: str | None = None,
    ) -> ReviewedVersion:
        """Approve this version, or the one that waits for review."""
        approval = body_of(Approval, version_ordinal=ordinal, clearance_level=clearance_level, comment=comment)
        return await self.ask(calls.approve(asset_id, approval))

    async def reject_version(self, asset_id: str, reason: str, ordinal: int | None = None) -> ReviewedVersion:
        """Reject this version, or the one that waits for review."""
        return await self.ask(calls.reject(asset_id, body_of(Rejection, version_ordinal=ordinal, reason=reason)))

    async def clear_asset(
        self, asset_id: str, clearance_level: Literal["ouo", "public"], reason: str | None = None
    ) -> ClearedAsset:
        is_public = ClearanceState(clearance_level) is ClearanceState.PUBLIC
        decision = body_of(Decision, reason=reason)
        return await self.ask(calls.clear(asset_id, decision, is_public=is_public, is_safe=True))

    async def expose_asset(self, asset_id: str, exposure_mode: Literal["latest_only", "all_versions"]) -> DecidedAsset:
        """Set which approved versions the public sees."""
        return await self.ask(calls.expose(asset_id, body_of(ExposureChange, exposure_mode=exposure_mode)))

    async def delete_asset(self, asset_id: str, reason: str | None = None) -> DecidedAsset:
        return await self.ask(calls.delete(asset_id, None, body_of(Decision, reason=reason)))

    async def delete_version(self, asset_id: str, ordinal: int, reason: str | None = None) -> DecidedAsset:
        return await self.ask(calls.delete(asset_id, ordinal, body_of(Decision, reason=reason)))

    async def reprocess_version(
        self,
        asset_id: str,
        ordinal: int,
        *,
        workflow_id: str | None = None,
        inputs: Mapping[str, Any] | None = None,
        priority: int = 0,
        resubmit: bool = False,
    ) -> Submitted:
        """Process a version again, by default with the last workflow and inputs; `resubmit` returns it to review."""
        command = Reprocess(ordinal, workflow_id, inputs, priority, resubmits=resubmit)
        return await self.ask(calls.reprocess(asset_id, command))

    async def platforms(self) -> list[PlatformReply]:
        return (await self.ask(get(PlatformList, f"{PREFIX}/platforms"))).platforms

    async def add_platform(
        self,
        platform_id: str,
        display_name: str,
        required_refs: Sequence[str],
        *,
        optional_refs: Sequence[str] = (),
        allowed_workflows: Sequence[str] | None = None,
    ) -> PlatformReply:
        allowed = None if allowed_workflows is None else tuple(allowed_workflows)
        platform = Platform(
            platform_id, display_name, tuple(required_refs), tuple(optional_refs), allowed_workflows=allowed
        )
        return await self.ask(calls.add_platform(platform))

    async def layers(self, *, is_published: bool | None = None, limit: int = 50, offset: int = 0) -> Page[LayerReply]:
        """In the order in which maps list them."""
        return await self.ask(get(Page[LayerReply], LAYERS, is_published=is_published, limit=limit, offset=offset))

    async def publish_layer(self, asset_id: str) -> CommandReply:
        """The result has the outcome of each projection."""
        return await self.ask(calls.run_command("metadata.publish", {"asset_id": asset_id}, is_safe=True))

    async def publish_layers(self) -> CommandReply:
        """Publish all layers."""
        return await self.ask(calls.run_command("metadata.publish", {"all": True}, is_safe=True))

    async def unpublish_layer(self, asset_id: str) -> CommandReply:
        return await self.ask(calls.run_command("metadata.unpublish", {"asset_id": asset_id}, is_safe=True))
