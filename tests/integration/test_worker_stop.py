"""Cancelled tasks, timed-out tasks and stopped workers end."""

import asyncio
import logging
import threading
import time
from contextlib import suppress
from typing import Any

import pytest
from fleet import NEVER, fleet, retry, rows, single, wait_until

from dagmaster.handlers import HandlerContext
from dagmaster.ids import WorkerId
from dagmaster.store.connect import opened
from dagmaster.store.instances import set_desired_state
from dagmaster.worker import unconfirmed_claims


async def test_a_cancelled_jobs_coroutine_is_cancelled_and_its_slot_is_freed(dsn: str) -> None:
    revoked, entered = asyncio.Event(), asyncio.Event()

    async def wait(ctx: HandlerContext) -> None:
        entered.set()
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            revoked.set()
            raise

    async with fleet(dsn, wait=wait) as running:
        await running.orchestrator()
        worker = await running.worker(concurrency=1, poll_interval_seconds=1.0)
        job_id = await running.submit(single("wait"))
        await asyncio.wait_for(entered.wait(), 60)
        began = time.monotonic()
        await running.cancel(job_id)
        await asyncio.wait_for(revoked.wait(), 40)
        await wait_until(lambda: worker.instance.free_slots > 0)
        assert time.monotonic() - began < 40
        [job] = await running.ended(job_id)
        assert job["status"] == "cancelled"
        await running.is_clean()


async def test_a_coroutine_that_cancels_itself_has_failed(dsn: str) -> None:
    async def cancel(ctx: HandlerContext) -> None:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        await asyncio.sleep(60)

    async with fleet(dsn, cancel=cancel) as running:
        await running.orchestrator()
        await running.worker()
        [job] = await running.ended(await running.submit(single("cancel")))
        assert (job["status"], job["error_message"]) == (
            "failed",
            "node work failed: the handler cancelled its own task",
        )


async def test_a_thread_that_does_not_end_keeps_its_slot_and_is_reported(
    dsn: str, caplog: pytest.LogCaptureFixture
) -> None:
    entered, go_on = threading.Event(), threading.Event()

    def stubborn(ctx: HandlerContext) -> None:
        entered.set()
        go_on.wait(100)

    async with fleet(dsn, stubborn=stubborn) as running:
        await running.orchestrator()
        worker = await running.worker(concurrency=2, stop_within_seconds=0.1)
        with caplog.at_level(logging.ERROR):
            while not entered.is_set():  # On a busy machine the time may be over before the thread starts.
                job_id = await running.submit(single("stubborn", timeout_seconds=1))
                [job] = await running.ended(job_id)
        assert "timed out after 1 s" in job["error_message"]
        await wait_until(lambda: list(worker.instance.slots.stuck) == [f"{job_id}_work_0"])
        await wait_until(lambda: f"task {job_id}_work_0 is over, but its handler is still running" in caplog.text)
        # Its free slots are reserved during a claim.
        await wait_until(lambda: worker.instance.free_slots == 1)
        await running.until(f"SELECT (stats -> 'stuck') @> '[\"{job_id}_work_0\"]' AS ok FROM dagapp.dag_workers")
        go_on.set()
        await wait_until(lambda: worker.instance.free_slots == 2)
        await running.until("SELECT stats -> 'stuck' = '[]' AS ok FROM dagapp.dag_workers")


async def test_a_coroutine_that_ignores_cancellation_fails_its_task_and_keeps_its_slot(dsn: str) -> None:
    go_on = asyncio.Event()

    async def stubborn(ctx: HandlerContext) -> dict[str, str]:
        while not go_on.is_set():
            with suppress(asyncio.CancelledError):
                await go_on.wait()
        return {"too": "late"}

    async with fleet(dsn, stubborn=stubborn) as running:
        await running.orchestrator()
        worker = await running.worker(concurrency=2, stop_within_seconds=0.1)
        job_id = await running.submit(single("stubborn", timeout_seconds=1))
        [job] = await running.ended(job_id)
        assert "timed out after 1 s" in job["error_message"]
        await wait_until(lambda: bool(worker.instance.slots.stuck))
        await wait_until(lambda: worker.instance.free_slots == 1)
        go_on.set()
        await wait_until(lambda: worker.instance.free_slots == 2)
        [row] = await rows(dsn, "SELECT status FROM dagapp.dag_task_results WHERE job_id = %s", job_id)
        assert row["status"] == "failed"


