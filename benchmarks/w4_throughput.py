"""W4: many small jobs at once, one orchestrator and one worker process."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from time import perf_counter

from benchmarks import floor_jobs
from benchmarks.costs import read_costs, spent
from benchmarks.figures import Bar, Figure, Sample
from benchmarks.fleet import Role, separate
from benchmarks.place import Place
from benchmarks.scale import Scale
from benchmarks.submitter import Submitter, open_submitter
from benchmarks.workflows import CHAIN_INPUTS, chain

JOBS_PER_SUBMISSION = 100
JOBS_PER_COMMIT = 200
LEAST_SECONDS_PER_JOB = 0.001
STEPS = floor_jobs.STEPS
EVENTS_PER_JOB = 23


@dataclass(slots=True)
class Times:
    """Seconds for all jobs, by who wrote them; `costs` are processor seconds."""

    product: list[float] = field(default_factory=list)
    submit: list[float] = field(default_factory=list)
    alone: list[float] = field(default_factory=list)
    split: list[float] = field(default_factory=list)
    parallel: list[float] = field(default_factory=list)
    costs: Counter[str] = field(default_factory=Counter)


async def measure(place: Place, scale: Scale) -> list[Figure]:
    times, jobs = Times(), scale.throughput_jobs
    with place.database("w4") as dsn, separate(dsn) as (orchestrator, worker):
        async with open_submitter(dsn) as user:
            await _time_jobs(user, scale.warm_up_jobs)
            for _ in range(scale.repetitions):
                await _time_floor(place, jobs, times)
                await _time_product(user, jobs, times, {"orchestrator": orchestrator, "worker": worker})
            await _check_events(dsn, scale.warm_up_jobs + scale.repetitions * jobs)
    return figures(times, jobs)


async def _time_product(user: Submitter, jobs: int, times: Times, roles: Mapping[str, Role]) -> None:
    before = await read_costs(user.conn, roles)
    total, submit = await _time_jobs(user, jobs)
    times.product.append(total)
    times.submit.append(submit)
    times.costs.update(spent(before, await read_costs(user.conn, roles)))


async def _time_jobs(user: Submitter, jobs: int) -> tuple[float, float]:
    """From the first submission to the last job completed, and to the last submission."""
    graph, job_ids = chain(STEPS), []
    began = perf_counter()
    for start in range(0, jobs, JOBS_PER_SUBMISSION):
        job_ids += await user.submit(graph, CHAIN_INPUTS, min(JOBS_PER_SUBMISSION, jobs - start))
    submitted = perf_counter() - began
    ended = await user.wait(job_ids, jobs * LEAST_SECONDS_PER_JOB)
    return ended - began, submitted


async def _time_floor(place: Place, jobs: int, times: Times) -> None:
    """Each way in a fresh database."""
    with place.database("w4_alone") as dsn:
        times.alone.append(await floor_jobs.run_alone(dsn, jobs, JOBS_PER_COMMIT, connections=1))
        await _check_events(dsn, jobs)
    with place.database("w4_split") as dsn:
        times.split.append(await floor_jobs.run_split(dsn, jobs, JOBS_PER_COMMIT))
        await _check_events(dsn, jobs)
    with place.database("w4_parallel") as dsn:
        times.parallel.append(await floor_jobs.run_alone(dsn, jobs, JOBS_PER_COMMIT, connections=2))
        await _check_events(dsn, jobs)


async def _check_events(dsn: str, jobs: int) -> None:
    """The floor and the product write the same timeline, or one of them has it too easy."""
    events = await floor_jobs.count_events(dsn)
    if events != jobs * EVENTS_PER_JOB:
        raise RuntimeError(f"{jobs} jobs left {events} events, not {jobs * EVENTS_PER_JOB}")


def figures(times: Times, jobs: int) -> list[Figure]:
    """The floor is the faster of the bare scripts; the one with two connections is for comparison."""
    alone, split, parallel = (_rate(seconds, jobs) for seconds in (times.alone, times.split, times.parallel))
    product, floor = _rate(times.product, jobs), max(alone.median, split.median)
    submit = Sample.of(times.submit)
    tasks = len(times.product) * jobs * STEPS
    return [
        Figure("W4", "floor: bare script, one process", alone.median, "tasks/s", alone.spread),
        Figure("W4", "floor: bare script, two processes", split.median, "tasks/s", split.spread),
        Figure("W4", "for comparison: two scripts, half the jobs each", parallel.median, "tasks/s", parallel.spread),
        Figure(
            "W4",
            f"{jobs:,} jobs of 3 steps",
            product.median,
            "tasks/s",
            product.spread,
            floor,
            Bar(0.55, at_least=True),
        ),
        Figure("W4", "of that, until all are submitted", submit.median, "s", submit.spread),
        *(
            Figure("W4", f"processor time per task: {name}", seconds / tasks * 1e6, "µs")
            for name, seconds in times.costs.most_common()
            if seconds / sum(times.costs.values()) > 0.01
        ),
    ]


def _rate(seconds: Sequence[float], jobs: int) -> Sample:
    return Sample.of([jobs * STEPS / duration for duration in seconds])
