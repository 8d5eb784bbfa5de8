"""GeoParquet 1.1: features along the Hilbert curve, with the boxes of the features in each row group."""

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq
import shapely
from pyproj import CRS

from dagmaster.geo.errors import UnreadableVector
from dagmaster.geo.vector.cleaner import BBOX, BBOX_TYPE, CORNERS, GEOMETRY, boxes_array
from dagmaster.geo.vector.columns import Column
from dagmaster.geo.vector.report import Box

VERSION: Final = "1.1.0"
MEDIA_TYPE: Final = "application/vnd.apache.parquet"
# Longitude before latitude, like the coordinates.
_CRS84: Final = "OGC:CRS84"
WORLD: Final[Box] = (-180.0, -90.0, 180.0, 90.0)


def attributes_of(schema: Any) -> list[Any]:
    """The layer's own columns."""
    return [field for field in schema if field.name not in (GEOMETRY, BBOX)]


def schema_of(fields: Iterable[Any], geometry_types: Sequence[str] = (), bbox: Box = WORLD) -> Any:
    """The schema of a file with these columns besides geometry and box."""
    described = {
        "version": VERSION,
        "primary_column": GEOMETRY,
        "columns": {
            GEOMETRY: {
                "encoding": "WKB",
                "geometry_types": sorted(geometry_types),
                "crs": CRS.from_user_input(_CRS84).to_json_dict(),
                "edges": "planar",
                "bbox": list(bbox),
                "covering": {BBOX: {corner: [BBOX, corner] for corner in CORNERS}},
            }
        },
    }
    columns = [*fields, pa.field(GEOMETRY, pa.binary()), pa.field(BBOX, BBOX_TYPE)]
    return pa.schema(columns, metadata={b"geo": json.dumps(described).encode()})


def read_description(path: Path) -> dict[str, Any]:
    """The box, row count, columns and geometry types that `write` has stored.

    Raises UnreadableVector for a file of another kind.
    """
    try:
        metadata = pq.read_metadata(path)
        schema = metadata.schema.to_arrow_schema()
        described = json.loads(schema.metadata[b"geo"])["columns"][GEOMETRY]
        return {
            "bbox": tuple(described["bbox"]),
            "rows": metadata.num_rows,
            "columns": [Column(name=field.name, type=str(field.type)) for field in attributes_of(schema)],
            "geometry_types": described["geometry_types"],
        }
    except (pa.ArrowInvalid, KeyError, TypeError, ValueError) as error:
        raise UnreadableVector(f"{path.name} is not a GeoParquet file with a box: {error}") from error


def table_of(attributes: Any, shapes: Any, schema: Any) -> Any:
    """A table of this schema, with the geometries and boxes of the shapes."""
    wkb = pa.array(shapely.to_wkb(shapes, flavor="iso"), pa.binary())
    return pa.Table.from_arrays([*attributes.columns, wkb, boxes_array(shapely.bounds(shapes))], schema=schema)


def write(path: Path, schema: Any, row_groups: Iterable[Any]) -> None:
    """Write each table as a row group."""
    with pq.ParquetWriter(path, schema, compression="zstd", write_statistics=True) as writer:
        for table in row_groups:
            writer.write_table(table, row_group_size=max(table.num_rows, 1))
