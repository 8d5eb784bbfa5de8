"""Statistics of a raster's pixels by hexagon: each pixel is weighted by its covered part."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np
import pyarrow as pa
import shapely
from exactextract import exact_extract
from exactextract.feature import JSONFeatureSource
from exactextract.raster import RasterioRasterSource
from pydantic import BaseModel
from pyproj import Transformer
from shapely.geometry import mapping, shape

from dagmaster.errors import Invalid
from dagmaster.geo.errors import RasterRejected
from dagmaster.geo.footprint import Bbox, footprint_of
from dagmaster.geo.hexagons import cells as h3_cells
from dagmaster.geo.raster.reader import open_geotiff

Statistic = Literal["mean", "sum", "median", "stdev", "min", "max", "count"]
STATISTICS: Final[tuple[Statistic, ...]] = ("mean", "sum", "median", "stdev", "min", "max", "count")
INDEX: Final = "h3_index"
# Limits the number of polygons in memory.
BATCH_CELLS: Final = 5000
_ROW: Final = "row"


class ChunkCell(BaseModel, frozen=True):
    """A cell of resolution 3 with descendants that the raster may touch: one task of the fan-out."""

    cell: str
    bbox: Bbox


def discover(path: Path) -> list[ChunkCell]:
    """The chunks of a raster, sorted by cell."""
    with open_geotiff(path) as dataset:
        if dataset.crs is None:
            raise RasterRejected("the raster has no CRS; ingest it with raster_ingest first")
        footprint = footprint_of(dataset.crs, dataset.transform, dataset.width, dataset.height)
    cells = h3_cells.chunks_over(shape(footprint.geometry))
    if len(cells) > h3_cells.MAX_CHUNKS:
        raise Invalid(f"the raster touches {len(cells)} cells; the limit is {h3_cells.MAX_CHUNKS}")
    boxes = shapely.bounds(h3_cells.polygons(cells)).reshape(-1, 4)
    return [
        ChunkCell(cell=f"{cell:x}", bbox=(box[0], box[1], box[2], box[3]))
        for cell, box in zip(cells.tolist(), boxes.tolist(), strict=True)
    ]


def zonal_statistics(
    path: Path, cell: int, resolution: int, statistics: Sequence[Statistic] = STATISTICS, band: int = 1
) -> Any:
    """A table of the descendants of this cell with valid pixels, sorted by `h3_index`."""
    selected = list(dict.fromkeys([*statistics, "count"]))
    numbers = h3_cells.descendants(cell, h3_cells.check_resolution(resolution))
    parts: list[Any] = []
    with open_geotiff(path) as dataset:
        if not 1 <= band <= dataset.count:
            raise Invalid(f"band: the raster has bands 1 to {dataset.count}, not {band}")
        for first in range(0, len(numbers), BATCH_CELLS):
            parts += _measure(dataset, numbers[first : first + BATCH_CELLS], selected, band)
    parts.sort(key=lambda part: part[INDEX])
    schema = pa.schema([(INDEX, pa.uint64()), *((name, pa.float64()) for name in selected)])
    return pa.Table.from_pylist(parts, schema=schema)


def _measure(dataset: Any, numbers: Any, statistics: Sequence[str], band: int) -> list[dict[str, Any]]:
    shapes = h3_cells.polygons(numbers)
    if dataset.crs.to_epsg() != 4326:
        transformer = Transformer.from_crs("EPSG:4326", dataset.crs.to_wkt(), always_xy=True)
        shapes = shapely.transform(
            shapes, lambda places: np.column_stack(transformer.transform(places[:, 0], places[:, 1]))
        )
    near = shapely.intersects(shapes, shapely.box(*dataset.bounds))
    rows = np.flatnonzero(near)
    if not len(rows):
        return []
    # Row numbers instead of cells: the library's properties are limited to 32 bits.
    features = [
        {"type": "Feature", "properties": {_ROW: row}, "geometry": mapping(shapes[row])} for row in rows.tolist()
    ]
    source = JSONFeatureSource(features, srs_wkt=dataset.crs.to_wkt())
    results = exact_extract(RasterioRasterSource(dataset, band), source, list(statistics), include_cols=[_ROW])
    return [
        {INDEX: int(numbers[values[_ROW]]), **{name: values[name] for name in statistics}}
        for values in (result["properties"] for result in results)
        if values["count"]
    ]
