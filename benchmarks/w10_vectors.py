"""W10: polygons into PostGIS, against `ogr2ogr` with COPY, on a PostGIS of its own."""

import asyncio
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import psycopg
import pyarrow as pa
import shapely
from pyogrio.raw import write_arrow

from benchmarks.figures import Bar, Figure, Sample
from benchmarks.place import Place
from benchmarks.scale import Scale
from dagmaster.geo.vector import layer_files, postgis
from dagmaster.geo.vector.layer_files import LayerFiles
from dagmaster.geo.vector.postgis import Table
from tools.postgis_server import IS_INSTALLED, REASON, PostgisServer, run_postgis

OGR2OGR = shutil.which("ogr2ogr")
RATIO = 1.5
LAYER = "polygons"
SIDE = 0.001  # in degrees
WRITE_ROWS = 250_000


async def measure(place: Place, scale: Scale) -> list[Figure]:
    """Nothing, with the reason, where one of the two programs is not installed."""
    if not IS_INSTALLED or OGR2OGR is None:
        reason = REASON if not IS_INSTALLED else "ogr2ogr is not installed; on Debian: apt-get install gdal-bin"
        print(f"W10 is left out: {reason}", file=sys.stderr)
        return []
    return await asyncio.to_thread(_measure, scale)


def _measure(scale: Scale) -> list[Figure]:
    count = scale.polygons
    with tempfile.TemporaryDirectory(prefix="dagmaster-bench-") as name, run_postgis() as server:
        source, parquet = Path(name, "polygons.gpkg"), Path(name, "polygons.parquet")
        write_polygons(source, count)
        began = perf_counter()
        files = layer_files.prepare(source, parquet)
        prepared = perf_counter() - began
        ours, theirs = [], []
        for _ in range(scale.repetitions):
            dsn = server.create_database()
            ours.append(count / _load(dsn, parquet, files))
            theirs.append(count / _load_by_ogr2ogr(server, dsn, source))
            _check(dsn, count)
    loaded, floor = Sample.of(ours), Sample.of(theirs)
    bar = Bar(RATIO, at_least=True)
    what = f"{count:,} polygons into PostGIS; floor: ogr2ogr with COPY"
    return [
        Figure("W10", what, loaded.median, "features/s", loaded.spread, floor.median, bar),
        Figure("W10", "reading, repairing, sorting and writing them before", count / prepared, "features/s"),
    ]


def corners(count: int) -> tuple[Any, Any]:
    """The west and south of each polygon, somewhere in North America."""
    random = np.random.default_rng(1)
    return random.uniform(-120, -80, count), random.uniform(30, 48, count)


def write_polygons(path: Path, count: int) -> None:
    """Boxes of a hundred metres with six columns."""
    random = np.random.default_rng(2)
    west, south = corners(count)
    options = {"driver": "GPKG", "geometry_name": "geometry", "geometry_type": "Polygon", "crs": "EPSG:4326"}
    for first in range(0, count, WRITE_ROWS):
        part = slice(first, first + WRITE_ROWS)
        numbers = np.arange(count)[part]
        shapes = shapely.box(west[part], south[part], west[part] + SIDE, south[part] + SIDE)
        columns = {
            "number": numbers,
            "name": [f"polygon {number}" for number in numbers],
            "height": random.random(len(numbers)),
            "rank": random.integers(0, 100, len(numbers)).astype(np.int32),
            "kind": ["house"] * len(numbers),
            "source": ["survey"] * len(numbers),
            "geometry": pa.array(shapely.to_wkb(shapes), pa.binary()),
        }
        write_arrow(pa.table(columns), path, layer=LAYER, append=first > 0, **options)


def _load(dsn: str, parquet: Path, files: LayerFiles) -> float:
    """Chunk by chunk, as one worker does; the seconds."""
    table = Table("ours")
    began = perf_counter()
    with psycopg.connect(dsn) as conn:
        extension = postgis.find_postgis(conn)
        assert extension is not None
        postgis.create_table(conn, table, extension, parquet, files.report.geometry_types)
        conn.commit()
        for chunk in files.chunks:
            postgis.load_chunk(conn, table, parquet, chunk)
            conn.commit()
    return perf_counter() - began


def _load_by_ogr2ogr(server: PostgisServer, dsn: str, source: Path) -> float:
    """Without an index, as above; with a primary key, as above."""
    assert OGR2OGR is not None
    target = f"PG:host=127.0.0.1 port={server.port} user=postgres dbname={dsn.rpartition('/')[2]}"
    options = ["--config", "PG_USE_COPY", "YES", "-lco", "SPATIAL_INDEX=NONE", "-lco", "SCHEMA=geo", "-nln", "theirs"]
    began = perf_counter()
    subprocess.run([OGR2OGR, "-f", "PostgreSQL", target, str(source), *options], check=True)
    return perf_counter() - began


def _check(dsn: str, count: int) -> None:
    with psycopg.connect(dsn) as conn:
        for table in ("ours", "theirs"):
            row = conn.execute(f"SELECT count(*) FROM geo.{table}".encode()).fetchone()
            assert row == (count,), f"{table}: {row}"
