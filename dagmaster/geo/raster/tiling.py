"""Divide an image into tiles that are separate files on one grid."""

from pathlib import Path
from typing import Any, Final

from pydantic import BaseModel

from dagmaster.geo.errors import RasterRejected
from dagmaster.geo.footprint import Bbox, footprint_of
from dagmaster.geo.raster.cog import CogInfo, describe_cog
from dagmaster.geo.raster.header import Part
from dagmaster.geo.raster.image import ImageSource, Warp, open_image
from dagmaster.geo.raster.profiles import Profile
from dagmaster.geo.raster.validate import COG_BLOCK
from dagmaster.geo.raster.writer import write_cog

MAX_TILES: Final = 1000
MAX_TILE: Final = 65_536


class Tile(BaseModel, frozen=True):
    """`bbox` is west, south, east, north in degrees."""

    row: int
    column: int
    part: Part
    bbox: Bbox


class TilingScheme(BaseModel, frozen=True):
    """`warp` is the common grid of all tiles, if the raster is reprojected."""

    width: int
    height: int
    tile_size: int
    rows: int
    columns: int
    bbox: Bbox
    footprint: dict[str, Any]
    warp: Warp | None
    tiles: list[Tile]


def divide_into_tiles(source: ImageSource, tile_size: int) -> TilingScheme:
    """Tiles of this size in pixels, or larger if there would be more than the limit."""
    if tile_size % COG_BLOCK or not COG_BLOCK <= tile_size <= MAX_TILE:
        raise RasterRejected(f"tile_size: must be a multiple of {COG_BLOCK} of at most {MAX_TILE}, not {tile_size}")
    with open_image(source) as image:
        width, height, crs, transform = image.width, image.height, image.crs, image.transform
    while -(-width // tile_size) * -(-height // tile_size) > MAX_TILES:
        tile_size *= 2
    tiles = [
        _tile(crs, transform, row, column, tile_size, width, height)
        for row in range(-(-height // tile_size))
        for column in range(-(-width // tile_size))
    ]
    whole = footprint_of(crs, transform, width, height)
    return TilingScheme(
        width=width,
        height=height,
        tile_size=tile_size,
        rows=-(-height // tile_size),
        columns=-(-width // tile_size),
        bbox=whole.bbox,
        footprint=whole.geometry,
        warp=source.warp,
        tiles=tiles,
    )


def _tile(crs: Any, transform: Any, row: int, column: int, size: int, width: int, height: int) -> Tile:
    left, top = column * size, row * size
    part = Part(column=left, row=top, width=min(size, width - left), height=min(size, height - top))
    place = transform * transform.translation(left, top)
    return Tile(row=row, column=column, part=part, bbox=footprint_of(crs, place, part.width, part.height).bbox)


def write_tile(source: ImageSource, target: Path, profile: Profile, folder: Path) -> CogInfo | None:
    """Write a part of an image to its own file; None, and no file, if it has no valid pixels."""
    written = write_cog(source, target, profile, folder)
    if all(band.valid_percent == 0 for band in written.statistics):
        target.unlink()
        return None
    return describe_cog(target, written)
