"""The requests about assets, platforms and layers, shared by both clients."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypeVar

from dagmaster.client import asset_calls as calls
from dagmaster.client.call import Call
from dagmaster.model.asset import ClearanceState, ExposureMode, Platform
from dagmaster.schemas.assets import (
    AssetEventReply,
    AssetReply,
    AssetSummary,
    ClearedAsset,
    DecidedAsset,
    PlatformReply,
    RequestReply,
    ReviewedVersion,
    Submitted,
)
from dagmaster.schemas.common import Page
from dagmaster.schemas.layers import LayerReply
from dagmaster.schemas.system import CommandReply
from dagmaster.service.asset_contract import Approve, Clear, DeleteAsset, DeleteVersion, Expose, Reject, Reprocess

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
        return await self.ask(
            calls.submit_version(
                workflow_id=workflow_id,
                input_params=dict(inputs or {}),
                platform_id=platform_id,
                platform_refs=dict(platform_refs),
                data_type=data_type,
                version_label=version_label,
                resubmit=resubmit,
                request_id=request_id,
                priority=priority,
                submitted_by=submitted_by,
                callback_url=callback_url,
            )
        )

    async def request(self, request_id: str) -> RequestReply:
        """The state of a submission, by the sender's request id."""
        return await self.ask(calls.request(request_id))

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
        return await self.ask(
            calls.assets(
                platform_id=platform_id,
                data_type=data_type,
                clearance_state=clearance_state,
                approval_state=approval_state,
                processing_status=processing_status,
                include_deleted=include_deleted or None,
                limit=limit,
                offset=offset,
            )
        )

    async def asset(self, asset_id: str) -> AssetReply:
        return await self.ask(calls.asset(asset_id))

    async def asset_history(self, asset_id: str, *, limit: int = 200, offset: int = 0) -> Page[AssetEventReply]:
        """Oldest first."""
        return await self.ask(calls.history(asset_id, limit=limit, offset=offset))

    async def approve_version(
        self,
        asset_id: str,
        ordinal: int | None = None,
        *,
        clearance_level: Literal["ouo", "public"] | None = None,
        comment: str | None = None,
    ) -> ReviewedVersion:
        """Approve this version, or the one that waits for review."""
        level = ClearanceState(clearance_level) if clearance_level is not None else None
        return await self.ask(calls.approve(asset_id, Approve(ordinal, level, comment)))

    async def reject_version(self, asset_id: str, reason: str, ordinal: int | None = None) -> ReviewedVersion:
        """Reject this version, or the one that waits for review."""
        return await self.ask(calls.reject(asset_id, Reject(reason, ordinal)))

    async def clear_asset(
        self, asset_id: str, clearance_level: Literal["ouo", "public"], reason: str | None = None
    ) -> ClearedAsset:
        return await self.ask(calls.clear(asset_id, Clear(ClearanceState(clearance_level), reason)))

    async def expose_asset(self, asset_id: str, exposure_mode: Literal["latest_only", "all_versions"]) -> DecidedAsset:
        """Set which approved versions the public sees."""
        return await self.ask(calls.expose(asset_id, Expose(ExposureMode(exposure_mode))))

    async def delete_asset(self, asset_id: str, reason: str | None = None) -> DecidedAsset:
        return await self.ask(calls.delete(asset_id, DeleteAsset(reason)))

    async def delete_version(self, asset_id: str, ordinal: int, reason: str | None = None) -> DecidedAsset:
        return await self.ask(calls.delete(asset_id, DeleteVersion(ordinal, reason)))

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
        return await self.ask(calls.platforms())

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
        return await self.ask(calls.layers(is_published=is_published, limit=limit, offset=offset))

    async def publish_layer(self, asset_id: str) -> CommandReply:
        """The result has the outcome of each projection."""
        return await self.ask(calls.command("metadata.publish", asset_id=asset_id))

    async def publish_layers(self) -> CommandReply:
        """Publish all layers."""
        return await self.ask(calls.command("metadata.publish", all=True))

    async def unpublish_layer(self, asset_id: str) -> CommandReply:
        return await self.ask(calls.command("metadata.unpublish", asset_id=asset_id))
