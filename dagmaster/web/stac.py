"""Searches and documents of the STAC API: what is asked for, and the links of what is found."""

import math
from base64 import urlsafe_b64decode, urlsafe_b64encode
from binascii import Error as NotBase64
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final
from urllib.parse import quote, urlencode

import orjson

from dagmaster.errors import Invalid
from dagmaster.schemas.stac import StacCollection, StacItem, StacLink, StacSearch
from dagmaster.store.stac_items import CollectionRow, ItemFilter, ItemRow, Place

STAC_VERSION: Final = "1.1.0"
JSON: Final = "application/json"
GEOJSON: Final = "application/geo+json"
OPEN: Final = ("", "..")


@dataclass(frozen=True, slots=True)
class Urls:
    """The addresses of the API, as the caller reaches it."""

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


def parse_search(search: StacSearch) -> ItemFilter:
    """Raises Invalid."""
    first_at, last_at = parse_interval(search.datetime) if search.datetime else (None, None)
    return ItemFilter(
        collections=search.collections,
        ids=search.ids,
        bbox=parse_bbox(search.bbox) if search.bbox is not None else None,
        first_at=first_at,
        last_at=last_at,
    )


def parse_bbox(numbers: Sequence[float]) -> tuple[float, float, float, float]:
    """Of six numbers, heights are left out."""
    if len(numbers) not in (4, 6) or not all(map(math.isfinite, numbers)):
        raise Invalid("bbox: must be west, south, east, north in degrees")
    west, south, east, north = numbers if len(numbers) == 4 else (numbers[0], numbers[1], numbers[3], numbers[4])
    if not (-180 <= west <= 180 and -180 <= east <= 180 and -90 <= south <= north <= 90):
        raise Invalid(
            "bbox: must be west, south, east, north in degrees, with south not above north; west is greater than east "
            "across the antimeridian"
        )
    return west, south, east, north


def parse_interval(text: str) -> tuple[datetime | None, datetime | None]:
    """A moment, or two with a slash between; `..` is open."""
    first, slash, last = text.partition("/")
    if not slash:
        moment = _moment(first)
        return moment, moment
    start = None if first in OPEN else _moment(first)
    end = None if last in OPEN else _moment(last)
    if (start is None and end is None) or (start and end and start > end):
        raise Invalid("datetime: an interval has a beginning or an end, and does not end before it begins")
    return start, end


def _moment(text: str) -> datetime:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError as error:
        raise Invalid("datetime: must be in RFC 3339, such as 2026-05-01T00:00:00Z, or an interval FROM/TO") from error
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


def encode_token(row: ItemRow) -> str:
    place = [row["at"].isoformat(), row["collection_id"], row["item_id"]]
    return urlsafe_b64encode(orjson.dumps(place)).decode().rstrip("=")


def decode_token(token: str) -> Place:
    try:
        at, collection_id, item_id = orjson.loads(urlsafe_b64decode(token + "=" * (-len(token) % 4)))
        return Place(datetime.fromisoformat(at), str(collection_id), str(item_id))
    except (ValueError, TypeError, NotBase64) as error:
        raise Invalid("token: must be that of the link `next` of another page") from error


def link(rel: str, href: str, media_type: str = JSON, **more: Any) -> StacLink:
    return StacLink(rel=rel, href=href, type=media_type, **more)


def next_page(url: str, rows: Sequence[ItemRow], query: dict[str, str]) -> StacLink:
    """For searches by GET: the same query with a token."""
    return link("next", f"{url}?{urlencode({**query, 'token': encode_token(rows[-1])})}", GEOJSON, method="GET")


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
