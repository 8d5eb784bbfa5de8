"""A distant worker works, only more slowly."""

import asyncio
import logging
from collections.abc import Callable
from typing import Any

import httpx
import pytest
from fleet import NEVER, fleet, single, wait_until
from web import web

from dagmaster.handlers import registry
from dagmaster.queues.http import HttpTransport
from dagmaster.queues.postgres import PostgresLink
from dagmaster.tasklogs.files import FileLogs
from dagmaster.worker import unconfirmed_claims
from dagmaster.worker.health import health_app
from dagmaster.worker.options import WorkerOptions
from dagmaster.worker.unconfirmed_claims import Freshness
from dagmaster.worker.worker import Worker

FRESH, ROUND_TRIP = 0.02, 0.06


def delayed(function: Callable[..., Any], seconds: float = ROUND_TRIP) -> Callable[..., Any]:
    async def call(*args: Any, **options: Any) -> Any:
        await asyncio.sleep(seconds / 2)
        answer = await function(*args, **options)
        await asyncio.sleep(seconds / 2)
        return answer

    return call


@pytest.fixture(autouse=True)
def _short_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unconfirmed_claims, "FRESH_SECONDS", FRESH)


async def test_a_worker_works_with_a_slow_database_connection(dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("exchange", "forgotten", "orders", "beat"):
        monkeypatch.setattr(PostgresLink, name, delayed(getattr(PostgresLink, name)))
    async with fleet(dsn) as running:
        await running.orchestrator()
        await running.worker(lease_seconds=30.0)
        await running.completed(*[await running.submit(single()) for _ in range(3)])


async def test_a_worker_works_with_a_slow_server_connection(
    dsn: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    monkeypatch.setattr(HttpTransport, "ask", delayed(HttpTransport.ask))
    async with web(dsn, single()) as api, api.real_server() as url:
        await api.fleet.orchestrator()
        transport = HttpTransport(url, None)
        options = WorkerOptions(("q",), 2, poll_interval_seconds=0.05)
        worker, stop = Worker(transport, registry, options, FileLogs(tmp_path)), asyncio.Event()
        working = asyncio.create_task(worker.run(stop))
        job_id = int((await api.post("/api/v1/jobs", {"workflow_id": "single"}, 201))["job_id"])
        await api.fleet.completed(job_id)
        stop.set()
        await working
        await transport.close()


async def test_a_worker_that_starts_none_of_its_claims_logs_it(
    dsn: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(unconfirmed_claims, "SAY_AFTER_SECONDS", 0.1)
    monkeypatch.setattr(PostgresLink, "exchange", delayed(PostgresLink.exchange))
    monkeypatch.setattr(PostgresLink, "forgotten", delayed(PostgresLink.forgotten))
    async with fleet(dsn) as running:
        await running.orchestrator()
        worker = await running.worker(lease_seconds=0.001)  # Anything slower is too late.
        job_id = await running.submit(single())
        with caplog.at_level(logging.WARNING, "dagmaster.worker.unconfirmed_claims"):
            await wait_until(lambda: "1 claimed tasks cannot start" in caplog.text)
        await wait_until(lambda: worker.instance.unconfirmed.last_long)
        transport = httpx.ASGITransport(health_app(worker.instance))
        async with httpx.AsyncClient(transport=transport, base_url="http://worker") as http:
            health = (await http.get("/health")).json()
        assert (health["status"], health["running"]) == ("degraded", [])
        worker.instance.task_runner.freshness._most = NEVER
        await running.completed(job_id)
        assert not worker.instance.unconfirmed.last_long


def test_the_claim_timeout_adapts_to_latency_up_to_half_a_lease(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = 100.0
    monkeypatch.setattr(unconfirmed_claims, "monotonic", lambda: now)
    monkeypatch.setattr(unconfirmed_claims, "FRESH_SECONDS", 0.5)
    fresh = Freshness(lease_seconds=6.0)
    assert fresh.holds(now - 0.5)
    for seconds in (0.6, 20.0, 0.1, 0.6, 0.7):  # It was near in between.
        fresh.learn(now - seconds)
        assert not fresh.holds(now - 0.6)
    fresh.learn(now - 0.8)
    assert (fresh.holds(now - 1.1), fresh.holds(now - 1.3)) == (True, False)
    for _ in range(3):
        fresh.learn(now - 60)
    assert (fresh.holds(now - 3.0), fresh.holds(now - 3.1)) == (True, False)
    assert fresh.holds(now)  # It is near again,
    assert not fresh.holds(now - 0.6)  # so long responses are late again.
