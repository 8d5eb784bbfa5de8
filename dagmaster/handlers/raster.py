"""Handlers of rasters: from a file in storage to a cloud-optimised file and its catalogue entry.

Load them with `DAGMASTER_HANDLERS=dagmaster.handlers.raster`; they need the extra `geo`.
"""

import asyncio
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import PurePosixPath
from typing import Annotated, Any, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from dagmaster.errors import Invalid
from dagmaster.geo.raster import cog, validate
from dagmaster.geo.raster.cog import CogInfo
from dagmaster.geo.raster.profiles import Profile, RasterType, Tier
from dagmaster.geo.raster.validate import RasterReport
from dagmaster.geo.stac import items
from dagmaster.handlers.contract import HandlerContext, Permanent
from dagmaster.handlers.registry import handler
from dagmaster.settings import load_settings
from dagmaster.storage import Storage, open_storage

MAX_ITEMS = 1000

Reference = Annotated[str, Field(min_length=1, description="A file of the storage, such as bronze/rivers.tif.")]
Ordinal = Annotated[int, Field(ge=0)]


class Params(BaseModel):
    model_config = ConfigDict(extra="forbid")


def _storage() -> Storage:
    return open_storage(load_settings())


@contextmanager
def _refusing() -> Iterator[None]:
    """What is wrong with the input does not get better by another attempt."""
    try:
        yield
    except Invalid as error:
        raise Permanent(str(error)) from error


def _fraction(ctx: HandlerContext, message: str) -> Callable[[float], None]:
    return lambda fraction: ctx.progress(round(100 * fraction), 100, message)


class CopyParams(Params):
    """`target` is a file of the zone mount; by default the source's name below the id of the job."""

    source: Reference
    target: str | None = None


@handler("raster.blob_to_mount", params=CopyParams, isolation="thread")
async def blob_to_mount(ctx: HandlerContext, params: CopyParams) -> dict[str, Any]:
    """Copy a file of the storage to the zone mount, with its checksum. An interrupted copy continues."""
    storage = _storage()
    with _refusing():
        source = storage.locate(params.source)
        target = params.target or f"mount/{ctx.job_id}/{PurePosixPath(source.reference).name}"
        storage.local_path(target)
        copied = await storage.copy(
            params.source, target, lambda done, total: ctx.progress(done, total, "bytes copied")
        )
    return {
        "path": copied.reference,
        "source": source.reference,
        "size_bytes": copied.size_bytes,
        "sha256": copied.sha256,
        "resumed_at": copied.resumed_at,
    }


@handler("raster.clean_mount")
def clean_mount(ctx: HandlerContext) -> dict[str, int]:
    """Remove the files of this job from the zone mount."""
    folder = _storage().local_path(f"mount/{ctx.job_id}")
    sizes = [path.stat().st_size for path in folder.rglob("*") if path.is_file()]
    if folder.is_dir():
        shutil.rmtree(folder)
    return {"removed_files": len(sizes), "removed_bytes": sum(sizes)}


class ValidateParams(Params):
    """`assigned_crs` is for files without a CRS; it must not contradict a file that has one."""

    path: Reference
    assigned_crs: str | None = None
    target_crs: str | None = None
    raster_type: RasterType | None = None
    tier: Tier = Tier.ANALYSIS


@handler("raster.validate", params=ValidateParams, isolation="process")
def validate_raster(ctx: HandlerContext, params: ValidateParams) -> RasterReport:
    """Read every block of a GeoTIFF. A raster that cannot be used fails the task with all problems."""
    with _refusing():
        report = validate.validate(
            _storage().local_path(params.path),
            assigned_crs=params.assigned_crs,
            target_crs=params.target_crs,
            raster_type=params.raster_type,
            tier=params.tier,
            on_progress=_fraction(ctx, "blocks read"),
        )
        for warning in report.warnings:
            ctx.logger.warning("%s: %s", params.path, warning)
        return report.check()


class CogParams(Params):
    """`report` is the output of raster.validate; what it has settled can be overridden.

    By default each attempt has a `target` of its own in the zone silver: a version that is processed again keeps its
    file until the job completes.
    """

    path: Reference
    target: str | None = None
    report: RasterReport | None = None
    profile: Profile | None = None
    assigned_crs: str | None = None
    target_crs: str | None = None

    @model_validator(mode="after")
    def _know_the_profile(self) -> Self:
        if self.report is None and self.profile is None:
            raise ValueError("pass the report of raster.validate, or a profile")
        return self


class CogOutput(BaseModel):
    """`blob_path`, `content_hash` and `bbox` are what an asset's version copies."""

    blob_path: str
    content_hash: str
    bbox: tuple[float, float, float, float]
    cog: CogInfo
    taken_at: str | None = None


