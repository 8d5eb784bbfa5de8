"""The catalogue as a STAC API: the items of approved versions that the caller may see."""

from typing import Annotated, Any, Final, Literal

import orjson
from fastapi import APIRouter, Depends, Query, Request
from fastapi.responses import JSONResponse

from dagmaster.assets.stac_documents import (
    GEOJSON,
    JSON,
    STAC_VERSION,
    Urls,
    collection_reply,
    item_reply,
    link,
    next_page,
    select_fields,
)
from dagmaster.errors import Invalid, NotFound
from dagmaster.http.errors import documented
from dagmaster.schemas.stac import (
    StacCollection,
    StacCollections,
    StacConformance,
    StacFields,
    StacItem,
    StacItems,
    StacLanding,
    StacLink,
    StacQueryables,
    StacSearch,
    StacSort,
)
from dagmaster.store.connect import Connection
from dagmaster.store.stac_items import SORT_KEYS, CollectionRow, ItemFilter, Scope, list_collections, search_items
from dagmaster.web.access import EVERYBODY
from dagmaster.web.assets import CatalogueScope
from dagmaster.web.services import Conn, ServicesDep
from dagmaster.web.stac_search import ItemPage, find_page, parse_search

router = APIRouter(prefix="/stac", tags=["stac"])

CONFORMS_TO: Final = [
    "https://api.stacspec.org/v1.0.0/core",
    "https://api.stacspec.org/v1.0.0/collections",
    "https://api.stacspec.org/v1.0.0/ogcapi-features",
    "https://api.stacspec.org/v1.0.0/item-search",
    "https://api.stacspec.org/v1.0.0/item-search#filter",
    "https://api.stacspec.org/v1.0.0/item-search#sort",
    "https://api.stacspec.org/v1.0.0/item-search#fields",
    "http://www.opengis.net/spec/ogcapi-features-3/1.0/conf/filter",
    "http://www.opengis.net/spec/ogcapi-features-3/1.0/conf/queryables",
    "http://www.opengis.net/spec/cql2/1.0/conf/cql2-text",
    "http://www.opengis.net/spec/cql2/1.0/conf/cql2-json",
    "http://www.opengis.net/spec/cql2/1.0/conf/basic-cql2",
    "http://www.opengis.net/spec/cql2/1.0/conf/advanced-comparison-operators",
    "http://www.opengis.net/spec/ogcapi-features-1/1.0/conf/core",
    "http://www.opengis.net/spec/ogcapi-features-1/1.0/conf/oas30",
    "http://www.opengis.net/spec/ogcapi-features-1/1.0/conf/geojson",
]
QUERYABLES: Final = "http://www.opengis.net/def/rel/ogc/1.0/queryables"
MAX_COLLECTIONS: Final = 1000
SHOWN: Any = {"dependencies": [EVERYBODY], "response_model_exclude_none": True}
FOUND: Any = {**SHOWN, "responses": documented(404)}
SEARCHED: Any = {**SHOWN, "response_model": StacItems, "responses": {200: {"content": {GEOJSON: {}}}}}

Bbox = Annotated[str | None, Query(max_length=200, description="west,south,east,north in degrees.")]
Datetime = Annotated[str | None, Query(max_length=100, description="An RFC 3339 timestamp, or FROM/TO; `..` is open.")]
PageSize = Annotated[int, Query(ge=1, le=1000, description="Maximum number of items.")]
Token = Annotated[str | None, Query(max_length=2000, description="From the link `next` of the previous page.")]
Names = Annotated[str | None, Query(max_length=4000, description="Separated by commas.")]
Intersects = Annotated[str | None, Query(max_length=100_000, description="A GeoJSON geometry; not with bbox.")]
Filter = Annotated[str | None, Query(max_length=4000, description="CQL2, such as `eo:cloud_cover < 10`.")]
FilterLang = Annotated[Literal["cql2-text", "cql2-json"], Query(alias="filter-lang")]
FilterCrs = Annotated[
    Literal["http://www.opengis.net/def/crs/OGC/1.3/CRS84"] | None,
    Query(alias="filter-crs", description="The only supported CRS."),
]
Sortby = Annotated[
    str | None, Query(max_length=700, description="Up to three fields, separated by commas; `-` sorts descending.")
]
Fields = Annotated[
    str | None, Query(max_length=4000, description="Fields of items, separated by commas; `-` excludes one.")
]


async def urls_of(request: Request, services: ServicesDep) -> Urls:
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
            link(QUERYABLES, f"{urls.root}/queryables", "application/schema+json"),
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
    """List the collections with items that the caller may see."""
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
    items = await find_page(conn, scope, parse_search(search))
    url = urls.items(collection_id)
    query = _query(bbox=bbox, datetime=datetime, limit=str(limit))
    return _page(items, urls, url, [next_page(url, query, items.token)] if items.token else [])


@router.get("/collections/{collection_id}/items/{item_id}", **FOUND)
async def get_stac_item(
    collection_id: str, item_id: str, urls: Addresses, scope: CatalogueScope, conn: Conn
) -> StacItem:
    """Get an item. The service of its asset returns the location of the data."""
    rows = await search_items(conn, scope, ItemFilter([collection_id], [item_id]), limit=1)
    if not rows:
        raise NotFound(f"there is no item {item_id!r} in collection {collection_id!r}")
    return item_reply(rows[0], urls)


