"""The catalogue as a STAC API: the items of approved versions that the caller may see."""

from typing import Annotated, Any, Final

from fastapi import APIRouter, Depends, Query, Request

from dagmaster.errors import Invalid, NotFound
from dagmaster.schemas.stac import (
    StacCollection,
    StacCollections,
    StacConformance,
    StacItem,
    StacItems,
    StacLanding,
    StacLink,
    StacSearch,
)
from dagmaster.store.connect import Connection
from dagmaster.store.stac_items import CollectionRow, ItemFilter, ItemRow, Scope, list_collections, search_items
from dagmaster.web.access import EVERYBODY
from dagmaster.web.assets import CatalogueScope
from dagmaster.web.errors import documented
from dagmaster.web.services import Conn, Given
from dagmaster.web.stac import (
    GEOJSON,
    JSON,
    STAC_VERSION,
    Urls,
    collection_reply,
    decode_token,
    encode_token,
    item_reply,
    link,
    next_page,
    parse_search,
)

router = APIRouter(prefix="/stac", tags=["stac"])

CONFORMS_TO: Final = [
    "https://api.stacspec.org/v1.0.0/core",
    "https://api.stacspec.org/v1.0.0/collections",
    "https://api.stacspec.org/v1.0.0/ogcapi-features",
    "https://api.stacspec.org/v1.0.0/item-search",
    "http://www.opengis.net/spec/ogcapi-features-1/1.0/conf/core",
    "http://www.opengis.net/spec/ogcapi-features-1/1.0/conf/oas30",
    "http://www.opengis.net/spec/ogcapi-features-1/1.0/conf/geojson",
]
MAX_COLLECTIONS: Final = 1000
SHOWN: Any = {"dependencies": [EVERYBODY], "response_model_exclude_none": True}
FOUND: Any = {**SHOWN, "responses": documented(404)}

Bbox = Annotated[str | None, Query(max_length=200, description="west,south,east,north in degrees.")]
Datetime = Annotated[str | None, Query(max_length=100, description="A moment in RFC 3339, or FROM/TO; `..` is open.")]
PageSize = Annotated[int, Query(ge=1, le=1000, description="How many at most.")]
Token = Annotated[str | None, Query(max_length=2000, description="That of the link `next` of the page before.")]
Names = Annotated[str | None, Query(max_length=4000, description="Separated by commas.")]


async def urls_of(request: Request, services: Given) -> Urls:
    return Urls(services.settings.public_url or str(request.base_url).rstrip("/"))


Addresses = Annotated[Urls, Depends(urls_of)]


@router.get("", **SHOWN)
async def get_stac_landing(urls: Addresses, scope: CatalogueScope, conn: Conn) -> StacLanding:
    """The root of the catalogue, with links to everything else."""
    rows = await list_collections(conn, scope, limit=MAX_COLLECTIONS)
    return StacLanding(
        stac_version=STAC_VERSION,
        id="dagmaster",
        title="dagmaster",
        description="The catalogue of approved and cleared datasets.",
        conforms_to=CONFORMS_TO,
        links=[
            link("self", urls.root),
            link("root", urls.root),
            link("conformance", f"{urls.root}/conformance"),
            link("data", f"{urls.root}/collections"),
            link("search", f"{urls.root}/search", GEOJSON, method="GET"),
            link("search", f"{urls.root}/search", GEOJSON, method="POST"),
            link("service-desc", f"{urls.base}/openapi.json", "application/vnd.oai.openapi+json;version=3.1"),
            *(link("child", urls.collection(row["collection_id"])) for row in rows),
        ],
    )


@router.get("/conformance", **SHOWN)
async def get_stac_conformance() -> StacConformance:
    """The conformance classes of the API."""
    return StacConformance(conforms_to=CONFORMS_TO)


@router.get("/collections", **SHOWN)
async def list_stac_collections(urls: Addresses, scope: CatalogueScope, conn: Conn) -> StacCollections:
    """List the collections that hold an item that the caller may see."""
    rows = await list_collections(conn, scope, limit=MAX_COLLECTIONS)
    return StacCollections(
        collections=[collection_reply(row, urls) for row in rows],
        links=[link("self", f"{urls.root}/collections"), link("root", urls.root)],
        number_returned=len(rows),
    )


