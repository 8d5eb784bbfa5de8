"""Raster handlers as a worker calls them, and a worker without their libraries."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from rasters import DEM, RGB, VRT, write_tiff

from dagmaster.errors import UnknownHandler
from dagmaster.handlers import Handler, HandlerContext, HandlerResult, Registry, call, load_handlers, raster, registry
from dagmaster.model.optional_handlers import OPTIONAL_HANDLERS

GEO = (
    "affine",
    "exactextract",
    "h3",
    "h3ronpy",
    "morecantile",
    "numpy",
    "pgpq",
    "pmtiles",
    "pyarrow",
    "pyogrio",
    "pyproj",
    "pystac",
    "rasterio",
    "rio_tiler",
    "shapely",
    "titiler",
)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The storage of the test, with an image in the zone bronze."""
    monkeypatch.setenv("DAGMASTER_DATA_DIR", str(tmp_path))
    bronze = tmp_path / "storage" / "bronze"
    bronze.mkdir(parents=True)
    (bronze / "dem.tif").write_bytes(DEM.read_bytes())
    return tmp_path / "storage"


def context(name: str, params: dict[str, Any], **fields: Any) -> HandlerContext:
    ids: dict[str, Any] = {"task_id": "7_a_0", "job_id": 7, "node_id": "a", "correlation_id": "r-1"}
    return HandlerContext(**{**ids, **fields}, handler=name, params=params)


async def run(name: str, **params: Any) -> HandlerResult:
    return await call(registry.get(name), context(name, params), executor=None)


async def output(name: str, **params: Any) -> dict[str, Any]:
    result = await run(name, **params)
    assert result.success, result.error_message
    assert result.output is not None
    return result.output


async def problem(name: str, **params: Any) -> str:
    result = await run(name, **params)
    assert result.permanent
    return result.error_message or ""


async def ingest(**inputs: Any) -> dict[str, Any]:
    """The steps of the workflow raster_ingest."""
    copied = await output("raster.blob_to_mount", source="bronze/dem.tif")
    report = await output("raster.validate", path=copied["path"])
    cog = await output("raster.create_cog", path=copied["path"], report=report)
    return await output("raster.stac_register_item", cog=cog, collection_id="hub", **inputs)


async def test_each_step_accepts_the_output_of_the_previous_one(folder: Path) -> None:
    item = await ingest(
        asset_id="abc", version_ordinal=2, platform_refs={"dataset_id": 7}, acquired_at="2026-05-01T00:00:00Z"
    )
    assert (item["stac_item_id"], item["stac_collection_id"]) == ("abc-2", "hub")
    assert item["blob_path"] == "silver/rasters/7/a/0/dem.tif"
    assert (folder / item["blob_path"]).is_file()
    assert item["content_hash"].startswith("sha256:")
    properties = item["stac_item"]["properties"]
    assert (properties["platform:dataset_id"], properties["platform:request_id"]) == ("7", "r-1")
    assert (properties["datetime"], properties["platform:datetime_source"]) == ("2026-05-01T00:00:00Z", "given")
    assert [path.name for path in (folder / "mount" / "7").rglob("*") if path.is_file()] == ["dem.tif"]


async def test_files_of_the_same_name_from_different_folders_do_not_collide(folder: Path) -> None:
    (folder / "bronze" / "north").mkdir()
    (folder / "bronze" / "north" / "dem.tif").write_bytes(RGB.read_bytes())
    copies = [await output("raster.blob_to_mount", source=f"bronze/{name}dem.tif") for name in ("", "north/")]
    contents = [(folder / copied["path"]).read_bytes() for copied in copies]
    assert contents == [DEM.read_bytes(), RGB.read_bytes()]


async def test_only_the_jobs_own_files_are_removed_from_the_mount(folder: Path) -> None:
    await output("raster.blob_to_mount", source="bronze/dem.tif")
    await output("raster.blob_to_mount", source="bronze/dem.tif", target="mount/8/dem.tif")
    assert await output("raster.clean_mount") == {"removed_files": 1, "removed_bytes": DEM.stat().st_size}
    assert [path.name for path in (folder / "mount").iterdir()] == ["8"]
    assert await output("raster.clean_mount") == {"removed_files": 0, "removed_bytes": 0}


