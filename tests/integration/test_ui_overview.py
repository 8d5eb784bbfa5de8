"""What the dashboard and the pages of workflows say, and what they ask of the database for it."""

import re
from datetime import UTC, datetime, timedelta
from html import unescape
from pathlib import Path
from typing import Any

import psycopg
import pytest
from fleet import chain, graph, rows, single, task
from web import web

from dagmaster.authoring.catalog import Catalog
from dagmaster.model.access import Role
from dagmaster.model.workflow import ApprovalNode, EndNode, InputSpec, InputType, StartNode, TaskNode, Workflow
from dagmaster.store import dashboard
from dagmaster.store.connect import opened
from dagmaster.store.dashboard import Patience, Trouble, find_trouble, job_counts
from dagmaster.store.nodes import grid_nodes
from dagmaster.store.statements import SQL
from dagmaster.store.workflows import runs_by_workflow, runs_of_workflow, workflow_versions
from dagmaster.web.ui.attention import find_needs
from dagmaster.web.ui.charts import count_top, draw_durations, draw_throughput, draw_ticks, seconds_top
from dagmaster.web.ui.workflow import without_defaults

NOW = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
SCRIPT = "<script>alert(1)</script>"
NEW_JOB = """
INSERT INTO dagapp.dag_jobs (job_id, workflow_id, workflow_version, workflow_hash, priority, status, error_message,
    created_at, started_at, completed_at)
VALUES (%(job_id)s, %(workflow)s, 1, %(hash)s, 0, %(status)s, %(error)s, now() - %(ago)s, now() - %(ago)s,
    CASE WHEN %(has_ended)s THEN now() - %(ago)s + %(took)s END)
"""


class Past:
    """Jobs of which only the rows are left."""

    def __init__(self, dsn: str) -> None:
        self.dsn = dsn
        self.number = 0

    async def job(
        self, status: str = "completed", *, workflow: str = "w", minutes: float = 5, error: str | None = None
    ) -> int:
        """That began so many minutes ago and took a second."""
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
            return await find_trouble(conn, Patience())

    async def read(self, ask: Any, *args: Any, **options: Any) -> Any:
        async with opened(self.dsn, application="test") as conn:
            return await ask(conn, *args, **options)


@pytest.fixture
def past(dsn: str) -> Past:
    return Past(dsn)


# What the database tells.


async def test_an_empty_database_has_nothing_to_tell(past: Past) -> None:
    counts = await past.read(job_counts)
    assert [counts[name] for name in ("pending", "running", "completed", "failed", "has_jobs")] == [0, 0, 0, 0, False]
    assert await past.trouble() == Trouble([], [], [], [], [], [], [])
    assert await past.read(runs_by_workflow, workflows=5, runs=5) == {}


async def test_jobs_are_counted_by_how_they_stand_and_how_they_ended_lately(past: Past) -> None:
    for status in ("pending", "running", "running", "completed", "failed", "cancelled"):
        await past.job(status)
    await past.job("failed", minutes=60 * 25)
    counts = await past.read(job_counts)
    assert [counts[name] for name in ("pending", "running", "completed", "failed", "has_jobs")] == [1, 2, 1, 1, True]


async def test_where_counting_stopped_early_the_tile_leads_to_what_was_counted(
    past: Past, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dashboard, "SCAN_ENDED", 2)
    jobs = [await past.job("completed", minutes=minutes) for minutes in (90, 60.5, 30)]
    async with web(past.dsn) as site:
        shown = await site.get("/ui/")
        assert "in the last 1 h" in shown
        [path] = re.findall(r'id="tile-completed"\s+href="([^"]+)"', shown)
        listed = re.findall(r'<tr id="job-(\d+)"', await site.get(unescape(path)))
    assert listed == [str(jobs[2]), str(jobs[1])]


