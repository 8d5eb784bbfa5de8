"""The workflows that the platform is for. The table says which test runs each; the last two are here."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import rasterio
import test_flood_workflow
import test_hexagon_workflow
import test_raster_ingest
import test_vector_etl
from geo_site import run_job, shipped
from rasters import DEM
from web import Web, web

from dagmaster.authoring.yaml import QueueRules, load_workflow
from dagmaster.handlers import raster
from dagmaster.model.compile import compile_graph
from dagmaster.service.submission import find_file_problems
from dagmaster.settings import load_settings
from dagmaster.storage import Storage, StorageUnavailable

assert raster.MAX_ITEMS  # imported for the handlers that it registers

PIPELINE = """
workflow_id: my_pipeline
inputs:
  source: {type: string, format: file}
  bbox: array
  zones: array
nodes:
  validate:
    handler: raster_validate
    params: {path: "{{ inputs.source }}"}
    next: reproject
  reproject:
    handler: raster_reproject
    params: {path: "{{ inputs.source }}", target_crs: EPSG:3857}
    next: clip
  clip:
    handler: raster_clip
    params: {path: "{{ nodes.reproject.output.blob_path }}", bbox: "{{ inputs.bbox }}"}
    next: analyze
  analyze:
    handler: stats_zonal
    params: {path: "{{ nodes.clip.output.blob_path }}", zones: "{{ inputs.zones }}"}
    next: END
"""
IMPACT = """
workflow_id: flood_impact
inputs:
  region: {type: string, default: north}
nodes:
  - id: flood
    task_type: echo
    params: {layer: flood, region: "{{ inputs.region }}"}
  - id: buildings
    task_type: echo
    params: {layer: buildings, region: "{{ inputs.region }}"}
  - id: population
    task_type: echo
    params: {layer: population}
    depends_on: [buildings]
  - id: impact
    task_type: echo
    depends_on: [flood, buildings, population]
    params:
      layers:
        - "{{ nodes.flood.output.echoed_params.layer }}"
        - "{{ nodes.buildings.output.echoed_params.layer }}"
        - "{{ nodes.population.output.echoed_params.layer }}"
