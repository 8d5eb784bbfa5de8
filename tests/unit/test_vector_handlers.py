"""Vector handlers as a worker calls them."""

from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from vectors import write_layer

from dagmaster.errors import UnknownHandler
from dagmaster.handlers import Handler, HandlerContext, HandlerResult, Registry, call, registry, vector
from dagmaster.handlers.contract import Checkpoint
from dagmaster.model.optional_handlers import OPTIONAL_HANDLERS

# Squares of a kilometre, each with a spike of ten metres.
SQUARES = [
    f"POLYGON ((0.0{x} 0, 0.0{x + 1} 0, 0.0{x + 1} 0.01, 0.0{x}5 0.0101, 0.0{x} 0.01, 0.0{x} 0))" for x in range(3)
]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The storage of the test, with a layer of three squares in the zone bronze."""
    monkeypatch.setenv("DAGMASTER_DATA_DIR", str(tmp_path))
    bronze = tmp_path / "storage" / "bronze"
    bronze.mkdir(parents=True)
    write_layer(bronze / "squares.geojson", SQUARES, {"side": ["left", "left", "right"]}, driver="GeoJSON")
    return tmp_path / "storage"


async def run(name: str, resumed_from: Checkpoint | None = None, **params: Any) -> HandlerResult:
    ctx = HandlerContext(
        task_id="7_a_0", job_id=7, node_id="a", handler=name, params=params, resumed_from=resumed_from, retry_count=0
    )
    return await call(registry.get(name), ctx, executor=None)


async def output(name: str, **params: Any) -> dict[str, Any]:
    result = await run(name, **params)
    assert result.success, result.error_message
    assert result.output is not None
    return result.output


async def problem(name: str, **params: Any) -> str:
    result = await run(name, **params)
    assert result.permanent, result
    return result.error_message or ""


async def test_the_whole_pipeline_in_one_task_reports_that_there_is_no_table(folder: Path) -> None:
    layer = await output("vector_docker_complete", source="bronze/squares.geojson", asset_id="abc", version_ordinal=2)
    assert (layer["stac_item_id"], layer["stac_collection_id"]) == ("abc-2", "vectors")
    assert layer["blob_path"] == "silver/vectors/7/a/0/squares.parquet"
    assert "table_name" not in layer
    assert layer["table_reason"] == "this worker has no connection to the database"
    assert layer["bbox"] == pytest.approx([0, 0, 0.03, 0.0101])
    assert not (folder / "mount" / "7").exists()

    simple = await output("vector_simplify", path=layer["blob_path"], tolerance_metres=100, target="silver/s.parquet")
    dissolved = await output("vector_dissolve", path=simple["blob_path"], by=["side"], target="silver/d.parquet")
    assert dissolved["pmtiles_path"] == "silver/d.pmtiles"
    rows = pq.read_table(folder / "silver" / "d.parquet").to_pylist()
    assert sorted((row["side"], row["feature_count"], row["bbox"]["ymax"]) for row in rows) == [
        ("left", 2, 0.01),
        ("right", 1, 0.01),
    ]
    assert (await output("vector_clean_mount"))["removed_files"] > 0


async def test_unusable_files_fail_permanently(folder: Path) -> None:
    (folder / "bronze" / "a.txt").write_text("x")
    assert "extension must be one of" in await problem("vector_prepare", source="bronze/a.txt")
    assert "outside of the storage zones" in await problem("vector_prepare", source="/etc/passwd")
    assert "is no encoding" in await problem("vector_prepare", source="bronze/squares.geojson", encoding="latin-none")
    assert "not a GeoParquet file" in await problem("vector_simplify", path="bronze/a.txt", tolerance_metres=1)
    chunk = {"number": 0, "first_row": 0, "rows": 1}
    for name in ("public.dag_jobs", "geo.x; DROP TABLE y", "geo.X"):
        assert "table" in await problem("vector_upload_chunk", table_name=name, path="mount/7/x.parquet", chunk=chunk)


async def test_a_missing_file_or_database_is_retryable(folder: Path) -> None:
    for result in (
        await run("vector_prepare", source="bronze/gone.gpkg"),
        await run("vector_index_table", table_name="geo.x", rows=1),
    ):
        assert not result.success
        assert not result.permanent


def test_readers_of_untrusted_files_run_in_processes() -> None:
    handlers = {entry.name: entry.isolation for entry in registry if entry.function.__module__ == vector.__name__}
    assert handlers == {
        "vector_prepare": "process",
        "vector_create_table": "thread",
        "vector_upload_chunk": "thread",
        "vector_index_table": "thread",
        "vector_create_stac": "auto",
        "vector_clean_mount": "auto",
        "vector_clean_tables": "thread",
        "vector_docker_complete": "thread",
        "vector_simplify": "process",
        "vector_dissolve": "process",
    }


def test_a_worker_without_the_module_names_how_to_load_it() -> None:
    bare = Registry()
    bare.register(Handler("echo", lambda ctx: None))
    with pytest.raises(UnknownHandler, match=r"pip install 'dagmaster\[geo\]'` and load dagmaster.handlers.vector"):
        bare.get("vector_prepare")
    assert OPTIONAL_HANDLERS["vector_"] == (vector.__name__, "geo")
