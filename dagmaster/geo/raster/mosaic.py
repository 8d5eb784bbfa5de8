"""Adjacent rasters as one image, through a virtual dataset that is generated and kept in memory."""

import resource
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final
from xml.etree import ElementTree
from xml.etree.ElementTree import Element, SubElement

import rasterio
from pydantic import BaseModel
from rasterio.crs import CRS
from rasterio.enums import ColorInterp
from shapely import box, union_all

from dagmaster.geo.errors import RasterRejected
from dagmaster.geo.raster.header import Bands, CommonGrid, Header, Part, find_grid, read_header
from dagmaster.geo.raster.reader import CACHE_MB, GDAL_OPTIONS, check_signature

# A row of blocks may touch many files; each of them is opened again if it is not among these. GDAL takes 2 to 1000.
OPEN_FILES: Final = 400
LEAST_OPEN_FILES, MOST_OPEN_FILES = 2, 1000
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


class SourceFile(BaseModel, frozen=True):
    path: Path
    block_width: int
    block_height: int


class MosaicTile(BaseModel, frozen=True):
    """One file with all bands, or a file for each band."""

    place: Part
    files: list[SourceFile]

    def source_of(self, band: int) -> tuple[SourceFile, int]:
        """The file, and the band there."""
        return (self.files[0], band) if len(self.files) == 1 else (self.files[band - 1], 1)


class Mosaic(Bands):
    """A grid with a place for each tile; where tiles overlap, the later one is on top."""

    needs_mask: bool
    tiles: list[MosaicTile]

    @property
    def paths(self) -> list[Path]:
        return [file.path for tile in self.tiles for file in tile.files]


def arrange(paths: Sequence[Path]) -> Mosaic:
    """Raises RasterRejected with the reason for each file that is not on the same grid."""
    if not paths:
        raise RasterRejected("a mosaic needs at least one file")
    headers = [read_header(path) for path in paths]
    return join(headers, [[source_file(path, header)] for path, header in zip(paths, headers, strict=True)])


def source_file(path: Path, header: Header) -> SourceFile:
    return SourceFile(path=path, block_width=header.block_width, block_height=header.block_height)


def join(headers: Sequence[Header], files: Sequence[list[SourceFile]]) -> Mosaic:
    """The tiles that the headers describe, with the files of each."""
    grid, first = find_grid(headers), headers[0]
    has_own = first.nodata is not None or "alpha" in first.colours
    has_holes = any(header.has_mask for header in headers) or _has_gaps(grid)
    tiles = [MosaicTile(place=place, files=of_tile) for place, of_tile in zip(grid.places, files, strict=True)]
    bands = {name: value for name, value in {**dict(first), **dict(grid)}.items() if name in Bands.model_fields}
    return Mosaic(**bands, needs_mask=not has_own and has_holes, tiles=tiles)


def _has_gaps(grid: CommonGrid) -> bool:
    boxes = [
        box(place.column, place.row, place.column + place.width, place.row + place.height) for place in grid.places
    ]
    return bool(union_all(boxes).area < grid.width * grid.height)


@contextmanager
def open_mosaic(mosaic: Mosaic, cache_mb: int = CACHE_MB) -> Iterator[Any]:
    """GDAL chooses a driver for each file by its first bytes: only those of a TIFF are let through."""
    for path in mosaic.paths:
        check_signature(path)
    pool = choose_pool_size(len(mosaic.paths))
    options = {**GDAL_OPTIONS, "GDAL_CACHEMAX": cache_mb, "GDAL_MAX_DATASET_POOL_SIZE": pool}
    with rasterio.Env(**options), rasterio.open(_vrt(mosaic), driver="VRT") as dataset:
        yield dataset


def choose_pool_size(files: int) -> int:
    """How many files GDAL keeps open: all, where it and the limit of the process allow that."""
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    allowed = MOST_OPEN_FILES if limit == resource.RLIM_INFINITY else min(MOST_OPEN_FILES, limit // 2)
    return max(min(max(files, OPEN_FILES), allowed), LEAST_OPEN_FILES)


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
            _add_source(band, mosaic, tile, tile.files[0], "mask,1", "Byte")
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
        file, source_band = tile.source_of(number)
        _add_source(band, mosaic, tile, file, str(source_band), kind)


def _add_source(band: Element, mosaic: Mosaic, tile: MosaicTile, file: SourceFile, source_band: str, kind: str) -> None:
    """With its properties, so that no file has to be opened before it is read."""
    has_holes = mosaic.nodata is not None
    source = SubElement(band, "ComplexSource" if has_holes else "SimpleSource")
    SubElement(source, "SourceFilename", relativeToVRT="0").text = str(file.path.absolute())
    SubElement(source, "SourceBand").text = source_band
    place = tile.place
    width, height = str(place.width), str(place.height)
    block = {"BlockXSize": str(file.block_width), "BlockYSize": str(file.block_height)}
    SubElement(source, "SourceProperties", {"RasterXSize": width, "RasterYSize": height, "DataType": kind, **block})
    SubElement(source, "SrcRect", xOff="0", yOff="0", xSize=width, ySize=height)
    SubElement(source, "DstRect", xOff=str(place.column), yOff=str(place.row), xSize=width, ySize=height)
    if has_holes:
        SubElement(source, "NODATA").text = repr(mosaic.nodata)
