"""Single operations on rasters: reproject, clip, mosaic, statistics of zones."""

from collections.abc import Callable, Sequence
from pathlib import Path, PurePosixPath
from typing import Annotated, Any, Self

from pydantic import Field, model_validator

from dagmaster.errors import Invalid
from dagmaster.geo.footprint import Bbox
from dagmaster.geo.raster import validate
from dagmaster.geo.raster.image import ImageSource, clip_to_bbox, clip_to_geometry, resolve_image
from dagmaster.geo.raster.mosaic import arrange
from dagmaster.geo.raster.profiles import Profile, Resampling, Tier
from dagmaster.geo.raster.tiling import MAX_TILES
from dagmaster.geo.raster.zonal import Statistic, zonal_statistics
from dagmaster.handlers.contract import HandlerContext
from dagmaster.handlers.export import parse_features
from dagmaster.handlers.geo_task import Params, Reference, invalid_is_permanent, on_fraction, open_zones
from dagmaster.handlers.raster.cog import CogOutput, default_target, fetch, store_image
from dagmaster.handlers.registry import handler

MAX_ZONES_BYTES = 64 * 1024 * 1024


class TargetParams(Params):
    """By default the type of the raster decides the compression of the new file."""

    target: str | None = None
    profile: Profile | None = None
    tier: Tier = Tier.ANALYSIS


class ReprojectParams(TargetParams):
    path: Reference
    target_crs: str
    resampling: Resampling | None = None


class ClipParams(TargetParams):
    """`bbox` or `geometry`, a GeoJSON polygon, in longitude and latitude."""

    path: Reference
    bbox: Bbox | None = None
    geometry: dict[str, Any] | None = None

    @model_validator(mode="after")
    def _know_the_part(self) -> Self:
        if (self.bbox is None) == (self.geometry is None):
            raise ValueError("pass bbox or geometry")
        return self


class MosaicParams(TargetParams):
    paths: Annotated[list[Reference], Field(min_length=1, max_length=MAX_TILES)]
    target_crs: str | None = None


@handler("raster_reproject", params=ReprojectParams, isolation="process")
def raster_reproject(ctx: HandlerContext, params: ReprojectParams) -> CogOutput:
    """Reproject a raster to `target_crs`, as a COG."""

    def resolve(path: Path, profile: Profile) -> ImageSource:
        return resolve_image(path, params.resampling or profile.resampling, target_crs=params.target_crs)

    return _derive(ctx, params, params.path, resolve)


@handler("raster_clip", params=ClipParams, isolation="process")
def raster_clip(ctx: HandlerContext, params: ClipParams) -> CogOutput:
    """Cut a raster to a box or a polygon, as a COG. Pixels outside the polygon are nodata or masked."""

    def resolve(path: Path, profile: Profile) -> ImageSource:
        source = resolve_image(path, profile.resampling)
        if params.bbox is not None:
            return clip_to_bbox(source, params.bbox)
        return clip_to_geometry(source, params.geometry or {})

    return _derive(ctx, params, params.path, resolve)


@handler("raster_mosaic", params=MosaicParams, isolation="process")
def raster_mosaic(ctx: HandlerContext, params: MosaicParams) -> CogOutput:
    """Merge rasters of one grid into one COG; where they overlap, the later one is on top."""
    paths = [open_zones().local_path(fetch(ctx, reference)) for reference in params.paths]

    def resolve(_: Path, profile: Profile) -> ImageSource:
        return resolve_image(arrange(paths), profile.resampling, target_crs=params.target_crs)

    return _derive(ctx, params, params.paths[0], resolve)


def _derive(
    ctx: HandlerContext, params: TargetParams, reference: str, resolve: Callable[[Path, Profile], ImageSource]
) -> CogOutput:
    storage = open_zones()
    with invalid_is_permanent():
        path = storage.local_path(fetch(ctx, reference))
        profile = params.profile or _detect(ctx, path, params.tier)
        name = f"{PurePosixPath(reference).stem}.tif"
        return store_image(
            ctx, storage, resolve(path, profile), profile, target=params.target or default_target(ctx, name)
        )


def _detect(ctx: HandlerContext, path: Path, tier: Tier) -> Profile:
    report = validate.validate(path, tier=tier, on_progress=on_fraction(ctx, "blocks read")).check()
    assert report.profile is not None  # set for every raster that is not rejected
    return report.profile


class ZonalParams(Params):
    """`zones` are GeoJSON features in longitude and latitude, or a file of the storage with a FeatureCollection."""

    path: Reference
    zones: list[dict[str, Any]] | str
    statistics: Annotated[Sequence[Statistic], Field(min_length=1)] = ("count", "mean", "min", "max")
    band: int = 1


@handler("stats_zonal", params=ZonalParams, isolation="process")
def stats_zonal(ctx: HandlerContext, params: ZonalParams) -> dict[str, Any]:
    """Statistics of a band under each zone; partly covered pixels count in part."""
    with invalid_is_permanent():
        path = open_zones().local_path(fetch(ctx, params.path))
        zones = _read_zones(ctx, params.zones) if isinstance(params.zones, str) else params.zones
        return {"zones": zonal_statistics(path, zones, params.statistics, params.band)}


def _read_zones(ctx: HandlerContext, reference: str) -> list[dict[str, Any]]:
    path = open_zones().local_path(fetch(ctx, reference))
    if path.stat().st_size > MAX_ZONES_BYTES:
        raise Invalid(f"{path.name} has more than {MAX_ZONES_BYTES} bytes; divide the zones")
    features: list[dict[str, Any]] = parse_features(path.read_bytes(), path.name)["features"]
    return features
