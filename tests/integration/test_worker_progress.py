"""Progress of handlers can be read while they run and does not affect their result."""

import asyncio
import threading
from typing import Any

from fleet import fleet, rows, single
from web import web

from dagmaster.handlers import HandlerContext

PROGRESS = "SELECT status, progress_current, progress_total, progress_percent, progress_message, worker_id, output"
OF = f"{PROGRESS} FROM dagapp.dag_task_results WHERE job_id = %s"


async def test_progress_is_visible_while_the_task_runs_and_does_not_affect_its_result(dsn: str) -> None:
    may_end = asyncio.Event()

    async def work(ctx: HandlerContext) -> dict[str, Any]:
        for number in range(1, 4):
            ctx.progress(number, 12, f"tile {number}")
        await may_end.wait()
        return {"tiles": 12}

    async with web(dsn, single("work"), runs=True, functions={"work": work}) as api:
        job = await api.post("/api/v1/jobs", {"workflow_id": "single"}, 201)
        query = "SELECT count(*) = 1 AS ok FROM dagapp.dag_task_results WHERE progress_percent = 25"
        await api.fleet.until(query)
        progress = await api.get(f"/api/v1/jobs/{job['job_id']}/progress")
        [task] = progress["current_tasks"]
        assert (task["node_id"], task["progress_percent"], task["progress_message"]) == ("work", 25.0, "tile 3")
        node = await api.get(f"/api/v1/jobs/{job['job_id']}/nodes/work/progress")
        assert (node["status"], node["progress_current"], node["progress_total"]) == ("running", 3, 12)
        may_end.set()
        await api.fleet.completed(int(job["job_id"]))
        [result] = await rows(dsn, OF, int(job["job_id"]))
        assert (result["status"], result["output"], result["progress_current"]) == ("completed", {"tiles": 12}, 3)
        await api.fleet.is_clean()


async def test_a_thread_may_report_progress_at_any_rate(dsn: str) -> None:
    may_end = threading.Event()

    def work(ctx: HandlerContext) -> dict[str, Any]:
        for number in range(100_000):
            ctx.progress(number)
        ctx.progress(7, None, "last")
        may_end.wait(30)
        return {}

    async with fleet(dsn, work=work) as running:
        await running.orchestrator()
        worker = await running.worker(progress_interval_seconds=0.05)
        job_id = await running.submit(single("work"))
        await running.until("SELECT count(*) = 1 AS ok FROM dagapp.dag_task_results WHERE progress_message = 'last'")
        [row] = await rows(dsn, OF, job_id)
        assert (row["progress_current"], row["progress_percent"], row["worker_id"]) == (7, None, worker.id)
        may_end.set()
        await running.completed(job_id)


async def test_progress_of_a_revoked_task_is_not_stored(dsn: str) -> None:
    begun, may_go_on = asyncio.Event(), asyncio.Event()

    async def work(ctx: HandlerContext) -> dict[str, Any]:
        begun.set()
        while not may_go_on.is_set():
            try:
                await may_go_on.wait()
            except asyncio.CancelledError:
                ctx.progress(1, 2, "too late")
        return {}

    async with fleet(dsn, work=work) as running:
        await running.orchestrator()
        await running.worker(progress_interval_seconds=0.02, poll_interval_seconds=0.05)
        job_id = await running.submit(single("work"))
        await begun.wait()
        await running.cancel(job_id)
        [job] = await running.ended(job_id)
        assert job["status"] == "cancelled"
        await running.until("SELECT count(*) = 0 AS ok FROM dagapp.dag_tasks_running")
        may_go_on.set()
        await running.is_clean()
        assert not await rows(dsn, f"{OF} AND progress_message IS NOT NULL", job_id)
