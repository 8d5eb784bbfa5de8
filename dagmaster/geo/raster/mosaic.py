"""Rasters side by side as one image, through a virtual dataset that is written by hand and kept in memory."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final
from xml.etree import ElementTree
from xml.etree.ElementTree import Element, SubElement

import rasterio
from affine import Affine
from pydantic import BaseModel
from rasterio.crs import CRS
from rasterio.enums import ColorInterp, MaskFlags
from shapely import box, union_all

from dagmaster.geo.errors import RasterRejected
from dagmaster.geo.raster.part import Part
from dagmaster.geo.raster.reader import CACHE_MB, GDAL_OPTIONS, check_signature, open_geotiff
from dagmaster.geo.raster.validate import JsonFloat, crs_name, is_rotated

MAX_DEVIATION_PIXELS: Final = 0.01
# A row of blocks may touch many files; each of them is opened again if it is not among these.
OPEN_FILES: Final = 400
GDAL_TYPES: Final = {
    "uint8": "Byte",
    "int8": "Int8",
    "uint16": "UInt16",
    "int16": "Int16",
    "uint32": "UInt32",
    "int32": "Int32",
    "uint64": "UInt64",
    "int64": "Int64",
    "float32": "Float32",
    "float64": "Float64",
}
COLOURS: Final = {ColorInterp.gray: "Gray", ColorInterp.palette: "Palette", ColorInterp.undefined: "Undefined"}


class MosaicTile(BaseModel, frozen=True):
    path: Path
    place: Part
    block_width: int
    block_height: int


class Mosaic(BaseModel, frozen=True):
    """A grid with a place for each file; where files overlap, the later one is on top."""

    crs: str
    transform: tuple[float, float, float, float, float, float]
    width: int
    height: int
    dtypes: list[str]
    colours: list[str]
    descriptions: list[str | None]
    palette: dict[int, tuple[int, int, int, int]] | None
    nodata: JsonFloat | None
    needs_mask: bool
    tiles: list[MosaicTile]

    @property
    def path(self) -> Path:
        return self.tiles[0].path


def arrange(paths: Sequence[Path]) -> Mosaic:
    """Raises RasterRejected if the files are not parts of one grid, with the reason for each."""
    if not paths:
        raise RasterRejected("a mosaic needs at least one file")
    files = [_read(path) for path in paths]
    first = files[0]
    problems = [problem for file in files for problem in _differences(first, file)]
    if problems:
        raise RasterRejected("; ".join(problems))
    west, north = min(file.transform.c for file in files), max(file.transform.f for file in files)
    origin = Affine(first.transform.a, 0, west, 0, first.transform.e, north)
    tiles = [
        MosaicTile(path=file.path, place=file.place(origin), block_width=file.block[1], block_height=file.block[0])
        for file in files
    ]
    width = max(tile.place.column + tile.place.width for tile in tiles)
    height = max(tile.place.row + tile.place.height for tile in tiles)
    has_own = first.nodata is not None or "alpha" in first.colours
    return Mosaic(
        crs=crs_name(first.crs),
        transform=tuple(origin)[:6],
        width=width,
        height=height,
        dtypes=first.dtypes,
        colours=first.colours,
        descriptions=first.descriptions,
        palette=first.palette,
        nodata=first.nodata,
        needs_mask=not has_own and (any(file.has_mask for file in files) or _has_gaps(tiles, width, height)),
        tiles=tiles,
    )


class _File:
    def __init__(self, path: Path, dataset: Any) -> None:
        self.path, self.crs, self.transform = path, dataset.crs, dataset.transform
        self.width, self.height, self.block = dataset.width, dataset.height, dataset.block_shapes[0]
        self.dtypes, self.nodata = list(dataset.dtypes), dataset.nodata
        self.colours = [colour.name for colour in dataset.colorinterp]
        self.descriptions = list(dataset.descriptions)
        self.palette = dataset.colormap(1) if dataset.colorinterp[0] == ColorInterp.palette else None
        self.has_mask = dataset.mask_flag_enums[0] == [MaskFlags.per_dataset]

    def place(self, origin: Affine) -> Part:
        column, row = ~origin * (self.transform.c, self.transform.f)
        return Part(column=round(column), row=round(row), width=self.width, height=self.height)

    def is_on_grid_of(self, other: "_File") -> bool:
        column, row = ~other.transform * (self.transform.c, self.transform.f)
        right, bottom = ~other.transform * (self.transform * (self.width, self.height))
        deviations = [abs(number - round(number)) for number in (column, row, right, bottom)]
        has_its_pixels = round(right - column) == self.width and round(bottom - row) == self.height
        return bool(has_its_pixels and max(deviations) <= MAX_DEVIATION_PIXELS)


def _read(path: Path) -> _File:
    with open_geotiff(path) as dataset:
        if dataset.crs is None or is_rotated(dataset.transform):
            raise RasterRejected(f"{path.name} has no CRS or a rotated grid; make a COG of it first")
        return _File(path, dataset)


def _differences(first: _File, file: _File) -> Iterator[str]:
    pairs = {
        "CRS": (first.crs, file.crs),
        "bands or types": (first.dtypes, file.dtypes),
        "nodata": (str(first.nodata), str(file.nodata)),
    }
    for name, (expected, actual) in pairs.items():
        if expected != actual:
            yield f"{file.path.name} differs from {first.path.name} in {name}: {actual} instead of {expected}"
    if first.crs == file.crs and not file.is_on_grid_of(first):
        yield f"{file.path.name} is not on the grid of {first.path.name}; resample it to that grid first"


def _has_gaps(tiles: Sequence[MosaicTile], width: int, height: int) -> bool:
    boxes = [
        box(tile.place.column, tile.place.row, tile.place.column + tile.place.width, tile.place.row + tile.place.height)
        for tile in tiles
    ]
    return bool(union_all(boxes).area < width * height)


@contextmanager
def open_mosaic(mosaic: Mosaic, cache_mb: int = CACHE_MB) -> Iterator[Any]:
    """GDAL chooses a driver for each file by its first bytes: only those of a TIFF are let through."""
    for tile in mosaic.tiles:
        check_signature(tile.path)
    options = {**GDAL_OPTIONS, "GDAL_CACHEMAX": cache_mb, "GDAL_MAX_DATASET_POOL_SIZE": OPEN_FILES}
    with rasterio.Env(**options), rasterio.open(_vrt(mosaic), driver="VRT") as dataset:
        yield dataset


def _vrt(mosaic: Mosaic) -> str:
    root = Element("VRTDataset", rasterXSize=str(mosaic.width), rasterYSize=str(mosaic.height))
    SubElement(root, "SRS").text = CRS.from_user_input(mosaic.crs).to_wkt()
    a, b, c, d, e, f = mosaic.transform
    SubElement(root, "GeoTransform").text = ", ".join(repr(float(number)) for number in (c, a, b, f, d, e))
    for number, dtype in enumerate(mosaic.dtypes, 1):
        _add_band(root, mosaic, number, dtype)
    if mosaic.needs_mask:
        band = SubElement(SubElement(root, "MaskBand"), "VRTRasterBand", dataType="Byte")
        for tile in mosaic.tiles:
            _add_source(band, mosaic, tile, "mask,1", "Byte")
    return ElementTree.tostring(root, encoding="unicode")


def _add_band(root: Element, mosaic: Mosaic, number: int, dtype: str) -> None:
    kind = GDAL_TYPES[dtype]
    band = SubElement(root, "VRTRasterBand", dataType=kind, band=str(number))
    if mosaic.descriptions[number - 1]:
        SubElement(band, "Description").text = mosaic.descriptions[number - 1]
    if mosaic.nodata is not None:
        SubElement(band, "NoDataValue").text = repr(mosaic.nodata)
    colour = ColorInterp[mosaic.colours[number - 1]]
    SubElement(band, "ColorInterp").text = COLOURS.get(colour, colour.name.capitalize())
    if mosaic.palette is not None:
        table = SubElement(band, "ColorTable")
        for _, (red, green, blue, alpha) in sorted(mosaic.palette.items()):
            SubElement(table, "Entry", c1=str(red), c2=str(green), c3=str(blue), c4=str(alpha))
    for tile in mosaic.tiles:
        _add_source(band, mosaic, tile, str(number), kind)


def _add_source(band: Element, mosaic: Mosaic, tile: MosaicTile, source_band: str, kind: str) -> None:
    """With its properties, so that no file has to be opened before it is read."""
    has_holes = mosaic.nodata is not None
    source = SubElement(band, "ComplexSource" if has_holes else "SimpleSource")
    SubElement(source, "SourceFilename", relativeToVRT="0").text = str(tile.path.absolute())
    SubElement(source, "SourceBand").text = source_band
    place = tile.place
    width, height = str(place.width), str(place.height)
    block = {"BlockXSize": str(tile.block_width), "BlockYSize": str(tile.block_height)}
    SubElement(source, "SourceProperties", {"RasterXSize": width, "RasterYSize": height, "DataType": kind, **block})
    SubElement(source, "SrcRect", xOff="0", yOff="0", xSize=width, ySize=height)
    SubElement(source, "DstRect", xOff=str(place.column), yOff=str(place.row), xSize=width, ySize=height)
    if has_holes:
        SubElement(source, "NODATA").text = repr(mosaic.nodata)
