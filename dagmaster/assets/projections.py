"""Projections of a layer: the catalogue row and the STAC collection derived from its metadata, as values."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, Final

from dagmaster.errors import Conflict
from dagmaster.store.asset_versions import VersionRow
from dagmaster.store.layer_catalog import ShownLayer
from dagmaster.store.layers import LayerRow
from dagmaster.store.stac_collections import Collection

STAC_VERSION: Final = "1.0.0"
WORLD: Final = (-180.0, -90.0, 180.0, 90.0)
# The fields that a layer sets in its collection, besides the summaries with this prefix.
DESCRIBED: Final = ("title", "description", "keywords")
PREFIX: Final = "layer:"
SUMMARIZED: Final = ("asset_id", "data_type", "attribution", "style", "legend", "field_metadata", "thumbnail_url")
SHOWN: Final = tuple(ShownLayer.__annotations__)


class ProjectionName(StrEnum):
    STAC_COLLECTION = "stac_collection"
    LAYER_CATALOG = "layer_catalog"
    EXTERNAL_CATALOG = "external_catalog"


class ProjectionOutcome(StrEnum):
    WRITTEN = "written"
    UNCHANGED = "unchanged"
    REMOVED = "removed"
    NOT_APPLICABLE = "not_applicable"
    FAILED = "failed"


CHANGES: Final = frozenset({ProjectionOutcome.WRITTEN, ProjectionOutcome.REMOVED})


@dataclass(frozen=True, slots=True)
class Projection:
    """The outcome of one projection. `target` is the id of the collection or the name of the table."""

    name: ProjectionName
    outcome: ProjectionOutcome
    target: str | None = None
    error: str | None = None


def catalog_entry(layer: LayerRow, version: VersionRow) -> dict[str, Any] | None:
    """The catalogue row; None for a version without a table, such as a raster."""
    if version["table_name"] is None:
        return None
    columns: Mapping[str, Any] = layer
    return {
        "table_name": version["table_name"],
        "source_asset_id": layer["asset_id"],
        "version_ordinal": version["version_ordinal"],
        **{name: columns[name] for name in SHOWN},
        "bbox": version["bbox"],
    }


def collection_id(version: VersionRow) -> str:
    """The collection that processing created, or else one for the asset alone."""
    return version["stac_collection_id"] or version["asset_id"]


def described(collection: Collection | None, layer: LayerRow, version: VersionRow) -> Collection:
    """The collection with the title, description, keywords and style of the layer; the rest stays.

    Raises Conflict if the layer of another asset describes it.
    """
    replaced: Mapping[str, Any] | None = None
    if collection is None:
        collection = Collection(collection_id(version), _new_content(version))
    elif collection.layer_asset_id is None:
        replaced = {name: collection.content[name] for name in DESCRIBED if name in collection.content}
    elif collection.layer_asset_id == layer["asset_id"]:
        replaced = collection.replaced
    else:
        raise Conflict(
            f"collection {collection.collection_id!r} is described by the layer of asset "
            f"{collection.layer_asset_id!r}; unpublish that one first"
        )
    old = {name: value for name, value in collection.content.items() if name not in ("title", "keywords")}
    content = {
        **old,
        "title": layer["display_name"],
        "description": layer["description"] or old.get("description") or layer["display_name"],
        **({"keywords": layer["keywords"]} if layer["keywords"] else {}),
        "summaries": {**_other_summaries(collection.content), **_summaries(layer)},
    }
    return replace(collection, content=content, layer_asset_id=layer["asset_id"], replaced=replaced)


def undescribed(collection: Collection) -> Collection | None:
    """The collection as it was before; None if it existed only for the layer."""
    if collection.replaced is None:
        return None
    content = {name: value for name, value in collection.content.items() if name not in (*DESCRIBED, "summaries")}
    summaries = _other_summaries(collection.content)
    return Collection(
        collection.collection_id,
        {**content, **collection.replaced, **({"summaries": summaries} if summaries else {})},
    )


def _new_content(version: VersionRow) -> dict[str, Any]:
    return {
        "type": "Collection",
        "stac_version": STAC_VERSION,
        "id": collection_id(version),
        "license": "other",
        "extent": {
            "spatial": {"bbox": [version["bbox"] or list(WORLD)]},
            "temporal": {"interval": [[None, None]]},
        },
        "links": [],
    }


def _other_summaries(content: Mapping[str, Any]) -> dict[str, Any]:
    summaries = content.get("summaries")
    if not isinstance(summaries, Mapping):
        return {}
    return {name: value for name, value in summaries.items() if not name.startswith(PREFIX)}


def _summaries(layer: LayerRow) -> dict[str, Any]:
    """Sets and ranges, as in STAC."""
    columns: Mapping[str, Any] = layer
    return {
        **{f"{PREFIX}{name}": [columns[name]] for name in SUMMARIZED if columns[name] is not None},
        f"{PREFIX}zoom": {"minimum": layer["min_zoom"], "maximum": layer["max_zoom"]},
    }
