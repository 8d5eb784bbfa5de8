"""Documents of the STAC API, and the links between them."""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC
from typing import Any, Final
from urllib.parse import quote, urlencode

from dagmaster.schemas.stac import StacCollection, StacFields, StacItem, StacLink
from dagmaster.store.stac_items import CollectionRow, ItemRow

STAC_VERSION: Final = "1.1.0"
JSON: Final = "application/json"
GEOJSON: Final = "application/geo+json"
# The fields of an item that are included even if the caller names fields.
BASIC_FIELDS: Final = (
    "type",
    "stac_version",
    "id",
    "collection",
    "geometry",
    "bbox",
    "links",
    "assets",
    "properties.datetime",
)


@dataclass(frozen=True, slots=True)
class Urls:
    """The URLs of the API, as the caller reaches it."""

    base: str

    @property
    def root(self) -> str:
        return f"{self.base}/stac"

    def collection(self, collection_id: str) -> str:
        return f"{self.root}/collections/{quote(collection_id, safe='')}"

    def items(self, collection_id: str) -> str:
        return f"{self.collection(collection_id)}/items"

    def item(self, collection_id: str, item_id: str) -> str:
        return f"{self.items(collection_id)}/{quote(item_id, safe='')}"

    def service(self, asset_id: str, ordinal: int) -> str:
        return f"{self.base}/assets/{quote(asset_id, safe='')}/service?version={ordinal}"


def link(rel: str, href: str, media_type: str = JSON, **more: Any) -> StacLink:
    return StacLink(rel=rel, href=href, type=media_type, **more)


def next_page(url: str, query: dict[str, str], token: str) -> StacLink:
    """For searches by GET: the same query with a token."""
    return link("next", f"{url}?{urlencode({**query, 'token': token})}", GEOJSON, method="GET")


def item_reply(row: ItemRow, urls: Urls) -> StacItem:
    """The document with the links of this API. The data is reached through the service of its asset."""
    collection_id, item_id = row["collection_id"], row["item_id"]
    service = urls.service(row["asset_id"], row["version_ordinal"])
    assets = row["content"].get("assets") or {}
    document = {
        "stac_version": STAC_VERSION,
        "properties": {},
        "geometry": None,
        **row["content"],
        "type": "Feature",
        "id": item_id,
        "collection": collection_id,
        "assets": {name: {**asset, "href": service, "type": JSON} for name, asset in assets.items()},
        "links": [
            link("self", urls.item(collection_id, item_id), GEOJSON),
            link("parent", urls.collection(collection_id)),
            link("collection", urls.collection(collection_id)),
            link("root", urls.root),
        ],
    }
    return StacItem.model_validate(document)


def collection_reply(row: CollectionRow, urls: Urls) -> StacCollection:
    collection_id = row["collection_id"]
    interval = [row["first_at"], row["last_at"]]
    document = {
        "description": collection_id,
        "license": "other",
        **row["content"],
        "stac_version": STAC_VERSION,
        "type": "Collection",
        "id": collection_id,
        "extent": {
            "spatial": {"bbox": [_extent(row)]},
            "temporal": {
                "interval": [[moment.astimezone(UTC).isoformat().replace("+00:00", "Z") for moment in interval]]
            },
        },
        "links": [
            link("self", urls.collection(collection_id)),
            link("parent", urls.root),
            link("root", urls.root),
            link("items", urls.items(collection_id), GEOJSON),
        ],
    }
    return StacCollection.model_validate(document)


def _extent(row: CollectionRow) -> list[float]:
    west, south, east, north = row["west"], row["south"], row["east"], row["north"]
    if west is None or south is None or east is None or north is None:
        return [-180.0, -90.0, 180.0, 90.0]
    if east - west >= 360:
        west, east = -180.0, 180.0
    return [west, south, east - 360 if east > 180 else east, north]


def select_fields(document: dict[str, Any], fields: StacFields) -> dict[str, Any]:
    """Included fields are added to the basic ones; without any, all fields except the excluded ones remain."""
    selected = document
    if fields.include is not None or not fields.exclude:
        selected = _picked(document, [*BASIC_FIELDS, *(fields.include or ())])
    for name in fields.exclude or ():
        selected = _without(selected, name)
    return selected


def _picked(document: dict[str, Any], names: Iterable[str]) -> dict[str, Any]:
    picked: dict[str, Any] = {}
    for name in names:
        outer, _, inner = name.partition(".")
        if not inner and outer in document:
            picked[outer] = document[outer]
        elif isinstance(document.get(outer), dict) and inner in document[outer]:
            picked[outer] = {**picked.get(outer, {}), inner: document[outer][inner]}
    return picked


def _without(document: dict[str, Any], name: str) -> dict[str, Any]:
    outer, _, inner = name.partition(".")
    if not inner:
        return {key: value for key, value in document.items() if key != outer}
    if not isinstance(document.get(outer), dict):
        return document
    return {**document, outer: {key: value for key, value in document[outer].items() if key != inner}}
