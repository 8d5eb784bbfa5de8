"""W12: tables beside the SQL that somebody would write by hand, small values, tasks, and the memory of a client."""

import asyncio
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from time import perf_counter

from benchmarks import w12_table_tasks
from benchmarks.figures import Bar, Figure, Sample
from benchmarks.place import Place
from benchmarks.scale import QUICK, Scale
from dagmaster.data import DataContext, View, aggregates, col
from dagmaster.data.engine import folder_url
from dagmaster.data.objects import Object
from dagmaster.data.sql import table_name
from dagmaster.data.statements import ROW_ID_COLUMN

PIPELINE_ROWS = 10_000_000
CHUNKED_ROWS = 100_000_000
CHUNKS = 100
VALUE_PROCESSES = 4
VALUE_SECONDS = 5
QUICK_SHARE = 100
BY_HAND = (
    """SELECT x % 100 AS k, sum(x * 2) AS s FROM {table} WHERE (x * 2) % 3 = 0 GROUP BY k ORDER BY s DESC LIMIT 10"""
)
CHUNK_BY_HAND = "SELECT sum(x) FROM {table} WHERE row_id >= {first} AND row_id < {end}"

VALUES = """
import asyncio, sys, time
from dagmaster import DataContext, OrchContext

async def store(seconds):
    count = 0
    async with OrchContext(), DataContext(scope="global") as context:
        await context.create_object_from_value([0])
        print("ready", flush=True)
        sys.stdin.readline()
        end = time.perf_counter() + seconds
        while time.perf_counter() < end:
            await context.create_object_from_value([count])
            count += 1
    print(count)

asyncio.run(store(float(sys.argv[1])))
"""
MEMORY = """
import asyncio, re
import dagmaster.fleet

def private_mb():
    text = open("/proc/self/smaps_rollup").read()
    return sum(int(size) for size in re.findall(r"Private_\\w+:\\s+(\\d+)", text)) / 1024

before = private_mb()
from dagmaster.data import DataContext

async def use(url):
    async with DataContext(url) as context:
        assert await (await context.create_object_from_value([1, 2])).count() == 2

import sys
asyncio.run(use(sys.argv[1]))
print(before, private_mb())
"""


