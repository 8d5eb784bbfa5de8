"""Validate a GeoTIFF: its properties, whether it is usable, and what must be done about it."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Final

import numpy as np
from pydantic import BaseModel, Field, PlainSerializer
from rasterio.crs import CRS
from rasterio.enums import ColorInterp
from rasterio.errors import CRSError
from rasterio.warp import calculate_default_transform

from dagmaster.geo.errors import RasterRejected
from dagmaster.geo.footprint import Bbox, Footprint, footprint_of
from dagmaster.geo.raster.profiles import Profile, RasterType, Tier, choose_profile, detect_type
from dagmaster.geo.raster.reader import open_geotiff
from dagmaster.geo.raster.statistics import BandStatistics, OnProgress, read_statistics
from dagmaster.geo.validation import CrsSource, Outcome, outcome_of

# A full pyramid of overviews adds a third.
OVERVIEW_FACTOR: Final = 4 / 3
# A tile of a COG, in pixels.
COG_BLOCK: Final = 512
MAX_PIXELS: Final = 2**36


class Band(BaseModel, frozen=True):
    index: int
    dtype: str
    nodata: float | str | None
    colour: str
    description: str | None
    statistics: BandStatistics


class RasterReport(BaseModel, frozen=True):
    """The result of a validation. A rejected raster has all its problems, not just the first."""

    outcome: Outcome
    problems: list[str] = Field(default_factory=list)
    warnings: list[str] = Field(default_factory=list)
    size_bytes: int
    width: int
    height: int
    bands: list[Band]
    crs: str | None = None
    crs_source: CrsSource | None = None
    transform: list[float]
    pixel_size: tuple[float, float]
    bbox: Bbox | None = None
    footprint: dict[str, Any] | None = None
    raster_type: RasterType | None = None
    is_cog: bool = False
    is_rotated: bool = False
    profile: Profile | None = None
    target_crs: str | None = None
    estimated_bytes: int | None = Field(default=None, description="Of the COG without compression: an upper limit.")
    taken_at: str | None = Field(default=None, description="The date that the file gives, as TIFF writes it.")

    def check(self) -> "RasterReport":
        """Raises RasterRejected with all problems."""
        if self.outcome is Outcome.REJECTED:
            raise RasterRejected("; ".join(self.problems))
        return self


def parse_crs(text: str, name: str = "crs") -> CRS:
    try:
        return CRS.from_user_input(text)
    except CRSError as error:
        raise RasterRejected(f"{name}: {text[:80]!r} is no CRS that PROJ knows; write it as EPSG:32633") from error


def crs_name(crs: CRS) -> str:
    """`EPSG:32633` if an authority lists it, its WKT otherwise."""
    authority = crs.to_authority()
    return ":".join(authority) if authority else str(crs.to_wkt())


def validate(
    path: Path,
    *,
    assigned_crs: str | None = None,
    target_crs: str | None = None,
    raster_type: RasterType | None = None,
    tier: Tier = Tier.ANALYSIS,
    on_progress: OnProgress | None = None,
) -> RasterReport:
    """Read the whole file. `assigned_crs` is the sender's; it must not contradict the file.

    Raises UnreadableRaster for a file that is not a GeoTIFF or is damaged; all other problems are in the report.
    """
    given = parse_crs(assigned_crs, "assigned_crs") if assigned_crs else None
    target = parse_crs(target_crs, "target_crs") if target_crs else None
    with open_geotiff(path) as dataset:
        findings = _Findings()
        crs, source = findings.resolve_crs(dataset.crs, given)
        findings.check_grid(dataset)
        findings.check_types(dataset)
        statistics = read_statistics(dataset, on_progress) if findings.can_be_read else []
        findings.check_values(dataset, statistics)
        footprint = findings.find_footprint(dataset, crs)
        kind = profile = None
        if statistics:
            colours, dtypes = [colour.name for colour in dataset.colorinterp], list(dataset.dtypes)
            has_palette = ColorInterp.palette in dataset.colorinterp
            kind = raster_type or detect_type(colours, dtypes, statistics, has_palette=has_palette)
            profile = choose_profile(kind, tier, dtypes[0], has_nodata=dataset.nodata is not None)
        return RasterReport(
            outcome=outcome_of(findings.problems, findings.warnings),
            problems=findings.problems,
            warnings=findings.warnings,
            size_bytes=path.stat().st_size,
            width=dataset.width,
            height=dataset.height,
            bands=bands_of(dataset, statistics),
            crs=crs_name(crs) if crs else None,
            crs_source=source,
            transform=list(dataset.transform)[:6],
            pixel_size=(abs(dataset.transform.a), abs(dataset.transform.e)),
            bbox=footprint.bbox if footprint else None,
            footprint=footprint.geometry if footprint else None,
            raster_type=kind,
            is_cog=is_cog(dataset),
            is_rotated=is_rotated(dataset.transform),
            profile=profile,
            target_crs=crs_name(target or crs) if target or crs else None,
            estimated_bytes=_estimate_bytes(dataset, crs, target) if not findings.problems else None,
            taken_at=dataset.tags().get("TIFFTAG_DATETIME"),
        )


class _Findings:
    """The problems and warnings, in the order of the checks."""

    def __init__(self) -> None:
        self.problems: list[str] = []
        self.warnings: list[str] = []
        self.can_be_read = True

    def resolve_crs(self, own: CRS | None, given: CRS | None) -> tuple[CRS | None, CrsSource | None]:
        """The file and the sender may each have one: four cases."""
        if own and given:
            if own != given:
                self.problems.append(
                    f"the file is in {crs_name(own)}, but {crs_name(given)} was given; correct one of the two"
                )
            return own, CrsSource.CONFIRMED
        if given:
            self.warnings.append(f"the file has no CRS: {crs_name(given)} is assigned, as given")
            return given, CrsSource.ASSIGNED
        if own:
            return own, CrsSource.FILE
        self.problems.append("the file has no CRS and none was given; pass assigned_crs, such as EPSG:4326")
        return None, None

    def check_grid(self, dataset: Any) -> None:
        if dataset.width * dataset.height > MAX_PIXELS:
            self.can_be_read = False
            self.problems.append(f"it has {dataset.width} x {dataset.height} pixels; the limit is {MAX_PIXELS}")
        if dataset.width == 1 or dataset.height == 1:
            self.warnings.append(f"it is only {dataset.width} x {dataset.height} pixels")
        if dataset.transform.is_identity:
            has_points = bool(dataset.gcps[0]) or dataset.rpcs is not None
            self.problems.append(
                "it has ground control points or RPCs instead of a georeference; rectify it first"
                if has_points
                else "it has no georeference: nothing says where its pixels are"
            )
        elif dataset.transform.is_degenerate or not all(map(math.isfinite, dataset.transform)):
            self.problems.append("its georeference is degenerate: a pixel has no size")
        elif is_rotated(dataset.transform):
            self.warnings.append("its grid is rotated or upside down: it is resampled to a grid that points north")

    def check_types(self, dataset: Any) -> None:
        kinds = set(dataset.dtypes)
        if not kinds:
            self.can_be_read = False
            self.problems.append("it has no bands")
        if any(kind.startswith("complex") for kind in kinds):
            self.can_be_read = False
            self.problems.append(f"its values are complex numbers ({', '.join(sorted(kinds))}); split them first")
        if kinds & {"float64", "int64", "uint64"}:
            self.warnings.append("its values have 64 bits; 32 bits would be half the size")

    def check_values(self, dataset: Any, statistics: Sequence[BandStatistics]) -> None:
        empty = [index for index, band in zip(dataset.indexes, statistics, strict=False) if band.valid_percent == 0]
        if statistics and len(empty) == len(statistics):
            self.problems.append("all its pixels are nodata")
        elif empty:
            self.warnings.append(f"all pixels of band {', '.join(map(str, empty))} are nodata")
        for index, nodata, dtype in zip(dataset.indexes, dataset.nodatavals, dataset.dtypes, strict=True):
            if nodata is not None and not fits(nodata, dtype):
                self.warnings.append(f"the nodata value {nodata:g} of band {index} cannot occur in {dtype}")

    def find_footprint(self, dataset: Any, crs: CRS | None) -> Footprint | None:
        if crs is None or dataset.transform.is_identity or dataset.transform.is_degenerate:
            return None
        try:
            return footprint_of(crs, dataset.transform, dataset.width, dataset.height)
        except (RasterRejected, CRSError) as error:
            self.problems.append(str(error))
            return None


def is_rotated(transform: Any) -> bool:
    return bool(transform.b or transform.d or transform.a < 0 or transform.e > 0)


def is_cog(dataset: Any) -> bool:
    """By GDAL's recorded layout and its promises: tiles, and overviews of large images."""
    is_laid_out = dataset.tags(ns="IMAGE_STRUCTURE").get("LAYOUT") == "COG"
    is_small = max(dataset.width, dataset.height) <= COG_BLOCK
    block_height, block_width = dataset.block_shapes[0]
    is_tiled = block_width != dataset.width or block_height == block_width
    return is_laid_out and (is_small or (is_tiled and bool(dataset.overviews(1))))


