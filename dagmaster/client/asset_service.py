"""The asset service over HTTP."""

from collections.abc import Callable, Coroutine, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final, TypeVar, assert_never

from dagmaster.client import asset_calls as calls
from dagmaster.client.requests import Requests
from dagmaster.ids import JobId
from dagmaster.model.asset import Platform
from dagmaster.schemas.assets import ReviewedVersion
from dagmaster.schemas.common import Page, Reply
from dagmaster.service.asset_contract import (
    Approve,
    AssetCommand,
    AssetQuery,
    AssetResult,
    AssetSubmitResult,
    Clear,
    DeleteAsset,
    DeleteVersion,
    Expose,
    Reject,
    Reprocess,
)
from dagmaster.service.contract import Row

PAGE: Final = 1000
Item = TypeVar("Item", bound=Reply)


@dataclass(frozen=True, slots=True)
class HttpAssetService:
    """The server identifies the caller by the API key."""

    requests: Requests

    async def assets(self, query: AssetQuery, *, limit: int) -> Sequence[Row]:
        return await _rows(lambda **page: self.requests.assets(**asdict(query), **page), limit)

    async def asset(self, asset_id: str) -> Row:
        return (await self.requests.asset(asset_id)).model_dump()

    async def history(self, asset_id: str, *, limit: int) -> Sequence[Row]:
        return await _rows(lambda **page: self.requests.asset_history(asset_id, **page), limit)

    async def decide(self, asset_id: str, command: AssetCommand) -> AssetResult:
        match command:
            case Approve():
                return _reviewed(await self.requests.ask(calls.approve(asset_id, command)))
            case Reject():
                return _reviewed(await self.requests.ask(calls.reject(asset_id, command)))
            case Clear():
                cleared = await self.requests.ask(calls.clear(asset_id, command))
                return AssetResult(asset_id, None, _job_id(cleared.export_job_id), tuple(cleared.warnings))
            case Expose():
                decided = await self.requests.ask(calls.expose(asset_id, command))
                return AssetResult(asset_id, warnings=tuple(decided.warnings))
            case DeleteVersion() | DeleteAsset():
                decided = await self.requests.ask(calls.delete(asset_id, command))
                ordinal = command.ordinal if isinstance(command, DeleteVersion) else None
                return AssetResult(asset_id, ordinal, warnings=tuple(decided.warnings))
            case _:
                assert_never(command)

    async def reprocess(self, asset_id: str, command: Reprocess) -> AssetSubmitResult:
        submitted = await self.requests.ask(calls.reprocess(asset_id, command))
        return AssetSubmitResult(
            request_id=submitted.request_id or "",
            job_id=JobId(int(submitted.job_id)),
            workflow_id=submitted.workflow_id,
            workflow_version=submitted.workflow_version,
            status=submitted.status,
            is_new=submitted.is_new,
            asset_id=submitted.asset_id,
            version_ordinal=submitted.version_ordinal,
            revision=submitted.revision,
            warnings=tuple(submitted.warnings),
        )

    async def platforms(self) -> Sequence[Row]:
        return [platform.model_dump() for platform in await self.requests.platforms()]

    async def add_platform(self, platform: Platform) -> Row:
        return (await self.requests.ask(calls.add_platform(platform))).model_dump()

    async def layers(self, *, limit: int) -> Sequence[Row]:
        return await _rows(self.requests.layers, limit)

    async def publish_layer(self, asset_id: str) -> Row:
        return (await self.requests.publish_layer(asset_id)).result

    async def publish_layers(self) -> Row:
        return (await self.requests.publish_layers()).result

    async def unpublish_layer(self, asset_id: str) -> Row:
        return (await self.requests.unpublish_layer(asset_id)).result


async def _rows(ask: Callable[..., Coroutine[Any, Any, Page[Item]]], limit: int) -> list[Row]:
    """All rows, read page by page."""
    rows: list[Row] = []
    while len(rows) < limit:
        page = await ask(limit=min(limit - len(rows), PAGE), offset=len(rows))
        rows += [item.model_dump() for item in page.items]
        if not page.has_more:
            break
    return rows


def _reviewed(reply: ReviewedVersion) -> AssetResult:
    version = reply.version
    return AssetResult(version.asset_id, version.version_ordinal, _job_id(version.export_job_id), tuple(reply.warnings))


def _job_id(text: str | None) -> JobId | None:
    return JobId(int(text)) if text is not None else None
