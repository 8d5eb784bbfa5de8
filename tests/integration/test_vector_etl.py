"""A vector file in a folder becomes GeoParquet, tiles, a table in a real PostGIS, and a version of an asset."""

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pyarrow.parquet as pq
import pystac
import pytest
import shapely
from shapely.geometry import shape
from vectors import COUNTIES, GDALG, GLACIERS, PARK, zip_shapefile
from web import Web, web

from dagmaster.authoring.yaml import QueueRules, load_workflow
from dagmaster.geo.vector import postgis
from dagmaster.geo.vector.postgis import Table
from dagmaster.geo.vector.sorted_features import Chunk
from dagmaster.handlers import HandlerContext, call, registry, vector
from dagmaster.handlers.contract import Interrupted
from dagmaster.model.compile import compile_graph
from dagmaster.model.graph import Graph
from dagmaster.store.handler_pool import HandlerPool
from tools.postgis_server import IS_INSTALLED, REASON, PostgisServer, run_postgis

assert vector.NO_POSTGIS  # imported for the handlers that it registers

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


async def submit(it: Web, source: str, **inputs: Any) -> dict[str, Any]:
    """Submit it for an asset; its version when the job has ended."""
    body = {
        "workflow_id": "vector_etl",
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
        assert list((storage / "mount").iterdir()) == []
        await asyncio.to_thread(check_repetition, dsn, Table.parse(table), storage / version["blob_path"])
    await check_resumption(dsn)


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
