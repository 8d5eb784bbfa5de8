"""An orchestrator that owns a large job that waits: it must cost next to nothing."""

import asyncio

from benchmarks.figures import Bar, Figure
from benchmarks.fleet import started
from benchmarks.place import Place
from benchmarks.scale import Scale
from benchmarks.submitter import Submitter, open_submitter
from benchmarks.workflows import UNATTENDED, fan

SETTLE_SECONDS = 3.0
MAX_PERCENT = 1.0


async def measure(place: Place, scale: Scale) -> list[Figure]:
    with place.database("idle") as dsn, started("orchestrator", dsn) as orchestrator:
        async with open_submitter(dsn) as user:
            await user.submit(fan(UNATTENDED), {"items": list(range(scale.idle_nodes))})
            await _wait_until_dispatched(user, scale.idle_nodes)
        await asyncio.sleep(min(SETTLE_SECONDS, scale.idle_seconds))
        before = orchestrator.cpu_seconds
        await asyncio.sleep(scale.idle_seconds)
        percent = (orchestrator.cpu_seconds - before) / scale.idle_seconds * 100
    return [Figure("Idle", f"owning {scale.idle_nodes:,} waiting nodes", percent, "% of a core", bar=Bar(MAX_PERCENT))]


async def _wait_until_dispatched(user: Submitter, nodes: int) -> None:
    async with asyncio.timeout(60):
        while True:
            cursor = await user.conn.execute("SELECT count(*) AS tasks FROM dagapp.dag_tasks_waiting")
            row = await cursor.fetchone()
            if row is not None and row["tasks"] == nodes:
                return
            await asyncio.sleep(0.1)
