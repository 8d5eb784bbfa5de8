"""The dashboard, and its queries."""

import re
from datetime import UTC, datetime, timedelta
from html import unescape
from typing import Any

import psycopg
import pytest
from fleet import chain, graph, rows, single
from web import web

from dagmaster.authoring.catalog import Catalog
from dagmaster.model.access import Role
from dagmaster.model.workflow import ApprovalNode
from dagmaster.store import dashboard
from dagmaster.store.connect import opened
from dagmaster.store.dashboard import Thresholds, Trouble, find_trouble, job_counts
from dagmaster.store.nodes import grid_nodes
from dagmaster.store.statements import SQL
from dagmaster.store.workflows import runs_by_workflow, runs_of_workflow, workflow_versions
from dagmaster.web.ui.attention import find_needs

NOW = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
SCRIPT = "<script>alert(1)</script>"
NEW_JOB = """
INSERT INTO dagapp.dag_jobs (job_id, workflow_id, workflow_version, workflow_hash, priority, status, error_message,
    created_at, started_at, completed_at)
VALUES (%(job_id)s, %(workflow)s, 1, %(hash)s, 0, %(status)s, %(error)s, now() - %(ago)s, now() - %(ago)s,
    CASE WHEN %(has_ended)s THEN now() - %(ago)s + %(took)s END)
"""


class Past:
    """Jobs of which only rows exist."""

    def __init__(self, dsn: str) -> None:
        self.dsn = dsn
        self.number = 0

    async def job(
        self, status: str = "completed", *, workflow: str = "w", minutes: float = 5, error: str | None = None
    ) -> int:
        """A job that started this many minutes ago and took a second."""
        self.number += 1
        values = {
            "job_id": self.number,
            "workflow": workflow,
            "hash": f"hash of {workflow}",
            "status": status,
            "has_ended": status not in ("pending", "running"),
            "error": error,
            "ago": timedelta(minutes=minutes),
            "took": timedelta(seconds=1),
        }
        async with await psycopg.AsyncConnection.connect(self.dsn, autocommit=True) as conn:
            await conn.execute(NEW_JOB, values)
        return self.number

    async def trouble(self) -> Trouble:
        async with opened(self.dsn, application="test") as conn:
            return await find_trouble(conn, Thresholds())

    async def read(self, ask: Any, *args: Any, **options: Any) -> Any:
        async with opened(self.dsn, application="test") as conn:
            return await ask(conn, *args, **options)


@pytest.fixture
def past(dsn: str) -> Past:
    return Past(dsn)


# Queries.


async def test_an_empty_database_has_an_empty_overview(past: Past) -> None:
    counts = await past.read(job_counts)
    assert [counts[name] for name in ("pending", "running", "completed", "failed", "has_jobs")] == [0, 0, 0, 0, False]
    assert await past.trouble() == Trouble([], [], [], [], [], [], [])
    assert await past.read(runs_by_workflow, workflows=5, runs=5) == {}


async def test_jobs_are_counted_by_status_and_recent_outcome(past: Past) -> None:
    for status in ("pending", "running", "running", "completed", "failed", "cancelled"):
        await past.job(status)
    await past.job("failed", minutes=60 * 25)
    counts = await past.read(job_counts)
    assert [counts[name] for name in ("pending", "running", "completed", "failed", "has_jobs")] == [1, 2, 1, 1, True]


async def test_a_truncated_count_links_to_the_jobs_that_were_counted(
    past: Past, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dashboard, "SCAN_ENDED", 2)
    jobs = [await past.job("completed", minutes=minutes) for minutes in (90, 60.5, 30)]
    async with web(past.dsn) as site:
        page = await site.get("/ui/")
        assert "in the last 1 h" in page
        [path] = re.findall(r'id="tile-completed"\s+href="([^"]+)"', page)
        listed = re.findall(r'<tr id="job-(\d+)"', await site.get(unescape(path)))
    assert listed == [str(jobs[2]), str(jobs[1])]


async def test_failures_are_shown_for_a_day_however_many_jobs_ended_since(
    past: Past, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dashboard, "SCAN_ENDED", 2)
    await past.job("failed", minutes=600, error="disk full")
    for minutes in (3, 2, 1):
        await past.job("completed", minutes=minutes)
    assert (await past.read(job_counts))["failed"] == 1
    assert [row["error"] for row in (await past.trouble()).failures] == ["disk full"]
    async with web(past.dsn) as site:
        tile = (await site.get("/ui/")).partition('id="tile-failed"')[2].partition("</a>")[0]
    assert "in the last 24 h" in tile


async def test_failures_of_a_day_are_read_by_index(past: Past) -> None:
    async with opened(past.dsn, application="test") as conn:
        await conn.execute("SET enable_seqscan = off")
        plan = await (await conn.execute(b"EXPLAIN " + SQL["overview_failures"].text, [24, 500])).fetchall()
    assert "ix_dag_jobs_failed" in "\n".join(str(row["QUERY PLAN"]) for row in plan)


