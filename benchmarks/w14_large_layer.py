"""W14: 2 million features through `vector_etl`, into PostGIS where it is installed. Not run by default."""

import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import psycopg
import pyarrow.parquet as pq
from pmtiles.reader import MmapSource, Reader

from benchmarks.figures import Bar, Figure
from benchmarks.memory import MB, PeakMemory, family
from benchmarks.place import Place
from benchmarks.scale import Scale
from benchmarks.shipped_jobs import ShippedFleet, shipped_fleet
from benchmarks.w10_vectors import SIDE, corners, write_polygons
from dagmaster.geo.vector.cleaner import CORNERS
from dagmaster.handlers import vector
from tools.postgis_server import IS_INSTALLED, REASON, run_postgis

SLOTS = 4  # as many chunks as the workflow loads at a time
MEMORY_MB = 800


async def measure(place: Place, scale: Scale) -> list[Figure]:
    with tempfile.TemporaryDirectory(prefix="dagmaster-bench-") as name, _database(place) as dsn:
        folder = Path(name)
        source = folder / "storage" / "bronze" / "large.gpkg"
        source.parent.mkdir(parents=True)
        write_polygons(source, scale.large_layer_features)
        async with shipped_fleet(dsn, folder, vector.__name__) as fleet:
            return await _load(fleet, source, scale.large_layer_features)


@contextmanager
def _database(place: Place) -> Iterator[str]:
    """With PostGIS, or the reason why there is none."""
    if IS_INSTALLED:
        with run_postgis() as server:
            yield server.create_database()
        return
    print(f"W14 loads no table: {REASON}", file=sys.stderr)
    with place.database("w14") as dsn:
        yield dsn


async def _load(fleet: ShippedFleet, source: Path, count: int) -> list[Figure]:
    with fleet.worker(SLOTS) as worker, PeakMemory(lambda: family(worker.pid)) as memory:
        began = perf_counter()
        job_id = await fleet.submit("vector_etl", source=f"bronze/{source.name}")
        await fleet.end(job_id)
        seconds = perf_counter() - began
    prepare = await fleet.node(job_id, "prepare")
    table = (await fleet.node(job_id, "create_table"))["output"]["table_name"]
    output, storage = prepare["output"], source.parents[1]
    _check_parquet(storage / output["blob_path"], count)
    zoom = _check_tiles(storage / output["pmtiles_path"], output["layer"]["preview"])
    if table is not None:
        _check_table(fleet.dsn, table, count)
    label = f"vector_etl of {count:,} polygons ({source.stat().st_size / 1e6:,.0f} MB)"
    return [
        Figure("W14", f"{label}{', with a table' if table else ''}", seconds, "s"),
        Figure("W14", "of that, vector_prepare", prepare["seconds"], "s"),
        Figure("W14", "peak memory of the worker and its processes", memory.bytes / MB, "MB"),
        Figure("W14", "of that, without mapped files", memory.anonymous_bytes / MB, "MB", bar=Bar(MEMORY_MB)),
        Figure("W14", "size of the GeoParquet file", (storage / output["blob_path"]).stat().st_size / 1e6, "MB"),
        Figure("W14", f"features of the preview, to zoom {zoom}", output["layer"]["preview"]["features"], ""),
    ]


def _check_parquet(path: Path, count: int) -> None:
    """Every feature, once, where it was put."""
    table = pq.read_table(path, columns=["number", "bbox"])
    numbers = table.column("number").to_numpy()
    order = np.argsort(numbers)
    assert (numbers[order] == np.arange(count)).all(), "features are missing or doubled"
    boxes = table.column("bbox").combine_chunks()
    west, south = corners(count)
    for corner, expected in zip(CORNERS, (west, south, west + SIDE, south + SIDE), strict=True):
        np.testing.assert_allclose(boxes.field(corner).to_numpy()[order], expected, atol=1e-9)


def _check_tiles(path: Path, preview: dict[str, Any]) -> int:
    with path.open("rb") as file:
        reader = Reader(MmapSource(file))
        zoom = int(reader.header()["max_zoom"])
        assert zoom == preview["max_zoom"]
        assert any(reader.get(zoom, x, y) for x in range(2**zoom) for y in range(2**zoom)), "all tiles are empty"
    return zoom


def _check_table(dsn: str, table: str, count: int) -> None:
    with psycopg.connect(dsn) as conn:
        row = conn.execute(f"SELECT count(*), sum(number), bool_and(ST_IsValid(geometry)) FROM {table}".encode())
        assert row.fetchone() == (count, count * (count - 1) // 2, True)
