"""The catalogue shows items of approved and cleared versions to permitted callers, by place and time."""

import json
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import product
from typing import Any
from urllib.parse import urlencode

import psycopg
import pytest
from fleet import graph, task
from psycopg.types.json import Jsonb
from pystac.validation import validate_dict
from web import Web, web

from dagmaster.assets.exposure import Audience, catalogue_scope, check_asset, check_version, select_ordinal
from dagmaster.errors import Invalid, NotFound
from dagmaster.model.access import Role
from dagmaster.model.asset import ApprovalState, ClearanceState, ExposureMode
from dagmaster.store.asset_versions import get_version_row
from dagmaster.store.assets import get_asset
from dagmaster.store.connect import Connection
from dagmaster.store.stac_collections import Collection, add_collection, lock_collection, remove_collection
from dagmaster.store.stac_items import ItemFilter, search_items
from dagmaster.web import stac_search
from dagmaster.web.cql2_text import parse_text
from dagmaster.web.intersection import Shape, intersects
from dagmaster.web.stac_search import decode_token, parse_bbox, parse_interval

COLLECTION = {"type": "Collection", "stac_version": "1.1.0", "id": "c", "description": "d", "license": "other"}


def item(item_id: str, bbox: Any = (10, 50, 11, 51), at: str = "2026-05-01T00:00:00Z", **more: Any) -> dict[str, Any]:
    return {
        "type": "Feature",
        "stac_version": "1.1.0",
        "id": item_id,
        "collection": "c",
        "geometry": None,
        "bbox": list(bbox),
        "properties": {"datetime": at},
        "assets": {"data": {"href": "silver/secret-place.tif", "roles": ["data"]}},
        "links": [],
        **more,
    }


async def deliver(ctx: Any) -> dict[str, Any]:
    """Output whatever the job's input says."""
    return dict(ctx.params["output"])


@asynccontextmanager
async def site(dsn: str) -> AsyncIterator[Web]:
    nodes = {"work": task("deliver", "END", params={"output": "{{ inputs.output }}"})}
    async with web(
        dsn,
        graph(nodes, "ingest", start="work", inputs={"output": "object"}),
        runs=True,
        functions={"deliver": deliver},
    ) as api:
        yield api


async def deliver_version(
    api: Web, dataset: str = "7", *, approve: str | None = "public", **output: Any
) -> dict[str, Any]:
    """A version whose job has this output."""
    body = {
        "workflow_id": "ingest",
        "platform_id": "ddh",
        "platform_refs": {"dataset_id": dataset, "resource_id": "r"},
        "data_type": "raster",
        "input_params": {"output": {"stac_collection": COLLECTION, **output}},
    }
    submitted: dict[str, Any] = await api.post("/api/v1/submit", body, 201)
    [job] = await api.fleet.ended(int(submitted["job_id"]))
    assert job["status"] == "completed", job["error_message"]
    if approve is not None:
        await api.post(f"/api/v1/assets/{submitted['asset_id']}/approve", {"clearance_level": approve})
    return submitted


async def search_ids(api: Web, query: str = "", **options: Any) -> list[str]:
    page = await api.get(f"/stac/search?limit=1000&{query}", **options)
    return sorted(feature["id"] for feature in page["features"])


async def test_items_are_found_by_bounding_box_also_across_the_antimeridian(dsn: str) -> None:
    items = [
        item("europe"),
        item("fiji", (177, -20, -178, -15)),
        item("east", (170, -20, 175, -15)),
        item("west", (-175, -20, -170, -15)),
        item("world", (-180, -90, 180, 90)),
        item("nowhere", bbox=()),
    ]
    async with site(dsn) as api:
        await deliver_version(api, stac_items=items)
        for bbox, expected in {
            "9,49,12,52": ["europe", "world"],
            "11.5,51.5,12,52": ["world"],
            "178,-18,179,-17": ["fiji", "world"],
            "-179.5,-18,-179,-17": ["fiji", "world"],
            "172,-18,-172,-17": ["east", "fiji", "west", "world"],
            "179,-18,-179.9,-17": ["fiji", "world"],
            "9,49,0,12,52,100": ["europe", "world"],
        }.items():
            assert await search_ids(api, f"bbox={bbox}") == expected, bbox
        assert len(await search_ids(api)) == 6
        collection = await api.get("/stac/collections/c")
        assert collection["extent"]["spatial"]["bbox"] == [[-180.0, -90.0, 180.0, 90.0]]
        for bbox in ("1,2,3", "a,b,c,d", "0,10,1,5", "0,0,400,1", "nan,0,1,1"):
            await api.get(f"/stac/search?bbox={bbox}", 422)


