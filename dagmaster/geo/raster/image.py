"""The pixels to write: unchanged, reprojected, or cut out of either."""

import math
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final, Protocol

import numpy as np
from affine import Affine
from pydantic import BaseModel
from rasterio.crs import CRS
from rasterio.enums import ColorInterp, MaskFlags, Resampling
from rasterio.errors import RasterioError
from rasterio.features import geometry_mask
from rasterio.vrt import WarpedVRT
from rasterio.warp import calculate_default_transform, transform_bounds, transform_geom
from rasterio.windows import Window
from shapely.geometry import shape

from dagmaster.geo.errors import RasterRejected, UnreadableRaster
from dagmaster.geo.footprint import WGS84, Bbox
from dagmaster.geo.raster.header import Grid, Part
from dagmaster.geo.raster.mosaic import Mosaic, open_mosaic
from dagmaster.geo.raster.reader import CACHE_MB, describe, open_geotiff
from dagmaster.geo.raster.statistics import read_statistics
from dagmaster.geo.raster.validate import JsonFloat, crs_name, is_rotated, parse_crs

WARP_MEMORY_MB: Final = 64


class Warp(Grid):
    """The target grid of a warp."""

    source_crs: str
    resampling: str
    nodata: JsonFloat | None = None
    add_alpha: bool = False


class ImageSource(BaseModel, frozen=True):
    """Everything that another process needs to read the same pixels: of a file, or of a mosaic (then its first file).

    `part` refers to the grid after the warp. Pixels outside `cutline`, a GeoJSON geometry in the CRS of that grid, are
    not valid.
    """

    path: Path
    mosaic: Mosaic | None = None
    warp: Warp | None = None
    part: Part | None = None
    cutline: dict[str, Any] | None = None

    def state_of_files(self) -> str:
        """Another one when a file has been replaced or changed."""
        states = [path.stat() for path in ([self.path] if self.mosaic is None else self.mosaic.paths)]
        return " ".join(f"{state.st_size}:{state.st_mtime_ns}" for state in states)


class Image:
    """An open source. Bands and masks are read by rectangles of its own grid."""

    def __init__(self, source: ImageSource, dataset: Any) -> None:
        whole = Part(column=0, row=0, width=dataset.width, height=dataset.height)
        part = source.part or whole
        self.dataset, self.path, self._part, self._cutline = dataset, source.path, part, source.cutline
        self.width, self.height = part.width, part.height
        self.crs: CRS = dataset.crs
        self.transform: Affine = dataset.transform * Affine.translation(part.column, part.row)
        flags = dataset.mask_flag_enums[0]
        has_own = MaskFlags.alpha in flags or MaskFlags.nodata in flags
        self.has_mask = not has_own and (MaskFlags.per_dataset in flags or source.cutline is not None)

    def read(self, part: Part) -> Any:
        bands = self._read(part, self.dataset.read)
        if self._cutline is not None:
            self._cut(bands, self._outside(part))
        return bands

    def read_mask(self, part: Part) -> Any:
        mask = self._read(part, self.dataset.dataset_mask)
        if self._cutline is not None:
            mask[self._outside(part)] = 0
        return mask

    def _read(self, part: Part, read: Any) -> Any:
        window = Window(self._part.column + part.column, self._part.row + part.row, part.width, part.height)
        try:
            return read(window=window)
        except RasterioError as error:
            raise UnreadableRaster(
                f"{self.path.name} is damaged: it cannot be read at row {window.row_off}, column {window.col_off}: "
                f"{describe(error, self.path)}"
            ) from error

    def _outside(self, part: Part) -> Any:
        place = self.transform * Affine.translation(part.column, part.row)
        return geometry_mask([self._cutline], (part.height, part.width), place)

    def _cut(self, bands: Any, outside: Any) -> None:
        if ColorInterp.alpha in self.dataset.colorinterp:
            bands[self.dataset.colorinterp.index(ColorInterp.alpha)][outside] = 0
        elif self.dataset.nodata is not None:
            bands[:, outside] = self.dataset.nodata


@contextmanager
def open_image(source: ImageSource, cache_mb: int = CACHE_MB) -> Iterator[Image]:
    mosaic = source.mosaic
    opened = open_geotiff(source.path, cache_mb) if mosaic is None else open_mosaic(mosaic, cache_mb)
    with opened as dataset:
        if (warp := source.warp) is None:
            yield Image(source, dataset)
            return
        with WarpedVRT(
            dataset,
            src_crs=CRS.from_user_input(warp.source_crs),
            crs=CRS.from_user_input(warp.crs),
            transform=Affine(*warp.transform),
            width=warp.width,
            height=warp.height,
            resampling=Resampling[warp.resampling],
            add_alpha=warp.add_alpha,
            warp_mem_limit=WARP_MEMORY_MB,
            **({"nodata": warp.nodata} if warp.nodata is not None else {}),
        ) as warped:
            yield Image(source, warped)