async def measure(place: Place, scale: Scale) -> list[Figure]:
    share = QUICK_SHARE if scale is QUICK else 1
    with tempfile.TemporaryDirectory(dir=place.server.data_dir) as folder:
        async with DataContext(folder_url(Path(folder) / "own")) as context:
            figures = await _pipeline(context, PIPELINE_ROWS // share, scale.repetitions)
            figures += await _chunks(context, CHUNKED_ROWS // share, scale.repetitions)
        service = folder_url(Path(folder) / "shared", "service")
        figures += await asyncio.to_thread(_memory, service)
        with place.database("w12") as dsn:
            figures += await asyncio.to_thread(_small_values, dsn, service, VALUE_SECONDS / (5 if share > 1 else 1))
        figures += await w12_table_tasks.measure(place, scale, service)
    return figures


async def _numbers(context: DataContext, rows: int) -> Object:
    numbers = await context.create_object_from_value({"x": [0]})
    table = table_name(numbers.table_id)
    await context.run(lambda: context.engine.drop(table))
    await context.run(lambda: context.engine.create(table, f"{ROW_ID_COLUMN}, x Int64"))
    sql = f"SELECT number AS row_id, toInt64(number) AS x FROM numbers({rows})"
    await context.run(lambda: context.engine.fill(table, "row_id, x", sql, {}))
    return Object(numbers.table_id, context)


async def _pipeline(context: DataContext, rows: int, repetitions: int) -> list[Figure]:
    numbers = await _numbers(context, rows)
    doubled = numbers.with_columns(y=col("x") * 2).where(col("y") % 3 == 0)
    top = doubled.group_by(k=col("x") % 100).agg(s=aggregates.sum("y")).order_by(col("s").desc()).limit(10)
    by_hand = BY_HAND.format(table=table_name(numbers.table_id))
    own, floor = [], []
    for _ in range(2 * repetitions + 1):
        floor.append(await _timed(context, lambda: context.engine.query(by_hand, {})))
        began = perf_counter()
        await top.collect()
        own.append(perf_counter() - began)
    sample, hand = Sample.of(own[1:], scale=1000), Sample.of(floor[1:], scale=1000)
    return [
        Figure("W12", f"floor: SQL by hand over {rows:,} rows", hand.median, "ms", hand.spread),
        Figure("W12", "five operations on a View", sample.median, "ms", sample.spread, hand.median, Bar(1.3)),
    ]


async def _chunks(context: DataContext, rows: int, repetitions: int) -> list[Figure]:
    numbers = await _numbers(context, rows)
    await _sum_seconds(numbers)  # The first scan also opens the files.
    size, table = rows // CHUNKS, table_name(numbers.table_id)
    chunks = [numbers.limit(size, number * size) for number in range(CHUNKS)]
    by_hand = [CHUNK_BY_HAND.format(table=table, first=n * size, end=(n + 1) * size) for n in range(CHUNKS)]
    scans, hands, totals, firsts, lasts = [], [], [], [], []
    for _ in range(repetitions):
        scans.append(await _sum_seconds(numbers))
        hands.append(sum([await _timed(context, partial(context.engine.query, sql, {})) for sql in by_hand]))
        times = [await _sum_seconds(chunk) for chunk in chunks]
        totals.append(sum(times))
        firsts += times[1:6]
        lasts += times[-5:]
    scan, hand, total, first, last = (Sample.of(times, scale=1000) for times in (scans, hands, totals, firsts, lasts))
    return [
        Figure("W12", f"floor: one scan of {rows:,} rows", scan.median, "ms", scan.spread),
        Figure("W12", f"for comparison: {CHUNKS} chunks of them, SQL by hand", hand.median, "ms", hand.spread),
        Figure("W12", f"{CHUNKS} chunks of them", total.median, "ms", total.spread, scan.median, Bar(2)),
        Figure("W12", "the last chunks beside the first", last.median, "ms", last.spread, first.median, Bar(1.5)),
    ]


async def _sum_seconds(view: View) -> float:
    began = perf_counter()
    await view.agg(s=aggregates.sum("x")).collect()
    return perf_counter() - began


async def _timed(context: DataContext, work: Callable[[], object]) -> float:
    began = perf_counter()
    await context.run(work)
    return perf_counter() - began


def _memory(service: str) -> list[Figure]:
    ended = subprocess.run([sys.executable, "-c", MEMORY, service], capture_output=True, text=True, check=True)
    before, after = map(float, ended.stdout.split())
    return [
        Figure("W12", "private memory of a worker before tables", before, "MB"),
        Figure("W12", "and with tables, without an engine", after, "MB", bar=Bar(60)),
    ]


def _small_values(dsn: str, service: str, seconds: float) -> list[Figure]:
    env = {**os.environ, "DAGMASTER_DATABASE_URL": dsn, "DAGMASTER_DATA_URL": service}
    command = [sys.executable, "-c", VALUES, str(seconds)]
    writers = [
        subprocess.Popen(command, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for _ in range(VALUE_PROCESSES)
    ]
    for writer in writers:
        assert writer.stdout is not None
        assert writer.stdout.readline() == "ready\n"
    counts = [int(writer.communicate()[0]) for writer in _started(writers)]
    rate = sum(counts) / seconds
    return [
        Figure("W12", f"small values from {VALUE_PROCESSES} processes", rate, "per s", bar=Bar(1000, at_least=True))
    ]


def _started(writers: list["subprocess.Popen[str]"]) -> list["subprocess.Popen[str]"]:
    """All at once: each waits for a line."""
    for writer in writers:
        assert writer.stdin is not None
        writer.stdin.write("go\n")
        writer.stdin.flush()
    return writers