async def test_items_of_one_version_have_their_own_ids(folder: Path) -> None:
    await ingest()
    copied = await output("raster.blob_to_mount", source="bronze/dem.tif")
    report = await output("raster.validate", path=copied["path"])
    cog = await output("raster.create_cog", path=copied["path"], report=report)
    several = await output(
        "raster.stac_register_items", collection_id="hub", asset_id="abc", version_ordinal=0, items=[{"cog": cog}] * 2
    )
    assert several["stac_item_ids"] == ["abc-0-0", "abc-0-1"]
    same = [{"cog": cog, "item_id": "x"}] * 2
    assert "same item_id" in await problem("raster.stac_register_items", collection_id="hub", items=same)


async def test_unusable_files_fail_permanently_with_all_problems(folder: Path) -> None:
    (folder / "mount").mkdir()
    write_tiff(folder / "mount" / "plain.tif", crs=None)
    (folder / "mount" / "vrt.tif").write_text(VRT)
    assert "no CRS and none was given" in await problem("raster.validate", path="mount/plain.tif")
    assert "is not a TIFF file" in await problem("raster.validate", path="mount/vrt.tif")
    assert "outside of the storage zones" in await problem("raster.validate", path="/etc/passwd")
    assert "report of raster.validate" in await problem("raster.create_cog", path="mount/plain.tif")
    assert "leads out" not in await problem("raster.blob_to_mount", source="bronze/../mount/plain.tif")
    assert "cannot be in the path" in await problem(
        "raster.blob_to_mount", source="bronze/dem.tif", target="mount/../../x"
    )
    assert "collection_id" in await problem("raster.stac_ensure_collection", collection_id="a/b")


async def test_a_missing_file_is_retryable(folder: Path) -> None:
    result = await run("raster.blob_to_mount", source="bronze/gone.tif")
    assert not result.success
    assert not result.permanent


def test_readers_of_untrusted_files_run_in_processes() -> None:
    loaded = Registry()
    load_handlers([raster.__name__], loaded)
    own = [definition for definition in loaded if definition.function.__module__.startswith(raster.__name__)]
    others = {definition.name for definition in own if definition.isolation != "process"}
    assert others == {
        "raster.blob_to_mount",
        "raster.clean_mount",
        "raster.stac_ensure_collection",
        "raster.stac_register",
        "raster.stac_register_item",
        "raster.stac_register_items",
        "fathom_grid_inventory",
        "fathom_stac_register",
        "fathom_tile_inventory",
        "finalize",
        "list_raster_files",
        "stac_catalog_container",
    }
    assert len(own) > len(others)


def test_a_worker_without_the_module_names_how_to_load_it() -> None:
    bare = Registry()
    bare.register(Handler("echo", lambda ctx: None))
    with pytest.raises(UnknownHandler, match=r"pip install 'dagmaster\[geo\]'` and load dagmaster.handlers.raster"):
        bare.get("raster.validate")


WITHOUT_GEO = f"""
import importlib, sys

class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {GEO}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Blocked())

from dagmaster.errors import Misconfigured
from dagmaster.handlers import load_handlers, registry

for name in (
    "cli.app", "fleet", "gateway.app", "orchestrator.process", "python", "storage", "web.app",
    "worker.processes.child", "worker.processes.forkserver", "worker.worker",
):
    importlib.import_module(f"dagmaster.{{name}}")
load_handlers([])
print(registry.get("size_check").name, "obstore" in sys.modules)
try:
    load_handlers(["dagmaster.handlers.raster"])
except Misconfigured as error:
    print(error)
"""


def test_everything_except_raster_handlers_works_without_geospatial_libraries() -> None:
    done = subprocess.run([sys.executable, "-c", WITHOUT_GEO], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "size_check False",
        "the handlers of dagmaster.handlers.raster need affine: install it with `pip install 'dagmaster[geo]'`",
    ]


def test_the_optional_handler_names_match_their_modules() -> None:
    assert OPTIONAL_HANDLERS["raster."] == (raster.__name__, "geo")
    loaded = Registry()
    load_handlers([raster.__name__], loaded)
    own = [definition.name for definition in loaded if definition.function.__module__.startswith(raster.__name__)]
    assert [name for name in own if not name.startswith(tuple(OPTIONAL_HANDLERS))] == []
