"""W6: a task that adds nodes to its own job, beside a fan-out of as many."""

from collections.abc import Sequence

from benchmarks.figures import Bar, Figure, Sample
from benchmarks.fleet import separate
from benchmarks.place import Place
from benchmarks.scale import Scale
from benchmarks.submitter import open_submitter
from benchmarks.workflows import adding, fan

MAX_RATIO = 1.3


async def measure(place: Place, scale: Scale) -> list[Figure]:
    size = scale.fan_sizes[1]
    items = {"items": list(range(size))}
    graphs = {"fan-out": fan(), "added": adding()}
    times: dict[str, list[float]] = {name: [] for name in graphs}
    with place.database("w6") as dsn, separate(dsn):
        async with open_submitter(dsn) as user:
            for graph in graphs.values():
                await user.time_one(graph, {"items": [1, 2, 3]})  # warm
            for _ in range(min(scale.repetitions, 3)):
                for name, graph in graphs.items():
                    times[name].append(await user.time_one(graph, items, min(times[name], default=0.0)))
    return figures(times["added"], times["fan-out"], size)


def figures(added: Sequence[float], fanned: Sequence[float], size: int) -> list[Figure]:
    measured, floor = Sample.of(added), Sample.of(fanned)
    return [
        Figure("W6", f"floor: a fan-out of {size:,}", floor.median, "s", floor.spread),
        Figure("W6", f"{size:,} added nodes", measured.median, "s", measured.spread, floor.median, Bar(MAX_RATIO)),
    ]
