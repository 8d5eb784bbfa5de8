"""A vector file in a folder becomes GeoParquet, tiles, a table in a real PostGIS, and a version of an asset."""

import asyncio
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import morecantile
import psycopg
import pyarrow.parquet as pq
import pyogrio.raw
import pystac
import pytest
import shapely
from asset_rows import add_item
from fleet import graph, task
from psycopg.types.json import Jsonb
from shapely.geometry import box, shape
from vectors import COUNTIES, GDALG, GLACIERS, PARK, zip_shapefile
from web import Web, web

from dagmaster import asset_handlers
from dagmaster.authoring.yaml import QueueRules, load_workflow
from dagmaster.geo.vector import postgis
from dagmaster.geo.vector.postgis import Table, TableOwner, set_owner
from dagmaster.geo.vector.sorted_features import Chunk
from dagmaster.handlers import HandlerContext, call, registry, vector
from dagmaster.handlers.contract import Interrupted
from dagmaster.model.compile import compile_graph
from dagmaster.model.graph import Graph
from dagmaster.store.connect import opened
from dagmaster.store.handler_pool import HandlerPool
from dagmaster.store.statements import run
from dagmaster.tiles import tables
from tools.postgis_server import IS_INSTALLED, REASON, PostgisServer, run_postgis

# Imported for the handlers that they register.
assert vector.NO_POSTGIS and asset_handlers.pgstac

POINT = {"type": "Point", "coordinates": [1, 2]}
WORKFLOW = Path(__file__).parents[2] / "workflows" / "vector_etl.yaml"


@pytest.fixture(scope="module")
def postgis_server() -> Iterator[PostgisServer]:
    if not IS_INSTALLED:
        pytest.skip(REASON)
    with run_postgis() as server:
        yield server


@pytest.fixture
def storage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("DAGMASTER_DATA_DIR", str(tmp_path))
    bronze = tmp_path / "storage" / "bronze"
    bronze.mkdir(parents=True)
    (bronze / COUNTIES.name).write_bytes(COUNTIES.read_bytes())
    (bronze / GLACIERS.name).write_bytes(GLACIERS.read_bytes())
    zip_shapefile(PARK, bronze / "park.zip", "rmnp/")
    (bronze / "pipeline.geojson").write_text(GDALG)
    return tmp_path / "storage"


def etl() -> Graph:
    return compile_graph(load_workflow(WORKFLOW, queues=QueueRules(default_queue="q")))


async def submit(it: Web, source: str, workflow_id: str = "vector_etl", **inputs: Any) -> dict[str, Any]:
    """Submit it for an asset; its version when the job has ended."""
    body = {
        "workflow_id": workflow_id,
        "platform_id": "ddh",
        "platform_refs": {"dataset_id": source, "resource_id": "vector", "version_id": "1.0"},
        "data_type": "vector",
        "input_params": {"source": f"bronze/{source}", **inputs},
    }
    submitted = await it.post("/api/v1/submit", body, 201)
    await it.fleet.ended(int(submitted["job_id"]), seconds=90)
    asset = await it.get(f"/api/v1/assets/{submitted['asset_id']}")
    version: dict[str, Any] = {**asset["versions"][0], "job_id": submitted["job_id"]}
    return version


async def test_a_layer_becomes_a_table_files_and_an_entry_of_the_catalogue(
    postgis_server: PostgisServer, storage: Path
) -> None:
    dsn = postgis_server.create_database()
    async with web(dsn, etl(), runs=True) as it:
        version = await submit(it, COUNTIES.name, chunk_rows=20, title="Counties")
        assert (version["processing_status"], version["processing_error"]) == ("completed", None)
        table = version["table_name"]
        assert table == f"geo.v_{version['asset_id']}_0_{version['job_id']}"
        await asyncio.to_thread(check_table, dsn, Table.parse(table))
        check_files(storage, version)
        [content] = await it.fleet.value("SELECT jsonb_agg(content) FROM dagapp.stac_items")
        check_item(content, version)
        await check_tiles(it, version, storage)
        await check_tile_limits(it, dsn, version)
        assert list((storage / "mount").iterdir()) == []
        await asyncio.to_thread(check_repetition, dsn, Table.parse(table), storage / version["blob_path"])
    await check_resumption(dsn)


