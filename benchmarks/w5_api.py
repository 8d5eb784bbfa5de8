"""W5: the HTTP API under load: 50 clients submit and poll while the jobs of W4 run."""

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass, field
from time import perf_counter

import orjson

from benchmarks.figures import Bar, Figure, Sample
from benchmarks.fleet import separate, started
from benchmarks.place import Place
from benchmarks.scale import Scale
from benchmarks.submitter import GIVE_UP_SECONDS, Submitter, open_submitter
from benchmarks.w4_throughput import JOBS_PER_SUBMISSION, STEPS
from benchmarks.workflows import CHAIN_INPUTS, chain
from dagmaster.ids import JobId

CLIENTS = 50
POLL_SECONDS = 0.02
SETTLE_SECONDS = 1.5


@dataclass(slots=True)
class Times:
    """Tasks per second without and with the clients; the clients' own times in milliseconds."""

    without: list[float] = field(default_factory=list)
    beside: list[float] = field(default_factory=list)
    reads: list[float] = field(default_factory=list)
    submissions: list[float] = field(default_factory=list)


async def measure(place: Place, scale: Scale) -> list[Figure]:
    times = Times()
    with place.database("w5") as dsn, separate(dsn), ExitStack() as stack:
        api = stack.enter_context(started("api", dsn))
        async with open_submitter(dsn) as user:
            await _rate(user, scale.warm_up_jobs)
            for _ in range(scale.repetitions):
                times.without.append(await _rate(user, scale.throughput_jobs))
                async with _clients(api.address, times):
                    times.beside.append(await _rate(user, scale.throughput_jobs))
    return figures(times, scale.throughput_jobs)


async def _rate(user: Submitter, jobs: int) -> float:
    """Tasks per second of all jobs that ended meanwhile, the clients' included."""
    graph, job_ids = chain(STEPS), []
    [row] = await (await user.conn.execute("SELECT clock_timestamp() AS began")).fetchall()
    began = perf_counter()
    for start in range(0, jobs, JOBS_PER_SUBMISSION):
        job_ids += await user.submit(graph, CHAIN_INPUTS, min(JOBS_PER_SUBMISSION, jobs - start))
    seconds = await _until_ended(user, job_ids) - began
    counting = "SELECT count(*) AS jobs FROM dagapp.dag_jobs WHERE completed_at >= $1 AND status = 'completed'"
    [ended] = await (await user.conn.execute(counting, [row["began"]])).fetchall()
    return int(ended["jobs"]) * STEPS / seconds


async def _until_ended(user: Submitter, job_ids: list[JobId]) -> float:
    deadline = perf_counter() + GIVE_UP_SECONDS
    query = "SELECT count(*) AS jobs FROM dagapp.dag_jobs WHERE job_id = ANY($1) AND status <> 'completed'"
    while True:
        [left] = await (await user.conn.execute(query, [job_ids])).fetchall()
        if left["jobs"] == 0:
            return perf_counter()
        if perf_counter() > deadline:
            raise TimeoutError(f"{left['jobs']} jobs were not done in {GIVE_UP_SECONDS:g} s")
        await asyncio.sleep(POLL_SECONDS)


@asynccontextmanager
async def _clients(address: str, times: Times) -> AsyncIterator[None]:
    """In a process of their own, so that they do not measure themselves."""
    command = [sys.executable, "-m", "benchmarks.clients", address, str(CLIENTS)]
    process = await asyncio.create_subprocess_exec(*command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdout is not None
    if (await process.stdout.readline()).strip() != b"ready":
        raise RuntimeError("the clients did not start")
    try:
        await asyncio.sleep(SETTLE_SECONDS)
        yield
    finally:
        output, _ = await process.communicate(b"stop\n")
    timings = orjson.loads(output)
    if timings["errors"]:
        raise RuntimeError(f"{len(timings['errors'])} requests failed, such as: {timings['errors'][0]}")
    times.reads += timings["reads"]
    times.submissions += timings["submissions"]


def figures(times: Times, jobs: int) -> list[Figure]:
    reads, submissions = Sample.of(times.reads), Sample.of(times.submissions)
    without, beside = Sample.of(times.without), Sample.of(times.beside)
    return [
        Figure("W5", f"floor: {jobs:,} jobs of 3 steps, no client", without.median, "tasks/s", without.spread),
        Figure(
            "W5",
            f"the same beside {CLIENTS} HTTP clients",
            beside.median,
            "tasks/s",
            beside.spread,
            without.median,
            Bar(0.75, at_least=True),
        ),
        Figure(
            "W5", "reading a job meanwhile, 95th percentile", reads.percentile(95), "ms", reads.spread, bar=Bar(100)
        ),
        Figure(
            "W5", "submitting a job meanwhile, 95th percentile", submissions.percentile(95), "ms", submissions.spread
        ),
    ]
