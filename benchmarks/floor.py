"""The floor of W1 and W2: bare commits of one step, and rounds of a commit and a notification."""

import asyncio
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

from benchmarks.figures import Figure, Sample
from benchmarks.floor_statements import NOTIFY, ONE_ROW, SEED_CHAIN, STEP
from benchmarks.place import Place
from benchmarks.scale import Scale
from dagmaster.snowflakes import new_id
from dagmaster.store.connect import Connection, connect, connect_hot
from dagmaster.store.hot_connection import HotConnection

PARAMS = '{"message": "hello"}'
OUTPUT = '{"echoed_params": {"message": "hello"}}'


@dataclass(slots=True)
class Floor:
    """Hot connections, as the product has them, and a second process that listens."""

    conn: HotConnection
    notifying: Connection
    listener: asyncio.subprocess.Process
    rounds: list[float] = field(default_factory=list)
    chains: list[float] = field(default_factory=list)
    one_row: list[float] = field(default_factory=list)

    async def measure_rounds(self, count: int) -> None:
        """One step's rows in one commit, then NOTIFY on its own connection, until the other process has it."""
        job_id = await self._seed(count)
        for number in range(count):
            began = perf_counter()
            await self.conn.fetch_prepared(STEP, _step(job_id, number))
            await self.notifying.execute(NOTIFY)
            self.rounds.append(await self._heard() - began)

    async def measure_chain(self, steps: int) -> None:
        """So many bare steps, each in a commit of its own."""
        job_id = await self._seed(steps)
        began = perf_counter()
        for number in range(steps):
            await self.conn.fetch_prepared(STEP, _step(job_id, number))
        self.chains.append(perf_counter() - began)

    async def measure_one_row(self, count: int) -> None:
        for _ in range(count):
            began = perf_counter()
            await self.conn.fetch_prepared(ONE_ROW, [1])
            self.one_row.append(perf_counter() - began)

    async def _seed(self, steps: int) -> int:
        job_id = new_id()
        await self.conn.execute(SEED_CHAIN, [job_id, steps])
        return job_id

    async def _heard(self) -> float:
        """When the listener heard of it; the clock is the machine's, the same for all processes."""
        assert self.listener.stdout is not None
        return float(await self.listener.stdout.readline())


def _step(job_id: int, number: int) -> Sequence[Any]:
    node, next_node = f"n{number}", f"n{number + 1}"
    return [job_id, node, f"{job_id}_{node}_0", next_node, f"{job_id}_{next_node}_0", PARAMS, OUTPUT]


async def measure(place: Place, scale: Scale) -> list[Figure]:
    """The floor alone."""
    with place.database("floor") as dsn:
        async with open_floor(dsn) as floor:
            for _ in range(scale.repetitions):
                await floor.measure_rounds(scale.rounds)
                await floor.measure_chain(scale.chain_steps)
                await floor.measure_one_row(scale.rounds)
    return [
        floor_figure("Floor", "one commit-and-notify round", floor.rounds),
        floor_figure("Floor", f"{scale.chain_steps} bare commits of a step", floor.chains),
        floor_figure("Floor", "a commit of one row", floor.one_row),
    ]


def floor_figure(workload: str, label: str, seconds: Sequence[float]) -> Figure:
    sample = Sample.of(seconds, scale=1000)
    return Figure(workload, label, sample.median, "ms", sample.spread)


@asynccontextmanager
async def open_floor(dsn: str) -> AsyncIterator[Floor]:
    listener = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "benchmarks.listener", dsn, stdout=asyncio.subprocess.PIPE
    )
    assert listener.stdout is not None
    try:
        await listener.stdout.readline()
        async with (
            await connect_hot(dsn, application="floor") as conn,
            await connect(dsn, application="floor notifier", durable=False) as notifying,
        ):
            floor = Floor(conn, notifying, listener)
            await floor.measure_rounds(20)  # warm
            floor.rounds.clear()
            yield floor
    finally:
        listener.kill()
        await listener.wait()
