"""Stack the return periods of flood tiles as bands, and merge the tiles of a cell, without a file in between."""

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from pydantic import BaseModel
from rasterio.crs import CRS

from dagmaster.geo.errors import RasterRejected, UnreadableRaster
from dagmaster.geo.flood.names import Place
from dagmaster.geo.footprint import Bbox, footprint_of
from dagmaster.geo.raster.header import Grid, Header, find_differences, find_grid, read_header, refuse
from dagmaster.geo.raster.mosaic import Mosaic, join, source_file

# Of the size of a tile: names are whole degrees, and grids may be shifted by some pixels.
NAME_TOLERANCE: Final = 0.02


class StackFiles(BaseModel, frozen=True):
    """The files of one tile, one for each band, and what messages call them."""

    paths: list[Path]
    names: list[str]


class CellGrid(BaseModel, frozen=True):
    width: int
    height: int
    bbox: Bbox


def describe_stack(files: StackFiles, bands: Sequence[str]) -> Header:
    """The header that the stack would have. Raises RasterRejected unless the files are single bands of one grid."""
    return _stack(_read(files), bands)


def arrange_stacks(stacks: Sequence[StackFiles], bands: Sequence[str]) -> Mosaic:
    """All tiles of a cell as one image with a band for each return period."""
    headers = [_read(files) for files in stacks]
    sources = [
        [source_file(path, header) for path, header in zip(files.paths, of_tile, strict=True)]
        for files, of_tile in zip(stacks, headers, strict=True)
    ]
    return join([_stack(of_tile, bands) for of_tile in headers], sources)


def find_cell_grid(stacks: Sequence[Header]) -> CellGrid:
    """Raises RasterRejected if the tiles of a cell do not fit together, with all reasons."""
    grid = find_grid(stacks)
    return CellGrid(width=grid.width, height=grid.height, bbox=_bbox_of(grid))


def _bbox_of(grid: Grid) -> Bbox:
    return footprint_of(CRS.from_user_input(grid.crs), grid.transform, grid.width, grid.height).bbox


def check_place(header: Header, place: Place) -> None:
    """Raises RasterRejected if the point that a tile is named after is not in the tile or on its edge."""
    west, south, east, north = _bbox_of(header)
    if west > east:
        east += 360
    across, down = (east - west) * NAME_TOLERANCE, (north - south) * NAME_TOLERANCE
    turns = (place.longitude - 360, place.longitude, place.longitude + 360)
    is_beside = not any(west - across <= longitude <= east + across for longitude in turns)
    if is_beside or not south - down <= place.latitude <= north + down:
        box = ", ".join(f"{degrees:g}" for degrees in (west, south, east, north))
        raise RasterRejected(f"{header.name} is named after {place.name}, but its pixels are in {box}")


def _read(files: StackFiles) -> list[Header]:
    return [_read_one(path, name) for path, name in zip(files.paths, files.names, strict=True)]


def _read_one(path: Path, name: str) -> Header:
    try:
        return read_header(path, name)
    except UnreadableRaster as error:  # It names the file, and many tiles have files of the same name.
        raise UnreadableRaster(f"{name}: {error}") from error


def _stack(headers: Sequence[Header], bands: Sequence[str]) -> Header:
    first = headers[0]
    problems = [
        *(f"{header.name} has {len(header.dtypes)} bands instead of one" for header in headers if header.dtypes[1:]),
        *(f"{header.name} has a mask; mark missing pixels by nodata" for header in headers if header.has_mask),
        *(problem for header in headers for problem in _misplaced(first, header)),
    ]
    refuse(problems)
    return first.model_copy(
        update={
            "dtypes": first.dtypes * len(bands),
            "colours": ["gray"] + ["undefined"] * (len(bands) - 1),
            "descriptions": list(bands),
            "palette": None,
        }
    )


def _misplaced(first: Header, header: Header) -> list[str]:
    """Bands of one tile cover the same pixels."""
    differences = list(find_differences(first, header))
    if differences:
        return differences
    column, row = ~first.affine * header.affine * (0, 0)
    if (round(column), round(row), header.width, header.height) != (0, 0, first.width, first.height):
        return [f"{header.name} does not cover the pixels of {first.name}"]
    return []
