"""Parquet files of values by cell, sorted by `h3_index`."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from dagmaster.geo.hexagons import cells as h3_cells
from dagmaster.geo.hexagons.raster_statistics import INDEX
from dagmaster.geo.vector import geoparquet


def write(table: Any, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(table, path, compression="zstd")


def concatenate(sources: Sequence[Path], target: Path) -> int:
    """Concatenate the chunks' files in the order of their cells, and return the number of rows."""
    target.parent.mkdir(parents=True, exist_ok=True)
    rows = 0
    with pq.ParquetWriter(target, pq.read_schema(sources[0]), compression="zstd") as writer:
        for source in sources:
            table = pq.read_table(source)
            writer.write_table(table)
            rows += table.num_rows
    return rows


def write_polygons(source: Path, target: Path) -> None:
    """The same values as GeoParquet, with the hexagons as geometries and their ids as strings."""
    table = pq.read_table(source)
    numbers = table.column(INDEX).to_numpy()
    names = pa.array([f"{number:x}" for number in numbers.tolist()])
    columns = table.set_column(0, INDEX, names)
    schema = geoparquet.schema_of(columns.schema)
    target.parent.mkdir(parents=True, exist_ok=True)
    geoparquet.write(target, schema, [geoparquet.table_of(columns, h3_cells.polygons(numbers), schema)])
