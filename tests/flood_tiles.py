"""Small flood tiles as they are delivered, and what they become, by a path that uses no virtual dataset."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import rasterio
from affine import Affine
from rasters import write_tiff

RETURN_PERIODS: Final = (5, 10, 20, 50, 100, 200, 500, 1000)
NODATA: Final = -32768
FLUVIAL, COASTAL = "FLUVIAL-UNDEFENDED-DEPTH-2020-PERCENTILE50-v3.1", "COASTAL-DEFENDED-DEPTH-2030-SSP2_4.5-v3.1"


def folder_of(return_period: int, scenario: str = FLUVIAL) -> str:
    return f"FLOOD_MAP-1ARCSEC-NW_OFFSET-1in{return_period}-{scenario}"


def transform_of(tile: str, side: int) -> Affine:
    """A tile of one degree, named after its south-west corner."""
    latitude = int(tile[1:3]) * (1 if tile[0] == "n" else -1)
    longitude = int(tile[4:7]) * (1 if tile[3] == "e" else -1)
    return Affine(1 / side, 0, longitude, 0, -1 / side, latitude + 1)


def write_tiles(
    folder: Path,
    tiles: Iterable[str],
    *,
    side: int = 30,
    scenario: str = FLUVIAL,
    return_periods: Sequence[int] = RETURN_PERIODS,
    **profile: Any,
) -> None:
    """Depths that differ in each tile and return period, with holes."""
    for tile in tiles:
        for period in return_periods:
            write_tile(folder, tile, period, side=side, scenario=scenario, **profile)


def write_tile(
    folder: Path, tile: str, period: int, *, side: int = 30, scenario: str = FLUVIAL, **profile: Any
) -> Path:
    random = np.random.default_rng([period, *tile.encode()])
    values = random.integers(0, 3000, (side, side)).astype("int16")
    values[random.random((side, side)) < 0.1] = NODATA
    path = folder / folder_of(period, scenario) / f"{tile}.tif"
    path.parent.mkdir(parents=True, exist_ok=True)
    values = profile.pop("values", values)
    return write_tiff(path, values, **{"nodata": NODATA, "transform": transform_of(tile, side), **profile})


def merged(folder: Path, tiles: Sequence[str], *, side: int = 30, scenario: str = FLUVIAL) -> Any:
    """All bands of all tiles, each pixel put where the name of its file says."""
    corners = [transform_of(tile, side) for tile in tiles]
    west, north = min(corner.c for corner in corners), max(corner.f for corner in corners)
    columns = [round(corner.c - west) * side for corner in corners]
    rows = [round(north - corner.f) * side for corner in corners]
    image = np.full((len(RETURN_PERIODS), max(rows) + side, max(columns) + side), NODATA, "int16")
    for tile, row, column in zip(tiles, rows, columns, strict=True):
        for band, period in enumerate(RETURN_PERIODS):
            with rasterio.open(folder / folder_of(period, scenario) / f"{tile}.tif") as dataset:
                image[band, row : row + side, column : column + side] = dataset.read(1)
    return image