@handler("raster.create_cog", params=CogParams, isolation="process")
def create_cog(ctx: HandlerContext, params: CogParams) -> CogOutput:
    """Make a cloud-optimised GeoTIFF, reprojected if `target_crs` is another one, and store it at `target`."""
    storage, report = _storage(), params.report
    profile = params.profile or (report.profile if report else None)
    with _refusing():
        if profile is None:
            raise Invalid("the report has no profile: the raster was rejected")
        name = f"{PurePosixPath(params.path).stem}.tif"
        target = params.target or f"silver/rasters/{ctx.job_id}/{ctx.retry_count}/{name}"
        storage.locate(target)
        local = storage.local_path(f"mount/{ctx.job_id}/{ctx.task_id}/{name}")
        info = cog.create_cog(
            storage.local_path(params.path),
            local,
            profile,
            assigned_crs=params.assigned_crs or (report.crs if report else None),
            target_crs=params.target_crs or (report.target_crs if report else None),
            on_progress=_fraction(ctx, "blocks of the new file read"),
        )
        copied = asyncio.run(storage.copy(str(local), target))
    shutil.rmtree(local.parent)
    if copied.sha256 != info.sha256:
        raise RuntimeError(f"the copy at {copied.reference} differs from the file that was made")
    return CogOutput(
        blob_path=copied.reference,
        content_hash=f"sha256:{info.sha256}",
        bbox=info.bbox,
        cog=info,
        taken_at=report.taken_at if report else None,
    )


class CollectionParams(Params):
    collection_id: str
    title: str | None = None
    description: str | None = None
    licence: str = "other"
    keywords: list[str] = Field(default_factory=list)


@handler("raster.stac_ensure_collection", params=CollectionParams)
async def stac_ensure_collection(ctx: HandlerContext, params: CollectionParams) -> dict[str, Any]:
    """Make the collection that items are added to. If it exists by the end of the job, it stays as it is."""
    with _refusing():
        collection = items.make_collection(
            params.collection_id,
            title=params.title,
            description=params.description,
            licence=params.licence,
            keywords=params.keywords,
        )
    return {"stac_collection_id": params.collection_id, "stac_collection": collection}


class ItemSource(Params):
    """`cog` is the output of raster.create_cog. Without `item_id`, asset and version identify the item."""

    cog: CogOutput
    item_id: str | None = None
    acquired_at: datetime | None = None
    title: str | None = None


class VersionParams(Params):
    """The version of an asset that items are of, as asset submission passes it."""

    collection_id: str
    asset_id: str | None = None
    version_ordinal: Ordinal | None = None
    platform_id: str | None = None
    platform_refs: dict[str, Any] = Field(default_factory=dict)

    def platform(self, ctx: HandlerContext) -> dict[str, str | int]:
        known = {
            **{name: str(value) for name, value in self.platform_refs.items()},
            "platform_id": self.platform_id,
            "asset_id": self.asset_id,
            "version_ordinal": self.version_ordinal,
            "request_id": ctx.correlation_id,
        }
        return {name: value for name, value in known.items() if value is not None}

    def id_of(self, source: ItemSource, ctx: HandlerContext) -> str:
        if source.item_id is not None:
            return source.item_id
        if self.asset_id is not None:
            return f"{self.asset_id}-{self.version_ordinal or 0}"
        return f"{PurePosixPath(source.cog.blob_path).stem}-{ctx.job_id}"


class ItemParams(VersionParams, ItemSource):
    pass


class ItemsParams(VersionParams):
    items: Annotated[list[ItemSource], Field(min_length=1, max_length=MAX_ITEMS)]


def _item(ctx: HandlerContext, version: VersionParams, source: ItemSource, item_id: str) -> dict[str, Any]:
    moment = items.settle_datetime(source.acquired_at, source.cog.taken_at, datetime.now(UTC))
    return items.make_item(
        item_id,
        version.collection_id,
        source.cog.cog,
        source.cog.blob_path,
        moment,
        platform=version.platform(ctx),
        title=source.title,
    )


@handler("raster.stac_register_item", params=ItemParams)
async def stac_register_item(ctx: HandlerContext, params: ItemParams) -> dict[str, Any]:
    """Describe a raster as a STAC item. It enters the catalogue with the asset's version, when the job completes."""
    with _refusing():
        item = _item(ctx, params, params, params.id_of(params, ctx))
    return {
        "stac_item_id": item["id"],
        "stac_collection_id": params.collection_id,
        "stac_item": item,
        "blob_path": params.cog.blob_path,
        "content_hash": params.cog.content_hash,
        "bbox": item["bbox"],
    }


@handler("raster.stac_register_items", params=ItemsParams)
async def stac_register_items(ctx: HandlerContext, params: ItemsParams) -> dict[str, Any]:
    """Describe many rasters of one version as STAC items, such as the tiles of a mosaic."""
    with _refusing():
        ids = [_numbered(params.id_of(source, ctx), number, source) for number, source in enumerate(params.items)]
        if len(set(ids)) < len(ids):
            raise Invalid("two items have the same item_id")
        items = [_item(ctx, params, source, item_id) for source, item_id in zip(params.items, ids, strict=True)]
    return {"stac_item_ids": ids, "stac_collection_id": params.collection_id, "stac_items": items}


def _numbered(item_id: str, number: int, source: ItemSource) -> str:
    return item_id if source.item_id is not None else f"{item_id}-{number}"