async def test_the_table_of_a_failed_job_is_gone_when_its_version_is_processed_again(
    postgis_server: PostgisServer, storage: Path, tmp_path: Path
) -> None:
    text = WORKFLOW.read_text().replace("workflow_id: vector_etl", "workflow_id: broken_etl")
    index = text.index("    handler: vector_index_table")
    failing = tmp_path / "broken_etl.yaml"
    failing.write_text(
        text[:index]
        + "    handler: fail\n    params: {permanent: true}\n"
        + text[text.index("    next: create_stac") :]
    )
    broken = compile_graph(load_workflow(failing, queues=QueueRules(default_queue="q")))
    dsn = postgis_server.create_database()
    clean = graph({"clean": task("vector_clean_tables", "END")}, "clean", start="clean")
    async with web(dsn, etl(), broken, clean, runs=True) as it:
        failed = await submit(it, GLACIERS.name, workflow_id="broken_etl")
        assert failed["processing_status"] == "failed"
        left = await asyncio.to_thread(list_tables, dsn)
        assert left == [f"v_{failed['asset_id']}_0_{failed['job_id']}"]
        assert await cleaned(it) == [], "the job can be retried, and would continue with it"
        path = f"/api/v1/assets/{failed['asset_id']}/versions/0/reprocess"
        again = await it.post(
            path, {"workflow_id": "vector_etl", "input_params": {"source": f"bronze/{GLACIERS.name}"}}, 201
        )
        await it.fleet.completed(int(again["job_id"]), seconds=90)
        version = await it.get(f"/api/v1/assets/{failed['asset_id']}/versions/0")
        assert [f"geo.{name}" for name in await asyncio.to_thread(list_tables, dsn)] == [version["table_name"]]

        async with opened(dsn, application="test") as conn:
            await run(conn, "event_days")  # This server is of the oldest release that is supported.

        await asyncio.to_thread(make_tables, dsn)
        assert await cleaned(it) == ["geo.lost"]
        assert "lost" not in await asyncio.to_thread(list_tables, dsn)


async def test_pgstac_shows_what_the_public_may_see_and_nothing_that_is_withdrawn(
    postgis_server: PostgisServer,
) -> None:
    dsn = postgis_server.create_database()
    # In a process of its own: it warns about libraries that it uses.
    command = [sys.executable, "-m", "pypgstac.pypgstac", "migrate", f"--dsn={dsn}"]
    await asyncio.to_thread(subprocess.run, command, check=True, capture_output=True, timeout=100)
    for asset_id, clearance in (("open", "public"), ("shown", "public"), ("closed", "ouo")):
        await add_item(dsn, asset_id, clearance)
    with psycopg.connect(dsn, autocommit=True, options="-c search_path=pgstac,public") as conn:
        conn.execute("SELECT upsert_collection(%s)", [Jsonb({"id": "theirs", "type": "Collection"})])
        item = {"id": "x", "collection": "theirs", "properties": {"datetime": "2020-01-01T00:00:00Z"}}
        conn.execute("SELECT upsert_items(%s)", [Jsonb([{**item, "geometry": POINT, "bbox": [1, 2, 1, 2]}])])

        def found(**search: Any) -> list[str]:
            [page] = conn.execute("SELECT search(%s)", [Jsonb(search)]).fetchone()
            return sorted(feature["id"] for feature in page["features"])

        assert await synced(dsn) == {"collections": 1, "items": 2, "removed": 0, "skipped": 0}
        assert found() == ["open-0", "shown-0", "x"]
        assert found(bbox=[8, 47, 9, 48]) == ["open-0", "shown-0"]
        [page] = conn.execute("SELECT search(%s)", [Jsonb({"ids": ["open-0"]})]).fetchone()
        assert page["features"][0]["assets"]["data"]["href"] == "https://hub.example.com/assets/open/service?version=0"
        conn.execute("UPDATE dagapp.asset_versions SET deleted_at = now() WHERE asset_id = 'shown'")
        assert (await synced(dsn))["removed"] == 1
        assert found() == ["open-0", "x"]


async def synced(dsn: str) -> dict[str, Any]:
    params = {"base_url": "https://hub.example.com"}
    ids: dict[str, Any] = {"task_id": "1_a_0", "job_id": 1, "node_id": "a", "handler": "sync_pgstac", "params": params}
    pool = HandlerPool(dsn)
    try:
        result = await call(registry.get("sync_pgstac"), HandlerContext(**ids, pool=pool), executor=None)
    finally:
        await pool.close()
    assert result.output is not None, result.error_message
    return result.output


def list_tables(dsn: str) -> list[str]:
    with psycopg.connect(dsn) as conn:
        rows = conn.execute("SELECT tablename FROM pg_tables WHERE schemaname = 'geo' ORDER BY 1").fetchall()
    return [name for [name] in rows]


