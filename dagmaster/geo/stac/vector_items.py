"""Build STAC items of vector layers. Apart from `items.py`, so that rasters do not load the libraries of layers."""

from collections.abc import Mapping
from typing import Any, Final

from dagmaster.geo.stac.items import FILE, PROJECTION, Moment, build_item, file_asset
from dagmaster.geo.vector import geoparquet, preview_tiles
from dagmaster.geo.vector.cleaner import GEOMETRY
from dagmaster.geo.vector.layer_files import LayerSummary
from dagmaster.geo.vector.report import Box

TABLE: Final = "https://stac-extensions.github.io/table/v1.2.0/schema.json"


def make_vector_item(
    item_id: str,
    collection_id: str,
    layer: LayerSummary,
    parquet_href: str,
    pmtiles_href: str,
    moment: Moment,
    *,
    platform: Mapping[str, str | int] | None = None,
    title: str | None = None,
) -> dict[str, Any]:
    """The item of a layer."""
    columns = [
        *({"name": column.name, "type": column.type} for column in layer.columns),
        {"name": GEOMETRY, "type": "binary", "description": ", ".join(layer.geometry_types)},
    ]
    table = {"table:row_count": layer.rows, "table:primary_geometry": GEOMETRY, "table:columns": columns}
    return build_item(
        item_id,
        collection_id,
        moment,
        platform,
        title,
        properties={"proj:code": "EPSG:4326", **table},
        stac_extensions=[TABLE, PROJECTION, FILE],
        geometry=_outline(layer.bbox),
        bbox=list(layer.bbox),
        assets={
            "data": file_asset(parquet_href, geoparquet.MEDIA_TYPE, "data", **dict(layer.parquet)),
            "preview": file_asset(pmtiles_href, preview_tiles.MEDIA_TYPE, "visual", **dict(layer.pmtiles)),
        },
    )


def _outline(bbox: Box) -> dict[str, Any]:
    west, south, east, north = bbox
    if (west, south) == (east, north):
        return {"type": "Point", "coordinates": [west, south]}
    ring = [[west, south], [east, south], [east, north], [west, north], [west, south]]
    return {"type": "Polygon", "coordinates": [ring]}
