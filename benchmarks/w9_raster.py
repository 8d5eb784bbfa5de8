"""W9: a cloud-optimised GeoTIFF against GDAL's COG driver, and tiles by two workers against one."""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from unittest.mock import patch

import numpy as np
import rasterio
from rasterio.transform import from_origin
from rasterio.windows import Window

from benchmarks.figures import Bar, Figure, Sample
from benchmarks.fleet import started
from benchmarks.place import Place
from benchmarks.raster_write import PROFILE
from benchmarks.scale import Scale
from benchmarks.submitter import open_submitter
from benchmarks.workflows import QUEUE, tiles
from dagmaster.geo.raster.image import resolve_image
from dagmaster.geo.raster.tiling import divide_into_tiles
from dagmaster.handlers import raster

PROCESSES = 2
ROWS = 1024
LARGE = 10_000
MEMORY_MB = 600
TILE = 2048
CASES = (("", "as it is", 1.5), ("EPSG:3857", "reprojected", 1.0))


async def measure(place: Place, scale: Scale) -> list[Figure]:
    side = scale.raster_side
    repetitions = 1 if side > LARGE else min(scale.repetitions, 3)
    with tempfile.TemporaryDirectory(prefix="dagmaster-bench-") as name:
        folder = Path(name)
        source = folder / "storage" / "bronze" / "dem.tif"
        source.parent.mkdir(parents=True)
        write_elevations(source, side)
        figures = [figure for case in CASES for figure in _compare(source, folder, side, repetitions, *case)]
        return [*figures, await _measure_tiles(place, source, folder, repetitions)]


def write_elevations(path: Path, side: int) -> None:
    """Hills with the noise of a sensor, to a centimetre, and a lake of nodata."""
    random = np.random.default_rng(1)
    options = {"tiled": True, "blockxsize": 512, "blockysize": 512, "compress": "deflate", "zlevel": 1, "predictor": 3}
    place = {"crs": "EPSG:32632", "transform": from_origin(400_000, 5_300_000, 10, 10), "nodata": -9999}
    x = np.arange(side) / 17_000
    with rasterio.open(path, "w", "GTiff", side, side, 1, dtype="float32", **place, **options) as dataset:
        for row in range(0, side, ROWS):
            height = min(ROWS, side - row)
            y = (np.arange(row, row + height) / 17_000)[:, None]
            hills = (
                1500 + 800 * np.sin(9 * x + 4 * y) + 400 * np.sin(40 * y * x + 11 * x) + 100 * np.cos(170 * x - 210 * y)
            )
            values = np.round(hills + random.normal(0, 0.5, (height, side)), 2).astype("float32")
            values[(x - 0.1) ** 2 + (y - 0.1) ** 2 < 0.002] = -9999
            dataset.write(values, 1, window=Window(0, row, side, height))


def _compare(
    source: Path, folder: Path, side: int, repetitions: int, crs: str, how: str, bar: float
) -> Iterator[Figure]:
    """The two take turns: both see the same machine."""
    runs = [(_write("ours", source, folder, crs), _write("gdal", source, folder, crs)) for _ in range(repetitions)]
    megabytes = side * side * 4 / 1e6
    ours, theirs = (Sample.of([megabytes / run[number][0] for run in runs]) for number in (0, 1))
    what = f"COG of {megabytes:,.0f} MB of elevations, {how}; floor: GDAL's driver"
    yield Figure("W9", what, ours.median, "MB/s", ours.spread, theirs.median, Bar(bar, at_least=True))
    peak = max(run[0][1] for run in runs)
    yield Figure("W9", f"peak memory of {PROCESSES} processes, {how}", peak, "MB", bar=Bar(MEMORY_MB))


def _write(writer: str, source: Path, folder: Path, crs: str) -> tuple[float, float]:
    """Seconds and megabytes."""
    target = folder / f"{writer}.tif"
    command = [sys.executable, "-m", "benchmarks.raster_write", writer, str(source), str(target), crs, str(PROCESSES)]
    output = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    target.unlink()
    shutil.rmtree(target.with_suffix(".superblocks"), ignore_errors=True)
    seconds, megabytes = output.splitlines()[-1].split()
    return float(seconds), float(megabytes)


async def _measure_tiles(place: Place, source: Path, folder: Path, repetitions: int) -> Figure:
    scheme = divide_into_tiles(resolve_image(source, PROFILE.resampling), TILE)
    batches = [[tile.model_dump()] for tile in scheme.tiles]
    inputs = {"batches": batches, "profile": PROFILE.model_dump()}
    graph = tiles()
    speeds: dict[int, list[float]] = {1: [], 2: []}
    for _ in range(repetitions):
        for workers, speed in speeds.items():
            with place.database("w9") as dsn, _workers(dsn, folder, workers):
                async with open_submitter(dsn) as user:
                    await user.time_one(graph, {**inputs, "batches": batches[:2]})  # warm
                    speed.append(len(batches) / await user.time_one(graph, inputs))
    one, two = Sample.of(speeds[1]), Sample.of(speeds[2])
    what = f"{len(batches)} tiles of {TILE} pixels by two workers; floor: by one"
    return Figure("W9", what, two.median, "tiles/s", two.spread, one.median, Bar(1.6, at_least=True))


@contextmanager
def _workers(dsn: str, folder: Path, count: int) -> Iterator[None]:
    """Each with one slot."""
    settings = {"DAGMASTER_DATA_DIR": str(folder), "BENCH_HANDLERS": raster.__name__}
    with patch.dict(os.environ, settings), ExitStack() as stack:
        stack.enter_context(started("orchestrator", dsn))
        for _ in range(count):
            stack.enter_context(started("worker", dsn, concurrency=1, queue=QUEUE))
        yield