async def test_counts_are_read_by_index(past: Past) -> None:
    statement = SQL["overview_counts"].text
    async with opened(past.dsn, application="test") as conn:
        await conn.execute("SET enable_seqscan = off")
        plan = await (await conn.execute(b"EXPLAIN " + statement, [24, 10_000])).fetchall()
    plan_text = "\n".join(str(row["QUERY PLAN"]) for row in plan)
    assert "Index Cond: (completed_at >=" in plan_text


async def test_failures_that_differ_only_in_numbers_and_ids_are_grouped(past: Past) -> None:
    await past.job("failed", error="no file 17 of run 3f2b8c1e-0000-4000-8000-00000000abcd")
    last = await past.job("failed", error="no file 4 of run 3f2b8c1e-1111-4000-8000-00000000abcd", minutes=1)
    await past.job("failed", error="disk full")
    await past.job("failed", workflow="other", error="disk full")
    failures = {(row["workflow_id"], row["jobs"], row["job_id"]) for row in (await past.trouble()).failures}
    assert {(workflow, jobs) for workflow, jobs, _ in failures} == {("w", 2), ("w", 1), ("other", 1)}
    assert ("w", 2, last) in failures


async def test_a_workflow_that_completed_after_it_failed_has_recovered(past: Past) -> None:
    await past.job("failed", workflow="ill", error="x")
    await past.job("completed", workflow="ill", minutes=10)
    await past.job("failed", workflow="well", error="x")
    await past.job("completed", workflow="well", minutes=1)
    await past.job("running", workflow="well", minutes=0)
    failures = [(row["workflow_id"], row["has_recovered"]) for row in (await past.trouble()).failures]
    assert failures == [("ill", False), ("well", True)]


async def test_jobs_pending_for_too_long_are_shown_as_stalled(past: Past) -> None:
    await past.job("pending", minutes=0.1)
    waits = [await past.job("pending", minutes=minutes) for minutes in (9, 8)]
    still = (await past.trouble()).stalled
    assert [(row["job_id"], row["why"], row["total"]) for row in still] == [(job, "begin", 2) for job in waits]


async def test_unclaimable_tasks_are_found(past: Past) -> None:
    job_id = await past.job("running")
    await rows(
        past.dsn,
        "INSERT INTO dagapp.dag_tasks_waiting (task_id, job_id, node_id, retry_count, queue, priority, job_started_at,"
        " handler, timeout_seconds, dispatched_at) SELECT n::text, %s, 'n', 0, queue, 0, now(), 'echo', 1,"
        " now() - interval '1 hour' FROM (VALUES (1, 'gpu'), (2, 'gpu'), (3, 'cpu')) AS t(n, queue)",
        job_id,
    )
    await rows(
        past.dsn,
        "INSERT INTO dagapp.dag_workers (worker_id, hostname, pid, host_key, status, queues, handlers, concurrency)"
        " VALUES ('a', 'h', 1, 'h', 'active', '{cpu}', '{other}', 1)",
    )
    trouble = await past.trouble()
    untaken = {(row["queue"], row["tasks"], row["is_consumed"]) for row in trouble.unclaimed}
    assert untaken == {("gpu", 2, False), ("cpu", 1, True)}
    assert {row["why"] for row in trouble.stalled} == {"tasks"}
    await rows(past.dsn, "UPDATE dagapp.dag_workers SET queues = '{cpu, gpu}', handlers = NULL")
    assert (await past.trouble()).unclaimed == []


async def test_silent_stuck_and_lost_workers_are_found(past: Past) -> None:
    await rows(
        past.dsn,
        "INSERT INTO dagapp.dag_workers (worker_id, hostname, pid, host_key, status, queues, concurrency, stats,"
        " last_heartbeat) SELECT id, 'h', 1, 'h', status, '{q}', 1, stats::jsonb, now() - make_interval(mins => ago)"
        " FROM (VALUES ('well', 'active', '{}', 0), ('stuck', 'active', '{\"stuck\": [\"t\"]}', 0),"
        " ('silent', 'active', '{\"stuck\": 5}', 5), ('lost', 'lost', '{}', 5), ('long ago', 'lost', '{}', 500),"
        " ('stopped', 'stopped', '{}', 5)) AS w(id, status, stats, ago)",
    )
    trouble = await past.trouble()
    assert {row["worker_id"] for row in trouble.workers} == {"stuck", "silent", "lost"}
    titles = [need.title for need in find_needs(trouble, Catalog(), is_orchestrated=True, live_jobs=0)]
    assert "Worker h:1 has 1 stuck slot" in titles
    assert titles[-1] == "Worker h:1 was lost", "what has passed comes last"


