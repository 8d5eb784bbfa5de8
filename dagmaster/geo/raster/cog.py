"""Write a cloud-optimised GeoTIFF, reprojected if requested."""

from hashlib import file_digest
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np
import rasterio.shutil
from pydantic import BaseModel
from rasterio.errors import RasterioError

from dagmaster.geo.errors import UnreadableRaster
from dagmaster.geo.footprint import Bbox, footprint_of
from dagmaster.geo.raster.image import ImageSource, open_image
from dagmaster.geo.raster.profiles import Profile
from dagmaster.geo.raster.pyramid import MB
from dagmaster.geo.raster.reader import describe, open_geotiff
from dagmaster.geo.raster.statistics import BandStatistics, OnProgress, read_statistics
from dagmaster.geo.raster.validate import COG_BLOCK, Band, bands_of, crs_name, is_cog
from dagmaster.geo.raster.writer import DEFAULT_MEMORY_MB, OnSuperblock, Written, write_cog

THREADS: Final = 2


class CogInfo(BaseModel, frozen=True):
    """The written file, as it was read back."""

    size_bytes: int
    sha256: str
    width: int
    height: int
    crs: str
    transform: list[float]
    bbox: Bbox
    footprint: dict[str, Any]
    bands: list[Band]
    overviews: list[int]
    compression: str
    sampling: Literal["area", "point"]


class ParallelWriter(BaseModel, frozen=True):
    """How large images are written: above `above_mb` of pixels, by `processes` with `memory_mb` in total.

    `folder` keeps the finished parts of a file, so that another attempt can go on, and a record of the finished file.
    """

    folder: Path
    processes: int = THREADS
    memory_mb: int = DEFAULT_MEMORY_MB
    above_mb: int = 256
    on_superblock: OnSuperblock | None = None

    def is_for(self, source: ImageSource, profile: Profile) -> bool:
        """Large images, and parts of an image, which GDAL's driver cannot write."""
        if source.part is not None or source.cutline is not None:
            return True
        if profile.overview_resampling not in ("average", "nearest"):
            return False
        with open_image(source) as image:
            pixel_bytes = sum(np.dtype(kind).itemsize for kind in image.dataset.dtypes)
            return bool(image.width * image.height * pixel_bytes >= self.above_mb * MB)


def write_image(
    source: ImageSource,
    target: Path,
    profile: Profile,
    parallel: ParallelWriter | None = None,
    *,
    on_progress: OnProgress | None = None,
) -> CogInfo:
    """Write `target`, which appears only when it is complete.

    With `parallel`, large images are written by several processes, and continue where an earlier attempt stopped.
    GDAL's own writer neither reports progress nor can be stopped: run it in a separate process. Its result is read
    back, every block.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    part = target.with_name(f".{target.stem}.part.tif")
    try:
        if parallel is not None and parallel.is_for(source, profile):
            return _write_in_parallel(source, part, target, profile, parallel)
        write_by_gdal(source, part, profile)
        info = inspect_cog(part, on_progress)
        part.replace(target)
    finally:
        part.unlink(missing_ok=True)
    return info


class _Finished(BaseModel, frozen=True):
    """Which file was written, of what: to store 10 GB may take longer than to write them."""

    source: str
    info: CogInfo

    @classmethod
    def find(cls, folder: Path, target: Path) -> "_Finished | None":
        record = folder / "finished.json"
        if not record.exists() or not target.exists():
            return None
        finished = cls.model_validate_json(record.read_bytes())
        return finished if finished.info.size_bytes == target.stat().st_size else None

    def keep(self, folder: Path) -> None:
        part = folder / ".finished.json"
        part.write_text(self.model_dump_json())
        part.replace(folder / "finished.json")
        for superblock in folder.glob("[0-9]*"):
            superblock.unlink()


def _write_in_parallel(
    source: ImageSource, part: Path, target: Path, profile: Profile, parallel: ParallelWriter
) -> CogInfo:
    described = f"{source.model_dump_json()}\n{source.state_of_files()}\n{profile.model_dump_json()}\n"
    finished = _Finished.find(parallel.folder, target)
    if finished is not None and finished.source == described:
        return finished.info
    written = write_cog(
        source,
        part,
        profile,
        parallel.folder,
        processes=parallel.processes,
        memory_mb=parallel.memory_mb,
        on_superblock=parallel.on_superblock,
    )
    info = describe_cog(part, written)
    part.replace(target)
    _Finished(source=described, info=info).keep(parallel.folder)
    return info


def describe_cog(path: Path, written: Written) -> CogInfo:
    """For a file whose pixels and bytes were counted while it was written."""
    with open_geotiff(path) as dataset:
        return _info(dataset, path, written.statistics, written.sha256)


def write_by_gdal(source: ImageSource, part: Path, profile: Profile) -> None:
    with open_image(source) as image:
        try:
            rasterio.shutil.copy(image.dataset, part, driver="COG", **_creation_options(profile))
        except RasterioError as error:
            raise UnreadableRaster(f"{source.path.name} cannot be converted: {describe(error, source.path)}") from error


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
    """Read every block of the file and its checksum: a valid layout does not prove that the data is intact."""
    with open_geotiff(path) as dataset:
        statistics = read_statistics(dataset, on_progress)
        with path.open("rb") as file:
            checksum = file_digest(file, "sha256").hexdigest()
        return _info(dataset, path, statistics, checksum)


def _info(dataset: Any, path: Path, statistics: list[BandStatistics], checksum: str) -> CogInfo:
    if not is_cog(dataset):
        raise UnreadableRaster(f"{path.name} is not a cloud-optimised GeoTIFF")
    footprint = footprint_of(dataset.crs, dataset.transform, dataset.width, dataset.height)
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
