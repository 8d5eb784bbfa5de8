"""The lists of operators: their content by role."""

from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any, cast

import pytest
from fleet import fan, graph, rows, single, task
from web import Web, web

from dagmaster.ids import JobId, WorkerId
from dagmaster.model.access import Role
from dagmaster.model.workflow import ApprovalNode
from dagmaster.service.context import KnownFleet
from dagmaster.store.attempts import list_results
from dagmaster.store.connect import opened
from dagmaster.store.jobs import JobFilter, JobRow, list_jobs
from dagmaster.store.node_counts import NodeCounts, has_more_nodes
from dagmaster.store.nodes import NodeSearch, search_nodes
from dagmaster.store.signals import waiting_approvals
from dagmaster.store.workers import WorkerRow
from dagmaster.web.ui.queues import find_unclaimable, queue_lines
from dagmaster.web.ui.workers import worker_line

LISTS = ("nodes", "tasks", "queues", "handlers", "workers", "schedules", "approvals", "health")
ECHO = single("echo", workflow_id="echoes")
FAIL = single("fail", workflow_id="breaks", params={"message": "no way to postgres://me:hunter2@db/x"})
ASK = graph({"ask": ApprovalNode(message="Ship it?", approvers=("ann",), next=("END",))}, "asks", start="ask")
DAILY = graph({"a": task("echo", "END")}, "daily", start="a", schedule={"cron": "0 6 * * *"})


@pytest.fixture
async def api(dsn: str) -> AsyncIterator[Web]:
    async with web(dsn, ECHO, FAIL, ASK, DAILY, runs=True) as started:
        yield started


async def submitted(api: Web, workflow_id: str, **options: Any) -> JobId:
    return JobId(int((await api.post("/api/v1/jobs", {"workflow_id": workflow_id}, 201, **options))["job_id"]))


async def ended(api: Web, workflow_id: str) -> JobId:
    job_id = await submitted(api, workflow_id)
    query = "SELECT status IN ('completed', 'failed') AS ok FROM dagapp.dag_jobs WHERE job_id = %s"
    await api.fleet.until(query, lambda: [job_id])
    return job_id


async def asking(api: Web, **options: Any) -> JobId:
    job_id = await submitted(api, "asks", **options)
    query = "SELECT status = 'running' AS ok FROM dagapp.dag_node_states WHERE job_id = %s AND node_id = 'ask'"
    await api.fleet.until(query, lambda: [job_id])
    return job_id


async def test_an_empty_database_explains_what_to_do(dsn: str) -> None:
    async with web(dsn) as empty:
        for name in LISTS:
            assert "<h1>" in await empty.get(f"/ui/{name}")
        assert "Submit a job" in await empty.get("/ui/nodes")
        assert "dagmaster worker" in await empty.get("/ui/workers")
        assert "No orchestrator is running" in await empty.get("/ui/queues")
        assert "No keys yet" in await empty.get("/ui/keys")
        assert "Running, but something needs attention" in await empty.get("/ui/health")


async def test_pages_require_read_access(api: Web) -> None:
    keys = {role: await api.key(role, role) for role in Role}
    for name in LISTS:
        for role in (Role.ADMIN, Role.OPERATOR, Role.VIEWER, Role.REVIEWER):
            await api.get(f"/ui/{name}", headers=keys[role])
        refused = await api.get(f"/ui/{name}", 403, headers=keys[Role.PARTNER])
        assert "You don&#39;t have permission" in refused
    for role in Role:
        await api.get("/ui/keys", 200 if role is Role.ADMIN else 403, headers=keys[role])
        allowed = role in (Role.ADMIN, Role.OPERATOR)
        await api.get("/ui/health/doctor", 200 if allowed else 403, headers=keys[role])


async def test_a_viewer_has_no_action_buttons(api: Web) -> None:
    await ended(api, "breaks")
    await asking(api)
    await api.post("/api/v1/schedules/sync")
    viewer, operator = await api.key("eva", Role.VIEWER), await api.key("ann", Role.OPERATOR)
    for name in ("nodes", "workers", "schedules", "approvals"):
        assert "data-action" not in await api.get(f"/ui/{name}", headers=viewer)
        assert "data-action" in await api.get(f"/ui/{name}", headers=operator)


async def test_approval_buttons_are_for_approvers_only(api: Web) -> None:
    ann, bob = await api.key("ann", Role.OPERATOR), await api.key("bob", Role.OPERATOR)
    job_id = await asking(api, headers=ann)
    assert "You are not an approver" in await api.get("/ui/approvals", headers=bob)
    page = await api.get("/ui/approvals", headers=ann)
    assert "Ship it?" in page
    assert f"/api/v1/jobs/{job_id}/nodes/ask/approve" in page
    await api.post(f"/api/v1/jobs/{job_id}/nodes/ask/approve", {"comment": "looks fine"}, headers=ann)
    decided = await api.get("/ui/approvals", headers=bob)
    assert "No pending approvals" in decided
    assert "looks fine" in decided


