"""Derived layers: simplified, or dissolved by columns. They read and write GeoParquet."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import shapely

from dagmaster.geo.errors import UnreadableVector, VectorRejected
from dagmaster.geo.vector import geoparquet
from dagmaster.geo.vector.cleaner import BBOX, GEOMETRY

# Per degree of latitude, and of longitude at the equator.
METRES_PER_DEGREE: Final = 111_320.0
COUNT: Final = "feature_count"
# At the poles a degree of longitude has no length.
_LEAST_COSINE: Final = 0.01


def simplify(source: Path, target: Path, tolerance_metres: float) -> None:
    """Remove points within the tolerance of the simpler shape. Shared borders may separate."""
    with _opened(source) as file:
        fields = geoparquet.attributes_of(file.schema_arrow)
        schema = geoparquet.schema_of(fields)

        def row_groups() -> Iterator[Any]:
            for number in range(file.num_row_groups):
                group = file.read_row_group(number)
                shapes = _simplified(shapely.from_wkb(group.column(GEOMETRY).to_numpy()), tolerance_metres)
                yield geoparquet.table_of(group.select([field.name for field in fields]), shapes, schema)

        geoparquet.write(target, schema, row_groups())


def _simplified(shapes: Any, tolerance_metres: float) -> Any:
    """In degrees of latitude: longitudes are shortened as on the globe."""
    boxes = shapely.bounds(shapes)
    cosines = np.maximum(np.cos(np.radians((boxes[:, 1] + boxes[:, 3]) / 2)), _LEAST_COSINE)
    counts = shapely.get_num_coordinates(shapes)
    factors = np.repeat(cosines, counts)
    narrow = shapely.set_coordinates(shapes.copy(), shapely.get_coordinates(shapes) * _columns(factors))
    simple = shapely.simplify(narrow, tolerance_metres / METRES_PER_DEGREE, preserve_topology=True)
    factors = np.repeat(1 / cosines, shapely.get_num_coordinates(simple))
    return shapely.set_coordinates(simple, shapely.get_coordinates(simple) * _columns(factors))


def _columns(factors: Any) -> Any:
    return np.column_stack([factors, np.ones_like(factors)])


def dissolve(source: Path, target: Path, by: Sequence[str]) -> None:
    """One feature per combination of these columns, with the number of merged features."""
    with _opened(source) as file:
        table = file.read()
    known = [field.name for field in geoparquet.attributes_of(table.schema)]
    if unknown := [name for name in by if name not in known]:
        raise VectorRejected(f"the layer has no column {', '.join(unknown)}; it has: {', '.join(known[:50])}")
    shapes = shapely.from_wkb(table.column(GEOMETRY).to_numpy())
    # By number, because the columns may have any name.
    keys = {str(number): table.column(name) for number, name in enumerate(by)} or {"0": np.zeros(len(shapes))}
    numbered = pa.table({**keys, "row": np.arange(len(shapes))})
    groups = numbered.group_by(list(keys), use_threads=False).aggregate([("row", "list"), ("row", "count")])
    merged = [shapely.union_all(shapes[np.asarray(rows)]) for rows in groups.column("row_list").to_pylist()]
    values = {name: groups.column(str(number)) for number, name in enumerate(by)}
    attributes = pa.table({**values, COUNT if COUNT not in by else f"{COUNT}_2": groups.column("row_count")})
    schema = geoparquet.schema_of(attributes.schema)
    geoparquet.write(target, schema, [geoparquet.table_of(attributes, np.array(merged, dtype=object), schema)])


@contextmanager
def _opened(source: Path) -> Iterator[Any]:
    try:
        with pq.ParquetFile(source) as file:
            if not {GEOMETRY, BBOX} <= set(file.schema_arrow.names):
                raise VectorRejected(f"{source.name} was not made by vector_prepare: prepare it first")
            yield file
    except pa.ArrowException as error:
        raise UnreadableVector(f"{source.name} is not a GeoParquet file: {error}") from error
