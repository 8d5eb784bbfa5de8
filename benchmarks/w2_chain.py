"""W2: a chain of steps, with separate processes and in one process."""

import asyncio
from collections.abc import Mapping, Sequence
from time import perf_counter
from typing import Any

from benchmarks.figures import Bar, Figure, Sample
from benchmarks.fleet import separate
from benchmarks.floor import floor_figure, open_floor
from benchmarks.place import Place
from benchmarks.scale import Scale
from benchmarks.submitter import (
    GIVE_UP_SECONDS,
    LIVE,
    OWNER_IS_ALIVE_SECONDS,
    WAIT_SHARE,
    look_seconds,
    open_submitter,
)
from benchmarks.workflows import CHAIN_INPUTS, QUEUE, chain
from dagmaster.fleet import Fleet, fleet, worker_options
from dagmaster.handlers import load_handlers, registry
from dagmaster.model.graph import Graph
from dagmaster.settings import load_settings
from dagmaster.store import jobs, submission
from dagmaster.store.connect import Connection, connect

CHAINS_PER_REPETITION = 3


async def measure(place: Place, scale: Scale) -> list[Figure]:
    return [*await measure_separate(place, scale), *await measure_one_process(place, scale)]


async def measure_separate(place: Place, scale: Scale) -> list[Figure]:
    graph = chain(scale.chain_steps)
    times: list[float] = []
    with place.database("w2") as dsn, place.database("w2_floor") as floor_dsn, separate(dsn):
        async with open_submitter(dsn) as user, open_floor(floor_dsn) as floor:
            await user.time_one(graph, CHAIN_INPUTS)  # warm
            for _ in range(scale.repetitions):
                await floor.measure_rounds(scale.rounds)
                times.append(await user.time_one(graph, CHAIN_INPUTS, min(times, default=0.0)))
    return separate_figures(times, floor.rounds, scale.chain_steps)


def separate_figures(times: Sequence[float], rounds: Sequence[float], steps: int) -> list[Figure]:
    step, floor = Sample.of(times, scale=1000 / steps), Sample.of(rounds, scale=1000)
    return [
        floor_figure("W2", "floor: one commit-and-notify round", rounds),
        Figure("W2", "a step, separate processes", step.median, "ms", step.spread, floor.median, Bar(5)),
    ]


async def measure_one_process(place: Place, scale: Scale) -> list[Figure]:
    """In this very process, as `dagmaster dev` and `dagmaster run` do it."""
    load_handlers([])
    graph = chain(scale.chain_steps)
    times: list[float] = []
    with place.database("w2_one") as dsn, place.database("w2_one_floor") as floor_dsn:
        settings = load_settings(database_url=dsn)
        work = worker_options(settings, [QUEUE], None)
        async with (
            fleet(dsn, settings, orchestrate=True, work=work, registry=registry) as running,
            await connect(dsn, application="bench") as conn,
            open_floor(floor_dsn) as floor,
        ):
            await time_here(running, conn, graph, CHAIN_INPUTS)  # warm
            for _ in range(scale.repetitions * CHAINS_PER_REPETITION):
                await floor.measure_chain(scale.chain_steps)
                times.append(await time_here(running, conn, graph, CHAIN_INPUTS, min(times, default=0.0)))
            await floor.measure_one_row(scale.rounds)
    return one_process_figures(times, floor.chains, floor.one_row, scale.chain_steps)


async def time_here(
    running: Fleet, conn: Connection, graph: Graph, inputs: Mapping[str, Any], expected_seconds: float = 0.0
) -> float:
    """From before the submission until the owner, in this process, has seen the last commit succeed."""
    assert running.orchestrator is not None
    ended = running.orchestrator.stats.jobs_ended
    owner_id = running.orchestrator.me.instance_id
    began = perf_counter()
    submitted = await submission.submit(
        conn, submission.NewJob(graph, inputs), threshold_seconds=OWNER_IS_ALIVE_SECONDS, owner_id=owner_id
    )
    running.wake()
    async with asyncio.timeout(GIVE_UP_SECONDS):
        await asyncio.sleep(expected_seconds * WAIT_SHARE)
        while running.orchestrator.stats.jobs_ended == ended:  # noqa: ASYNC110 - it has no event for that
            await asyncio.sleep(look_seconds(expected_seconds))
    seconds = perf_counter() - began
    [job] = await jobs.job_status(conn, [submitted.job_id])
    assert job["status"] not in LIVE and job["error_message"] is None, job
    return seconds


def one_process_figures(
    times: Sequence[float], bare: Sequence[float], one_row: Sequence[float], steps: int
) -> list[Figure]:
    measured, floor = Sample.of(times, scale=1000), Sample.of(bare, scale=1000)
    return [
        floor_figure("W2", f"floor: {steps} bare commits of a step", bare),
        floor_figure("W2", "for comparison: a commit of one row", one_row),
        Figure("W2", f"chain of {steps}, one process", measured.median, "ms", measured.spread, floor.median, Bar(1.5)),
    ]
