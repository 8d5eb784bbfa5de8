"""W8: large values. The orchestrator's memory stays small, and a neighbour's job goes on meanwhile."""

import asyncio
from time import perf_counter

from benchmarks.figures import Bar, Figure
from benchmarks.fleet import started
from benchmarks.place import Place
from benchmarks.scale import Scale
from benchmarks.submitter import Submitter, open_submitter
from benchmarks.workflows import CHAIN_INPUTS, UNATTENDED, chain, fan, swelling

MAX_MB = 1_500
NEIGHBOUR_SECONDS = 5.0
EXPAND_SECONDS = 2.0
SLOTS = 4  # Each holds an output in the worker's memory.
# The neighbour has a worker of its own: what is measured is the orchestrator, not how long the slots are taken.
NEIGHBOUR = "neighbour"


async def measure(place: Place, scale: Scale) -> list[Figure]:
    figures: list[Figure] = []
    for name, case in (("fan", _fan_out), ("mail", _mail), ("submissions", _submissions)):
        with place.database(f"w8_{name}") as dsn, started("worker", dsn, 1, NEIGHBOUR):
            figures += await case(dsn, scale)
    with place.database("w8_expand") as dsn, started("orchestrator", dsn):
        async with open_submitter(dsn) as user:
            figures.append(await _expand(user, scale))
    return figures


async def _fan_out(dsn: str, scale: Scale) -> list[Figure]:
    """More than a fan-in may gather: the job fails with a sentence, and nothing else does."""
    count, size = scale.large_outputs
    with started("orchestrator", dsn) as orchestrator, started("worker", dsn, SLOTS):
        async with open_submitter(dsn) as user:
            await user.submit(swelling(), {"items": [size] * count})
            seconds = await _neighbour(user)
            await _until(user, "SELECT count(*) = 0 AS ok FROM dagapp.dag_jobs WHERE status IN ('pending', 'running')")
        return _figures(f"{count} outputs of {size / 1e6:g} MB", orchestrator.peak_mb, seconds)


async def _mail(dsn: str, scale: Scale) -> list[Figure]:
    """Outputs that arrive while the only orchestrator is away."""
    count, size = scale.large_mail
    async with open_submitter(dsn) as user:
        with started("orchestrator", dsn):
            await user.submit(swelling(), {"items": [size] * count})
            await _until(user, f"SELECT count(*) = {count} AS ok FROM dagapp.dag_tasks_waiting")
        with started("worker", dsn, SLOTS):
            await _until(user, f"SELECT count(*) >= {count} AS ok FROM dagapp.dag_mailbox WHERE kind = 'completed'")
            with started("orchestrator", dsn) as orchestrator:
                seconds = await _neighbour(user)
                await _until(
                    user, "SELECT count(*) = 0 AS ok FROM dagapp.dag_jobs WHERE status IN ('pending', 'running')"
                )
                return _figures(f"{count:,} outputs of {size / 1e3:g} KB in the mail", orchestrator.peak_mb, seconds)


async def _submissions(dsn: str, scale: Scale) -> list[Figure]:
    """Submissions while no orchestrator is there."""
    count, size = scale.large_submissions
    async with open_submitter(dsn) as user:
        for _ in range(count):
            await user.submit(chain(1), {"message": "x" * size})
        with started("orchestrator", dsn) as orchestrator, started("worker", dsn, SLOTS):
            seconds = await _neighbour(user)
            await _until(user, "SELECT count(*) = 0 AS ok FROM dagapp.dag_jobs WHERE status IN ('pending', 'running')")
            return _figures(f"{count} submissions of {size / 1e6:g} MB", orchestrator.peak_mb, seconds)


async def _expand(user: Submitter, scale: Scale) -> Figure:
    """From the submission until all children stand in their queue, which nobody consumes."""
    began = perf_counter()
    await user.submit(fan(UNATTENDED), {"items": list(range(scale.idle_nodes))})
    await _until(user, f"SELECT count(*) = {scale.idle_nodes} AS ok FROM dagapp.dag_tasks_waiting", 0.01)
    seconds = perf_counter() - began
    return Figure("W8", f"expanding a fan-out of {scale.idle_nodes:,}", seconds, "s", bar=Bar(EXPAND_SECONDS))


def _figures(label: str, peak_mb: float, neighbour: float) -> list[Figure]:
    return [
        Figure("W8", f"{label}: orchestrator's peak memory", peak_mb, "MB", bar=Bar(MAX_MB)),
        Figure("W8", f"{label}: a neighbour's job of 3 steps", neighbour, "s", bar=Bar(NEIGHBOUR_SECONDS)),
    ]


async def _neighbour(user: Submitter) -> float:
    began = perf_counter()
    [job_id] = await user.submit(chain(3, NEIGHBOUR), CHAIN_INPUTS)
    await _until(user, f"SELECT status = 'completed' AS ok FROM dagapp.dag_jobs WHERE job_id = {job_id}", 0.01)
    return perf_counter() - began


async def _until(user: Submitter, query: str, every: float = 0.1) -> None:
    async with asyncio.timeout(600):
        while True:
            row = await (await user.conn.execute(query.encode())).fetchone()
            if row is not None and row["ok"]:
                return
            await asyncio.sleep(every)
