"""The number of connections of orchestrators and workers, and isolation of the chores that share one."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import psycopg
import pytest
from fleet import Fleet, fleet, rows, single, wait_until

from dagmaster.fleet import fleet as whole_fleet
from dagmaster.fleet import worker_options
from dagmaster.handlers import Registry
from dagmaster.orchestrator import chores, process
from dagmaster.orchestrator.chores import Chore
from dagmaster.orchestrator.shared_connection import SharedConnection
from dagmaster.settings import load_settings
from dagmaster.store.connect import Connection

HELD = """SELECT replace(application_name, 'dagmaster ', '') AS name FROM pg_stat_activity
          WHERE datname = current_database() AND application_name LIKE 'dagmaster%%'"""
BEATS = "SELECT heartbeat_at AS at FROM dagapp.dag_orchestrators"


async def beats_on(running: Fleet) -> None:
    """Wait for the next heartbeat but one: the first may have been on its way."""
    for _ in range(2):
        [row] = await running.rows(BEATS)
        await running.until("SELECT heartbeat_at > %s AS ok FROM dagapp.dag_orchestrators", partial(list, [row["at"]]))


async def test_an_orchestrator_holds_four_connections(dsn: str) -> None:
    async with fleet(dsn) as running:
        await running.orchestrator()
        await running.worker()
        await running.run(single())
        for role in running.roles[1:]:
            await role.stop()
        await beats_on(running)
        await until_held(dsn, ["heartbeat", "maintenance", "orchestrator", "signals"])


async def test_a_worker_holds_three_connections_and_a_process_with_both_six(dsn: str) -> None:
    settings = load_settings()
    options = worker_options(settings, ["q"], 2)
    async with whole_fleet(dsn, settings, work=options, registry=Registry()):
        await until_held(dsn, ["signals", "worker", "worker"])
    async with whole_fleet(dsn, settings, orchestrate=True, work=options, registry=Registry()):
        await until_held(dsn, ["heartbeat", "maintenance", "orchestrator", "signals", "worker", "worker"])


async def test_a_fleet_that_is_cancelled_while_it_starts_stops_its_orchestrator(
    dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    starting, stopped = asyncio.Event(), asyncio.Event()

    async def start_slowly(
        _dsn: str, _role: Any, _intervals: Any, _notifier: Any, stop: asyncio.Event, **_: Any
    ) -> None:
        starting.set()
        await stop.wait()
        stopped.set()

    async def enter() -> None:
        async with whole_fleet(dsn, load_settings(), orchestrate=True):
            pass

    monkeypatch.setattr("dagmaster.fleet.run_orchestrator", start_slowly)
    entering = asyncio.create_task(enter())
    await starting.wait()
    entering.cancel()
    await asyncio.wait([entering])
    assert entering.cancelled() and stopped.is_set()


async def until_held(dsn: str, names: list[str]) -> None:
    await Fleet(dsn).until(f"SELECT array_agg(name ORDER BY name) = %s AS ok FROM ({HELD}) held", lambda: [names])


async def test_the_heartbeat_continues_while_a_chore_waits_for_a_lock(dsn: str) -> None:
    async with fleet(dsn) as running:
        await running.orchestrator(heartbeat_seconds=0.05)
        async with locked(dsn, "dagapp.dag_workers"):
            waits = "SELECT count(*) > 0 AS ok FROM pg_stat_activity WHERE application_name = 'dagmaster maintenance'"
            await running.until(f"{waits} AND wait_event_type = 'Lock'")
            await beats_on(running)


async def test_a_chore_that_waits_for_a_lock_does_not_block_the_others(dsn: str) -> None:
    async with fleet(dsn) as running:
        role = await running.orchestrator(worker_lost_after_seconds=0.5, back_pressure_seconds=0.05)
        async with locked(dsn, "dagapp.dag_workers"):
            role.instance.closed_queues.add("full")  # Opened again by the chore that watches the queues.
            await wait_until(lambda: "full" not in role.instance.closed_queues)


@asynccontextmanager
async def locked(dsn: str, table: str) -> AsyncIterator[None]:
    async with await psycopg.AsyncConnection.connect(dsn) as foreign, foreign.transaction():
        await foreign.execute(f"LOCK TABLE {table} IN ACCESS EXCLUSIVE MODE")
        yield


class Counted:
    """A chore that counts its runs, or fails in each."""

    def __init__(self, error: BaseException | None = None) -> None:
        self.change_sets, self._error = 0, error

    async def run_once(self, conn: Connection) -> None:
        self.change_sets += 1
        await conn.execute("SELECT 1" if self._error is None else "BEGIN")
        if self._error is not None:
            raise self._error


@pytest.mark.parametrize(
    "error", [psycopg.errors.UndefinedTable("no such table"), psycopg.OperationalError("gone"), OSError("gone")]
)
async def test_a_chore_that_fails_leaves_the_connection_usable(
    dsn: str, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    monkeypatch.setattr(chores, "RETRY_SECONDS", 0.01)
    shared, good, bad = SharedConnection(dsn, "test"), Counted(), Counted(error)
    running = [asyncio.create_task(Chore("test", 0.01, shared.takes(chore.run_once)).run()) for chore in (good, bad)]
    try:
        await until_both(good, bad, 3)
    finally:
        await stop(running)
        await shared.close()


async def test_a_lost_connection_is_reopened_for_all_chores(dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chores, "RETRY_SECONDS", 0.01)
    shared, first, second = SharedConnection(dsn, "doomed"), Counted(), Counted()
    running = [asyncio.create_task(Chore("test", 0.01, shared.takes(each.run_once)).run()) for each in (first, second)]
    try:
        await until_both(first, second, 2)
        await rows(dsn, "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'doomed'")
        await until_both(first, second, max(first.change_sets, second.change_sets) + 3)
    finally:
        await stop(running)
        await shared.close()


async def until_both(first: Counted, second: Counted, change_sets: int) -> None:
    await wait_until(lambda: min(first.change_sets, second.change_sets) >= change_sets)


async def stop(running: list[asyncio.Task[Any]]) -> None:
    for task in running:
        task.cancel()
    await asyncio.gather(*running, return_exceptions=True)


async def test_an_orchestrator_cancelled_twice_closes_its_connections(
    dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ends, end = asyncio.Event(), process._end

    async def end_slowly(tasks: Any) -> None:
        await end(tasks)
        ends.set()
        await asyncio.Event().wait()

    async with fleet(dsn) as running:
        role = await running.orchestrator()
        await beats_on(running)
        monkeypatch.setattr(process, "_end", end_slowly)
        monkeypatch.setattr(process, "leave", lambda *_: asyncio.sleep(0))
        role._main.cancel()
        await ends.wait()
        await role._drop()
        await running.until(f"SELECT count(*) = 0 AS ok FROM ({HELD}) held WHERE name IN ('heartbeat', 'maintenance')")
