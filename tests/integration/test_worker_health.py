"""A worker reports its health and names a handler that blocks its event loop."""

import asyncio
import logging
import threading
import time
from typing import Any

import httpx
import pytest
from fleet import fleet, single, wait_until

from dagmaster.handlers import HandlerContext
from dagmaster.worker import loop_guard
from dagmaster.worker.health import health_app
from dagmaster.worker.loop_guard import LoopWatch


async def test_a_worker_reports_its_health_and_queues(dsn: str) -> None:
    entered, go_on = asyncio.Event(), asyncio.Event()

    async def wait(ctx: HandlerContext) -> None:
        entered.set()
        await go_on.wait()

    async with fleet(dsn, wait=wait) as running:
        await running.orchestrator()
        worker = await running.worker(concurrency=3)
        transport = httpx.ASGITransport(health_app(worker.instance))
        async with httpx.AsyncClient(transport=transport, base_url="http://worker") as http:
            await wait_until(lambda: worker.instance.is_connected)
            job_id = await running.submit(single("wait"))
            await asyncio.wait_for(entered.wait(), 60)
            health: dict[str, Any] = {"free_slots": 0}
            while health["free_slots"] != 2:  # Its free slots are reserved during a claim.
                health = (await http.get("/health")).json()
            assert (health["status"], health["worker_id"], health["is_connected"]) == ("healthy", worker.id, True)
            assert (health["queues"], health["concurrency"]) == (["q"], 3)
            assert health["running"] == [f"{job_id}_work_0"]
            assert "wait" in health["handlers"]
            assert [(await http.get(path)).status_code for path in ("/livez", "/readyz")] == [200, 200]
            go_on.set()
            await running.completed(job_id)
            await worker.stop()
            health = (await http.get("/health")).json()
            assert (health["status"], health["is_connected"], health["wanted"]) == ("degraded", False, "stop")
            assert [(await http.get(path)).status_code for path in ("/livez", "/readyz")] == [200, 503]


async def test_a_worker_whose_slots_are_all_stuck_is_unhealthy(dsn: str) -> None:
    entered, go_on = threading.Event(), threading.Event()

    def stubborn(ctx: HandlerContext) -> None:
        entered.set()
        go_on.wait(100)

    async with fleet(dsn, stubborn=stubborn) as running:
        await running.orchestrator()
        worker = await running.worker(concurrency=1, stop_within_seconds=0.1)
        transport = httpx.ASGITransport(health_app(worker.instance))
        async with httpx.AsyncClient(transport=transport, base_url="http://worker") as http:
            while not entered.is_set():  # On a busy machine the time may be over before the thread starts.
                job_id = await running.submit(single("stubborn", timeout_seconds=1))
                await running.ended(job_id)
            await wait_until(lambda: bool(worker.instance.slots.stuck))
            answer = await http.get("/health")
            assert (answer.status_code, answer.json()["status"]) == (503, "unhealthy")
            assert answer.json()["stuck"] == [f"{job_id}_work_0"]
            assert (await http.get("/livez")).status_code == 503
            go_on.set()
            await wait_until(lambda: worker.instance.free_slots == 1)
            assert (await http.get("/livez")).status_code == 200


async def test_a_handler_that_blocks_the_event_loop_is_named(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = 0.0  # Of the watch: the time that a busy machine takes is no blocked loop.

    def compute_for_long() -> None:
        nonlocal clock
        clock += 2.0
        deadline = time.monotonic() + 60
        while not warnings() and time.monotonic() < deadline:
            time.sleep(0.05)

    def warnings() -> list[str]:
        """Without those of other threads."""
        return [record.getMessage() for record in caplog.records if record.name == loop_guard.__name__]

    monkeypatch.setattr(loop_guard, "TICK_SECONDS", 0.02)
    monkeypatch.setattr(loop_guard, "monotonic", lambda: clock)
    watch = LoopWatch(blocked_seconds=1.0)

    def has_turned() -> bool:
        return watch._turned_at == clock

    with caplog.at_level(logging.WARNING), watch.running():
        for _ in range(4):
            clock += 0.5
            await wait_until(has_turned)
        assert warnings() == []
        compute_for_long()
        await asyncio.sleep(0)
    [warning] = warnings()
    assert "the event loop has been blocked" in warning
    assert "compute_for_long" in warning