class Derivation(Protocol):
    """Computes an image from another one, on the same grid. `identity` changes with what it computes."""

    @property
    def identity(self) -> str: ...

    def derive(self, image: Image) -> AbstractContextManager[Image]: ...


@contextmanager
def open_derived(source: ImageSource, derivation: Derivation | None, cache_mb: int = CACHE_MB) -> Iterator[Image]:
    """Without a derivation, the source itself."""
    with open_image(source, cache_mb) as image, ExitStack() as stack:
        yield image if derivation is None else stack.enter_context(derivation.derive(image))


def resolve_image(
    source: Path | Mosaic, resampling: str, *, assigned_crs: str | None = None, target_crs: str | None = None
) -> ImageSource:
    """Decide whether the pixels have to be warped, and to which grid."""
    plain = ImageSource(path=source) if isinstance(source, Path) else ImageSource(path=source.paths[0], mosaic=source)
    with open_image(plain) as image:
        dataset = image.dataset
        crs = dataset.crs or parse_crs(assigned_crs or "", "assigned_crs")
        target = parse_crs(target_crs, "target_crs") if target_crs else crs
        is_moved = target != crs or is_rotated(dataset.transform)
        if not is_moved and dataset.crs is not None:
            return plain
        transform, width, height = dataset.transform, dataset.width, dataset.height
        if is_moved:
            transform, width, height = _default_grid(dataset, crs, target)
        warp = Warp(
            source_crs=crs_name(crs),
            crs=crs_name(target),
            transform=tuple(transform)[:6],
            width=width,
            height=height,
            resampling=resampling if is_moved else "nearest",
            **(_empty_pixels(dataset) if is_moved else {}),
        )
        return plain.model_copy(update={"warp": warp})


def _default_grid(dataset: Any, crs: CRS, target: CRS) -> tuple[Affine, int, int]:
    """GDAL's default grid; its bounds alone would not be enough for a rotated grid."""
    if not is_rotated(dataset.transform):
        grid: tuple[Affine, int, int] = calculate_default_transform(
            crs, target, dataset.width, dataset.height, *dataset.bounds
        )
        return grid
    with WarpedVRT(dataset, src_crs=crs, crs=target) as warped:
        return warped.transform, warped.width, warped.height


def _empty_pixels(dataset: Any) -> dict[str, Any]:
    """The value of target pixels without a source pixel: nodata, or transparent in pictures without nodata.

    Readers treat an alpha band as a mask only for unsigned 8 and 16 bits; other rasters get an unused value.
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


def clip_to_bbox(source: ImageSource, bbox: Bbox) -> ImageSource:
    """The pixels that touch the box, which is west, south, east, north in degrees."""
    west, south, east, north = bbox
    if not (west < east and south < north):
        raise RasterRejected("bbox: must be west, south, east, north, and must not cross the antimeridian")
    with open_image(source) as image:
        bounds = transform_bounds(WGS84, image.crs, west, south, east, north)
        return source.model_copy(update={"part": _part(image, bounds)})


def clip_to_geometry(source: ImageSource, geometry: Mapping[str, Any]) -> ImageSource:
    """The pixels whose centres are in the polygons, a GeoJSON geometry in longitude and latitude."""
    if geometry.get("type") not in ("Polygon", "MultiPolygon"):
        raise RasterRejected("geometry: must be a GeoJSON Polygon or MultiPolygon")
    with open_image(source) as image:
        try:
            cutline = transform_geom(WGS84, image.crs, dict(geometry))
            bounds = shape(cutline).bounds
        except (ValueError, KeyError, TypeError) as error:
            raise RasterRejected(f"geometry: cannot be read: {error}") from error
        return source.model_copy(update={"part": _part(image, bounds), "cutline": cutline})


def _part(image: Image, bounds: Bbox) -> Part:
    if not all(map(math.isfinite, bounds)):
        raise RasterRejected("it is nowhere in the CRS of the raster")
    left, bottom, right, top = bounds
    first, last = ~image.transform * (left, top), ~image.transform * (right, bottom)
    # After two transformations, a coordinate on the edge of a pixel may be slightly beside it.
    column, row = max(math.floor(first[0] + 1e-6), 0), max(math.floor(first[1] + 1e-6), 0)
    end_column, end_row = min(math.ceil(last[0] - 1e-6), image.width), min(math.ceil(last[1] - 1e-6), image.height)
    if column >= end_column or row >= end_row:
        raise RasterRejected("it does not touch the raster")
    return Part(column=column, row=row, width=end_column - column, height=end_row - row)
