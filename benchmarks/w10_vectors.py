"""W10: polygons into PostGIS, against `ogr2ogr` with COPY, on a PostGIS of its own."""

import asyncio
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from time import perf_counter

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
        _write_polygons(source, count)
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


def _write_polygons(path: Path, count: int) -> None:
    """Boxes of a hundred metres with six columns, somewhere in North America."""
    random = np.random.default_rng(1)
    west, south = random.uniform(-120, -80, count), random.uniform(30, 48, count)
    columns = {
        "number": np.arange(count),
        "name": [f"polygon {number}" for number in range(count)],
        "height": random.random(count),
        "rank": random.integers(0, 100, count).astype(np.int32),
        "kind": ["house"] * count,
        "source": ["survey"] * count,
        "geometry": pa.array(shapely.to_wkb(shapely.box(west, south, west + 0.001, south + 0.001)), pa.binary()),
    }
    options = {"driver": "GPKG", "geometry_name": "geometry", "geometry_type": "Polygon", "crs": "EPSG:4326"}
    write_arrow(pa.table(columns), path, layer=LAYER, **options)


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
