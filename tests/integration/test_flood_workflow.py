"""Flood tiles of two scenarios become one file for each grid cell, a version and entries of the catalogue."""

import json
from pathlib import Path

import numpy as np
import pytest
import rasterio
from flood_tiles import COASTAL, FLUVIAL, folder_of, merged, write_tiles
from geo_site import run_job, shipped, submit_version
from onnx_models import save_mean
from rio_cogeo.cogeo import cog_validate
from web import Web, web

from dagmaster.authoring.yaml import QueueRules, load_workflow
from dagmaster.handlers import catalogue, ml, raster
from dagmaster.model.compile import compile_graph
from dagmaster.model.graph import Graph

# Imported for the handlers that they register.
assert catalogue.MAX_VERSIONS and ml.MAX_MODEL_BYTES and raster.MAX_ITEMS

PREDICTION = """
workflow_id: predict
inputs: {source: string}
nodes:
  predict:
    handler: ml_predict
    params: {path: "{{ inputs.source }}", model: bronze/mean.onnx, band_names: [mean_depth]}
"""

NAMES = {
    FLUVIAL: "1ARCSEC-NW_OFFSET-FLUVIAL-UNDEFENDED-2020-PERCENTILE50-v3.1",
    COASTAL: "1ARCSEC-NW_OFFSET-COASTAL-DEFENDED-2030-SSP2_4.5-v3.1",
}


@pytest.fixture
def storage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("DAGMASTER_DATA_DIR", str(tmp_path))
    monkeypatch.setenv("DAGMASTER_RASTER_PROCESSES", "1")
    return tmp_path / "storage"


def prediction(folder: Path) -> Graph:
    file = folder / "predict.yaml"
    file.write_text(PREDICTION)
    return compile_graph(load_workflow(file, queues=QueueRules(default_queue="q")))


async def test_tiles_become_a_file_for_each_cell_with_the_return_periods_as_bands(
    dsn: str, storage: Path, tmp_path: Path
) -> None:
    bronze = storage / "bronze" / "fathom"
    cells = {(FLUVIAL, "n00w010"): ["n04w007", "n04w006"], (FLUVIAL, "n00w005"): ["n04w005"]}
    cells[COASTAL, "n00w010"] = ["n04w006"]
    for (scenario, _), tiles in cells.items():
        write_tiles(bronze, tiles, scenario=scenario)
    (bronze / folder_of(50) / "README.txt").write_text("no tile")
    async with web(dsn, shipped("fathom_flood"), shipped("repair_stac_items"), prediction(tmp_path), runs=True) as it:
        version = await submit_version(
            it, "fathom_flood", "flood", folder="bronze/fathom", batch_size=2, acquired_at="2020-01-01T00:00:00Z"
        )
        assert (version["processing_status"], version["processing_error"]) == ("completed", None)
        nodes = await it.fleet.nodes(version["job_id"])
        assert list((storage / "mount").iterdir()) == []
        await it.post(f"/api/v1/assets/{version['asset_id']}/approve", {"clearance_level": "ouo"})
        features = (await it.get("/stac/search"))["features"]
        repaired = await run_job(it, "repair_stac_items", asset_id=version["asset_id"])
        assert [report["outcome"] for report in repaired["reports"]["output"]["results"]] == ["unchanged"]
        await check_prediction(it, storage, nodes["merge_cells__0"]["output"]["file"]["blob_path"])
        await check_refusal(it, storage)
    inventory = nodes["tile_inventory"]["output"]
    assert (inventory["tile_count"], inventory["skipped_files"], len(inventory["batches"])) == (4, 1, 2)
    assert len([node for node in nodes if node.startswith("stack_bands__")]) == 2
    assert len([node for node in nodes if node.startswith("merge_cells__")]) == 3
    owner = f"{version['asset_id']}-0"
    ids = {f"{owner}-{NAMES[scenario]}-{cell}": key for key in cells for scenario, cell in [key]}
    assert {feature["id"] for feature in features} == set(ids)
    for feature in features:
        bands = feature["assets"]["data"]["bands"]
        assert [band["name"] for band in bands] == [f"1in{n}" for n in (5, 10, 20, 50, 100, 200, 500, 1000)]
    index = json.loads((storage / version["blob_path"]).read_bytes())
    for entry in index["features"]:
        scenario, cell = ids[entry["properties"]["item_id"]]
        path = storage / entry["properties"]["blob_path"]
        assert cog_validate(path, strict=True) == (True, [], [])
        with rasterio.open(path) as dataset:
            np.testing.assert_array_equal(dataset.read(), merged(bronze, cells[scenario, cell], scenario=scenario))
    assert version["bbox"] == pytest.approx([-7, 4, -4, 5])


async def check_prediction(it: Web, storage: Path, source: str) -> None:
    """A model takes the bands of a merged file, in a process that is forked from one that has loaded the runtime."""
    save_mean(storage / "bronze" / "mean.onnx", bands=8)
    predicted = (await run_job(it, "predict", source=source))["predict"]["output"]
    with rasterio.open(storage / source) as dataset, rasterio.open(storage / predicted["blob_path"]) as result:
        depths = dataset.read().astype("float32")
        valid = (depths != dataset.nodata).all(axis=0)
        assert (result.descriptions, result.transform) == (("mean_depth",), dataset.transform)
        np.testing.assert_allclose(result.read(1), np.where(valid, depths.mean(axis=0), np.nan), rtol=1e-5)


async def check_refusal(it: Web, storage: Path) -> None:
    """Tiles that do not fit together fail their version, and nothing of them enters the catalogue."""
    write_tiles(storage / "bronze" / "unfit", ["n04w006"])
    write_tiles(storage / "bronze" / "unfit", ["n04w007"], nodata=-1)
    version = await submit_version(it, "fathom_flood", "unfit", folder="bronze/unfit")
    assert version["processing_status"] == "failed"
    assert "in nodata: -32768.0 instead of -1.0" in version["processing_error"]
    items = "SELECT count(*) FROM dagapp.stac_items WHERE asset_id = %s"
    assert await it.fleet.value(items, version["asset_id"]) == 0