async def test_items_are_found_by_time_id_and_collection(dsn: str) -> None:
    items = [
        item("may"),
        item("june", at="2026-06-01T00:00:00Z"),
        item(
            "summer",
            properties={
                "datetime": None,
                "start_datetime": "2026-05-15T00:00:00Z",
                "end_datetime": "2026-08-31T00:00:00Z",
            },
        ),
    ]
    async with site(dsn) as api:
        await deliver_version(api, stac_items=items)
        for query, expected in {
            "datetime=2026-05-01T00:00:00Z": ["may"],
            "datetime=2026-05-10T00:00:00Z/2026-06-30T00:00:00Z": ["june", "summer"],
            "datetime=../2026-05-14T00:00:00Z": ["may"],
            "datetime=2026-07-01T00:00:00Z/..": ["summer"],
            "ids=may,june,unknown": ["june", "may"],
            "collections=c&ids=may": ["may"],
            "collections=other": [],
        }.items():
            assert await search_ids(api, query) == expected, query
        for text in ("yesterday", "../..", "2026-06-01T00:00:00Z/2026-05-01T00:00:00Z"):
            await api.get(f"/stac/search?datetime={text}", 422)
        collection = await api.get("/stac/collections/c")
        assert collection["extent"]["temporal"]["interval"] == [["2026-05-01T00:00:00Z", "2026-08-31T00:00:00Z"]]
        validate_dict(collection)


async def test_pages_have_no_gaps(dsn: str) -> None:
    items = [item(f"i{number:02}", at=f"2026-05-{number // 3 + 1:02}T00:00:00Z") for number in range(25)]
    async with site(dsn) as api:
        await deliver_version(api, stac_items=items)
        for method in ("GET", "POST"):
            seen: list[str] = []
            page = (
                await api.get("/stac/search?limit=7")
                if method == "GET"
                else await api.post("/stac/search", {"limit": 7})
            )
            while True:
                seen += [feature["id"] for feature in page["features"]]
                [following] = [link for link in page["links"] if link["rel"] == "next"] or [None]
                if following is None:
                    break
                if method == "GET":
                    page = await api.get(following["href"])
                else:
                    page = await api.post(following["href"], {"limit": 7, **following["body"]})
            assert seen == [item["id"] for item in sorted(items, key=_by_time, reverse=True)], method
        assert len((await api.get("/stac/collections/c/items?limit=20"))["features"]) == 20
        await api.get("/stac/search?token=nonsense", 422)


def _by_time(item: dict[str, Any]) -> tuple[str, str]:
    return item["properties"]["datetime"], item["id"]


CLOUDS: list[dict[str, Any]] = [
    item("clear", properties={"datetime": "2026-05-01T00:00:00Z", "cloud": 5, "sensor": "alpha-1", "is_raw": True}),
    item("hazy", properties={"datetime": "2026-05-02T00:00:00Z", "cloud": 40, "sensor": "alpha-2"}),
    item("dull", properties={"datetime": "2026-05-03T00:00:00Z", "cloud": 90, "sensor": "Beta%"}),
    item("blank", properties={"datetime": "2026-05-04T00:00:00Z", "cloud": None}),
]
FILTERS = {
    "cloud < 50": ["clear", "hazy"],
    "50 > cloud": ["clear", "hazy"],
    "cloud <> 40": ["clear", "dull"],
    "NOT (cloud < 50)": ["dull"],
    "NOT (cloud = 40 OR sensor LIKE 'alpha%')": ["dull"],
    "NOT (cloud > 100 AND sensor = 'x')": ["clear", "dull", "hazy"],
    "cloud BETWEEN 5 AND 40": ["clear", "hazy"],
    "cloud NOT BETWEEN 5 AND 40": ["dull"],
    "cloud IN (5, 90)": ["clear", "dull"],
    "cloud NOT IN (5, 90)": ["hazy"],
    "cloud IS NULL": ["blank"],
    "sensor IS NULL": ["blank"],
    "cloud IS NOT NULL": ["clear", "dull", "hazy"],
    "unknown > 1 OR cloud = 5": ["clear"],
    "NOT (unknown > 1)": [],
    "sensor LIKE 'alpha-_'": ["clear", "hazy"],
    "sensor NOT LIKE '%2'": ["clear", "dull"],
    "sensor LIKE 'alpha.*'": [],
    "is_raw = TRUE": ["clear"],
    "id = 'dull' AND collection = 'c'": ["dull"],
    "cloud = '5'": [],
    "datetime >= TIMESTAMP('2026-05-02T02:00:00+02:00')": ["blank", "dull", "hazy"],
    'properties.cloud = 5 OR "cloud" = 90': ["clear", "dull"],
}


