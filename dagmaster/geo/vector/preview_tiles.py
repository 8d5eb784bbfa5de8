"""PMTiles for the preview of a layer: as many zoom levels as a limit on features in tiles allows."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import BaseModel
from pyogrio.raw import write_arrow

from dagmaster.geo.vector.cleaner import BBOX, CORNERS, GEOMETRY
from dagmaster.geo.vector.geoparquet import attributes_of

MEDIA_TYPE: Final = "application/vnd.pmtiles"
LAYER: Final = "features"
MAX_FEATURES: Final = 50_000
MAX_ZOOM: Final = 14
# A small feature costs some 60 microseconds per tile that it touches, a large one several times as much.
MAX_PLACEMENTS: Final = 4_000
MAX_PLACEMENTS_PER_FEATURE: Final = 8
# The limit of Web Mercator.
_LIMIT_DEGREES: Final = 85.05
# For the tiles, not the layer: reviewers look at shapes and a few values.
MAX_COLUMNS: Final = 30


class Preview(BaseModel, frozen=True):
    """Shows all features, or every nth along the curve."""

    min_zoom: int
    max_zoom: int
    features: int
    layer: str = LAYER


def choose_max_zoom(boxes: Any) -> int:
    """The deepest zoom at which the features' boxes touch a bounded number of tiles, over all zooms."""
    budget = MAX_PLACEMENTS + MAX_PLACEMENTS_PER_FEATURE * len(boxes)
    west, south, east, north = (boxes[:, side] for side in range(4))
    left, right = (west + 180) / 360, (east + 180) / 360
    top, bottom = _mercator(north), _mercator(south)
    total = 0
    for zoom in range(MAX_ZOOM + 1):
        side = 2**zoom
        columns = np.floor(right * side) - np.floor(left * side) + 1
        rows = np.floor(bottom * side) - np.floor(top * side) + 1
        total += int((columns * rows).sum())
        if total > budget:
            return max(zoom - 1, 0)
    return MAX_ZOOM


def _mercator(latitudes: Any) -> Any:
    """From 0 at the top of the map to 1 at its bottom."""
    radians = np.radians(np.clip(latitudes, -_LIMIT_DEGREES, _LIMIT_DEGREES))
    return (1 - np.arcsinh(np.tan(radians)) / np.pi) / 2


def write_preview(parquet: Path, target: Path, geometry_types: Sequence[str]) -> Preview:
    """Never fails for a large layer: then the preview shows some of the features."""
    with pq.ParquetFile(parquet) as file:
        step = -(-file.metadata.num_rows // MAX_FEATURES)
        boxes = np.concatenate([_corners(group) for group in _every(file, step, [BBOX])])
        max_zoom = choose_max_zoom(boxes)
        columns = _shown_columns(file.schema_arrow)
        schema = pa.schema([file.schema_arrow.field(name) for name in columns])
        batches = (batch for group in _every(file, step, columns) for batch in group.cast(schema).to_batches())
        write_arrow(
            pa.RecordBatchReader.from_batches(schema, batches),
            target,
            layer=LAYER,
            driver="PMTiles",
            geometry_name=GEOMETRY,
            geometry_type=geometry_types[0] if len(geometry_types) == 1 else "Unknown",
            crs="EPSG:4326",
            dataset_options={"MINZOOM": "0", "MAXZOOM": str(max_zoom), "NAME": LAYER},
        )
    return Preview(min_zoom=0, max_zoom=max_zoom, features=len(boxes))


def _shown_columns(schema: Any) -> list[str]:
    shown = attributes_of(schema)[:MAX_COLUMNS]
    return [*(field.name for field in shown if not pa.types.is_binary(field.type)), GEOMETRY]


def _every(file: Any, step: int, columns: list[str]) -> Iterator[Any]:
    """Every nth row, one row group after the other."""
    first = 0
    for number in range(file.num_row_groups):
        group = file.read_row_group(number, columns=columns)
        yield group.take(pa.array(np.arange(-first % step, group.num_rows, step)))
        first += group.num_rows


def _corners(group: Any) -> Any:
    boxes = group.column(BBOX).combine_chunks()
    return np.column_stack([boxes.field(corner).to_numpy() for corner in CORNERS])
