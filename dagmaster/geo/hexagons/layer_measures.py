"""More measures of a vector layer by hexagon: lengths, presence, and area-weighted values of columns."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import shapely
from pyproj import Geod

from dagmaster.geo.errors import VectorRejected
from dagmaster.geo.hexagons.layer_statistics import AREA, COUNT, add_up, cut_by_cell, read_layer
from dagmaster.geo.hexagons.raster_statistics import INDEX

LENGTH: Final = "length_m"
PRESENT: Final = "present"
_GEOD: Final = Geod(ellps="WGS84")


def measure_lines(path: Path, resolution: int, category: str | None = None) -> Any:
    """Count the lines in each cell, and their length in metres on the WGS84 ellipsoid."""
    shapes, categories = read_layer(path, category, dimension=1)
    numbers, owners, pieces = cut_by_cell(shapes, resolution)
    lengths = np.array([_GEOD.geometry_length(piece) for piece in pieces])
    is_shared = lengths > 0
    columns = {COUNT: np.ones(int(is_shared.sum()), np.int64), LENGTH: lengths[is_shared]}
    return add_up(pa.array(numbers[is_shared]), owners[is_shared], categories, columns)


def find_presence(path: Path, resolution: int, category: str | None = None) -> Any:
    """The cells that a layer of any kind touches, by category if a column is named."""
    shapes, categories = read_layer(path, category)
    numbers, owners, _ = cut_by_cell(shapes, resolution)
    counted = add_up(pa.array(numbers), owners, categories, {COUNT: np.ones(len(owners), np.int64)})
    return counted.drop_columns([COUNT]).append_column(PRESENT, pa.array(np.ones(counted.num_rows, np.bool_)))


def average_by_area(path: Path, resolution: int, columns: Sequence[str]) -> Any:
    """The area-weighted mean of each column in each cell; nulls are ignored.

    `area_m2` is the area of all polygons in the cell.
    """
    shapes, _ = read_layer(path, None, dimension=2)
    values = _read_numbers(path, columns)
    numbers, owners, pieces = cut_by_cell(shapes, resolution)
    areas = np.array([abs(_GEOD.geometry_area_perimeter(piece)[0]) for piece in shapely.normalize(pieces)])
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
