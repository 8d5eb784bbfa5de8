"""Validate rasters and convert them to cloud-optimised files."""

import asyncio
import os
from pathlib import Path, PurePosixPath
from typing import Self

from pydantic import BaseModel, model_validator

from dagmaster.errors import Invalid
from dagmaster.geo.footprint import Bbox
from dagmaster.geo.raster import validate
from dagmaster.geo.raster.cog import CogInfo, ParallelWriter, write_image
from dagmaster.geo.raster.image import ImageSource, resolve_image
from dagmaster.geo.raster.profiles import Profile, RasterType, Tier
from dagmaster.geo.raster.validate import RasterReport
from dagmaster.geo.raster.writer import OnSuperblock
from dagmaster.handlers.contract import HandlerContext
from dagmaster.handlers.geo_task import (
    CopyDiffers,
    Params,
    Reference,
    invalid_is_permanent,
    on_fraction,
    open_zones,
    store_file,
)
from dagmaster.handlers.raster.mount import mount_reference, remove_work_folder, work_folder
from dagmaster.handlers.registry import handler
from dagmaster.settings import load_settings
from dagmaster.storage import LocalFile, Storage


class ValidateParams(Params):
    """`assigned_crs` is for files without a CRS; it must not contradict a file that has one."""

    path: Reference
    assigned_crs: str | None = None
    target_crs: str | None = None
    raster_type: RasterType | None = None
    tier: Tier = Tier.ANALYSIS


@handler("raster.validate", params=ValidateParams, isolation="process")
def validate_raster(ctx: HandlerContext, params: ValidateParams) -> RasterReport:
    """Read every block of a GeoTIFF. An unusable raster fails the task with all problems."""
    with invalid_is_permanent():
        report = validate.validate(
            open_zones().local_path(params.path),
            assigned_crs=params.assigned_crs,
            target_crs=params.target_crs,
            raster_type=params.raster_type,
            tier=params.tier,
            on_progress=on_fraction(ctx, "blocks read"),
        )
        for warning in report.warnings:
            ctx.logger.warning("%s: %s", params.path, warning)
        return report.check()


@handler("raster_validate", params=ValidateParams, isolation="process")
def validate_stored_raster(ctx: HandlerContext, params: ValidateParams) -> RasterReport:
    """Like raster.validate, for a file anywhere in the storage."""
    return validate_raster(ctx, params.model_copy(update={"path": fetch(ctx, params.path)}))


class CogParams(Params):
    """`report` is the output of raster.validate; its choices can be overridden.

    By default each attempt has its own `target` in the zone silver: a version that is processed again keeps its file
    until the job completes.
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
    """`blob_path`, `content_hash` and `bbox` are copied to the asset's version."""

    blob_path: str
    content_hash: str
    bbox: Bbox
    cog: CogInfo
    taken_at: str | None = None


@handler("create_cog", params=CogParams, isolation="process")  # The name in older workflows.
@handler("raster.create_cog", params=CogParams, isolation="process")
def create_cog(ctx: HandlerContext, params: CogParams) -> CogOutput:
    """Write a cloud-optimised GeoTIFF, reprojected if `target_crs` differs, and store it at `target`.

    Large rasters are written in parallel; a later attempt continues with the finished parts.
    """
    storage, report = open_zones(), params.report
    profile = params.profile or (report.profile if report else None)
    with invalid_is_permanent():
        if profile is None:
            raise Invalid("the report has no profile: the raster was rejected")
        source = resolve_image(
            storage.local_path(params.path),
            profile.resampling,
            assigned_crs=params.assigned_crs or (report.crs if report else None),
            target_crs=params.target_crs or (report.target_crs if report else None),
        )
        name = f"{PurePosixPath(params.path).stem}.tif"
        made = store_image(ctx, storage, source, profile, target=params.target or default_target(ctx, name))
    return made.model_copy(update={"taken_at": report.taken_at if report else None})


def default_target(ctx: HandlerContext, name: str) -> str:
    """One for each attempt at each node: neither another node nor a stale attempt can replace the file."""
    return f"silver/rasters/{ctx.job_id}/{ctx.node_id}/{ctx.retry_count}/{name}"


def store_image(
    ctx: HandlerContext,
    storage: Storage,
    source: ImageSource,
    profile: Profile,
    *,
    target: str,
    parallel_above_mb: int | None = None,
) -> CogOutput:
    """Write the image in the work folder of the task and copy it to `target`, verified by checksum.

    Images above `parallel_above_mb`, by default the setting, are written in parallel.
    A retry continues with the finished superblocks of a large image, or with the copy.
    """
    storage.locate(target)
    settings = load_settings()
    folder = work_folder(storage, ctx)
    parallel = ParallelWriter(
        folder=folder / "superblocks",
        processes=settings.raster_processes or os.cpu_count() or 1,
        memory_mb=settings.raster_memory_mb,
        above_mb=settings.raster_parallel_above_mb if parallel_above_mb is None else parallel_above_mb,
        on_superblock=record_superblocks(ctx),
    )
    local = folder / PurePosixPath(target).name
    info = write_image(source, local, profile, parallel, on_progress=on_fraction(ctx, "blocks of the new file read"))
    try:
        made = store_cog(storage, local, info, target)
    except CopyDiffers:
        local.unlink()  # Another attempt must not begin with it.
        raise
    remove_work_folder(folder)
    return made


def record_superblocks(ctx: HandlerContext) -> OnSuperblock:
    """The checkpoint is where a stopping worker can give the task back."""

    def record(done: int, total: int) -> None:
        ctx.progress(done, total, "superblocks written")
        ctx.checkpoint("superblocks", {"done": done, "total": total})

    return record


def store_cog(storage: Storage, local: Path, info: CogInfo, target: str) -> CogOutput:
    reference = store_file(storage, local, target, info.sha256)
    return CogOutput(blob_path=reference, content_hash=f"sha256:{info.sha256}", bbox=info.bbox, cog=info)


class ProcessParams(ValidateParams):
    """`path` may be anywhere in the storage: it is copied to the zone mount if it is not on this machine."""

    target: str | None = None


class ProcessOutput(CogOutput):
    report: RasterReport


@handler("raster_cog_docker", params=ProcessParams, isolation="process")  # The name in older workflows.
@handler("raster.process", params=ProcessParams, isolation="process")
def process_raster(ctx: HandlerContext, params: ProcessParams) -> ProcessOutput:
    """Copy, validate and convert a raster to a COG in one task."""
    path = fetch(ctx, params.path)
    report = validate_raster(ctx, params.model_copy(update={"path": path}))
    made = create_cog(ctx, CogParams(path=path, report=report, target=params.target))
    return ProcessOutput(**dict(made), report=report)


def fetch(ctx: HandlerContext, reference: str) -> str:
    """A reference to the file on this machine."""
    storage = open_zones()
    with invalid_is_permanent():
        source = storage.locate(reference)
        if isinstance(source, LocalFile):
            return source.reference
        return asyncio.run(storage.copy(reference, mount_reference(ctx, source.reference))).reference
