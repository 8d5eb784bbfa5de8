"""Schedules over HTTP and in the client."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from fleet import graph, rows, task
from web import Web, web

from dagmaster.client import AsyncClient
from dagmaster.errors import Invalid, UnknownSchedule
from dagmaster.model.graph import Graph


def scheduled(schedule: Any, workflow_id: str = "nightly", **fields: Any) -> Graph:
    return graph({"work": task("echo", "END")}, workflow_id, start="work", schedule=schedule, **fields)


async def sync(site: Web) -> None:
    """Sync as a server does at its start."""
    async with site.services.pool.connection() as conn:
        await site.services.sync_schedules(conn)


async def test_schedules_are_shown_with_their_next_times(dsn: str) -> None:
    daily = {"cron": "0 6 * * *", "timezone": "Europe/Berlin"}
    async with web(dsn, scheduled(daily), scheduled(None, "other")) as site:
        assert await site.get("/api/v1/schedules") == {"schedules": []}
        await sync(site)
        [schedule] = (await site.get("/api/v1/schedules"))["schedules"]
        assert schedule == await site.get("/api/v1/schedules/nightly")
    assert (schedule["rule"], schedule["timezone"], schedule["catchup"]) == ("0 6 * * *", "Europe/Berlin", "last")
    times = [datetime.fromisoformat(at) for at in schedule["next_times"]]
    assert len(times) == 5
    assert times[0] == datetime.fromisoformat(schedule["next_at"])
    assert times == sorted(times)
    assert times[0] > datetime.now(UTC) - timedelta(seconds=10)
    assert not schedule["is_late"]


async def test_a_schedule_can_be_paused_and_resumed(dsn: str) -> None:
    async with web(dsn, scheduled({"every": "1h"})) as site:
        await sync(site)
        key = await site.key("ada")
        paused = await site.post("/api/v1/schedules/nightly/pause", headers=key)
        assert (paused["paused_by"], paused["next_times"]) == ("ada", [])
        resumed = await site.post("/api/v1/schedules/nightly/resume", headers=key)
        assert (resumed["paused_at"], resumed["paused_by"], resumed["rule"]) == (None, None, "every 1h")
        audit = await site.get("/api/v1/audit", headers=key)
        commands = [entry["data"]["command"] for entry in audit["items"] if "schedules." in str(entry)]
        assert sorted(commands) == ["schedules.pause", "schedules.resume", "schedules.sync"]


async def test_a_triggered_schedule_runs_now(dsn: str) -> None:
    async with web(dsn, scheduled("@yearly"), runs=True) as site:
        await sync(site)
        started = await site.post("/api/v1/schedules/nightly/trigger", status=201)
        [job] = await site.fleet.completed(int(started["job_id"]))
        assert job["schedule_id"] == "nightly"
        [schedule] = (await site.get("/api/v1/schedules"))["schedules"]
        assert (schedule["last_job_id"], schedule["last_job_status"]) == (started["job_id"], "completed")


async def test_a_backfill_is_requested_and_runs_once(dsn: str) -> None:
    async with web(dsn, scheduled({"cron": "0 6 * * *", "timezone": "Europe/Berlin"})) as site:
        await sync(site)
        body = {"start": "2026-01-01", "end": "2026-01-04", "max_jobs": 2}
        would = await site.post("/api/v1/schedules/nightly/backfill", {**body, "dry_run": True})
        assert (would["times"], would["submitted"], would["left"]) == (3, 0, 3)
        assert (would["first"], would["last"]) == ("2026-01-01T05:00:00Z", "2026-01-03T05:00:00Z")
        first = await site.post("/api/v1/schedules/nightly/backfill", body)
        assert (first["submitted"], first["existing"], first["left"], len(first["job_ids"])) == (2, 0, 1, 2)
        second = await site.post("/api/v1/schedules/nightly/backfill", body)
        assert (second["submitted"], second["existing"], second["left"]) == (1, 2, 0)
        assert len(await rows(dsn, "SELECT 1 FROM dagapp.dag_jobs")) == 3


@pytest.mark.parametrize(
    "wrong",
    [
        {},
        {"start": "2026-01-02", "end": "2026-01-01"},
        {"start": "0001-01-01", "end": "2026-01-01"},
        {"start": "9999-12-31T23:59:59.999999-12:00", "end": "9999-12-31T23:59:59.999999-12:00"},
        {"start": "soon", "end": "later"},
        {"start": "2026-01-01", "end": "2026-01-02", "max_jobs": 0},
    ],
)
async def test_an_invalid_range_is_refused(dsn: str, wrong: dict[str, Any]) -> None:
    async with web(dsn, scheduled("@daily")) as site:
        await sync(site)
        await site.post("/api/v1/schedules/nightly/backfill", wrong, status=422)


async def test_a_range_in_the_future_is_empty(dsn: str) -> None:
    async with web(dsn, scheduled({"cron": "@daily", "timezone": "America/New_York"})) as site:
        await sync(site)
        far = {"start": "9999-01-01", "end": "9999-12-31T23:59:59.999999-12:00"}
        assert (await site.post("/api/v1/schedules/nightly/backfill", far))["times"] == 0
        last_hour = {**far, "start": "9999-12-31T23:00:00-12:00"}
        assert (await site.post("/api/v1/schedules/nightly/backfill", last_hour))["times"] == 0


@pytest.mark.parametrize("path", ["", "/pause", "/resume", "/trigger", "/backfill"])
async def test_an_unknown_schedule_is_404(dsn: str, path: str) -> None:
    async with web(dsn) as site:
        body = {"start": "2026-01-01", "end": "2026-01-02"} if path == "/backfill" else None
        method = "POST" if path else "GET"
        answer = await site.ask(method, f"/api/v1/schedules/nightly{path}", 404, json=body)
        assert answer["error"]["code"] == "unknown_schedule"


async def test_reloading_workflows_reloads_their_schedules(dsn: str) -> None:
    async with web(dsn, scheduled("@daily"), scheduled("@daily", "second")) as site:
        await site.post("/api/v1/workflows/reload")
        site.services.catalog.register(scheduled("@hourly").workflow)
        site.services.catalog.register(scheduled("@daily", "second", is_active=False).workflow)
        await site.post("/api/v1/commands/cache.invalidate", {})
        assert [row["cron"] for row in (await site.get("/api/v1/schedules"))["schedules"]] == ["0 * * * *"]
        site.services.catalog.register(scheduled(None).workflow)
        assert await site.post("/api/v1/schedules/sync") == {"added": [], "changed": [], "removed": ["nightly"]}


async def test_schedules_of_other_servers_are_kept_unless_pruned(dsn: str) -> None:
    async with web(dsn, scheduled("@daily", "theirs")) as other:
        await sync(other)
    async with web(dsn, scheduled("@daily", "ours")) as site:
        await sync(site)
        names = [row["schedule_id"] for row in (await site.get("/api/v1/schedules"))["schedules"]]
        assert names == ["ours", "theirs"]
        assert (await site.post("/api/v1/schedules/sync", {"prune": True}))["removed"] == ["theirs"]


async def test_the_client_covers_all_schedule_operations(dsn: str) -> None:
    async with web(dsn, scheduled({"every": "1d"})) as site, site.real_server() as url, AsyncClient(url) as client:
        assert (await client.sync_schedules()).added == ["nightly"]
        assert [row.schedule_id for row in await client.schedules()] == ["nightly"]
        assert (await client.pause_schedule("nightly")).paused_at is not None
        assert (await client.resume_schedule("nightly")).paused_at is None
        assert (await client.trigger_schedule("nightly")).schedule_id == "nightly"
        start, end = datetime(2026, 1, 1, tzinfo=UTC), datetime(2026, 1, 3, tzinfo=UTC)
        assert (await client.backfill("nightly", start, end, max_jobs=1)).left == 1
        assert (await client.schedule("nightly")).last_job_id is not None
        with pytest.raises(UnknownSchedule):
            await client.schedule("unknown")
        with pytest.raises(Invalid, match="max_jobs"):
            await client.backfill("nightly", start, end, max_jobs=0)


async def test_a_late_schedule_is_visible_in_health_and_metrics(dsn: str) -> None:
    async with web(dsn, scheduled("@daily"), scheduled("@daily", "second")) as site:
        await sync(site)
        await site.post("/api/v1/schedules/second/pause")
        assert (await site.get("/health/schedules"))["status"] == "healthy"
        await rows(dsn, "UPDATE dagapp.dag_schedules SET next_at = now() - interval '2 minutes' RETURNING 1")
        assert (await site.get("/health/schedules"))["status"] == "degraded"
        assert (await site.get("/api/v1/schedules/nightly"))["is_late"]
        metrics = await site.get("/metrics")
    for line in ("schedules_active 1.0", "schedules_paused 1.0", "schedules_late 1.0"):
        assert f"dagmaster_{line}" in metrics
