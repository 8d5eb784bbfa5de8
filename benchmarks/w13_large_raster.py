"""W13: 10 GB through `raster_ingest`, with the worker killed in the middle of `raster.create_cog`. Not run by default.

It takes 40 GB of disk below TMPDIR.
"""

import asyncio
import os
import signal
import tempfile
from collections import defaultdict
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from time import perf_counter
from unittest.mock import patch

import numpy as np
import psutil
import rasterio
from rasterio.transform import from_origin
from rasterio.windows import Window

from benchmarks.figures import Bar, Figure
from benchmarks.memory import MB, PeakMemory, family
from benchmarks.place import Place
from benchmarks.raster_check import CLASSIC_END, check_cog, is_bigtiff, last_offset
from benchmarks.scale import Scale
from benchmarks.shipped_jobs import ShippedFleet, shipped_fleet, until
from dagmaster.handlers import raster
from dagmaster.ids import JobId

ROWS = 512
MEMORY_MB = 600  # the default of raster_memory_mb
KILL_SHARE = 0.4
# In pixels; of how the image is divided in that memory.
SUPERBLOCK = 2048


async def measure(place: Place, scale: Scale) -> list[Figure]:
    with tempfile.TemporaryDirectory(prefix="dagmaster-bench-") as name, place.database("w13") as dsn:
        folder = Path(name)
        source = folder / "storage" / "bronze" / "large.tif"
        source.parent.mkdir(parents=True)
        write_noise(source, scale.large_raster_side)
        # A small raster of a quick run takes the same way.
        with patch.dict(os.environ, {"DAGMASTER_RASTER_PARALLEL_ABOVE_MB": "0"}):
            async with shipped_fleet(dsn, folder, raster.__name__) as fleet:
                return await _ingest(fleet, source, scale.large_raster_side)


def write_noise(path: Path, side: int) -> None:
    """Hills with noise in most bits of the mantissa: the compressed file has more than 4 GB, too. Not compressed."""
    noise = np.random.default_rng(1).normal(0, 0.5, (ROWS, side)).astype("float32")
    place = {"crs": "EPSG:32632", "transform": from_origin(400_000, 5_300_000, 1, 1)}
    options = {"tiled": True, "blockxsize": 512, "blockysize": 512, "bigtiff": "IF_SAFER"}
    x = np.arange(side, dtype="float32") / 17_000
    across = 800 * np.sin(9 * x) + 100 * np.cos(170 * x)
    with rasterio.open(path, "w", "GTiff", side, side, 1, dtype="float32", **place, **options) as dataset:
        for row in range(0, side, ROWS):
            height = min(ROWS, side - row)
            y = (np.arange(row, row + height, dtype="float32") / 17_000)[:, None]
            values = 1500 + across * np.cos(4 * y) + np.roll(noise, row, axis=1)[:height]
            dataset.write(values.astype("float32"), 1, window=Window(0, row, side, height))


@dataclass(slots=True)
class Superblocks:
    """Which are complete, and how often each was completed: its index is another file then."""

    folder: Path
    seen: dict[str, set[int]] = field(default_factory=lambda: defaultdict(set))

    def look(self) -> int:
        for path in self.folder.glob("*/superblocks/[0-9]*.json"):
            with suppress(FileNotFoundError):  # Joined and removed meanwhile.
                self.seen[path.name].add(path.stat().st_mtime_ns)
        return len(self.seen)

    @property
    def repeated(self) -> int:
        return sum(len(times) - 1 for times in self.seen.values())


async def _ingest(fleet: ShippedFleet, source: Path, side: int) -> list[Figure]:
    began = perf_counter()
    job_id = await fleet.submit("raster_ingest", source="bronze/large.tif")
    superblocks = Superblocks(source.parents[1] / "mount" / str(job_id) / "create_cog.work")
    enough = KILL_SHARE * (-(-side // SUPERBLOCK)) ** 2
    with fleet.worker() as worker, PeakMemory(lambda: family(worker.pid)) as first:
        await until(partial(_are_made, superblocks, enough, fleet, job_id))
        left = family(worker.pid)[1:]
        os.kill(worker.pid, signal.SIGKILL)
    killed, made = perf_counter(), superblocks.look()
    await until(partial(_are_gone, left))
    orphaned = perf_counter() - killed
    with fleet.worker() as worker, PeakMemory(lambda: family(worker.pid)) as second:
        async with _watched(superblocks):
            await fleet.end(job_id)
    ended = perf_counter()
    output = (await fleet.node(job_id, "create_cog"))["output"]
    cog = source.parents[1] / output["blob_path"]
    _check_size(cog, side)
    blocks = await asyncio.to_thread(check_cog, cog, source, output["content_hash"])
    peak = max(first.bytes, second.bytes) / MB
    megabytes = side * side * 4 / 1e6
    return [
        Figure("W13", f"raster_ingest of {megabytes:,.0f} MB, the worker killed once", ended - began, "s"),
        Figure("W13", "of that, after the kill", ended - killed, "s"),
        Figure("W13", "until the processes of the killed worker were gone", orphaned, "s"),
        Figure("W13", "peak memory of the worker and its processes", peak, "MB", bar=Bar(MEMORY_MB)),
        Figure("W13", "superblocks complete at the kill", made, ""),
        Figure("W13", "superblocks in all", len(superblocks.seen), ""),
        Figure("W13", "complete superblocks that were made again", superblocks.repeated, "", bar=Bar(0)),
        Figure("W13", "size of the COG, every block of which was compared", cog.stat().st_size / 1e6, "MB"),
        Figure("W13", "blocks, those of overviews included", blocks, ""),
    ]


@asynccontextmanager
async def _watched(superblocks: Superblocks) -> AsyncIterator[None]:
    async def look() -> bool:
        superblocks.look()
        return False

    task = asyncio.create_task(until(look))
    try:
        yield
    finally:
        task.cancel()


async def _are_made(superblocks: Superblocks, enough: float, fleet: ShippedFleet, job_id: JobId) -> bool:
    return superblocks.look() >= enough or await fleet.has_ended(job_id)


async def _are_gone(processes: Sequence[psutil.Process]) -> bool:
    return not any(map(_is_alive, processes))


def _is_alive(process: psutil.Process) -> bool:
    with suppress(psutil.NoSuchProcess):
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    return False


def _check_size(cog: Path, side: int) -> None:
    """The file of a full run is beyond what classic TIFF can address."""
    size, offset = cog.stat().st_size, last_offset(cog)
    assert is_bigtiff(cog) == (size >= CLASSIC_END)
    assert size * 0.9 < offset < size, "the last block is at the end"
    assert size > CLASSIC_END or side * side * 4 < 2 * CLASSIC_END, "the file was to be beyond 4 GB"