@router.get("/queryables", **SHOWN)
async def get_stac_queryables(urls: Addresses) -> StacQueryables:
    """The properties that filters may name."""
    return _queryables(f"{urls.root}/queryables")


@router.get("/collections/{collection_id}/queryables", **FOUND)
async def get_stac_collection_queryables(
    collection_id: str, urls: Addresses, scope: CatalogueScope, conn: Conn
) -> StacQueryables:
    """The properties that filters on the items of a collection may name."""
    await _collection(conn, scope, collection_id)
    return _queryables(f"{urls.collection(collection_id)}/queryables")


@router.get("/search", **SEARCHED)
async def search_stac_items(
    urls: Addresses,
    scope: CatalogueScope,
    conn: Conn,
    collections: Names = None,
    ids: Names = None,
    bbox: Bbox = None,
    intersects: Intersects = None,
    datetime: Datetime = None,
    filter: Filter = None,
    filter_lang: FilterLang = "cql2-text",
    filter_crs: FilterCrs = None,
    sortby: Sortby = None,
    fields: Fields = None,
    limit: PageSize = 10,
    token: Token = None,
) -> Any:
    """Search the items of all collections, latest first unless `sortby` is set."""
    search = StacSearch(
        collections=_names(collections),
        ids=_names(ids),
        bbox=_numbers(bbox),
        intersects=_json("intersects", intersects),
        datetime=datetime,
        filter=_json("filter", filter) if filter_lang == "cql2-json" else filter,
        sortby=_sorts(sortby),
        fields=_fields(fields),
        limit=limit,
        token=token,
    )
    items = await find_page(conn, scope, parse_search(search))
    url = f"{urls.root}/search"
    query = _query(
        collections=collections,
        ids=ids,
        bbox=bbox,
        intersects=intersects,
        datetime=datetime,
        filter=filter,
        sortby=sortby,
        fields=fields,
        limit=str(limit),
    )
    if filter:
        query["filter-lang"] = filter_lang
    following = [next_page(url, query, items.token)] if items.token else []
    return _selected(_page(items, urls, url, following), search.fields)


@router.post("/search", **SEARCHED)
async def post_stac_search(body: StacSearch, urls: Addresses, scope: CatalogueScope, conn: Conn) -> Any:
    """Search the items of all collections, with a body instead of query parameters."""
    items = await find_page(conn, scope, parse_search(body))
    url = f"{urls.root}/search"
    following = []
    if items.token:
        following = [link("next", url, GEOJSON, method="POST", merge=True, body={"token": items.token})]
    return _selected(_page(items, urls, url, following), body.fields)


async def _collection(conn: Connection, scope: Scope, collection_id: str) -> CollectionRow:
    rows = await list_collections(conn, scope, collection_id=collection_id, limit=1)
    if not rows:
        raise NotFound(f"there is no collection {collection_id!r}")
    return rows[0]


def _page(items: ItemPage, urls: Urls, url: str, following: list[StacLink]) -> StacItems:
    return StacItems(
        features=[item_reply(row, urls) for row in items.rows],
        links=[link("self", url, GEOJSON), link("root", urls.root, JSON), *following],
        number_returned=len(items.rows),
    )


def _selected(page: StacItems, fields: StacFields | None) -> JSONResponse:
    """Items with selected fields are not valid items any more, so they are sent without validation."""
    document = page.model_dump(mode="json", by_alias=True, exclude_none=True)
    if fields is not None:
        document["features"] = [select_fields(feature, fields) for feature in document["features"]]
    return JSONResponse(document, media_type=GEOJSON)


def _queryables(url: str) -> StacQueryables:
    moment = {"type": "string", "format": "date-time"}
    return StacQueryables(
        schema_id="https://json-schema.org/draft/2020-12/schema",
        id=url,
        title="Properties of items",
        properties={"id": {"type": "string"}, "collection": {"type": "string"}, "datetime": moment},
    )


def _json(name: str, text: str | None) -> dict[str, Any] | None:
    if not text:
        return None
    try:
        document = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise Invalid(f"{name}: must be JSON: {error}") from error
    if not isinstance(document, dict):
        raise Invalid(f"{name}: must be a JSON object")
    return document


def _sorts(text: str | None) -> list[StacSort] | None:
    names = _names(text)
    if names is not None and len(names) > len(SORT_KEYS):
        raise Invalid(f"sortby: at most {len(SORT_KEYS)} fields")
    return [
        StacSort(field=name.lstrip("+- ") or name, direction="desc" if name.startswith("-") else "asc")
        for name in names or ()
    ] or None


def _fields(text: str | None) -> StacFields | None:
    names = _names(text)
    if names is None:
        return None
    included = [name.lstrip("+ ") for name in names if not name.startswith("-")]
    return StacFields(include=included or None, exclude=[name[1:] for name in names if name.startswith("-")] or None)


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