async def test_items_are_found_by_their_properties(dsn: str) -> None:
    async with site(dsn) as api:
        await deliver_version(api, stac_items=CLOUDS)
        for text, expected in FILTERS.items():
            assert await search_ids(api, urlencode({"filter": text})) == expected, text
            body = {"filter": parse_text(text), "filter-lang": "cql2-json"}
            page = await api.post("/stac/search", body)
            assert sorted(feature["id"] for feature in page["features"]) == expected, text
        answer = await api.get("/stac/search?filter=cloud%20~%205", 422)
        assert "filter: '~ 5' at character 7 cannot be read" in answer["detail"]
        queryables = await api.get("/stac/collections/c/queryables")
        assert "datetime" in queryables["properties"]


async def test_items_are_sorted_and_paged_in_order(dsn: str) -> None:
    async with site(dsn) as api:
        await deliver_version(api, stac_items=CLOUDS)
        for sortby, expected in {
            "cloud": ["clear", "hazy", "dull", "blank"],
            "-cloud": ["dull", "hazy", "clear", "blank"],
            "-is_raw,-properties.cloud": ["clear", "dull", "hazy", "blank"],
            "collection,-id": ["hazy", "dull", "clear", "blank"],
        }.items():
            seen: list[str] = []
            path = f"/stac/search?limit=3&sortby={sortby}"
            while path:
                page = await api.get(path)
                seen += [feature["id"] for feature in page["features"]]
                path = next((link["href"] for link in page["links"] if link["rel"] == "next"), "")
            assert seen == expected, sortby
        await api.get("/stac/search?sortby=a,b,c,d", 422)
        first = await api.get("/stac/search?limit=1")
        [following] = [link["href"] for link in first["links"] if link["rel"] == "next"]
        await api.get(f"{following}&sortby=cloud", 422)


async def test_items_are_found_by_intersecting_geometry(dsn: str) -> None:
    triangle = {"type": "Polygon", "coordinates": [[[0, 0], [10, 0], [0, 10], [0, 0]]]}
    fiji = {
        "type": "MultiPolygon",
        "coordinates": [
            [[[177, -20], [180, -20], [180, -15], [177, -15], [177, -20]]],
            [[[-180, -20], [-178, -20], [-178, -15], [-180, -15], [-180, -20]]],
        ],
    }
    many = [item(f"t{number}", (0, 0, 10, 10), geometry=triangle) for number in range(5)]
    items = [*many, item("fiji", (177, -20, -178, -15), geometry=fiji), item("boxed", (0, 0, 10, 10))]
    names = [item["id"] for item in many]
    async with site(dsn) as api:
        await deliver_version(api, stac_items=items)
        for geometry, expected in (
            ({"type": "Point", "coordinates": [1, 1]}, names),
            ({"type": "Point", "coordinates": [9, 9]}, []),
            ({"type": "LineString", "coordinates": [[5, 9], [9, 5]]}, []),
            ({"type": "LineString", "coordinates": [[4, 9], [4, -5]]}, names),
            ({"type": "Point", "coordinates": [-179, -18]}, ["fiji"]),
            ({"type": "Polygon", "coordinates": [[[179, -18], [183, -18], [183, -17], [179, -18]]]}, ["fiji"]),
        ):
            body = {"intersects": geometry, "limit": 100}
            page = await api.post("/stac/search", body)
            assert sorted(feature["id"] for feature in page["features"]) == expected, geometry
            assert await search_ids(api, urlencode({"intersects": json.dumps(geometry)})) == expected
        body = {"intersects": {"type": "Point", "coordinates": [1, 1]}, "limit": 2}
        first = await api.post("/stac/search", body)
        [following] = [link for link in first["links"] if link["rel"] == "next"]
        second = await api.post("/stac/search", {**body, **following["body"]})
        assert len({feature["id"] for page in (first, second) for feature in page["features"]}) == 4
        answer = await api.post("/stac/search", {"intersects": {}}, 422)
        assert "intersects: must be a GeoJSON geometry" in answer["detail"]
        await api.post("/stac/search", {**body, "bbox": [0, 0, 1, 1]}, 422)


