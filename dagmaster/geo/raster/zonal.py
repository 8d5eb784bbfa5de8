"""Statistics of the pixels under polygons, weighted by the covered part of each pixel."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Literal

import exactextract
from exactextract.feature import JSONFeatureSource
from exactextract.raster import RasterioRasterSource
from rasterio.warp import transform_geom

from dagmaster.geo.errors import RasterRejected
from dagmaster.geo.footprint import WGS84
from dagmaster.geo.raster.reader import open_geotiff

Statistic = Literal[
    "count", "sum", "mean", "min", "max", "stdev", "variance", "median", "majority", "minority", "variety"
]

MAX_ZONES: Final = 10_000
CELLS_IN_MEMORY: Final = 10_000_000


def zonal_statistics(
    path: Path, zones: Sequence[Mapping[str, Any]], statistics: Sequence[Statistic], band: int = 1
) -> list[dict[str, Any]]:
    """One row per zone, a GeoJSON feature in longitude and latitude; None if it covers no valid pixel."""
    if not 0 < len(zones) <= MAX_ZONES:
        raise RasterRejected(f"there must be 1 to {MAX_ZONES} zones, not {len(zones)}")
    with open_geotiff(path) as dataset:
        if dataset.crs is None:
            raise RasterRejected(f"{path.name} has no CRS")
        if not 1 <= band <= dataset.count:
            raise RasterRejected(f"{path.name} has no band {band}; it has {dataset.count}")
        features = [_feature(zone, number, dataset.crs) for number, zone in enumerate(zones)]
        rows = exactextract.exact_extract(
            RasterioRasterSource(dataset, band),
            JSONFeatureSource(features),
            list(statistics),
            include_cols=["zone"],
            max_cells_in_memory=CELLS_IN_MEMORY,
        )
    return [_row(row["properties"], zones) for row in rows]


def _feature(zone: Mapping[str, Any], number: int, crs: Any) -> dict[str, Any]:
    geometry = zone.get("geometry")
    if not isinstance(geometry, Mapping) or geometry.get("type") not in ("Polygon", "MultiPolygon"):
        raise RasterRejected(f"zone {number}: must be a GeoJSON feature with a Polygon or MultiPolygon")
    try:
        moved = transform_geom(WGS84, crs, dict(geometry))
    except (ValueError, KeyError, TypeError) as error:
        raise RasterRejected(f"zone {number}: its geometry cannot be read: {error}") from error
    return {"type": "Feature", "properties": {"zone": number}, "geometry": moved}


def _row(row: Mapping[str, Any], zones: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    number = int(row["zone"])
    zone = zones[number]
    values = {name: None if value != value else value for name, value in row.items() if name != "zone"}
    return {"zone": number, "id": zone.get("id"), "properties": zone.get("properties") or {}, **values}
