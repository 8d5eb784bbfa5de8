"""Cells of the H3 grid, as arrays of 64-bit numbers."""

from typing import Any, Final

import h3
import numpy as np
import pyarrow as pa
import shapely
from h3ronpy import ContainmentMode, change_resolution, grid_disk
from h3ronpy.vector import cells_to_wkb_polygons, geometry_to_cells
from shapely.affinity import scale, translate

from dagmaster.errors import Invalid

# The unit of work: a cell of this resolution with all its descendants.
CHUNK_RESOLUTION: Final = 3
# A chunk has 117,649 cells of this resolution.
MAX_RESOLUTION: Final = 9
MAX_CHUNKS: Final = 50_000
# The middle of an edge is at 0.87 of the distance of the corners.
_REACH: Final = 1.25


def check_resolution(resolution: int) -> int:
    if not CHUNK_RESOLUTION <= resolution <= MAX_RESOLUTION:
        raise Invalid(f"resolution: must be from {CHUNK_RESOLUTION} to {MAX_RESOLUTION}, not {resolution}")
    return resolution


def parse_cell(text: str) -> int:
    """Raises Invalid unless it is a cell of the chunks' resolution."""
    if not h3.is_valid_cell(text) or h3.get_resolution(text) != CHUNK_RESOLUTION:
        raise Invalid(f"cell: {text[:40]!r} is no H3 cell of resolution {CHUNK_RESOLUTION}")
    return int(text, 16)


def cells_over(shape: Any, resolution: int) -> Any:
    """All cells that the shape touches, sorted."""
    parts = shapely.get_parts(shape)
    cells = [_numbers(geometry_to_cells(part, resolution, ContainmentMode.Covers)) for part in parts]
    return np.unique(np.concatenate(cells)) if cells else np.array([], np.uint64)


def chunks_over(shape: Any) -> Any:
    """The cells of the chunks' resolution whose descendants may touch the shape, sorted.

    Descendants extend slightly over the edges of their cell, to 1.05 of the distance of its corners: a cell next to the
    shape may have descendants that touch it.
    """
    near = grid_disk(pa.array(cells_over(shape, CHUNK_RESOLUTION), pa.uint64()), 1, flatten=True)
    candidates = np.unique(_numbers(near))
    hexagons = polygons(candidates)
    is_split = shapely.get_num_geometries(hexagons) > 1
    swollen = np.array([scale(hexagon, _REACH, _REACH, origin="centroid") for hexagon in hexagons], dtype=object)
    return candidates[is_split | shapely.intersects(swollen, shape)]


def descendants(cell: int, resolution: int) -> Any:
    """Sorted: their ids start with that of the cell."""
    return np.sort(_numbers(change_resolution(pa.array([cell], pa.uint64()), resolution)))


def polygons(cells: Any) -> Any:
    """In longitude and latitude; cells across the antimeridian have two parts."""
    wkb = pa.array(cells_to_wkb_polygons(pa.array(cells, pa.uint64())))
    shapes = shapely.from_wkb(np.array(wkb.to_pylist(), dtype=object))
    boxes = shapely.bounds(shapes).reshape(-1, 4)
    for place in np.flatnonzero(boxes[:, 2] - boxes[:, 0] > 180):
        shapes[place] = _split(shapes[place])
    return shapes


def _split(shape: Any) -> Any:
    whole = shapely.transform(shape, lambda places: np.column_stack([places[:, 0] % 360, places[:, 1]]))
    west = shapely.intersection(whole, shapely.box(180, -90, 360, 90))
    return shapely.union(shapely.intersection(whole, shapely.box(0, -90, 180, 90)), translate(west, xoff=-360))


def _numbers(cells: Any) -> Any:
    return pa.array(cells).to_numpy(zero_copy_only=False).astype(np.uint64)
