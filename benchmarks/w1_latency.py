"""W1: one job START -> echo -> END on an idle system, from its submission until it is seen completed."""

import asyncio
from collections.abc import Sequence

from benchmarks.figures import Bar, Figure, Sample
from benchmarks.fleet import separate
from benchmarks.floor import floor_figure, open_floor
from benchmarks.place import Place
from benchmarks.scale import Scale
from benchmarks.submitter import open_submitter
from benchmarks.workflows import CHAIN_INPUTS, chain

REST_SECONDS = 0.02


async def measure(place: Place, scale: Scale) -> list[Figure]:
    with place.database("w1") as dsn, place.database("w1_floor") as floor_dsn, separate(dsn):
        async with open_submitter(dsn) as user, open_floor(floor_dsn) as floor:
            graph = chain(1)
            times: list[float] = []
            await user.time_one(graph, CHAIN_INPUTS)  # warm
            for _ in range(scale.repetitions):
                await floor.measure_rounds(scale.rounds)
                for _ in range(scale.latency_jobs):
                    await asyncio.sleep(REST_SECONDS)
                    times.append(await user.time_one(graph, CHAIN_INPUTS, min(times, default=0.0)))
    return figures(times, floor.rounds)


def figures(times: Sequence[float], rounds: Sequence[float]) -> list[Figure]:
    jobs, floor = Sample.of(times, scale=1000), Sample.of(rounds, scale=1000)
    return [
        floor_figure("W1", "floor: one commit-and-notify round", rounds),
        Figure("W1", "job of one step, p50", jobs.median, "ms", jobs.spread, floor.median, Bar(8)),
        Figure("W1", "job of one step, p95", jobs.percentile(95), "ms", None, floor.median),
    ]