def make_tables(dsn: str) -> None:
    """Of jobs that are long removed: one was interrupted, one has loaded a layer, and one table is somebody's own."""
    with psycopg.connect(dsn) as conn:
        for name, owner in {"lost": TableOwner(job_id=1), "kept": TableOwner(job_id=2, is_loaded=True)}.items():
            conn.execute(f"CREATE TABLE geo.{name} (feature_id bigint)")
            set_owner(conn, Table(name), owner)
        conn.execute("CREATE TABLE geo.own (feature_id bigint); COMMENT ON TABLE geo.own IS '{}'")


async def cleaned(it: Web) -> list[str]:
    job = await it.post("/api/v1/jobs", {"workflow_id": "clean"}, 201)
    await it.fleet.completed(int(job["job_id"]))
    names: list[str] = (await it.fleet.nodes(int(job["job_id"])))["clean"]["output"]["tables"]
    return names


def counties() -> dict[str, Any]:
    features = json.loads(COUNTIES.read_text())["features"]
    return {feature["properties"]["name"]: feature for feature in features}


def check_table(dsn: str, table: Table) -> None:
    """Against the file itself, by readers that have no part in loading it."""
    with psycopg.connect(dsn) as conn:
        rows = conn.execute(
            f"SELECT name, aland, ST_AsBinary(geometry), ST_SRID(geometry) FROM {table.qualified}"
        ).fetchall()
        expected = counties()
        assert len(rows) == len(expected)
        for name, aland, wkb, srid in rows:
            assert srid == 4326
            assert aland == expected[name]["properties"]["aland"]
            assert shapely.from_wkb(wkb).equals_exact(shape(expected[name]["geometry"]))
        at = "SELECT name FROM {} WHERE ST_Contains(geometry, ST_SetSRID(ST_MakePoint(-104.99, 39.74), 4326))"
        assert conn.execute(at.format(table.qualified)).fetchall() == [("Denver",)]
        indexes = conn.execute(
            "SELECT amname FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid JOIN pg_am a ON a.oid = c.relam "
            "WHERE i.indrelid = %s::regclass ORDER BY 1",
            [table.qualified],
        ).fetchall()
        assert indexes == [("btree",), ("gist",)]


def check_files(storage: Path, version: dict[str, Any]) -> None:
    stored = pq.read_table(storage / version["blob_path"])
    assert set(stored.column("name").to_pylist()) == counties().keys()
    assert (storage / version["blob_path"]).with_suffix(".pmtiles").is_file()
    assert version["bbox"] == pytest.approx([-109.060062, 36.992426, -102.041876, 41.003073])


def check_item(content: dict[str, Any], version: dict[str, Any]) -> None:
    pystac.Item.from_dict({**content, "stac_extensions": []}).validate()
    assert (content["id"], content["collection"]) == (version["stac_item_id"], "vectors")
    properties = content["properties"]
    assert (properties["table:row_count"], properties["platform:dataset_id"]) == (64, COUNTIES.name)
    assert content["assets"]["preview"]["type"] == "application/vnd.pmtiles"
    checksum = content["assets"]["data"]["file:checksum"].removeprefix("1220")
    assert version["content_hash"] == f"sha256:{checksum}"


async def check_tiles(it: Web, version: dict[str, Any], folder: Path) -> None:
    """Beyond the zooms of the archive, tiles come from the table: as another reader finds them in the file."""
    base = f"/tiles/{version['asset_id']}/vector"
    query = {"version": "0", "preview": "true"}
    tilejson = await it.get(f"{base}/tilejson.json", params=query)
    assert tilejson["maxzoom"] == tables.MAX_ZOOM
    grid = morecantile.tms.get("WebMercatorQuad")
    x, y, z = grid.tile(-104.9, 39.78, 16)  # at the edge of Denver
    tile = await it.client.get(f"{base}/{z}/{x}/{y}.mvt", params=query)
    assert (tile.status_code, tile.headers["content-type"]) == (200, "application/vnd.mapbox-vector-tile")
    file = folder / "tile.mvt"
    file.write_bytes(tile.content)
    _, _, _, [names] = pyogrio.raw.read(file, layer="features", columns=["name"], read_geometry=False)
    bounds = box(*grid.bounds(x, y, z))
    assert set(names) == {name for name, county in counties().items() if shape(county["geometry"]).intersects(bounds)}
    assert (await it.client.get(f"{base}/{z}/0/0.mvt", params=query)).status_code == 204
    await it.get(f"{base}/{z}/{x}/{y}.mvt", 404, params={"version": "0"})


