"""Cached results are deleted on request and when they expire."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
from command_line import call
from counting_handler import CACHED, Counter, counting, knowing, output
from fleet import fleet, rows
from serving import server
from web import Web, web

from dagmaster.model.access import Role
from dagmaster.orchestrator.maintenance import RetentionOptions
from dagmaster.store.connect import opened
from dagmaster.store.retention import Limits, remove_old


async def keep(dsn: str, *names: str, expires: str = "NULL") -> None:
    for name in names:
        await rows(
            dsn,
            "INSERT INTO dagapp.dag_task_cache (cache_key, handler, output, job_id, task_id, expires_at) "
            f"VALUES (gen_random_uuid()::text, %s, '{{}}', 1, '1_a_0', {expires})",
            name,
        )


@pytest.fixture(params=["database", "server"])
def place(request: pytest.FixtureRequest, dsn: str, tmp_path: Path) -> Iterator[list[str]]:
    """The options that select database or server."""
    if request.param == "database":
        yield ["--database-url", dsn, "--by", "ada"]
        return
    with server(dsn, tmp_path, works=False) as host:
        yield ["--url", host.url]


def test_cached_results_can_be_deleted_on_the_command_line(dsn: str, place: list[str]) -> None:
    asyncio.run(keep(dsn, "a", "a", "tasks:clean", "tasks.clean", "b"))
    assert call("cache", "clear", "--handler", "a", *place).out == "2 results removed\n"
    assert call("cache", "clear", "--handler", "tasks.clean", "--json", *place).json == {
        "handler": "tasks.clean",
        "removed": 2,
    }
    assert call("cache", "clear", "--handler", "nobody", *place).out == "0 results removed\n"
    assert call("cache", "clear", *place).out == "1 result removed\n"
    events = asyncio.run(rows(dsn, "SELECT event_data FROM dagapp.dag_job_events WHERE job_id = 0 ORDER BY event_id"))
    assert [(event["event_data"]["command"], event["event_data"]["removed"]) for event in events][-4:] == [
        ("cache.clear", 2),
        ("cache.clear", 2),
        ("cache.clear", 0),
        ("cache.clear", 1),
    ]
    assert events[-1]["event_data"]["actor"] == ("ada" if "ada" in place else None)


async def test_a_deleted_result_is_computed_again(dsn: str) -> None:
    count = Counter()
    async with web(dsn, counting(x=1)) as api:
        await api.fleet.orchestrator()
        await api.fleet.worker(known=knowing(count))
        await output(api.fleet, counting(x=1))
        assert await cleared(api, "other") == 0
        assert await cleared(api, "count") == 1
        assert (await output(api.fleet, counting(x=1)))["call"] == 2
        [entry] = (await api.get("/api/v1/audit?limit=1"))["items"]
        assert (entry["command"], entry["data"]["handler"], entry["data"]["removed"]) == ("cache.clear", "count", 1)


async def cleared(api: Web, handler: str) -> int:
    reply = await api.ask("DELETE", "/api/v1/cache", 200, params={"handler": handler})
    return int(reply["removed"])


async def test_viewers_cannot_delete_cached_results(dsn: str) -> None:
    async with web(dsn) as api:
        await keep(dsn, "a")
        viewer, operator = await api.key("viewer", Role.VIEWER), await api.key("operator", Role.OPERATOR)
        await api.ask("DELETE", "/api/v1/cache", 403, headers=viewer)
        assert await api.ask("DELETE", "/api/v1/cache", 200, headers=operator) == {"handler": None, "removed": 1}


async def test_expired_results_are_removed_in_batches(dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dagmaster.store.retention.ROWS_AT_ONCE", 2)
    await keep(dsn, "old", "old", "old", "old", "old", expires="now() - interval '1 s'")
    await keep(dsn, "new", expires="now() + interval '1 h'")
    await keep(dsn, "ever")
    async with opened(dsn, application="test") as conn:
        assert (await remove_old(conn, Limits(None))).cached_results == 5
    assert {row["handler"] for row in await rows(dsn, CACHED)} == {"new", "ever"}


async def test_the_retention_chore_removes_expired_results(dsn: str) -> None:
    await keep(dsn, "old", expires="now() - interval '1 s'")
    async with fleet(dsn) as running:
        await running.orchestrator(retention_seconds=0.1, settle_seconds=0, retention=RetentionOptions())
        await running.until("SELECT count(*) = 0 AS ok FROM dagapp.dag_task_cache")
