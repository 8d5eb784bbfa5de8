"""The compression and resampling of each type of raster."""

from collections.abc import Mapping
from enum import StrEnum
from typing import Literal

from pydantic import BaseModel

from dagmaster.geo.raster.statistics import BandStatistics

Compression = Literal["ZSTD", "JPEG", "WEBP"]
Resampling = Literal["nearest", "average", "bilinear", "cubic"]

ELEVATION_METRES = (-500, 9000)
ELEVATION_SPAN_METRES = 50
MAX_CLASS_COUNT = 32
# Higher levels take twice as long and save 2 %.
ZSTD_LEVEL, ARCHIVE_ZSTD_LEVEL = 3, 15
QUALITY = 85


class RasterType(StrEnum):
    RGB = "rgb"
    RGBA = "rgba"
    CATEGORICAL = "categorical"
    DEM = "dem"
    CONTINUOUS = "continuous"
    MULTISPECTRAL = "multispectral"


RESAMPLING: Mapping[RasterType, Resampling] = {
    RasterType.CATEGORICAL: "nearest",
    RasterType.RGB: "cubic",
    RasterType.RGBA: "cubic",
}


class Tier(StrEnum):
    """The purpose of the file: `visualization` may lose invisible details; the others are lossless."""

    VISUALIZATION = "visualization"
    ANALYSIS = "analysis"
    ARCHIVE = "archive"


class Profile(BaseModel, frozen=True):
    """`predictor` is GDAL's creation option: 2 for integers, 3 for floating point."""

    compression: Compression
    level: int | None = None
    quality: int | None = None
    predictor: int | None = None
    resampling: Resampling
    overview_resampling: Resampling


def detect_type(
    colours: list[str], dtypes: list[str], statistics: list[BandStatistics], *, has_palette: bool
) -> RasterType:
    """By colour interpretation and palette if the file has them; single bands by their values."""
    if has_palette:
        return RasterType.CATEGORICAL
    is_byte = set(dtypes) <= {"uint8", "uint16"}
    if colours[:3] == ["red", "green", "blue"] and is_byte and len(colours) <= 4:
        if len(colours) == 3:
            return RasterType.RGB
        return RasterType.RGBA if colours[3] == "alpha" else RasterType.MULTISPECTRAL
    if len(colours) > 1 and colours[1:] != ["alpha"]:
        return RasterType.MULTISPECTRAL
    return _single_band_type(dtypes[0], statistics[0])


def _single_band_type(dtype: str, band: BandStatistics) -> RasterType:
    if dtype in ("uint8", "int8") and band.classes is not None and band.classes <= MAX_CLASS_COUNT:
        return RasterType.CATEGORICAL
    if dtype in ("uint8", "int8") or band.minimum is None or band.maximum is None:
        return RasterType.CONTINUOUS
    low, high = ELEVATION_METRES
    is_elevation = low <= band.minimum and band.maximum <= high and band.maximum - band.minimum > ELEVATION_SPAN_METRES
    return RasterType.DEM if is_elevation else RasterType.CONTINUOUS


def choose_profile(kind: RasterType, tier: Tier, dtype: str, *, has_nodata: bool) -> Profile:
    """Lossy only for 8-bit colours without nodata: compression would change nodata values at the edges."""
    resampling = RESAMPLING.get(kind, "bilinear")
    overviews: Resampling = "nearest" if kind is RasterType.CATEGORICAL else "average"
    is_colour = kind in (RasterType.RGB, RasterType.RGBA)
    if tier is Tier.VISUALIZATION and is_colour and dtype == "uint8" and not has_nodata:
        lossy: Compression = "JPEG" if kind is RasterType.RGB else "WEBP"
        return Profile(compression=lossy, quality=QUALITY, resampling=resampling, overview_resampling=overviews)
    return Profile(
        compression="ZSTD",
        level=ARCHIVE_ZSTD_LEVEL if tier is Tier.ARCHIVE else ZSTD_LEVEL,
        predictor=3 if dtype.startswith("float") else 2,
        resampling="nearest" if has_nodata and is_colour else resampling,
        overview_resampling=overviews,
    )
