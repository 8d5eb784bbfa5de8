"""The services over HTTP. The server identifies the caller by the API key."""

from collections.abc import Callable, Coroutine, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final, TypeVar, assert_never

from dagmaster.client import asset_calls, calls
from dagmaster.client.call import body_of
from dagmaster.client.requests import Requests
from dagmaster.ids import JobId, ScheduleId, WorkerId
from dagmaster.model.asset import Platform
from dagmaster.schemas.assets import Approval, ExposureChange, ReviewedVersion
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
from dagmaster.service.contract import (
    BackfillRequest,
    BackfillResult,
    ControlResult,
    Decide,
    JobCommand,
    Retry,
    Row,
    ScheduleCommand,
    Signal,
    SubmitRequest,
    SubmitResult,
    TriggerResult,
    WorkerCommand,
)

PAGE: Final = 1000
Item = TypeVar("Item", bound=Reply)


@dataclass(frozen=True, slots=True)
class HttpService:
    requests: Requests

    async def submit(self, request: SubmitRequest) -> SubmitResult:
        created = await self.requests.ask(calls.submit(request))
        return SubmitResult(**_submitted(created.model_dump()))

    async def control_job(self, job_id: int, command: JobCommand) -> ControlResult:
        match command:
            case Signal():
                signalled = await self.requests.ask(calls.signal(job_id, command))
                return ControlResult(signalled.status, is_done=False)
            case Decide():
                decided = await self.requests.ask(calls.decide(job_id, command))
                return ControlResult(decided.status, decided.is_done)
            case Retry():
                retried = await self.requests.ask(calls.retry(job_id, command))
                return ControlResult(**retried.model_dump(exclude={"job_id"}))
            case _:
                changed = await self.requests.ask(calls.control(job_id, command))
                return ControlResult(**changed.model_dump(exclude={"job_id"}))

    async def control_schedule(self, schedule_id: ScheduleId, command: ScheduleCommand) -> Row:
        return (await self.requests.ask(calls.control_schedule(schedule_id, command))).model_dump()

    async def trigger_schedule(self, schedule_id: ScheduleId) -> TriggerResult:
        triggered = await self.requests.trigger_schedule(schedule_id)
        return TriggerResult(schedule_id, JobId(int(triggered.job_id)), triggered.scheduled_for)

    async def backfill_schedule(self, schedule_id: ScheduleId, request: BackfillRequest) -> BackfillResult:
        reply = await self.requests.ask(calls.backfill(schedule_id, request))
        return BackfillResult(**reply.model_dump())

    async def control_worker(self, worker_id: WorkerId, command: WorkerCommand) -> str:
        return (await self.requests.ask(calls.control_worker(worker_id, command))).wanted

    async def clear_cache(self, handler: str | None) -> int:
        return (await self.requests.clear_cache(handler)).removed


@dataclass(frozen=True, slots=True)
class HttpAssetService:
    requests: Requests

    async def assets(self, query: AssetQuery, *, limit: int) -> Sequence[Row]:
        return await read_pages(lambda **page: self.requests.assets(**asdict(query), **page), limit)

    async def asset(self, asset_id: str) -> Row:
        return (await self.requests.asset(asset_id)).model_dump()

    async def history(self, asset_id: str, *, limit: int) -> Sequence[Row]:
        return await read_pages(lambda **page: self.requests.asset_history(asset_id, **page), limit)

    async def decide(self, asset_id: str, command: AssetCommand) -> AssetResult:
        match command:
            case Approve(ordinal, level, comment):
                approval = body_of(Approval, version_ordinal=ordinal, clearance_level=level, comment=comment)
                return _reviewed(await self.requests.ask(asset_calls.approve(asset_id, approval)))
            case Reject(reason, ordinal):
                return _reviewed(await self.requests.reject_version(asset_id, reason, ordinal))
            case Clear(level, reason):
                cleared = await self.requests.clear_asset(asset_id, "public" if level == "public" else "ouo", reason)
                return AssetResult(asset_id, None, _job_id(cleared.export_job_id), tuple(cleared.warnings))
            case Expose(mode):
                change = ExposureChange(exposure_mode=mode)
                decided = await self.requests.ask(asset_calls.expose(asset_id, change))
                return AssetResult(asset_id, warnings=tuple(decided.warnings))
            case DeleteVersion(ordinal, reason):
                decided = await self.requests.delete_version(asset_id, ordinal, reason)
                return AssetResult(asset_id, ordinal, warnings=tuple(decided.warnings))
            case DeleteAsset(reason):
                decided = await self.requests.delete_asset(asset_id, reason)
                return AssetResult(asset_id, warnings=tuple(decided.warnings))
            case _:
                assert_never(command)

    async def reprocess(self, asset_id: str, command: Reprocess) -> AssetSubmitResult:
        submitted = await self.requests.ask(asset_calls.reprocess(asset_id, command))
        return AssetSubmitResult(**_submitted(submitted.model_dump()))

    async def platforms(self) -> Sequence[Row]:
        return [platform.model_dump() for platform in await self.requests.platforms()]

    async def add_platform(self, platform: Platform) -> Row:
        return (await self.requests.ask(asset_calls.add_platform(platform))).model_dump()

    async def layers(self, *, limit: int) -> Sequence[Row]:
        return await read_pages(self.requests.layers, limit)

    async def publish_layer(self, asset_id: str) -> Row:
        return (await self.requests.publish_layer(asset_id)).result

    async def publish_layers(self) -> Row:
        return (await self.requests.publish_layers()).result

    async def unpublish_layer(self, asset_id: str) -> Row:
        return (await self.requests.unpublish_layer(asset_id)).result


async def read_pages(ask: Callable[..., Coroutine[Any, Any, Page[Item]]], limit: int) -> list[Row]:
    """The first `limit` rows of a list."""
    rows: list[Row] = []
    while len(rows) < limit:
        page = await ask(limit=min(limit - len(rows), PAGE), offset=len(rows))
        rows += [item.model_dump() for item in page.items]
        if not page.has_more:
            break
    return rows


def _submitted(reply: dict[str, Any]) -> dict[str, Any]:
    return {**reply, "job_id": JobId(int(reply["job_id"])), "warnings": tuple(reply["warnings"])}


def _reviewed(reply: ReviewedVersion) -> AssetResult:
    version = reply.version
    return AssetResult(version.asset_id, version.version_ordinal, _job_id(version.export_job_id), tuple(reply.warnings))


def _job_id(text: str | None) -> JobId | None:
    return JobId(int(text)) if text is not None else None
