"""A worker killed in the middle of 60 tiles does not repeat completed ones."""

import time
from collections import Counter
from pathlib import Path

import gated_tiles
import numpy as np
import pytest
import rasterio
from affine import Affine
from processes import ORCHESTRATOR, Stage
from rasters import write_tiff
from shapes import Outcome, Shape

from dagmaster.geo.raster.image import ImageSource, resolve_image
from dagmaster.geo.raster.mosaic import arrange, open_mosaic
from dagmaster.geo.raster.profiles import Profile
from dagmaster.geo.raster.tiling import TilingScheme, divide_into_tiles, write_tile

pytestmark = [pytest.mark.acceptance, pytest.mark.timeout(240)]

WORKER = ("worker", "--handlers", gated_tiles.__file__)
PROFILE = Profile(compression="ZSTD", level=1, predictor=2, resampling="nearest", overview_resampling="nearest")
TILES = Shape(
    "tiles",
    """
workflow_id: tiles
inputs:
  batches: {type: array}
  profile: {type: object}
nodes:
  START: {type: start, next: tiles}
  tiles:
    type: fan_out
    source: "{{ inputs.batches }}"
    task:
      handler: raster.process_tile_batch
      queue: work
      params: {path: bronze/a.tif, profile: "{{ inputs.profile }}", tiles: "{{ item }}", folder: silver/tiles}
      retry: {max_attempts: 2, initial_delay_seconds: 0}
    next: END
  END: {type: end}
""",
    lambda _: Outcome("completed", {}, {}),
)


def make_source(bronze: Path) -> Path:
    """10 x 6 tiles of 512 pixels, smaller at the edges."""
    bronze.mkdir(parents=True)
    values = np.add.outer(np.arange(2570) // 7, np.arange(4620) // 9).astype("uint16")
    return write_tiff(bronze / "a.tif", values, transform=Affine(0.001, 0, 8, 0, -0.001, 47), nodata=0)


def make_undisturbed(source: ImageSource, scheme: TilingScheme, folder: Path) -> dict[str, bytes]:
    folder.mkdir()
    files = {}
    for tile in scheme.tiles:
        path = folder / f"a_{tile.row}_{tile.column}.tif"
        write_tile(source.model_copy(update={"part": tile.part}), path, PROFILE, folder / "superblocks")
        files[path.name] = path.read_bytes()
    return files


def test_a_worker_killed_during_60_tiles_loses_none(stage: Stage, tmp_path: Path) -> None:
    path = make_source(tmp_path / "storage" / "bronze")
    source = resolve_image(path, "nearest")
    scheme = divide_into_tiles(source, 512)
    assert len(scheme.tiles) == 60
    for name in ("gate", "written.txt"):
        (tmp_path / name).touch()
    settings = {"data_dir": tmp_path, "worker_concurrency": 1}
    stage.environment[gated_tiles.FOLDER] = str(tmp_path)
    _, worker = stage.launch(ORCHESTRATOR, WORKER, **settings)
    batches = [[tile.model_dump() for tile in scheme.tiles[start : start + 20]] for start in (0, 20, 40)]
    job_id = stage.submit(TILES, batches=batches, profile=PROFILE.model_dump())
    undisturbed = make_undisturbed(source, scheme, tmp_path / "undisturbed")
    deadline = time.monotonic() + 90
    while not (tmp_path / "waits").exists():
        assert time.monotonic() < deadline
        time.sleep(0.01)
    stage.kill(worker)
    (tmp_path / "gate").unlink()
    stage.launch(WORKER, **settings)
    stage.until_ended(job_id)

    written = Counter((tmp_path / "written.txt").read_text().split())
    assert written == Counter(list(undisturbed))
    tiles = {path.name: path.read_bytes() for path in (tmp_path / "storage" / "silver" / "tiles").iterdir()}
    assert tiles == undisturbed
    attempts = stage.database.rows("SELECT retry_count FROM dagapp.dag_node_states WHERE node_id LIKE 'tiles\\_\\_%%'")
    assert sorted(row["retry_count"] for row in attempts) == [0, 0, 1]
    paths = [tmp_path / "storage" / "silver" / "tiles" / name for name in tiles]
    with open_mosaic(arrange(paths)) as joined, rasterio.open(path) as original:
        np.testing.assert_array_equal(joined.read(), original.read())
        assert joined.transform.almost_equals(original.transform)
