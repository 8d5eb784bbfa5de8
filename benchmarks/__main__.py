"""`python -m benchmarks [w1 ... w14 idle floor]`: measure, print the table, fail if a bar is missed."""

import argparse
import asyncio
import os
import platform
import sys
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from time import perf_counter

from benchmarks import (
    floor,
    idle,
    w1_latency,
    w2_chain,
    w3_fan,
    w4_throughput,
    w5_api,
    w6_adding,
    w7_task_chain,
    w8_large,
    w9_raster,
    w10_vectors,
    w11_serving,
    w12_tables,
    w13_large_raster,
    w14_large_layer,
)
from benchmarks.figures import Figure
from benchmarks.place import Place, embedded_place
from benchmarks.report import missed, table, to_json, write_into
from benchmarks.scale import FULL, QUICK, Scale

WORKLOADS: dict[str, Callable[[Place, Scale], Awaitable[list[Figure]]]] = {
    "w1": w1_latency.measure,
    "w2": w2_chain.measure,
    "w3": w3_fan.measure,
    "w4": w4_throughput.measure,
    "w5": w5_api.measure,
    "w6": w6_adding.measure,
    "w7": w7_task_chain.measure,
    "w8": w8_large.measure,
    "w9": w9_raster.measure,
    "w10": w10_vectors.measure,
    "w11": w11_serving.measure,
    "w12": w12_tables.measure,
    "w13": w13_large_raster.measure,
    "w14": w14_large_layer.measure,
    "idle": idle.measure,
    "floor": floor.measure,
}
BY_DEFAULT = ("w1", "w2", "w3", "w4", "w5", "w6", "w7", "w8", "w9", "w10", "w11", "w12", "idle")


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parse(arguments)
    scale = QUICK if options.quick else FULL
    if options.polygons:
        scale = replace(scale, polygons=options.polygons, large_layer_features=options.polygons)
    if options.raster_side:
        scale = replace(scale, raster_side=options.raster_side, large_raster_side=options.raster_side)
    if options.realtime:
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))  # Inherited by all that is started from here.
    began = perf_counter()
    with embedded_place(options.data_dir) as place:
        about = _about(place)
        print(about, file=sys.stderr)
        figures = asyncio.run(_measure(place, scale, options.workloads or BY_DEFAULT))
    about += f", {perf_counter() - began:.0f} s in all"
    print(table(figures))
    if options.json:
        options.json.write_bytes(to_json(figures, about))
    if options.markdown:
        write_into(options.markdown, f"\n{about}.\n\n{table(figures)}\n")
    if options.quick:
        print("\nA quick run shows that everything works; it is too small to judge by.")
        return 0
    return 1 if missed(figures) else 0


async def _measure(place: Place, scale: Scale, names: Sequence[str]) -> list[Figure]:
    figures: list[Figure] = []
    for name in names:
        began = perf_counter()
        figures += await WORKLOADS[name](place, scale)
        print(f"{name}: {perf_counter() - began:.1f} s", file=sys.stderr)
    return figures


def _about(place: Place) -> str:
    now = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
    load = f"load average {os.getloadavg()[0]:.1f}"
    return f"{now}, {os.cpu_count()} cores, {load}, Python {platform.python_version()}, {place.describe()}"


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument(
        "workloads", nargs="*", metavar="WORKLOAD", help=f"of {', '.join(WORKLOADS)}; by default all that have a bar"
    )
    parser.add_argument("--quick", action="store_true", help="small numbers, under a minute, no verdict")
    parser.add_argument("--realtime", action="store_true", help="ahead of all else on a shared machine; for root")
    parser.add_argument("--polygons", type=int, metavar="N", help="how many w10 and w14 load")
    parser.add_argument(
        "--raster-side", type=int, metavar="N", help="width and height of the rasters of w9 and w13 in pixels"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there")
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="put the table between the marks of this page")
    parser.add_argument("--data-dir", type=Path, metavar="FOLDER", help="the server's folder is made in this one")
    options = parser.parse_args(arguments)
    if unknown := set(options.workloads) - set(WORKLOADS):
        parser.error(f"there is no workload {', '.join(sorted(unknown))}; there are {', '.join(WORKLOADS)}")
    return options


if __name__ == "__main__":
    sys.exit(main())
