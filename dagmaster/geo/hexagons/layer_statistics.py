"""Statistics of a prepared vector layer by hexagon: points, lengths, areas, presence, and area-weighted values."""

from collections.abc import Callable, Sequence
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
from dagmaster.geo.vector import geoparquet
from dagmaster.geo.vector.cleaner import GEOMETRY

CATEGORY: Final = "category"
COUNT: Final = "count"
AREA: Final = "area_m2"
LENGTH: Final = "length_m"
PRESENT: Final = "present"
_GEOD: Final = Geod(ellps="WGS84")


def count_points(path: Path, resolution: int, category: str | None = None) -> Any:
    """Count the points in each cell, by category if a column is named; sorted by `h3_index`."""
    shapes, categories = _read_layer(path, category, dimension=0)
    places, owners = shapely.get_coordinates(shapes, return_index=True)
    numbers = coordinates_to_cells(places[:, 1], places[:, 0], h3_cells.check_resolution(resolution))
    return _add_up(pa.array(numbers), owners, categories, {COUNT: np.ones(len(owners), np.int64)})


def measure_polygons(path: Path, resolution: int, category: str | None = None) -> Any:
    """Count the polygons that touch each cell, and their area in square metres on the WGS84 ellipsoid."""
    return _measure(path, resolution, category, dimension=2, name=AREA, measure=_areas)


def measure_lines(path: Path, resolution: int, category: str | None = None) -> Any:
    """Count the lines in each cell, and their length in metres on the WGS84 ellipsoid."""
    return _measure(path, resolution, category, dimension=1, name=LENGTH, measure=_lengths)


def _measure(
    path: Path, resolution: int, category: str | None, *, dimension: int, name: str, measure: Callable[[Any], Any]
) -> Any:
    shapes, categories = _read_layer(path, category, dimension=dimension)
    numbers, owners, pieces = _cut_by_cell(shapes, resolution)
    sizes = measure(pieces)
    is_shared = sizes > 0
    columns = {COUNT: np.ones(int(is_shared.sum()), np.int64), name: sizes[is_shared]}
    return _add_up(pa.array(numbers[is_shared]), owners[is_shared], categories, columns)


def _areas(pieces: Any) -> Any:
    return np.array([abs(_GEOD.geometry_area_perimeter(piece)[0]) for piece in shapely.normalize(pieces)])


def _lengths(pieces: Any) -> Any:
    return np.array([_GEOD.geometry_length(piece) for piece in pieces])


def find_presence(path: Path, resolution: int, category: str | None = None) -> Any:
    """The cells that a layer of any kind touches, by category if a column is named."""
    shapes, categories = _read_layer(path, category)
    numbers, owners, _ = _cut_by_cell(shapes, resolution)
    present = _add_up(pa.array(numbers), owners, categories, {})
    return present.append_column(PRESENT, pa.array(np.ones(present.num_rows, np.bool_)))


def average_by_area(path: Path, resolution: int, columns: Sequence[str]) -> Any:
    """The area-weighted mean of each column in each cell; nulls are ignored.

    `area_m2` is the area of all polygons in the cell.
    """
    shapes, _ = _read_layer(path, None, dimension=2)
    values = _read_numbers(path, columns)
    numbers, owners, pieces = _cut_by_cell(shapes, resolution)
    areas = _areas(pieces)
    cells, places = np.unique(numbers[areas > 0], return_inverse=True)
    owners, areas = owners[areas > 0], areas[areas > 0]
    averaged = {name: _average(values[name][owners], areas, places, len(cells)) for name in columns}
    total = np.bincount(places, weights=areas, minlength=len(cells))
    return pa.table({INDEX: pa.array(cells), **averaged, AREA: total})


def _average(values: Any, areas: Any, places: Any, count: int) -> Any:
    """Null for cells where all values are null."""
    is_known = ~np.isnan(values)
    weights = np.bincount(places[is_known], weights=areas[is_known], minlength=count)
    sums = np.bincount(places[is_known], weights=(values * areas)[is_known], minlength=count)
    with np.errstate(invalid="ignore"):
        return pa.array(sums / weights, mask=weights == 0)


def _read_numbers(path: Path, columns: Sequence[str]) -> dict[str, Any]:
    schema = pq.read_schema(path)
    numeric = [field.name for field in schema if pa.types.is_integer(field.type) or pa.types.is_floating(field.type)]
    for name in columns:
        if name not in numeric:
            known = ", ".join(numeric[:50]) or "none"
            raise VectorRejected(f"the layer has no column {name!r} of numbers; those are: {known}")
    table = pq.read_table(path, columns=list(columns))
    return {name: table.column(name).cast(pa.float64(), safe=False).to_numpy() for name in columns}


def _cut_by_cell(shapes: Any, resolution: int) -> tuple[Any, Any, Any]:
    """For each shape and each cell that it touches: the cell, the index of the shape, and its part in the cell."""
    covering = [h3_cells.cells_over(shape, h3_cells.check_resolution(resolution)) for shape in shapes]
    owners = np.repeat(np.arange(len(shapes)), [len(cells) for cells in covering])
    numbers = np.concatenate(covering)
    pieces = shapely.intersection(shapes[owners], h3_cells.polygons(numbers))
    is_touched = ~shapely.is_empty(pieces)
    return numbers[is_touched], owners[is_touched], pieces[is_touched]


def _read_layer(path: Path, category: str | None, *, dimension: int | None = None) -> tuple[Any, Any]:
    """The shapes, and the category column as strings. Raises VectorRejected for shapes of another dimension."""
    try:
        schema = pq.read_schema(path)
    except pa.ArrowException as error:
        raise VectorRejected(f"{path.name} is not a GeoParquet file") from error
    known = [field.name for field in geoparquet.attributes_of(schema)]
    if GEOMETRY not in schema.names:
        raise VectorRejected(f"{path.name} was not made by vector_prepare: prepare it first")
    if category is not None and category not in known:
        raise VectorRejected(f"the layer has no column {category!r}; it has: {', '.join(known[:50])}")
    table = pq.read_table(path, columns=[GEOMETRY, *([category] if category else [])])
    shapes = shapely.from_wkb(table.column(GEOMETRY).to_numpy())
    if dimension is not None and (shapely.get_dimensions(shapes) != dimension).any():
        raise VectorRejected(f"the layer must have {('points', 'lines', 'polygons')[dimension]} only")
    return shapes, table.column(category).cast(pa.string()).combine_chunks() if category else None


def _add_up(numbers: Any, owners: Any, categories: Any, values: dict[str, Any]) -> Any:
    """Sum the values by cell, and by category if given. `owners` are the indices of the features."""
    keys = {INDEX: numbers, **({CATEGORY: categories.take(pa.array(owners))} if categories is not None else {})}
    table = pa.table({**keys, **values})
    summed = table.group_by(list(keys)).aggregate([(name, "sum") for name in values])
    summed = summed.rename_columns([name.removesuffix("_sum") for name in summed.column_names])
    return summed.select([*keys, *values]).sort_by([(name, "ascending") for name in keys])
