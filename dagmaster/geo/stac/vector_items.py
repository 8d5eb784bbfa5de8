"""Build STAC items of vector layers, with the table, projection and file extensions."""

from collections.abc import Mapping
from typing import Any, Final

import pystac

from dagmaster.geo.stac.items import SHA256_MULTIHASH, Moment, check_id
from dagmaster.geo.vector import geoparquet, preview_tiles
from dagmaster.geo.vector.cleaner import GEOMETRY
from dagmaster.geo.vector.layer_files import LayerSummary, StoredFile
from dagmaster.geo.vector.report import Box

EXTENSIONS: Final = (
    "https://stac-extensions.github.io/table/v1.2.0/schema.json",
    "https://stac-extensions.github.io/projection/v2.0.0/schema.json",
    "https://stac-extensions.github.io/file/v2.1.0/schema.json",
)


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
    """`platform` becomes the properties `platform:NAME`."""
    properties: dict[str, Any] = {
        **({"title": title} if title else {}),
        "proj:code": "EPSG:4326",
        "table:row_count": layer.rows,
        "table:primary_geometry": GEOMETRY,
        "table:columns": [
            *({"name": column.name, "type": column.type} for column in layer.columns),
            {"name": GEOMETRY, "type": "binary", "description": ", ".join(layer.geometry_types)},
        ],
        "platform:datetime_source": str(moment.source),
        **{f"platform:{name}": value for name, value in (platform or {}).items()},
    }
    item = pystac.Item(
        id=check_id(item_id, "item_id"),
        geometry=_outline(layer.bbox),
        bbox=list(layer.bbox),
        datetime=moment.at,
        properties=properties,
        collection=check_id(collection_id, "collection_id"),
        stac_extensions=list(EXTENSIONS),
    )
    item.add_link(pystac.Link(pystac.RelType.COLLECTION, f"../../{collection_id}", pystac.MediaType.JSON))
    item.add_asset("data", _asset(parquet_href, geoparquet.MEDIA_TYPE, "data", layer.parquet))
    item.add_asset("preview", _asset(pmtiles_href, preview_tiles.MEDIA_TYPE, "visual", layer.pmtiles))
    return dict(item.to_dict(include_self_link=False))


def _asset(href: str, media_type: str, role: str, file: StoredFile) -> pystac.Asset:
    about = {"file:size": file.size_bytes, "file:checksum": f"{SHA256_MULTIHASH}{file.sha256}"}
    return pystac.Asset(href=href, media_type=media_type, roles=[role], extra_fields=about)


def _outline(bbox: Box) -> dict[str, Any]:
    west, south, east, north = bbox
    if (west, south) == (east, north):
        return {"type": "Point", "coordinates": [west, south]}
    ring = [[west, south], [east, south], [east, north], [west, north], [west, south]]
    return {"type": "Polygon", "coordinates": [ring]}