async def test_a_task_cancelled_while_its_worker_was_suspended_never_starts(
    dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The claim was answered, and then the process was suspended for longer than its job lived."""
    started: list[int] = []

    async def work(ctx: HandlerContext) -> None:
        started.append(ctx.job_id)

    async with fleet(dsn, work=work) as running:
        await running.orchestrator()
        worker = await running.worker(poll_interval_seconds=NEVER)
        begin = worker.instance.task_runner.begin

        def frozen(message: Any, requested_at: float) -> None:
            monkeypatch.setattr(worker.instance.task_runner, "begin", begin)
            late.append((message, requested_at))

        late: list[tuple[Any, float]] = []
        monkeypatch.setattr(worker.instance.task_runner, "begin", frozen)
        job_id = await running.submit(single("work"))
        await wait_until(lambda: bool(late))
        await running.cancel(job_id)
        await running.ended(job_id)
        [(message, requested_at)] = late
        begin(message, requested_at - 10)
        await running.completed(await running.submit(single("work")))
        assert job_id not in started
        await wait_until(lambda: worker.instance.free_slots == worker.instance.options.concurrency)


async def test_an_unconfirmed_claim_is_checked_and_then_started(dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unconfirmed_claims, "FRESH_SECONDS", 60.0)  # On a busy machine, any response may take a second.
    async with fleet(dsn) as running:
        await running.orchestrator()
        worker = await running.worker()
        begin, seen = worker.instance.task_runner.begin, []

        def late(message: Any, requested_at: float) -> None:
            seen.append(message.task_id)
            begin(message, requested_at - NEVER if len(seen) == 1 else requested_at)

        monkeypatch.setattr(worker.instance.task_runner, "begin", late)
        await running.completed(await running.submit(single()))
        assert len(seen) == 2


async def want(dsn: str, worker_id: WorkerId, state: str) -> bool:
    async with opened(dsn, application="test") as conn:
        return await set_desired_state(conn, worker_id, state)


async def test_a_drained_worker_finishes_its_tasks_and_claims_no_more(dsn: str) -> None:
    entered, go_on = asyncio.Event(), asyncio.Event()

    async def wait(ctx: HandlerContext) -> dict[str, str]:
        entered.set()
        await go_on.wait()
        return {"by": ctx.worker_id}

    async with fleet(dsn, wait=wait) as running:
        owner = await running.orchestrator()
        first = await running.worker(owner=owner)
        blocked_id = await running.submit(single("wait"))
        await asyncio.wait_for(entered.wait(), 60)
        assert await want(dsn, first.id, "drain")
        await wait_until(lambda: not first.instance.is_taking)
        waits = await running.submit(single("wait"))
        waiting = "SELECT count(*) = 1 AS ok FROM dagapp.dag_tasks_waiting WHERE job_id = %s"
        await running.until(waiting, lambda: [waits])
        go_on.set()
        [job] = await running.completed(blocked_id)
        assert job["result_data"]["work"] == {"by": first.id}
        assert (await running.statuses(waits))["work"] == "dispatched"
        second = await running.worker()
        [job] = await running.completed(waits)
        assert job["result_data"]["work"] == {"by": second.id}
        await want(dsn, second.id, "drain")
        await want(dsn, first.id, "run")
        [job] = await running.completed(await running.submit(single("wait")))
        assert job["result_data"]["work"] == {"by": first.id}


async def test_a_worker_stops_on_request(dsn: str) -> None:
    async with fleet(dsn) as running:
        worker = await running.worker()
        assert await want(dsn, worker.id, "stop")
        assert worker._main is not None
        await asyncio.wait_for(worker._main, 60)
        [row] = await rows(dsn, "SELECT status FROM dagapp.dag_workers")
        assert row["status"] == "stopped"
        assert not await want(dsn, worker.id, "run")


async def test_handlers_can_clean_up_after_the_shutdown_grace_period(dsn: str) -> None:
    cleaned, entered = asyncio.Event(), asyncio.Event()

    async def work(ctx: HandlerContext) -> dict[str, int]:
        if ctx.retry_count:
            return {"attempt": ctx.retry_count}
        entered.set()
        try:
            await asyncio.sleep(60)
        finally:
            await asyncio.sleep(0.05)
            cleaned.set()
        return {}

    async with fleet(dsn, work=work) as running:
        await running.orchestrator()
        worker = await running.worker(shutdown_grace_seconds=0.1)
        job_id = await running.submit(single("work", retry=retry(0)))
        await asyncio.wait_for(entered.wait(), 60)
        await asyncio.wait_for(worker.stop(), 60)
        assert cleaned.is_set()
        await running.worker()
        [job] = await running.completed(job_id)
        assert job["result_data"]["work"] == {"attempt": 1}
