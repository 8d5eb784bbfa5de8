"""What a GeoTIFF says of itself, and whether files can be joined: one CRS, one type, one nodata value, one grid."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from affine import Affine
from pydantic import BaseModel
from rasterio.crs import CRS
from rasterio.enums import ColorInterp, MaskFlags

from dagmaster.geo.errors import RasterRejected
from dagmaster.geo.raster.reader import open_geotiff
from dagmaster.geo.raster.validate import JsonFloat, crs_name, is_rotated

MAX_DEVIATION_PIXELS: Final = 0.01
MAX_PROBLEMS: Final = 20

Transform = tuple[float, float, float, float, float, float]


class Part(BaseModel, frozen=True):
    """A rectangle of pixels."""

    column: int
    row: int
    width: int
    height: int


class Grid(BaseModel, frozen=True):
    crs: str
    transform: Transform
    width: int
    height: int


class Bands(Grid):
    dtypes: list[str]
    colours: list[str]
    descriptions: list[str | None]
    palette: dict[int, tuple[int, int, int, int]] | None = None
    nodata: JsonFloat | None


class Header(Bands):
    """`name` is what messages call the file."""

    name: str
    has_mask: bool
    block_width: int
    block_height: int

    @property
    def affine(self) -> Affine:
        return Affine(*self.transform)

    def deviation_from(self, other: "Header") -> float:
        """By how many pixels of the other's grid its corners are beside that grid; infinite for other pixel sizes."""
        place = ~other.affine * self.affine
        (left, top), (right, bottom) = place * (0, 0), place * (self.width, self.height)
        if (round(right - left), round(bottom - top)) != (self.width, self.height):
            return float("inf")
        return float(max(abs(number - round(number)) for number in (left, top, right, bottom)))


class CommonGrid(Grid):
    """The smallest grid that holds all files, and the place of each in it."""

    places: list[Part]


def read_header(path: Path, name: str | None = None) -> Header:
    """Raises UnreadableRaster for what is no GeoTIFF, and RasterRejected for one that is nowhere or rotated."""
    name = name or path.name
    with open_geotiff(path) as dataset:
        if dataset.crs is None or is_rotated(dataset.transform):
            raise RasterRejected(f"{name} has no CRS or a rotated grid; make a COG of it first")
        block_height, block_width = dataset.block_shapes[0]
        return Header(
            name=name,
            crs=exact_name(dataset.crs),
            transform=tuple(dataset.transform)[:6],
            width=dataset.width,
            height=dataset.height,
            dtypes=list(dataset.dtypes),
            colours=[colour.name for colour in dataset.colorinterp],
            descriptions=list(dataset.descriptions),
            palette=dataset.colormap(1) if dataset.colorinterp[0] == ColorInterp.palette else None,
            nodata=dataset.nodata,
            has_mask=dataset.mask_flag_enums[0] == [MaskFlags.per_dataset],
            block_width=block_width,
            block_height=block_height,
        )


def exact_name(crs: CRS) -> str:
    """The code of an authority may be that of a CRS that is only similar."""
    name = crs_name(crs)
    return name if CRS.from_user_input(name) == crs else str(crs.to_wkt())


def find_differences(first: Header, other: Header) -> Iterator[str]:
    """Why the second cannot be joined to the first."""
    pairs: dict[str, tuple[Any, Any]] = {
        "CRS": (CRS.from_user_input(first.crs), CRS.from_user_input(other.crs)),
        "bands or types": (first.dtypes, other.dtypes),
        "nodata": (str(first.nodata), str(other.nodata)),
    }
    for name, (expected, actual) in pairs.items():
        if expected != actual:
            yield f"{other.name} differs from {first.name} in {name}: {actual} instead of {expected}"
    if pairs["CRS"][0] == pairs["CRS"][1] and (deviation := other.deviation_from(first)) > MAX_DEVIATION_PIXELS:
        reason = "its pixels have another size" if deviation == float("inf") else f"it is {deviation:.3f} px beside it"
        yield f"{other.name} is not on the grid of {first.name}: {reason}; resample it to that grid first"


def find_grid(headers: Sequence[Header]) -> CommonGrid:
    """Raises RasterRejected if the files are not parts of one grid, with the reason for each."""
    first = headers[0]
    refuse([problem for header in headers for problem in find_differences(first, header)])
    west, north = min(header.transform[2] for header in headers), max(header.transform[5] for header in headers)
    origin = Affine(first.transform[0], 0, west, 0, first.transform[4], north)
    places = [_place(header, origin) for header in headers]
    return CommonGrid(
        crs=first.crs,
        transform=tuple(origin)[:6],
        width=max(place.column + place.width for place in places),
        height=max(place.row + place.height for place in places),
        places=places,
    )


def _place(header: Header, origin: Affine) -> Part:
    """Rounded: what is left of a pixel is below the limit."""
    column, row = ~origin * (header.transform[2], header.transform[5])
    return Part(column=round(column), row=round(row), width=header.width, height=header.height)


def refuse(problems: Sequence[str]) -> None:
    """Raises RasterRejected if there are any."""
    if problems:
        more = f"; and {len(problems) - MAX_PROBLEMS} more" if len(problems) > MAX_PROBLEMS else ""
        raise RasterRejected("; ".join(problems[:MAX_PROBLEMS]) + more)
