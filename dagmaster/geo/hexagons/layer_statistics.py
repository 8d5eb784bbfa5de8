"""Statistics of a prepared vector layer by hexagon: points and area."""

from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import shapely
from h3ronpy.vector import coordinates_to_cells
from pyproj import Geod

from dagmaster.geo.errors import VectorRejected
from dagmaster.geo.hexagons import cells as h3_cells
from dagmaster.geo.hexagons.raster_statistics import INDEX
from dagmaster.geo.vector.cleaner import BBOX, GEOMETRY

CATEGORY: Final = "category"
COUNT: Final = "count"
AREA: Final = "area_m2"
_GEOD: Final = Geod(ellps="WGS84")


def count_points(path: Path, resolution: int, category: str | None = None) -> Any:
    """Count the points in each cell, by category if a column is named; sorted by `h3_index`."""
    shapes, categories = read_layer(path, category, dimension=0)
    places, owners = shapely.get_coordinates(shapes, return_index=True)
    numbers = coordinates_to_cells(places[:, 1], places[:, 0], h3_cells.check_resolution(resolution))
    return add_up(pa.array(numbers), owners, categories, {COUNT: np.ones(len(owners), np.int64)})


def measure_polygons(path: Path, resolution: int, category: str | None = None) -> Any:
    """Count the polygons that touch each cell, and their area in square metres on the WGS84 ellipsoid."""
    shapes, categories = read_layer(path, category, dimension=2)
    numbers, owners, pieces = cut_by_cell(shapes, resolution)
    areas = np.array([abs(_GEOD.geometry_area_perimeter(piece)[0]) for piece in shapely.normalize(pieces)])
    is_shared = areas > 0
    columns = {COUNT: np.ones(int(is_shared.sum()), np.int64), AREA: areas[is_shared]}
    return add_up(pa.array(numbers[is_shared]), owners[is_shared], categories, columns)


def cut_by_cell(shapes: Any, resolution: int) -> tuple[Any, Any, Any]:
    """For each shape and each cell that it touches: the cell, the index of the shape, and its part in the cell."""
    covering = [h3_cells.cells_over(shape, h3_cells.check_resolution(resolution)) for shape in shapes]
    owners = np.repeat(np.arange(len(shapes)), [len(cells) for cells in covering])
    numbers = np.concatenate(covering)
    pieces = shapely.intersection(shapes[owners], h3_cells.polygons(numbers))
    is_touched = ~shapely.is_empty(pieces)
    return numbers[is_touched], owners[is_touched], pieces[is_touched]


def read_layer(path: Path, category: str | None, *, dimension: int | None = None) -> tuple[Any, Any]:
    """The shapes, and the category column as strings. Raises VectorRejected for shapes of another dimension."""
    try:
        schema = pq.read_schema(path)
    except pa.ArrowException as error:
        raise VectorRejected(f"{path.name} is not a GeoParquet file") from error
    known = [name for name in schema.names if name not in (GEOMETRY, BBOX)]
    if GEOMETRY not in schema.names:
        raise VectorRejected(f"{path.name} was not made by vector_prepare: prepare it first")
    if category is not None and category not in known:
        raise VectorRejected(f"the layer has no column {category!r}; it has: {', '.join(known[:50])}")
    table = pq.read_table(path, columns=[GEOMETRY, *([category] if category else [])])
    shapes = shapely.from_wkb(table.column(GEOMETRY).to_numpy())
    if dimension is not None and (shapely.get_dimensions(shapes) != dimension).any():
        raise VectorRejected(f"the layer must have {('points', 'lines', 'polygons')[dimension]} only")
    return shapes, table.column(category).cast(pa.string()).combine_chunks() if category else None


def add_up(numbers: Any, owners: Any, categories: Any, values: dict[str, Any]) -> Any:
    """Sum the values by cell, and by category if given. `owners` are the indices of the features."""
    keys = {INDEX: numbers, **({CATEGORY: categories.take(pa.array(owners))} if categories is not None else {})}
    table = pa.table({**keys, **values})
    summed = table.group_by(list(keys)).aggregate([(name, "sum") for name in values])
    summed = summed.rename_columns([name.removesuffix("_sum") for name in summed.column_names])
    return summed.select([*keys, *values]).sort_by([(name, "ascending") for name in keys])