async def test_geometries_are_compared_outside_the_event_loop(dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    threads = []

    def recorded(first: Shape, second: Shape) -> bool:
        threads.append(threading.current_thread())
        return intersects(first, second)

    monkeypatch.setattr(stac_search, "intersects", recorded)
    async with site(dsn) as api:
        square = {"type": "Polygon", "coordinates": [[[0, 0], [10, 0], [10, 10], [0, 10], [0, 0]]]}
        await deliver_version(api, stac_items=[item("a", (0, 0, 10, 10), geometry=square)])
        await api.post("/stac/search", {"intersects": {"type": "Point", "coordinates": [1, 1]}})
    assert threads
    assert threading.main_thread() not in threads


async def test_callers_can_select_fields(dsn: str) -> None:
    async with site(dsn) as api:
        await deliver_version(api, stac_item=CLOUDS[0])
        basic = {"type", "stac_version", "id", "collection", "bbox", "links", "assets", "properties"}
        for fields, names, properties in (
            ("properties.cloud", basic, {"datetime", "cloud"}),
            ("-links,-assets", basic - {"links", "assets"}, {"datetime", "cloud", "sensor", "is_raw"}),
            ("id,-properties,-bbox", basic - {"properties", "bbox"}, set()),
            ("-properties.cloud", basic, {"datetime", "sensor", "is_raw"}),
        ):
            page = (await api.client.get(f"/stac/search?fields={fields}")).json()
            [feature] = page["features"]
            assert (set(feature), set(feature.get("properties", {}))) == (names, properties), fields


async def test_each_caller_sees_only_permitted_items(dsn: str) -> None:
    async with site(dsn) as api:
        await deliver_version(api, "public", stac_item=item("public"))
        await deliver_version(api, "ouo", approve="ouo", stac_item=item("ouo"))
        await deliver_version(api, "pending", approve=None, stac_item=item("pending"))
        keys = {
            "viewer": await api.key("viewer", Role.VIEWER),
            "admin": await api.key("admin", Role.ADMIN),
            "own reviewer": await api.key("reviewer", Role.REVIEWER, platform_id="ddh"),
            "other reviewer": await api.key("other", Role.REVIEWER, platform_id="arcgis"),
            "partner": await api.key("partner", Role.PARTNER, platform_id="ddh"),
        }
        seen = {name: await search_ids(api, headers=headers) for name, headers in keys.items()}
        seen["nobody"] = await search_ids(api)
        assert seen == {
            "viewer": ["ouo", "public"],
            "admin": ["ouo", "public"],
            "own reviewer": ["ouo", "public"],
            "other reviewer": ["public"],
            "partner": ["public"],
            "nobody": ["public"],
        }
        page = await api.client.get("/stac/search")
        assert "secret-place" not in page.text
        await api.get("/stac/search", 401, headers={"Authorization": "Bearer dm_wrong"})


async def test_an_item_follows_its_version(dsn: str) -> None:
    async with site(dsn) as api:
        first = await deliver_version(api, stac_item=item("v0"))
        path = f"/api/v1/assets/{first['asset_id']}"
        again = await api.post(
            f"{path}/versions/0/reprocess", {"input_params": {"output": {"stac_item": item("v0b")}}}, 201
        )
        await api.fleet.completed(int(again["job_id"]))
        assert await search_ids(api) == ["v0b"], "the entry of the first revision is replaced"
        await deliver_version(api, stac_item=item("v1"))
        await api.key("admin")
        assert await search_ids(api) == ["v1"], "the public sees the latest only"
        admin = await api.key("second")
        await api.ask("PATCH", path, 200, json={"exposure_mode": "all_versions"}, headers=admin)
        assert await search_ids(api) == ["v0b", "v1"]
        await api.ask("DELETE", f"{path}/versions/1", 200, headers=admin)
        assert await search_ids(api) == ["v0b"]
        await api.ask("DELETE", path, 200, headers=admin)
        assert await search_ids(api) == []
        await api.get("/stac/collections/c", 404)


async def test_an_id_belongs_to_the_first_version_that_used_it(dsn: str) -> None:
    async with site(dsn) as api:
        await deliver_version(api, "mine", stac_item=item("x", title="mine"))
        await deliver_version(api, "yours", stac_item=item("x", title="yours"))
        [feature] = (await api.get("/stac/search"))["features"]
        assert feature["title"] == "mine"


NOT_STAC: list[dict[str, Any]] = [
    {"stac_item": "text"},
    {"stac_item": ["list"]},
    {"stac_item": {"id": 7, "collection": "c"}},
    {"stac_item": {"id": "x", "collection": "unknown", "properties": {"datetime": "2026-05-01T00:00:00Z"}}},
    {"stac_item": item("x", at="not a time")},
    {"stac_item": item("x", at="99999999-01-01T00:00:00Z")},
    {"stac_item": item("x", properties="text")},
    {"stac_item": item("x" * 300)},
    {"stac_item": item("x", properties={"datetime": "2026-05-01T00:00:00Z", "platform:asset_id": "of-somebody-else"})},
    {"stac_items": {"not": "a list"}},
    {"stac_items": [None, 7, [], {"id": None}]},
    {"stac_collection": 7, "stac_item": None},
]


async def test_an_output_that_is_not_a_stac_document_does_not_stop_the_job(dsn: str) -> None:
    async with site(dsn) as api:
        for number, output in enumerate(NOT_STAC):
            await deliver_version(api, str(number), **output)
        assert await search_ids(api) == []


async def test_a_collection_with_items_outlives_the_layer_that_created_it(dsn: str, conn: Connection) -> None:
    await add_collection(conn, Collection("c", COLLECTION, layer_asset_id=None))
    await add_collection(conn, Collection("empty", COLLECTION, layer_asset_id=None))
    async with site(dsn) as api:
        await deliver_version(api, stac_item=item("x"))
        for collection_id in ("c", "empty"):
            await remove_collection(conn, collection_id)
        assert [item["id"] for item in (await api.get("/stac/collections"))["collections"]] == ["c"]
        assert await lock_collection(conn, "empty") is None


@pytest.mark.parametrize("bbox", [["a", 0, 1, 1], [0, 0, 1], [0, 0, 1, 10**400], "text", None])
def test_an_invalid_bounding_box_is_ignored(shared_dsn: str, bbox: Any) -> None:
    with psycopg.connect(shared_dsn) as conn:
        assert conn.execute("SELECT dagapp.stac_bounds(%s)", [Jsonb(bbox)]).fetchone() == (None,)


async def test_the_catalogue_shows_what_each_versions_exposure_allows(dsn: str, conn: Connection) -> None:
    """The statement and the functions agree in all states."""
    async with site(dsn) as api:
        submitted = [await deliver_version(api, stac_item=item(f"v{ordinal}")) for ordinal in range(2)]
    asset_id = submitted[0]["asset_id"]
    states = product(ClearanceState, ExposureMode, ApprovalState, (False, True), (None, 0, 1))
    for clearance, exposure, approval, is_deleted, latest in states:
        await conn.execute(
            "UPDATE dagapp.geospatial_assets SET clearance_state = $1, exposure_mode = $2, "
            "latest_approved_version_ordinal = $3",
            [clearance, exposure, latest],
        )
        await conn.execute(
            "UPDATE dagapp.asset_versions SET approval_state = $1, deleted_at = CASE WHEN $2 THEN now() END "
            "WHERE version_ordinal = 1",
            [approval, is_deleted],
        )
        for audience in (Audience.PUBLIC, Audience.INTERNAL):
            rows = await search_items(conn, catalogue_scope(audience), ItemFilter(), limit=10)
            allowed = [ordinal for ordinal in (0, 1) if await is_allowed(conn, asset_id, ordinal, audience)]
            state = (clearance, exposure, approval, is_deleted, latest, audience)
            assert sorted(row["version_ordinal"] for row in rows) == allowed, state


async def is_allowed(conn: Connection, asset_id: str, ordinal: int, audience: Audience) -> bool:
    asset = await get_asset(conn, asset_id)
    try:
        check_asset(asset, audience)
        check_version(await get_version_row(conn, asset_id, select_ordinal(asset, ordinal, audience)), is_preview=False)
    except NotFound:
        return False
    return True


async def test_the_landing_page_links_to_everything(dsn: str) -> None:
    async with site(dsn) as api:
        await deliver_version(api, stac_item=item("x"))
        landing = await api.get("/stac")
        validate_dict(landing)
        conformance = await api.get("/stac/conformance")
        assert conformance["conformsTo"] == landing["conformsTo"]
        for link in landing["links"]:
            if link.get("method") != "POST" and link["rel"] != "service-desc":
                await api.get(link["href"])
        rels = [link["rel"] for link in landing["links"]]
        assert {"self", "root", "conformance", "data", "search", "service-desc", "child"} <= set(rels)


@pytest.mark.parametrize("text", ["", "x", "W10", "bnVsbA", "WyIyMDI2IiwgMV0"])
def test_an_invalid_paging_token_is_refused(text: str) -> None:
    with pytest.raises(Invalid, match="token"):
        decode_token(text)


def test_boxes_and_intervals_follow_the_standard() -> None:
    assert parse_bbox([170, -10, -170, 10]) == (170, -10, -170, 10)
    assert parse_bbox([1, 2, 0, 3, 4, 100]) == (1, 2, 3, 4)
    first, last = parse_interval("2026-05-01T00:00:00+02:00/..")
    assert first is not None and first.isoformat() == "2026-05-01T00:00:00+02:00"
    assert last is None
