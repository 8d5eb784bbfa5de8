"""W3: a wide fan-out with a fan-in that collects; time must grow with the items, and memory stay small."""

from collections.abc import Mapping, Sequence

from benchmarks.figures import Bar, Figure, Sample
from benchmarks.fleet import separate
from benchmarks.place import Place
from benchmarks.scale import Scale
from benchmarks.submitter import open_submitter
from benchmarks.workflows import fan

LEAST_SECONDS_PER_CHILD = 0.0001
REPEAT_UP_TO = 10_000
MAX_MB = 700
MAX_GROWTH = 13


async def measure(place: Place, scale: Scale) -> list[Figure]:
    graph = fan()
    times: dict[int, list[float]] = {size: [] for size in scale.fan_sizes}
    with place.database("w3") as dsn, separate(dsn) as (orchestrator, _):
        async with open_submitter(dsn) as user:
            await user.time_one(graph, {"items": [1, 2, 3]})  # warm
            for size in scale.fan_sizes:
                for _ in range(min(scale.repetitions, 3) if size <= REPEAT_UP_TO else 1):
                    items = {"items": list(range(size))}
                    times[size].append(
                        await user.time_one(graph, items, min(times[size], default=size * LEAST_SECONDS_PER_CHILD))
                    )
        return figures(times, orchestrator.peak_mb)


def figures(times: Mapping[int, Sequence[float]], peak_mb: float) -> list[Figure]:
    """Each size is held against the one before it: `floor` is the smaller one's time."""
    results: list[Figure] = []
    before: float | None = None
    for size, seconds in times.items():
        sample = Sample.of(seconds)
        bar = Bar(MAX_GROWTH) if before else None
        results.append(Figure("W3", f"fan-out of {size:,}", sample.median, "s", sample.spread, before, bar))
        before = sample.median
    largest = max(times)
    return [*results, Figure("W3", f"orchestrator's peak memory at {largest:,}", peak_mb, "MB", bar=Bar(MAX_MB))]