async def test_a_failure_is_told_for_a_day_however_many_jobs_have_ended_since(
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


async def test_failures_of_a_day_are_found_by_an_index_of_their_own(past: Past) -> None:
    async with opened(past.dsn, application="test") as conn:
        await conn.execute("SET enable_seqscan = off")
        plan = await (await conn.execute(b"EXPLAIN " + SQL["overview_failures"].text, [24, 500])).fetchall()
    assert "ix_dag_jobs_failed" in "\n".join(str(row["QUERY PLAN"]) for row in plan)


async def test_counts_are_read_by_index(past: Past) -> None:
    statement = SQL["overview_counts"].text
    async with opened(past.dsn, application="test") as conn:
        await conn.execute("SET enable_seqscan = off")
        plan = await (await conn.execute(b"EXPLAIN " + statement, [24, 10_000])).fetchall()
    said = "\n".join(str(row["QUERY PLAN"]) for row in plan)
    assert "Index Cond: (completed_at >=" in said


async def test_failures_that_differ_only_in_numbers_and_ids_are_one(past: Past) -> None:
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


async def test_jobs_that_nobody_begins_stand_still(past: Past) -> None:
    await past.job("pending", minutes=0.1)
    waits = [await past.job("pending", minutes=minutes) for minutes in (9, 8)]
    still = (await past.trouble()).still
    assert [(row["job_id"], row["why"], row["total"]) for row in still] == [(job, "begin", 2) for job in waits]


async def test_tasks_that_no_worker_would_take_are_found(past: Past) -> None:
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
    untaken = {(row["queue"], row["tasks"], row["is_consumed"]) for row in trouble.untaken}
    assert untaken == {("gpu", 2, False), ("cpu", 1, True)}
    assert {row["why"] for row in trouble.still} == {"tasks"}
    await rows(past.dsn, "UPDATE dagapp.dag_workers SET queues = '{cpu, gpu}', handlers = NULL")
    assert (await past.trouble()).untaken == []


async def test_workers_that_are_silent_stuck_or_lost_are_found(past: Past) -> None:
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


async def test_schedules_that_missed_their_time_are_found(past: Past) -> None:
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


async def test_runs_are_the_newest_of_the_workflows_that_ran_last(past: Past) -> None:
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


async def test_versions_know_how_often_they_ran(dsn: str) -> None:
    async with web(dsn, chain(2), runs=True) as it:
        job_id = (await it.fleet.run(chain(2)))["job_id"]
        await it.fleet.run(chain(2))
        await it.fleet.run(chain(3))
        async with opened(dsn, application="test") as conn:
            versions = await workflow_versions(conn, "chain")
            nodes = await grid_nodes(conn, [job_id], ["n0", "n1", "n2"])
    assert [version["runs"] for version in versions] == [1, 2], "the newest first"
    assert {key[1]: row["status"] for key, row in nodes.items()} == {"n0": "completed", "n1": "completed"}


# Shapes.


def a_run(status: str = "completed", seconds: float | None = 1.0, number: int = 1) -> dict[str, Any]:
    ended = None if seconds is None else NOW + timedelta(seconds=seconds)
    return {
        "job_id": number,
        "status": status,
        "created_at": NOW,
        "idle_seconds": 0.0,
        "started_at": NOW,
        "completed_at": ended,
    }


@pytest.mark.parametrize(("most", "top"), [(0, 2), (1, 2), (3, 4), (10, 10), (11, 20), (81, 100), (4000, 4000)])
def test_an_axis_of_counts_ends_at_a_plain_number(most: int, top: float) -> None:
    assert count_top(most) == top


@pytest.mark.parametrize(("most", "top"), [(0.0005, 0.001), (0.3, 0.4), (9, 10), (31, 60), (3601, 7200), (1e7, 1e7)])
def test_an_axis_of_durations_ends_at_a_plain_time(most: float, top: float) -> None:
    assert seconds_top(most) == top


def test_throughput_is_stacked_and_said_in_a_table() -> None:
    buckets = [
        {"bucket_start": NOW + timedelta(minutes=n), "jobs_completed": good, "jobs_failed": bad}
        for n, (good, bad) in enumerate([(3, 1), (0, 0)])
    ]
    chart = draw_throughput(buckets)
    assert chart.up == ("4", "2", "0")
    assert [(part.name, part.y, part.height) for part in chart.columns[0].parts] == [
        ("completed", 25.0, 75.0),
        ("failed", 0.0, 25.0),
    ]
    assert chart.columns[1].parts == ()
    assert chart.columns[0].at == NOW, "scripts write it in the reader's zone"
    [(minute, *counts)] = chart.rows
    assert ">12:00</time>" in minute
    assert counts == ["3", "1"]


def test_durations_lead_to_their_jobs_and_show_the_median() -> None:
    chart = draw_durations([a_run("failed", 9, 2), a_run("completed", 5, 1)])
    assert chart is not None
    assert [column.href for column in chart.columns] == ["/ui/jobs/1", "/ui/jobs/2"], "the newest on the right"
    assert chart.up == ("10 s", "5 s", "0")
    assert chart.middle == 50.0
    assert "failed, 9 s" in chart.columns[1].tip
    assert draw_durations([]) is None
    open_run = {**a_run("running", number=3), "started_at": NOW - timedelta(days=9), "completed_at": None}
    beside_open = draw_durations([open_run, a_run("completed", 5, 1)])
    assert beside_open is not None
    assert beside_open.up[0] == "10 s", "what has not ended does not flatten the others"
    assert beside_open.columns[1].parts[0].y == 0


def test_ticks_say_in_words_what_they_show() -> None:
    drawn = draw_ticks([a_run("failed", number=3), a_run(number=2), a_run(number=1)])
    assert [tick.status for tick in drawn.ticks] == ["completed", "completed", "failed"]
    assert drawn.ticks[2].height > drawn.ticks[0].height, "not by colour alone"
    assert drawn.text == "Of the last 3 runs: 1 failed, 2 completed"
    assert drawn.percent == pytest.approx(66.667)
    assert (draw_ticks([]).text, draw_ticks([]).percent) == ("Never run", None)


# Pages.


async def test_the_first_page_before_the_first_job_says_how_to_begin(dsn: str) -> None:
    async with web(dsn, single(workflow_id="hello_world")) as it:
        page = await it.get("/ui/")
    assert "No jobs have run yet" in page
    assert "dagmaster submit hello_world --poll" in page
    assert "dagmaster orchestrator --with-worker" in page, "nobody is at work"


async def test_a_dashboard_without_trouble_is_calm(dsn: str) -> None:
    async with web(dsn, single(), runs=True) as it:
        await it.fleet.run(single())
        page = await it.get("/ui/")
    assert "All good" in page


async def test_without_an_orchestrator_that_is_said_first(past: Past) -> None:
    await past.job("running", minutes=0)
    await past.job("failed", error="x")
    async with web(past.dsn) as it:
        page = await it.get("/ui/")
    assert page.index("No orchestrator is running") < page.index("w failed")


async def test_errors_are_shown_as_text_and_without_secrets(past: Past) -> None:
    await past.job("failed", error=f"{SCRIPT} at https://ada:hunter2@host/x")
    async with web(past.dsn) as it:
        page = await it.get("/ui/")
    assert SCRIPT not in page
    assert "&lt;script&gt;" in page
    assert "hunter2" not in page


async def test_only_those_who_may_steer_are_offered_a_retry(past: Past) -> None:
    job_id = await past.job("failed", error="x")
    async with web(past.dsn) as it:
        viewer, operator = await it.key("v", Role.VIEWER), await it.key("o", Role.OPERATOR)
        assert f"/api/v1/jobs/{job_id}/retry" in await it.get("/ui/", headers=operator)
        assert f"/api/v1/jobs/{job_id}/retry" not in await it.get("/ui/", headers=viewer)
        await it.get("/ui/", 403, headers=await it.key("p", Role.PARTNER))


async def test_approvals_that_wait_are_told_with_their_message(dsn: str) -> None:
    asking = graph({"ask": ApprovalNode(message="Publish it?", next=("END",))}, "asks", start="ask")
    async with web(dsn, asking, runs=True) as it:
        await it.fleet.submit(asking)
        await it.fleet.until("SELECT count(*) = 1 FROM dagapp.dag_job_events WHERE event_type = 'approval_requested'")
        page = await it.get("/ui/")
    assert "1 pending approval" in page
    assert "asks: Publish it?" in page


async def test_workflows_that_only_their_jobs_know_are_listed(dsn: str) -> None:
    async with web(dsn, single(workflow_id="here"), runs=True) as it:
        await it.fleet.run(chain(2))
        listed = await it.get("/ui/workflows")
        page = await it.get("/ui/workflows/chain")
        drawn = await it.get("/ui/workflow-graphs/chain")
    assert 'id="workflow-here"' in listed
    assert 'id="workflow-chain"' in listed
    assert "no file" in listed
    assert "This workflow is in no file of this server" in page
    assert "/ui/submit?workflow=chain" not in page
    assert {node["node_id"] for node in drawn["nodes"]} == {"START", "n0", "n1", "END"}


async def test_workflows_are_found_by_name_and_description(dsn: str) -> None:
    async with web(dsn, graph({"a": task("echo", "END")}, "one", start="a", description="Makes Tiles"), single()) as it:
        assert 'id="workflow-one"' in await it.get("/ui/workflows?text=tiles")
        assert 'id="workflow-single"' not in await it.get("/ui/workflows?text=tiles")
        assert "No matching workflows" in await it.get("/ui/workflows?text=nonsense")


async def test_a_broken_file_is_told_with_its_error_and_what_to_do(dsn: str, tmp_path: Path) -> None:
    (tmp_path / "broken.yaml").write_text("workflow_id: broken\nnodes: {START: {type: start, next: nowhere}}\n")
    async with web(dsn) as it:
        it.services.catalog = Catalog(tmp_path)
        page = await it.get("/ui/workflows")
    assert "broken.yaml" in page
    assert "nowhere" in page
    assert "dagmaster validate broken.yaml" in page
    assert str(tmp_path) not in page


async def test_a_page_of_a_workflow_shows_its_runs_and_nodes(dsn: str) -> None:
    async with web(dsn, single("fail"), runs=True) as it:
        job_id = (await it.fleet.run(single("fail")))["job_id"]
        page = await it.get("/ui/workflows/single")
    assert f'href="/ui/jobs/{job_id}/nodes/work"' in page
    assert 'class="cell is-failed"' in page
    assert "work: failed" in page
    assert "current" in page


def test_a_definition_is_shown_without_defaults_and_means_the_same() -> None:
    nodes = {
        "START": StartNode(next=("a",)),
        "a": TaskNode(handler="echo", params={"text": "", "tags": []}, next=("END",)),
        "END": EndNode(),
    }
    inputs = {"name": InputSpec(), "size": InputSpec(type=InputType.INTEGER, required=False, default=0)}
    workflow = Workflow(workflow_id="w", name="W", inputs=inputs, nodes=nodes)
    said = without_defaults(workflow)
    assert said == {
        "workflow_id": "w",
        "name": "W",
        "inputs": {"name": {"type": "string"}, "size": {"type": "integer", "required": False, "default": 0}},
        "nodes": {
            "START": {"type": "start", "next": ["a"]},
            "a": {"type": "task", "handler": "echo", "params": {"text": "", "tags": []}, "next": ["END"]},
            "END": {"type": "end"},
        },
    }
    assert Workflow.model_validate(said) == workflow


async def test_what_authors_write_is_text_and_secrets_are_hidden(dsn: str) -> None:
    secretive = task("echo", "END", params={"password": "hunter2", "text": SCRIPT})
    async with web(dsn, graph({"a": secretive}, "w", start="a", description=SCRIPT)) as it:
        page = await it.get("/ui/workflows/w")
        listed = await it.get("/ui/workflows")
    assert SCRIPT not in page + listed
    assert "hunter2" not in page


async def test_a_workflow_that_is_not_active_has_a_page_and_no_button(dsn: str) -> None:
    async with web(dsn, graph({"a": task("echo", "END")}, "idle", start="a", is_active=False)) as it:
        page = await it.get("/ui/workflows/idle")
    assert "inactive" in page
    assert "/ui/submit?workflow=idle" not in page


@pytest.mark.parametrize("path", ["nothing", "a/b", "%3Cscript%3E", "x" * 300])
async def test_an_unknown_workflow_is_a_page_with_404(dsn: str, path: str) -> None:
    async with web(dsn) as it:
        page = await it.get(f"/ui/workflows/{path}", 404)
    assert "Not found" in page
    assert "<script>'" not in page


async def test_pages_of_workflows_are_for_readers(dsn: str) -> None:
    async with web(dsn, single()) as it:
        partner = await it.key("p", Role.PARTNER)
        for path in ("/ui/", "/ui/workflows", "/ui/workflows/single", "/ui/workflow-graphs/single"):
            await it.get(path, 403, headers=partner)