async def test_approvals_of_ended_jobs_are_not_waiting(api: Web) -> None:
    job_id = await asking(api)
    async with opened(api.dsn, application="test") as conn:
        [waiting] = await waiting_approvals(conn, limit=10)
        assert (waiting["job_id"], waiting["message"], waiting["approvers"]) == (job_id, "Ship it?", ["ann"])
        await api.post(f"/api/v1/jobs/{job_id}/cancel")
        assert await waiting_approvals(conn, limit=10) == []


async def test_nodes_are_found_by_status_workflow_and_text(api: Web) -> None:
    good, bad = await ended(api, "echoes"), await ended(api, "breaks")
    async with opened(api.dsn, application="test") as conn:

        async def matching(**filters: Any) -> set[int]:
            return {row["job_id"] for row in await search_nodes(conn, NodeSearch(**filters), limit=50)}

        assert await matching() == {good, bad}
        assert await matching(statuses=["failed"]) == {bad}
        assert await matching(workflow_id="echoes") == {good}
        assert await matching(text="no way to") == {bad}
        assert await matching(text="%") == set()
        assert await matching(text=str(good)) == {good}
        assert await matching(statuses=["running", "pending"]) == set()
        assert await matching(since=datetime.now(UTC) + timedelta(hours=1)) == set()


async def test_secrets_in_errors_are_hidden(api: Web) -> None:
    await ended(api, "breaks")
    for name in ("nodes", "tasks"):
        page = await api.get(f"/ui/{name}")
        assert "no way to" in page
        assert "hunter2" not in page


async def test_results_show_their_handler_and_worker(api: Web) -> None:
    await ended(api, "echoes")
    bad = await ended(api, "breaks")
    since = datetime.now(UTC) - timedelta(hours=1)
    async with opened(api.dsn, application="test") as conn:
        results = await list_results(conn, since=since)
        assert {row["handler"] for row in results} == {"echo", "fail"}
        [worker] = {row["worker_id"] for row in results}
        assert {row["job_id"] for row in await list_results(conn, since=since, handler="fail")} == {bad}
        assert len(await list_results(conn, since=since, worker_id=worker)) == len(results)
        assert await list_results(conn, since=since, worker_id=WorkerId("nobody")) == []
    page = await api.get("/ui/tasks?handler=fail")
    assert "p95" in page
    assert "View as table" in page


async def test_results_of_children_and_added_tasks_show_their_handler(api: Web) -> None:
    fanned = await api.fleet.run(fan(), {"items": [1]})
    job_id = await submitted(api, "asks")
    await rows(
        api.dsn,
        "INSERT INTO dagapp.dag_node_states (job_id, node_id, status, parent_node_id, definition) "
        """VALUES (%s, 'ask.1', 'completed', 'ask', '{"type": "task", "handler": "far"}')""",
        job_id,
    )
    await rows(
        api.dsn,
        "INSERT INTO dagapp.dag_task_results (task_id, job_id, node_id, status, processed) "
        "VALUES (%s, %s, 'ask.1', 'completed', true)",
        f"{job_id}_ask.1_0",
        job_id,
    )
    since = datetime.now(UTC) - timedelta(hours=1)
    async with opened(api.dsn, application="test") as conn:
        handlers = {(row["job_id"], row["node_id"]): row["handler"] for row in await list_results(conn, since=since)}
        assert handlers[fanned["job_id"], "spread__0"] == "echo"
        [added] = await list_results(conn, since=since, handler="far")
        assert (added["node_id"], handlers[job_id, "ask.1"]) == ("ask.1", "far")


async def test_jobs_are_found_by_status_and_counts_of_ended_jobs_are_cached(api: Web) -> None:
    good, bad = await ended(api, "echoes"), await ended(api, "breaks")
    waiting = await asking(api)
    async with opened(api.dsn, application="test") as conn:

        async def matching(*statuses: str) -> list[JobRow]:
            return await list_jobs(conn, JobFilter(statuses), limit=50)

        assert [row["job_id"] for row in await matching("running", "pending")] == [waiting]
        assert [row["job_id"] for row in await matching("running", "failed")] == [waiting, bad]
        counts = NodeCounts(keep=1)
        jobs = await matching()
        first = await counts.of(conn, jobs)
        assert (first[good].counts, first[bad].counts["failed"]) == ({"completed": 3}, 1)
        await rows(api.dsn, "UPDATE dagapp.dag_node_states SET status = 'skipped'")
        again = await counts.of(conn, jobs)
        assert again[good] == first[good]
        assert (again[bad].counts, again[waiting].counts) == ({"skipped": 3}, {"skipped": 3})
        assert not await has_more_nodes(conn, good, 3)
        assert await has_more_nodes(conn, good, 2)


