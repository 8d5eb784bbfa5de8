"""Jobs with handler processes, run by a worker."""

import asyncio
from pathlib import Path
from time import monotonic
from typing import Any

import process_handlers
import pytest
from fleet import Fleet, fleet, retry, rows, single, wait_until
from fleet import handlers as known_handlers

from dagmaster.handlers import Handler, HandlerContext, Registry
from dagmaster.handlers import registry as all_handlers
from dagmaster.settings import load_settings
from dagmaster.tasklogs.factory import open_task_logs

SPECS = (process_handlers.__file__,)


def known(**functions: Any) -> Registry:
    chosen = known_handlers(**functions)
    for handler in all_handlers:
        if handler.isolation == "process":
            chosen.register(handler)
    return chosen


async def log_of(task_id: str) -> bytes:
    logs = open_task_logs(load_settings())
    content = b""
    while piece := await logs.read(task_id, len(content)):
        content += piece
    return content


async def a_worker(running: Fleet, **options: Any) -> Any:
    return await running.worker(known=known(), handler_specs=SPECS, **options)


@pytest.mark.parametrize("handler", ["process.sleep_in_c", "process.busy"])
async def test_a_handler_blocked_in_c_is_killed_soon_after_its_timeout(dsn: str, handler: str) -> None:
    async with fleet(dsn) as running:
        await running.orchestrator()
        worker = await a_worker(running)
        await running.run(single("process.nothing"))  # Starting processes takes a while.
        job_id = await running.submit(single(handler, timeout_seconds=2, params={"seconds": 60}))
        await wait_until(lambda: bool(worker.instance.task_runner.children.pids))
        [pid] = worker.instance.task_runner.children.pids.values()
        began = monotonic()
        [job] = await running.ended(job_id)
        await wait_until(lambda: not Path(f"/proc/{pid}").exists())
        assert monotonic() - began < 40
        assert job["error_message"] == "node work failed: timed out after 2 s"
        [result] = await rows(dsn, "SELECT error_type FROM dagapp.dag_task_results WHERE job_id = %s", job_id)
        assert result["error_type"] == "TimeoutError"
        # Its free slots are reserved during a claim.
        await wait_until(lambda: bool(worker.instance.free_slots == worker.instance.options.concurrency))


async def test_a_cancelled_job_s_process_is_ended(dsn: str) -> None:
    async with fleet(dsn) as running:
        await running.orchestrator()
        worker = await a_worker(running)
        job_id = await running.submit(single("process.sleep_in_c", timeout_seconds=60, params={"seconds": 60}))
        await wait_until(lambda: bool(worker.instance.task_runner.children.pids))
        [pid] = worker.instance.task_runner.children.pids.values()
        await running.cancel(job_id)
        await wait_until(lambda: not Path(f"/proc/{pid}").exists(), 40)
        await wait_until(lambda: worker.instance.free_slots == worker.instance.options.concurrency)
        assert [row["status"] for row in await running.ended(job_id)] == ["cancelled"]


async def test_an_attempts_resource_usage_is_stored(dsn: str) -> None:
    async with fleet(dsn) as running:
        await running.orchestrator()
        await a_worker(running)
        job_id = await running.submit(single("process.sum", params={"a": 2}))
        [job] = await running.completed(job_id)
        assert job["result_data"]["work"] == {"sum": 3}
        [result] = await rows(dsn, "SELECT * FROM dagapp.dag_task_results WHERE job_id = %s", job_id)
        assert 1_000_000 < result["peak_memory_bytes"] < 2_000_000_000
        assert 0 <= result["cpu_seconds"] < 30


async def test_a_task_that_ran_out_of_memory_goes_to_a_larger_worker(dsn: str) -> None:
    async with fleet(dsn) as running:
        await running.orchestrator()
        await a_worker(running)
        policy = retry(1, on_oom="large", never=["ValueError"])
        job_id = await running.submit(single("process.allocate", params={"mb": 500}, retry=policy))
        await running.until("SELECT count(*) = 1 AS ok FROM dagapp.dag_tasks_waiting WHERE queue = 'large'")
        assert (await running.nodes(job_id))["work"]["queue"] == "large"

        def allocate(ctx: HandlerContext) -> dict[str, bool]:
            return {"large": True}

        large = Registry()
        large.register(Handler("process.allocate", allocate))
        await running.worker(known=large, queues=("large",))
        [job] = await running.completed(job_id)
        assert job["result_data"]["work"] == {"large": True}
        [first] = await rows(
            dsn, "SELECT error_type FROM dagapp.dag_task_results WHERE task_id = %s", f"{job_id}_work_0"
        )
        assert first["error_type"] == "MemoryError"


async def test_large_output_blocks_no_other_task_and_is_truncated_with_a_note(dsn: str) -> None:
    async with fleet(dsn) as running:
        await running.orchestrator()
        await a_worker(running, max_log_bytes=1_000_000)
        loud = await running.submit(single("process.print_much", workflow_id="loud", params={"mb": 200}))
        others = 0
        while not await running.value(
            "SELECT status IN ('completed', 'failed') FROM dagapp.dag_jobs WHERE job_id = %s", loud
        ):
            await running.completed(await running.submit(single()))
            others += 1
        await running.completed(loud)
        assert others > 1, "other jobs complete while it prints"
        log = await log_of(f"{loud}_work_0")
        assert len(log) < 1_100_000
        assert b"[dagmaster: the log is limited to 1,000,000 bytes" in log and b"bytes left out" in log
        [result] = await rows(dsn, "SELECT log_path FROM dagapp.dag_task_results WHERE job_id = %s", loud)
        assert result["log_path"] and Path(result["log_path"]).name == f"{loud}_work_0.log"


async def test_logs_of_concurrent_tasks_are_not_mixed(dsn: str) -> None:
    together = asyncio.Barrier(4)

    async def talk(ctx: HandlerContext) -> None:
        for number in range(50):
            await together.wait()
            print(f"{ctx.job_id} says {number}")  # noqa: T201
            ctx.logger.warning("%s logs %d", ctx.job_id, number)

    def talk_in_a_thread(ctx: HandlerContext) -> None:
        for number in range(200):
            print(f"{ctx.job_id} says {number}")  # noqa: T201

    async with fleet(dsn, talk=talk, thread=talk_in_a_thread) as running:
        await running.orchestrator()
        await running.worker()
        kinds = ["talk"] * 4 + ["thread"] * 3
        job_ids = [await running.submit(single(kind, workflow_id=kind)) for kind in kinds]
        await running.completed(*job_ids)
        for job_id, kind in zip(job_ids, kinds, strict=True):
            lines = (await log_of(f"{job_id}_work_0")).decode().splitlines()
            assert len(lines) == (100 if kind == "talk" else 200)
            assert all(str(job_id) in line for line in lines)
            others = {str(other) for other in job_ids} - {str(job_id)}
            assert not any(other in line for line in lines for other in others)


async def test_a_handler_process_adds_nodes_through_its_worker(dsn: str) -> None:
    async with fleet(dsn) as running:
        await running.orchestrator()
        await a_worker(running)
        [job] = await running.completed(await running.submit(single("process.adds")))
        assert await running.statuses(job["job_id"]) == dict.fromkeys(
            ("START", "work", "work.1", "work.2", "END"), "completed"
        )