async def check_tile_limits(it: Web, dsn: str, version: dict[str, Any]) -> None:
    """A tile of the table is bounded in features, bytes and time, and the next request finds all as it was."""
    x, y, z = morecantile.tms.get("WebMercatorQuad").tile(-104.9, 39.78, 16)
    path, query = f"/tiles/{version['asset_id']}/vector/{z}/{x}/{y}.mvt", {"version": "0", "preview": "true"}

    async def ask(status: int) -> Any:
        response = await it.client.get(path, params=query)
        assert response.status_code == status, response.text
        return response

    content = (await ask(200)).content
    for limit, fitting in (("MAX_FEATURES", 2), ("MAX_TILE_BYTES", len(content))):
        for value, status in ((fitting, 200), (fitting - 1, 422)):
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(tables, limit, value)
                response = await ask(status)
        assert "zoom in" in response.json()["detail"], limit
    table = version["table_name"]
    async with await psycopg.AsyncConnection.connect(dsn) as other:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(tables, "TIMEOUT_MS", 50)
            await other.execute(f"LOCK TABLE {table} IN ACCESS EXCLUSIVE MODE")  # A tile that takes for ever.
            assert "took too long" in (await ask(503)).json()["detail"]
        await other.rollback()
        await other.execute(f"ALTER TABLE {table} RENAME TO elsewhere")
        await other.commit()
        assert "no longer exists" in (await ask(404)).json()["detail"]
        await other.execute(f"ALTER TABLE geo.elsewhere RENAME TO {table.removeprefix('geo.')}")
    assert (await ask(200)).content == content


def check_repetition(dsn: str, table: Table, parquet: Path) -> None:
    """A chunk that is loaded again replaces its own rows, and only those."""
    chunk = Chunk(number=1, first_row=20, rows=20)
    with psycopg.connect(dsn) as conn:
        conn.execute(f"DELETE FROM {table.qualified} WHERE feature_id = 25")
        conn.execute(f"UPDATE {table.qualified} SET name = 'x' WHERE feature_id IN (19, 26, 40)")
        postgis.load_chunk(conn, table, parquet, chunk)
        postgis.index_table(conn, table, 64)
        spoiled = conn.execute(f"SELECT feature_id FROM {table.qualified} WHERE name = 'x' ORDER BY 1").fetchall()
        assert spoiled == [(19,), (40,)]


async def check_resumption(dsn: str) -> None:
    """In one task: interrupted after the first chunk, it continues after it."""
    params = {"source": "bronze/colorado-glaciers.geojson", "chunk_rows": 50, "table": "glaciers"}
    name = "vector_docker_complete"
    ids: dict[str, Any] = {"task_id": "1_a_0", "job_id": 1, "node_id": "a", "handler": name, "params": params}
    pool = HandlerPool(dsn)
    try:
        stopped = HandlerContext(**ids, pool=pool)
        stopped.stopping.set()
        with pytest.raises(Interrupted):
            await call(registry.get(name), stopped, executor=None)
        assert stopped.last_checkpoint is not None
        assert stopped.last_checkpoint.data["loaded"] == 1
        async with pool.connection() as conn:
            await conn.execute("UPDATE geo.glaciers SET glacier_id = 'first chunk'")
        result = await call(
            registry.get(name), HandlerContext(**ids, pool=pool, resumed_from=stopped.last_checkpoint), executor=None
        )
        assert result.success, result.error_message
        async with pool.connection() as conn:
            rows = await conn.execute(
                "SELECT glacier_id = 'first chunk', count(*) FROM geo.glaciers GROUP BY 1 ORDER BY 1"
            )
            assert await rows.fetchall() == [(False, 84), (True, 50)]
    finally:
        await pool.close()


async def test_without_postgis_there_is_no_table_and_the_result_says_so(dsn: str, storage: Path) -> None:
    async with web(dsn, etl(), runs=True) as it:
        park, pipeline = await asyncio.gather(submit(it, "park.zip"), submit(it, "pipeline.geojson"))
        assert (park["processing_status"], park["table_name"]) == ("completed", None)
        job = await it.get(f"/api/v1/jobs/{park['job_id']}/nodes/create_table")
        assert "does not have PostGIS" in job["output"]["reason"]
        assert pq.read_table(storage / park["blob_path"]).column("UNITCOD").to_pylist() == ["ROMO"]
        assert pipeline["processing_status"] == "failed"
        assert "not recognized as being in a supported file format" in pipeline["processing_error"]