def bands_of(dataset: Any, statistics: Sequence[BandStatistics]) -> list[Band]:
    return [
        Band(
            index=index,
            dtype=dataset.dtypes[index - 1],
            nodata=json_number(dataset.nodatavals[index - 1]),
            colour=dataset.colorinterp[index - 1].name,
            description=dataset.descriptions[index - 1],
            statistics=band,
        )
        for index, band in zip(dataset.indexes, statistics, strict=False)
    ]


def json_number(value: float | None) -> float | str | None:
    """In STAC's notation for numbers that JSON does not have."""
    if value is None or math.isfinite(value):
        return value
    return "nan" if math.isnan(value) else "inf" if value > 0 else "-inf"


JsonFloat = Annotated[float, PlainSerializer(json_number)]


def fits(value: float, dtype: Any) -> bool:
    """Whether the type can hold the value. Floating point holds all."""
    kind = np.dtype(dtype)
    if kind.kind not in "iu":
        return True
    limits = np.iinfo(kind)
    return math.isfinite(value) and value == int(value) and limits.min <= int(value) <= limits.max


def _estimate_bytes(dataset: Any, crs: CRS | None, target: CRS | None) -> int:
    width, height = int(dataset.width), int(dataset.height)
    if crs is not None and target is not None and target != crs:
        _, width, height = calculate_default_transform(crs, target, width, height, *dataset.bounds)
    pixel_bytes: int = sum(np.dtype(kind).itemsize for kind in dataset.dtypes)
    return int(width * height * pixel_bytes * OVERVIEW_FACTOR)
