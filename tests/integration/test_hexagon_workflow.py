"""The statistics of a real raster by hexagon, from the file to the layer of a map."""

import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from fleet import fleet
from rasters import DEM

from dagmaster.authoring.yaml import QueueRules, load_workflow
from dagmaster.handlers import hexagons
from dagmaster.model.compile import compile_graph

WORKFLOW = Path(__file__).parents[2] / "workflows" / "h3_zonal.yaml"
assert hexagons.ROOT  # imported for the handlers that it registers


async def test_each_cell_is_a_task_and_all_become_one_sorted_file(
    dsn: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DAGMASTER_DATA_DIR", str(tmp_path))
    storage = tmp_path / "storage"
    (storage / "bronze").mkdir(parents=True)
    (storage / "bronze" / "dem.tif").write_bytes(DEM.read_bytes())
    graph = compile_graph(load_workflow(WORKFLOW, queues=QueueRules(default_queue="q")))
    async with fleet(dsn) as crew:
        owner = await crew.orchestrator()
        await crew.worker(owner=owner)
        job_id = await crew.submit(
            graph,
            {
                "source": "bronze/dem.tif",
                "period": "2018",
                "resolution": 6,
                "band": 1,
                "statistics": ["mean"],
                "name": None,
            },
        )
        await crew.completed(job_id, seconds=90)
        nodes = await crew.nodes(job_id)
    compacted, exported = nodes["compact"]["output"], nodes["export"]["output"]
    folder = storage / "silver" / "h3_stats" / "raster=dem" / "period=2018" / "resolution=6"
    stored = pq.read_table(folder / "all.parquet")
    assert stored.column_names == ["h3_index", "mean", "count"]
    assert stored.num_rows == compacted["rows"] == exported["rows"] > 20
    manifest = json.loads((folder / "manifest.json").read_text())
    chunks = [path.name for path in folder.glob("h3_l3=*.parquet")]
    assert sorted(chunks) == [f"h3_l3={chunk['cell']}.parquet" for chunk in manifest["chunks"]]
    assert manifest["recipe"]["statistics"] == ["mean"]
    layer = pq.read_table(storage / exported["blob_path"])
    assert {int(cell, 16) for cell in layer.column("h3_index").to_pylist()} == set(
        stored.column("h3_index").to_pylist()
    )
    assert (storage / exported["pmtiles_path"]).stat().st_size > 0
    assert not list((storage / "mount").iterdir())