@router.get("/collections/{collection_id}", **FOUND)
async def get_stac_collection(collection_id: str, urls: Addresses, scope: CatalogueScope, conn: Conn) -> StacCollection:
    """Get a collection with the extent of its items."""
    return collection_reply(await _collection(conn, scope, collection_id), urls)


@router.get("/collections/{collection_id}/items", **FOUND)
async def list_stac_items(
    collection_id: str,
    urls: Addresses,
    scope: CatalogueScope,
    conn: Conn,
    bbox: Bbox = None,
    datetime: Datetime = None,
    limit: PageSize = 10,
    token: Token = None,
) -> StacItems:
    """List the items of a collection, latest first."""
    await _collection(conn, scope, collection_id)
    search = StacSearch(collections=[collection_id], bbox=_numbers(bbox), datetime=datetime, limit=limit, token=token)
    rows, has_more = await _search(conn, scope, search)
    url = urls.items(collection_id)
    query = _query(bbox=bbox, datetime=datetime, limit=str(limit))
    return _page(rows, urls, url, [next_page(url, rows, query)] if has_more else [])


@router.get("/collections/{collection_id}/items/{item_id}", **FOUND)
async def get_stac_item(
    collection_id: str, item_id: str, urls: Addresses, scope: CatalogueScope, conn: Conn
) -> StacItem:
    """Get an item. The data itself is where the service of its asset says."""
    rows = await search_items(conn, scope, ItemFilter([collection_id], [item_id]), limit=1)
    if not rows:
        raise NotFound(f"there is no item {item_id!r} in collection {collection_id!r}")
    return item_reply(rows[0], urls)


@router.get("/search", **SHOWN)
async def search_stac_items(
    urls: Addresses,
    scope: CatalogueScope,
    conn: Conn,
    collections: Names = None,
    ids: Names = None,
    bbox: Bbox = None,
    datetime: Datetime = None,
    limit: PageSize = 10,
    token: Token = None,
) -> StacItems:
    """Search the items of all collections, latest first."""
    search = StacSearch(
        collections=_names(collections),
        ids=_names(ids),
        bbox=_numbers(bbox),
        datetime=datetime,
        limit=limit,
        token=token,
    )
    rows, has_more = await _search(conn, scope, search)
    url = f"{urls.root}/search"
    query = _query(collections=collections, ids=ids, bbox=bbox, datetime=datetime, limit=str(limit))
    return _page(rows, urls, url, [next_page(url, rows, query)] if has_more else [])


@router.post("/search", **SHOWN)
async def post_stac_search(body: StacSearch, urls: Addresses, scope: CatalogueScope, conn: Conn) -> StacItems:
    """Search the items of all collections, latest first, by a body instead of a query."""
    rows, has_more = await _search(conn, scope, body)
    url = f"{urls.root}/search"
    following = []
    if has_more:
        token = {"token": encode_token(rows[-1])}
        following = [link("next", url, GEOJSON, method="POST", merge=True, body=token)]
    return _page(rows, urls, url, following)


async def _collection(conn: Connection, scope: Scope, collection_id: str) -> CollectionRow:
    rows = await list_collections(conn, scope, collection_id=collection_id, limit=1)
    if not rows:
        raise NotFound(f"there is no collection {collection_id!r}")
    return rows[0]


async def _search(conn: Connection, scope: Scope, search: StacSearch) -> tuple[list[ItemRow], bool]:
    """One more than `limit` is asked for, to see whether there is more."""
    after = decode_token(search.token) if search.token else None
    rows = await search_items(conn, scope, parse_search(search), after=after, limit=search.limit + 1)
    return rows[: search.limit], len(rows) > search.limit


def _page(rows: list[ItemRow], urls: Urls, url: str, following: list[StacLink]) -> StacItems:
    return StacItems(
        features=[item_reply(row, urls) for row in rows],
        links=[link("self", url, GEOJSON), link("root", urls.root, JSON), *following],
        number_returned=len(rows),
    )


def _names(text: str | None) -> list[str] | None:
    return [name for name in text.split(",") if name] if text else None


def _numbers(text: str | None) -> list[float] | None:
    if not text:
        return None
    try:
        numbers = [float(part) for part in text.split(",")]
    except ValueError as error:
        raise Invalid("bbox: must be four numbers with commas between: west,south,east,north") from error
    if len(numbers) not in (4, 6):
        raise Invalid("bbox: must be four numbers with commas between: west,south,east,north")
    return numbers


def _query(**values: str | None) -> dict[str, str]:
    return {name: value for name, value in values.items() if value}