"""
ASSET = {"platform_id": "ddh", "platform_refs": {"dataset_id": "1", "resource_id": "2"}, "data_type": "raster"}
BBOX = [-105.70, 40.30, -105.60, 40.40]


@pytest.fixture
def storage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("DAGMASTER_DATA_DIR", str(tmp_path))
    bronze = tmp_path / "storage" / "bronze"
    bronze.mkdir(parents=True)
    (bronze / "dem.tif").write_bytes(DEM.read_bytes())
    return tmp_path / "storage"


async def test_a_pipeline_without_a_start_node_validates_reprojects_clips_and_analyzes(
    dsn: str, storage: Path, tmp_path: Path
) -> None:
    file = tmp_path / "my_pipeline.yaml"
    file.write_text(PIPELINE)
    pipeline = compile_graph(load_workflow(file, queues=QueueRules(default_queue="q")))
    west, south, east, north = BBOX
    ring = [[west, south], [east, south], [east, north], [west, north], [west, south]]
    zone = {"type": "Feature", "properties": {"name": "all"}, "geometry": {"type": "Polygon", "coordinates": [ring]}}
    async with web(dsn, pipeline, runs=True) as it:
        inputs = {"source": "bronze/dem.tif", "bbox": BBOX, "zones": [zone]}
        job = await it.post("/api/v1/jobs", {"workflow_id": "my_pipeline", "input_params": inputs}, 201)
        await it.fleet.completed(int(job["job_id"]), seconds=90)
        nodes = await it.fleet.nodes(int(job["job_id"]))
    clipped = nodes["clip"]["output"]
    assert clipped["bbox"] == pytest.approx(BBOX, abs=0.005)
    with rasterio.open(storage / clipped["blob_path"]) as dataset:
        assert dataset.crs.to_epsg() == 3857
    with rasterio.open(DEM) as dataset:  # In degrees, as it came: by a path that neither reprojects nor clips.
        values = dataset.read(1, masked=True, window=dataset.window(*BBOX))
    [analyzed] = nodes["analyze"]["output"]["zones"]
    assert analyzed["mean"] == pytest.approx(float(np.ma.mean(values)), rel=0.01)


async def test_a_workflow_written_as_a_list_of_nodes_with_task_types_runs(dsn: str, tmp_path: Path) -> None:
    file = tmp_path / "flood_impact.yaml"
    file.write_text(IMPACT)
    async with web(dsn, compile_graph(load_workflow(file, queues=QueueRules(default_queue="q"))), runs=True) as it:
        nodes = await run_job(it, "flood_impact")
    assert nodes["impact"]["output"]["echoed_params"] == {"layers": ["flood", "buildings", "population"]}
    assert nodes["flood"]["output"]["echoed_params"]["region"] == "north"
    assert nodes["population"]["started_at"] >= nodes["buildings"]["completed_at"]


async def test_a_submission_is_refused_with_everything_that_is_wrong_with_it(dsn: str, storage: Path) -> None:
    async with web(dsn, shipped("raster_ingest"), shipped("vector_etl")) as it:

        async def refused(workflow_id: str, **inputs: Any) -> str:
            """In the same words for a plain job and for a version of an asset."""
            body = {"workflow_id": workflow_id, "input_params": inputs}
            plain: str = (await it.post("/api/v1/jobs", body, 422))["error"]["message"]
            version = await it.post("/api/v1/submit", {**body, **ASSET}, 422)
            assert version["error"]["message"] == plain
            return plain

        wrong = await refused("raster_ingest", source="bronze/gone.png", target_crs="WGS 84", tier="best", size=3)
        for problem in (
            "there is no file bronze/gone.png",
            "must be a file with the extension .tif or .tiff",
            "must be a CRS such as EPSG:4326",
            "must be one of 'visualization', 'analysis', 'archive'",
            "input 'size' is unknown",
        ):
            assert problem in wrong
        assert "input 'source' is required" in await refused("raster_ingest")
        assert "cannot be in the path of a file" in await refused("raster_ingest", source="bronze/../../../x.tif")
        assert ".gpkg" in await refused("vector_etl", source="bronze/dem.tif"), "each workflow selects its own checks"
        assert await it.fleet.value("SELECT count(*) FROM dagapp.dag_jobs") == 0
        assert await it.fleet.value("SELECT count(*) FROM dagapp.asset_versions") == 0
        await check_repetition(it)


async def check_repetition(it: Web) -> None:
    """A request that was accepted is not checked again, and another one cannot take its id."""
    body = {
        **ASSET,
        "workflow_id": "raster_ingest",
        "request_id": "r-1",
        "input_params": {"source": "bronze/dem.tif", "target_crs": "EPSG:3857"},
    }
    first = await it.post("/api/v1/submit", body, 201)
    assert (await it.post("/api/v1/submit", body, 200))["job_id"] == first["job_id"]
    await it.post("/api/v1/submit", {**body, "input_params": {"source": "bronze/dem.tif"}}, 409)


async def test_a_file_that_cannot_be_looked_for_is_left_to_the_job(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def unreachable(*_: Any) -> None:
        raise StorageUnavailable("bronze cannot be reached")

    monkeypatch.setattr(Storage, "source", unreachable)
    inputs = {"source": "bronze/dem.tif"}
    assert await find_file_problems(shipped("raster_ingest").workflow, inputs, load_settings()) == []
    assert "input 'source' was submitted unchecked: bronze cannot be reached" in caplog.text


RUN_BY: dict[str, Callable[..., Any]] = {
    "RW-01": test_raster_ingest.test_real_rasters_become_cogs_versions_and_entries_of_the_catalogue,
    "RW-02": test_raster_ingest.test_the_size_of_a_raster_decides_whether_it_becomes_one_file_or_tiles,
    "RW-03": test_raster_ingest.test_a_raster_that_cannot_be_used_fails_its_version_and_enters_no_catalogue,
    "RW-04": test_vector_etl.test_a_layer_becomes_a_table_files_and_an_entry_of_the_catalogue,
    "RW-05": test_flood_workflow.test_tiles_become_a_file_for_each_cell_with_the_return_periods_as_bands,
    "RW-06": test_hexagon_workflow.test_each_cell_is_a_task_and_all_become_one_sorted_file,
    "RW-07": test_raster_ingest.test_real_rasters_become_cogs_versions_and_entries_of_the_catalogue,
    "RW-08": test_a_pipeline_without_a_start_node_validates_reprojects_clips_and_analyzes,
    "RW-09": test_a_submission_is_refused_with_everything_that_is_wrong_with_it,
}
