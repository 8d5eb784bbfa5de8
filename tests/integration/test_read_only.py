"""A database that is temporarily read-only, as in a failover: processes wait and then continue."""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import SimpleNamespace

import psycopg
import pytest
from fleet import chain, fleet, retry, single, wait_until
from http_worker import OFFER, WORKERS
from psycopg.pq import Ping
from web import web

from dagmaster.errors import DatabaseUnavailable
from dagmaster.store import databases

END_ALL = """SELECT pg_terminate_backend(pid) FROM pg_stat_activity
             WHERE datname = current_database() AND pid <> pg_backend_pid() AND application_name LIKE 'dagmaster%'"""


async def make(dsn: str, *, read_only: bool) -> None:
    """All clients must reconnect, as in a failover."""
    async with await psycopg.AsyncConnection.connect(
        dsn, autocommit=True, options="-c default_transaction_read_only=off"
    ) as conn:
        value = "on" if read_only else "off"
        name = psycopg.sql.Identifier(conn.info.dbname)
        change = psycopg.sql.SQL("ALTER DATABASE {} SET default_transaction_read_only = {}")
        await conn.execute(change.format(name, psycopg.sql.SQL(value)))
        await conn.execute(END_ALL)


@asynccontextmanager
async def read_only(dsn: str) -> AsyncIterator[None]:
    await make(dsn, read_only=True)
    try:
        yield
    finally:
        await make(dsn, read_only=False)


@pytest.mark.parametrize("is_local", [True, False], ids=["near", "far"])
async def test_processes_wait_until_the_database_is_writable(
    dsn: str, is_local: bool, caplog: pytest.LogCaptureFixture
) -> None:
    begun, goes_on = asyncio.Event(), asyncio.Event()

    async def wait(ctx: object) -> None:
        begun.set()
        await goes_on.wait()

    def complained(name: str) -> int:
        return sum(name in record.name and "read-only" in record.getMessage() for record in caplog.records)

    async with fleet(dsn, wait=wait) as running:
        role = await running.orchestrator()
        await running.worker(owner=role if is_local else None)
        job_id = await running.submit(chain(2, "wait", retry=retry(0)))
        await begun.wait()
        with caplog.at_level(logging.WARNING):
            async with read_only(dsn):
                late = asyncio.create_task(running.orchestrator())
                goes_on.set()  # The result cannot be stored yet.
                await wait_until(lambda: complained("orchestrator.process") >= 2 and complained("worker.worker") >= 1)
            await late
        await running.worker()
        await running.completed(job_id, await running.submit(single()))


async def test_no_job_fails_because_the_database_is_read_only(dsn: str) -> None:
    async with fleet(dsn) as running:
        role = await running.orchestrator()
        await running.worker()
        job_ids = [await running.submit(single()) for _ in range(5)]
        for _ in range(3):
            async with read_only(dsn):
                await asyncio.sleep(0.1)
        await running.completed(*job_ids, await running.submit(single()))
        assert role.instance.stats.errors == 0


async def test_a_process_that_runs_jobs_waits_at_start_and_one_that_reads_does_not(dsn: str) -> None:
    async with read_only(dsn):
        await databases._check(dsn)
        starting = asyncio.create_task(databases._check(dsn, writable=True))
        await asyncio.sleep(0.2)
        assert not starting.done()
    await asyncio.wait_for(starting, 60)


async def test_over_http_a_read_only_database_is_a_retryable_503(dsn: str) -> None:
    async with web(dsn, single()) as api, read_only(dsn):
        refusal = await api.post(WORKERS, OFFER, 503)
        assert refusal["error"]["code"] == "unavailable"
        await api.post("/api/v1/jobs", {"workflow_id": "single"}, 503)
        await api.get("/api/v1/jobs")


@pytest.mark.parametrize("ping", [Ping.REJECT, Ping.NO_RESPONSE])
def test_a_starting_server_is_waited_for_and_a_missing_one_is_an_error(
    monkeypatch: pytest.MonkeyPatch, ping: Ping
) -> None:
    attempts = []

    async def check(dsn: str, *, writable: bool) -> None:
        attempts.append(dsn)
        if len(attempts) < 3:
            raise DatabaseUnavailable("the database system is starting up")

    monkeypatch.setattr(databases, "_check", check)
    monkeypatch.setattr(databases, "sleep", lambda _: None)
    monkeypatch.setattr(databases, "PGconn", SimpleNamespace(ping=lambda dsn: ping))
    if ping is Ping.REJECT:
        databases._prepare_when_started("dsn", writable=False, is_migrated=False)
        assert len(attempts) == 3
    else:
        with pytest.raises(DatabaseUnavailable):
            databases._prepare_when_started("dsn", writable=False, is_migrated=False)