async def test_an_invalid_filter_is_ignored(api: Web) -> None:
    for address in (
        "nodes?status=nonsense",
        "tasks?state=x&period=9y",
        "workers?status=x",
        "schedules?state=x&text=%25",
    ):
        await api.get(f"/ui/{address}")


async def test_paging_keeps_every_filter(api: Web) -> None:
    for _ in range(2):
        await ended(api, "echoes")
    page = await api.get("/ui/nodes?status=completed&status=failed&offset=1")
    assert 'href="/ui/nodes?status=completed&amp;status=failed"' in page


async def test_a_schedule_that_cannot_start_shows_why(api: Web) -> None:
    await api.post("/api/v1/schedules/sync")
    await rows(
        api.dsn,
        """INSERT INTO dagapp.dag_job_events (job_id, event_type, event_status, event_data, error_message, source_app)
        VALUES (0, 'schedule_missed', 'failure', '{"schedule_id": "daily", "count": 1}', 'the input is missing', 'o')
        RETURNING event_id""",
    )
    page = await api.get("/ui/schedules")
    assert "every day at 06:00 UTC" in page
    assert "the input is missing" in page
    assert "No matching schedules" in await api.get("/ui/schedules?state=paused")


async def test_health_shows_no_secret(dsn: str) -> None:
    async with web(dsn, secret_key="abcdefghijklmnopqrst", database_url="postgresql://u:hunter2@h/d") as started:
        page = await started.get("/ui/health")
    assert "secret_key" in page
    assert "abcdefghij" not in page
    assert "hunter2" not in page


async def test_the_doctor_page_shows_findings_and_repairs(api: Web) -> None:
    job_id = await ended(api, "echoes")
    assert "consistency checks passed" in await api.get("/ui/health/doctor")
    await rows(api.dsn, "UPDATE dagapp.dag_jobs SET completed_at = NULL WHERE job_id = %s RETURNING job_id", job_id)
    page = await api.get("/ui/health/doctor")
    assert "ended jobs without the time of their end" in page
    assert f"/ui/jobs/{job_id}" in page


LOST_AFTER = 55.0


def worker(**fields: Any) -> WorkerRow:
    now = datetime.now(UTC)
    row: Any = {
        "worker_id": "w1",
        "hostname": "h",
        "pid": 1,
        "host_key": "here",
        "status": "active",
        "wanted": "run",
        "queues": ["q"],
        "handlers": ["echo"],
        "concurrency": 4,
        "tasks_completed": 0,
        "tasks_failed": 0,
        "started_at": now,
        "last_heartbeat": now,
        "stats": {},
        "key_id": None,
        "heartbeat_age_seconds": 1.0,
        "stuck_tasks": [],
        "running_tasks": 0,
        **fields,
    }
    return cast(WorkerRow, row)


@pytest.mark.parametrize(
    ("fields", "label", "is_here"),
    [
        ({}, "active", True),
        ({"wanted": "drain"}, "draining", True),
        ({"wanted": "stop"}, "stopping", True),
        ({"heartbeat_age_seconds": 60.0}, "silent", True),
        ({"status": "lost"}, "lost", False),
        ({"status": "stopped", "wanted": "stop"}, "stopped", False),
    ],
)
def test_a_worker_shows_its_status(fields: dict[str, Any], label: str, is_here: bool) -> None:
    line = worker_line(worker(**fields), LOST_AFTER)
    assert (line.label, line.is_here) == (label, is_here)


def test_slots_are_shown_as_squares() -> None:
    assert worker_line(worker(running_tasks=2, stuck_tasks=["a"]), LOST_AFTER).squares == [
        "stuck",
        "busy",
        "busy",
        "free",
    ]
    # The heartbeat that no longer lists the stuck handler comes after the claim for its slot.
    assert worker_line(worker(running_tasks=4, stuck_tasks=["a"]), LOST_AFTER).squares == ["stuck", *["busy"] * 3]
    assert worker_line(worker(stats={"peak_memory_bytes": "much"}), LOST_AFTER).squares == ["free"] * 4
    assert len(worker_line(worker(concurrency=1000), LOST_AFTER).squares) == 64


def test_a_task_that_no_worker_can_run_is_unclaimable() -> None:
    now = datetime.now(UTC)
    fleet = KnownFleet(True, [worker()])
    waiting = [
        {"queue": queue, "handler": handler, "waiting": 2, "oldest": now}
        for queue, handler in (("q", "echo"), ("q", "cut"), ("gpu", "echo"))
    ]
    unclaimable = [(task["queue"], task["handler"], task["has_workers"]) for task in find_unclaimable(waiting, fleet)]
    assert unclaimable == [("q", "cut", True), ("gpu", "echo", False)]


def test_a_queue_named_only_by_a_workflow_is_listed() -> None:
    [line] = queue_lines([], [], {"gpu": ["train"]})
    assert (line.name, line.waiting, line.workers, line.workflows) == ("gpu", 0, (), ("train",))
