"""Random faults at once: connections are lost, and processes die, are suspended or declared lost."""

import asyncio
from random import Random

import pytest
from fleet import Fleet, OrchestratorRole, WorkerRole, chain, fan, fleet, retry, rows

from dagmaster.handlers import HandlerContext

# psycopg's pipelines raise in the background when their connection is lost.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")

ENDLESS_RETRIES = retry(100)


class Storm:
    def __init__(self, running: Fleet, rng: Random) -> None:
        self.running, self.rng = running, rng
        self.pairs: list[tuple[OrchestratorRole, WorkerRole]] = []

    async def start_pair(self) -> None:
        orchestrator = await self.running.orchestrator(orphan_threshold_seconds=1.5, worker_lost_after_seconds=1.2)
        near = orchestrator if self.rng.random() < 0.7 else None
        worker = await self.running.worker(owner=near, concurrency=self.rng.choice([1, 4, 16]))
        self.pairs.append((orchestrator, worker))

    async def strike(self) -> None:
        blow = self.rng.choice(
            [self.end_connections, self.end_connections, self.kill, self.stop, self.slander, self.forget]
        )
        await blow()

    async def end_connections(self) -> None:
        end = """SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database()
                 AND application_name LIKE 'dagmaster%%' AND random() < %s"""
        await rows(self.running.dsn, end, self.rng.random())

    async def kill(self) -> None:
        orchestrator, worker = self.pairs.pop(0)
        await worker.kill()
        await orchestrator.kill()
        await self.start_pair()

    async def stop(self) -> None:
        orchestrator, worker = self.pairs.pop(0)
        await worker.stop()
        await orchestrator.stop()
        await self.start_pair()

    async def slander(self) -> None:
        late = "heartbeat_at = now() - interval '1 hour'"
        await rows(self.running.dsn, f"UPDATE dagapp.dag_orchestrators SET {late} WHERE random() < 0.5")
        await rows(self.running.dsn, "UPDATE dagapp.dag_workers SET status = 'lost' WHERE random() < 0.5")

    async def forget(self) -> None:
        self.pairs[0][0].instance.forget_all()


@pytest.mark.parametrize("seed", [1, None], ids=["fixed", "fresh"])
async def test_every_job_ends_once_despite_faults(dsn: str, seed: int | None) -> None:
    seed = seed or Random().randrange(10**6)
    rng = Random(seed)

    async def work(ctx: HandlerContext) -> dict[str, int]:
        await asyncio.sleep(0.005)
        return {"x": ctx.params.get("x", 0)}

    async with fleet(dsn, work=work) as running:
        storm = Storm(running, rng)
        for _ in range(2):
            await storm.start_pair()
        sizes = [rng.randrange(1, 100) for _ in range(3)]
        fans = [
            await running.submit(fan("sum", handler="work", retry=ENDLESS_RETRIES), {"items": [1] * size})
            for size in sizes
        ]
        chains = [await running.submit(chain(size, "work", retry=ENDLESS_RETRIES)) for size in (1, 5, 10)]
        for _ in range(8):
            await asyncio.sleep(0.2 * rng.random())
            await storm.strike()
        jobs = await running.ended(*fans, *chains, seconds=180)
        assert {(job["status"], job["error_message"]) for job in jobs} == {("completed", None)}, f"seed {seed}"
        totals = [job["result_data"]["gather"]["total"] for job in jobs[:3]]
        assert totals == sizes, f"seed {seed}"
        doubled = """SELECT job_id, node_id FROM dagapp.dag_job_events
                     WHERE event_type IN ('node_completed', 'job_completed') GROUP BY 1, 2 HAVING count(*) > 1"""
        assert await running.rows(doubled) == [], f"seed {seed}"
        await running.is_clean()
