"""Make a cloud-optimised GeoTIFF, reprojected on the way where that is asked for."""

import math
from contextlib import ExitStack
from hashlib import file_digest
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np
import rasterio.shutil
from pydantic import BaseModel
from rasterio.enums import ColorInterp, Resampling
from rasterio.errors import RasterioError
from rasterio.vrt import WarpedVRT

from dagmaster.geo.errors import RasterRejected, UnreadableRaster
from dagmaster.geo.footprint import footprint_of
from dagmaster.geo.raster.profiles import Profile
from dagmaster.geo.raster.reader import describe, open_geotiff
from dagmaster.geo.raster.statistics import OnProgress, read_statistics
from dagmaster.geo.raster.validate import COG_BLOCK, Band, bands_of, crs_name, is_cog, is_rotated, parse_crs

THREADS: Final = 2


class CogInfo(BaseModel, frozen=True):
    """The file that was made, as it was read back."""

    size_bytes: int
    sha256: str
    width: int
    height: int
    crs: str
    transform: list[float]
    bbox: tuple[float, float, float, float]
    footprint: dict[str, Any]
    bands: list[Band]
    overviews: list[int]
    compression: str
    sampling: Literal["area", "point"]


def create_cog(
    source: Path,
    target: Path,
    profile: Profile,
    *,
    assigned_crs: str | None = None,
    target_crs: str | None = None,
    on_progress: OnProgress | None = None,
) -> CogInfo:
    """Write `target`, which is there only when it is complete and every block of it could be read back.

    `assigned_crs` is for a source without a CRS. GDAL neither reports progress while it writes nor can be stopped: run
    it in a process of its own.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    part = target.with_name(f".{target.stem}.part.tif")
    try:
        _write(source, part, profile, assigned_crs, target_crs)
        info = inspect_cog(part, on_progress)
        part.replace(target)
    finally:
        part.unlink(missing_ok=True)
    return info


def _write(source: Path, part: Path, profile: Profile, assigned_crs: str | None, target_crs: str | None) -> None:
    with open_geotiff(source) as dataset, ExitStack() as stack:
        crs = dataset.crs or parse_crs(assigned_crs or "", "assigned_crs")
        target = parse_crs(target_crs, "target_crs") if target_crs else crs
        image = dataset
        if target != crs or is_rotated(dataset.transform):
            resampling = Resampling[profile.resampling]
            options = {"crs": target, "resampling": resampling, **_empty_pixels(dataset)}
            image = stack.enter_context(WarpedVRT(dataset, src_crs=crs, **options))
        elif dataset.crs is None:
            image = stack.enter_context(WarpedVRT(dataset, src_crs=crs, crs=crs, resampling=Resampling.nearest))
        try:
            rasterio.shutil.copy(image, part, driver="COG", **_creation_options(profile))
        except RasterioError as error:
            raise UnreadableRaster(f"{source.name} cannot be converted: {describe(error, source)}") from error


def _empty_pixels(dataset: Any) -> dict[str, Any]:
    """What becomes of pixels that no source pixel falls on: nodata, or transparent in pictures without such a value.

    Readers take an alpha band as a mask only of unsigned 8 and 16 bits; other rasters get a value that does not occur.
    """
    kinds = set(dataset.dtypes)
    if dataset.nodata is not None or ColorInterp.alpha in dataset.colorinterp:
        return {}
    if kinds <= {"uint8"} or kinds <= {"uint16"}:
        return {"add_alpha": True}
    if all(kind.startswith("float") for kind in kinds):
        return {"nodata": math.nan}
    limits = [np.iinfo(kind) for kind in dataset.dtypes]
    bands = list(zip(read_statistics(dataset), limits, strict=True))
    if all(band.minimum is None or band.minimum > limit.min for band, limit in bands):
        return {"nodata": limits[0].min}
    if all(band.maximum is None or band.maximum < limit.max for band, limit in bands):
        return {"nodata": limits[0].max}
    raise RasterRejected("it needs a nodata value to be reprojected, and all values of its type occur; set one")


def _creation_options(profile: Profile) -> dict[str, str]:
    options = {
        "COMPRESS": profile.compression,
        "LEVEL": profile.level,
        "QUALITY": profile.quality,
        "PREDICTOR": {2: "STANDARD", 3: "FLOATING_POINT"}.get(profile.predictor or 0),
        "BLOCKSIZE": COG_BLOCK,
        "OVERVIEW_RESAMPLING": profile.overview_resampling.upper(),
        "OVERVIEWS": "IGNORE_EXISTING",
        "BIGTIFF": "IF_SAFER",
        "NUM_THREADS": THREADS,
    }
    return {name: str(value) for name, value in options.items() if value is not None}


def inspect_cog(path: Path, on_progress: OnProgress | None = None) -> CogInfo:
    """Read every block of the file and its checksum: a layout that is valid says nothing about the bytes."""
    with open_geotiff(path) as dataset:
        statistics = read_statistics(dataset, on_progress)
        if not is_cog(dataset):
            raise UnreadableRaster(f"{path.name} is not a cloud-optimised GeoTIFF")
        footprint = footprint_of(dataset.crs, dataset.transform, dataset.width, dataset.height)
        with path.open("rb") as file:
            checksum = file_digest(file, "sha256").hexdigest()
        return CogInfo(
            size_bytes=path.stat().st_size,
            sha256=checksum,
            width=dataset.width,
            height=dataset.height,
            crs=crs_name(dataset.crs),
            transform=list(dataset.transform)[:6],
            bbox=footprint.bbox,
            footprint=footprint.geometry,
            bands=bands_of(dataset, statistics),
            overviews=dataset.overviews(1),
            compression=dataset.compression.value if dataset.compression else "NONE",
            sampling="point" if dataset.tags().get("AREA_OR_POINT") == "Point" else "area",
        )