async def test_late_schedules_are_found(past: Past) -> None:
    await rows(
        past.dsn,
        "INSERT INTO dagapp.dag_schedules (schedule_id, workflow_id, workflow_hash, interval_seconds, next_at,"
        " paused_at, paused_by) SELECT id, id, 'h', 60, now() + next::interval, CASE WHEN by <> '' THEN now() END, by"
        " FROM (VALUES ('well', '1 min', ''), ('late', '-1 hour', ''), ('missed', '1 min', ''),"
        " ('stopped', '1 min', 'dagmaster'), ('paused', '-1 hour', 'ada')) AS s(id, next, by)",
    )
    await rows(
        past.dsn,
        "INSERT INTO dagapp.dag_job_events (job_id, event_type, event_status, event_data, error_message, source_app)"
        " VALUES (0, 'schedule_missed', 'failure', '{\"schedule_id\": \"missed\", \"count\": 3}', 'bad inputs', 'x')",
    )
    trouble = await past.trouble()
    assert {row["schedule_id"]: row["missed"] for row in trouble.schedules} == {"late": 0, "missed": 3, "stopped": 0}
    needs = find_needs(trouble, Catalog(), is_orchestrated=True, live_jobs=0)
    [missed] = [need for need in needs if "missed" in need.title]
    assert (missed.title, missed.sentence) == ("Schedule missed missed 3 runs", "bad inputs")


async def test_runs_are_the_newest_of_the_recently_run_workflows(past: Past) -> None:
    await past.job(workflow="rare", minutes=9000)
    for minutes in (30, 20, 10):
        await past.job(workflow="often", minutes=minutes)
    await past.job(workflow="now", minutes=0)
    recent = await past.read(runs_by_workflow, workflows=2, runs=2)
    assert {name: [run["job_id"] for run in runs] for name, runs in recent.items()} == {"now": [5], "often": [4, 3]}
    everything = await past.read(runs_by_workflow, workflows=9, runs=9)
    assert list(everything) == ["now", "often", "rare"]
    assert [run["job_id"] for run in await past.read(runs_of_workflow, "rare", runs=9)] == [1]
    assert await past.read(runs_of_workflow, "unknown", runs=9) == []


async def test_versions_show_their_number_of_runs(dsn: str) -> None:
    async with web(dsn, chain(2), runs=True) as api:
        job_id = (await api.fleet.run(chain(2)))["job_id"]
        await api.fleet.run(chain(2))
        await api.fleet.run(chain(3))
        async with opened(dsn, application="test") as conn:
            versions = await workflow_versions(conn, "chain")
            nodes = await grid_nodes(conn, [job_id], ["n0", "n1", "n2"])
    assert [version["runs"] for version in versions] == [1, 2], "the newest first"
    assert {key[1]: row["status"] for key, row in nodes.items()} == {"n0": "completed", "n1": "completed"}


# Pages.


async def test_the_first_page_explains_how_to_start(dsn: str) -> None:
    async with web(dsn, single(workflow_id="hello_world")) as api:
        page = await api.get("/ui/")
    assert "No jobs have run yet" in page
    assert "dagmaster submit hello_world --poll" in page
    assert "dagmaster orchestrator --with-worker" in page, "nobody is at work"


async def test_a_dashboard_without_problems_shows_none(dsn: str) -> None:
    async with web(dsn, single(), runs=True) as api:
        await api.fleet.run(single())
        page = await api.get("/ui/")
    assert "All good" in page


async def test_a_missing_orchestrator_is_shown_first(past: Past) -> None:
    await past.job("running", minutes=0)
    await past.job("failed", error="x")
    async with web(past.dsn) as api:
        page = await api.get("/ui/")
    assert page.index("No orchestrator is running") < page.index("w failed")


async def test_errors_are_escaped_and_redacted(past: Past) -> None:
    await past.job("failed", error=f"{SCRIPT} at https://ada:hunter2@host/x")
    async with web(past.dsn) as api:
        page = await api.get("/ui/")
    assert SCRIPT not in page
    assert "&lt;script&gt;" in page
    assert "hunter2" not in page


async def test_only_operators_get_retry_buttons(past: Past) -> None:
    job_id = await past.job("failed", error="x")
    async with web(past.dsn) as api:
        viewer, operator = await api.key("v", Role.VIEWER), await api.key("o", Role.OPERATOR)
        assert f"/api/v1/jobs/{job_id}/retry" in await api.get("/ui/", headers=operator)
        assert f"/api/v1/jobs/{job_id}/retry" not in await api.get("/ui/", headers=viewer)
        await api.get("/ui/", 403, headers=await api.key("p", Role.PARTNER))


async def test_waiting_approvals_are_shown_with_their_message(dsn: str) -> None:
    asking = graph({"ask": ApprovalNode(message="Publish it?", next=("END",))}, "asks", start="ask")
    async with web(dsn, asking, runs=True) as api:
        await api.fleet.submit(asking)
        await api.fleet.until("SELECT count(*) = 1 FROM dagapp.dag_job_events WHERE event_type = 'approval_requested'")
        page = await api.get("/ui/")
    assert "1 pending approval" in page
    assert "asks: Publish it?" in page
