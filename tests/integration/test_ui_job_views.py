"""The pages of jobs and nodes: their content by role."""

import re
from collections.abc import AsyncIterator
from html import unescape

import pytest
from fleet import graph, retry, rows, task
from web import Web, web

from dagmaster.ids import JobId
from dagmaster.model.access import Role
from dagmaster.model.workflow import ApprovalNode, ChildTask, FanInNode, FanOutNode, WaitNode, WorkflowNode
from dagmaster.store.connect import opened
from dagmaster.store.events import EventFilter, find_events
from dagmaster.store.jobs import get_job
from dagmaster.store.nodes import NodeFilter, find_nodes
from dagmaster.store.workflows import load_definitions
from dagmaster.web.ui import job, waits
from dagmaster.web.ui.filters import MAX_DEPTH, MAX_TREE, value_of
from dagmaster.web.ui.gantt import Gantt, attempt_number, gantt_of
from dagmaster.web.ui.job_nodes import definition_of, node_line

STUMBLES = graph(
    {"step": task("flaky_echo", "spread", params={"fail_attempts": 2}, retry=retry(2))}
    | {
        "spread": FanOutNode(source=[1, 2, 3], task=ChildTask(handler="echo", queue="q"), next=("gather",)),
        "gather": FanInNode(next=("END",)),
    },
    "stumbles",
    start="step",
)
ASKS = graph(
    {"ask": ApprovalNode(message="Ship it?", approvers=("ann",), next=("END",))},
    "asks",
    start="ask",
)
RETURNS = graph(
    {"step": task("echo", "END", params={"x": 7})},
    "returns",
    start="step",
    returns={"seven": "{{ nodes.step.output.echoed_params.x }}"},
)
CALLS = graph({"sub": WorkflowNode(workflow="stumbles", next=("END",))}, "calls", start="sub")
WAITS = graph(
    {
        "step": task("echo", "signal", "timer"),
        "signal": WaitNode(signal="go", next=("END",)),
        "timer": WaitNode(seconds=3600, next=("END",)),
    },
    "waits",
    start="step",
)
TOLERANT = graph({"step": task("fail", "END", retry=retry(0), allow_failure=True)}, "tolerant", start="step")
NAPS = graph({"nap": task("sleep", "END", params={"seconds": 60})}, "naps", start="nap")
FAILS = graph({"step": task("fail", "END", params={"password": "hunter2"}, retry=retry(0))}, "fails", start="step")


@pytest.fixture
async def api(dsn: str) -> AsyncIterator[Web]:
    async with web(dsn, STUMBLES, ASKS, CALLS, FAILS, RETURNS, WAITS, NAPS, TOLERANT, runs=True) as started:
        yield started


async def run(api: Web, workflow_id: str, headers: dict[str, str] | None = None) -> JobId:
    created = await api.post("/api/v1/jobs", {"workflow_id": workflow_id}, 201, headers=headers)
    return JobId(int(created["job_id"]))


async def until_ended(api: Web, job_id: JobId) -> None:
    query = "SELECT status IN ('completed', 'failed') AS ok FROM dagapp.dag_jobs WHERE job_id = %s"
    await api.fleet.until(query, lambda: [job_id])


async def chart(api: Web, job_id: JobId, *, nodes: int = 10) -> Gantt:
    async with opened(api.dsn, application="test") as conn:
        job = await get_job(conn, job_id)
        return await gantt_of(conn, job, await definition_of(conn, job), nodes=nodes, offset=0)


@pytest.mark.parametrize("nodes", [10, 1_000_000])
async def test_the_chart_has_every_attempt_from_timeline_or_reports(api: Web, nodes: int) -> None:
    job_id = await run(api, "stumbles")
    await until_ended(api, job_id)
    rows = {row.node_id: row for row in (await chart(api, job_id, nodes=nodes)).rows}
    bars = rows["step"].bars
    assert [(bar.attempt, bar.status) for bar in bars] == [(1, "failed"), (2, "failed"), (3, "completed")]
    assert all(bar.started_at and bar.ended_at and bar.started_at <= bar.ended_at for bar in bars)
    strip = rows["spread"].strip
    assert strip is not None
    assert strip.children == 3
    assert max(strip.running) <= 3


async def test_nodes_are_folded_described_and_filtered(api: Web) -> None:
    job_id = await run(api, "stumbles")
    await until_ended(api, job_id)
    async with opened(api.dsn, application="test") as conn:
        job = await get_job(conn, job_id)
        definition = await definition_of(conn, job)
        own = await find_nodes(conn, job_id, NodeFilter(order=list(STUMBLES.nodes)), limit=100)
        children = await find_nodes(conn, job_id, NodeFilter(parent="spread", text="spread__1"), limit=100)
        failed = await find_nodes(conn, job_id, NodeFilter(status="failed"), limit=100)
    lines = {str(line["node_id"]): line for line in (node_line(row, definition) for row in own)}
    assert list(lines) == ["START", "step", "spread", "gather", "END"]
    step, spread = lines["step"], lines["spread"]
    assert (step["handler"], step["attempts"], spread["type"]) == ("flaky_echo", 3, "fan_out")
    assert [row["node_id"] for row in children] == ["spread__1"]
    assert failed == []


async def test_added_nodes_are_listed_below_their_parents(api: Web) -> None:
    job_id = await run(api, "asks")
    added = await api.post(f"/api/v1/jobs/{job_id}/tasks", {"tasks": [{"handler": "echo"}]}, 201)
    [outside] = added["node_ids"]
    below = [(f"{outside}.1", outside), (f"{outside}.1.1", f"{outside}.1"), ("ask.1", "ask"), ("ask.1.1", "ask.1")]
    for node_id, parent in below:
        await rows(
            api.dsn,
            """INSERT INTO dagapp.dag_node_states (job_id, node_id, parent_node_id, status, definition)
               VALUES (%s, %s, %s, 'skipped', '{"handler": "echo"}')""",
            job_id,
            node_id,
            parent,
        )
    page = await api.get(f"/ui/jobs/{job_id}")
    for node_id in (outside, "ask"):
        link = f"/ui/jobs/{job_id}?parent={node_id}#nodes"
        assert page.count(link) == 1
        lines = re.findall(r'<tr id="node-([^"]+)"', await api.get(link.partition("#")[0]))
        assert lines == [f"{node_id}.1", f"{node_id}.1.1"]
        assert "2 children" in await api.get(f"/ui/jobs/{job_id}/nodes/{node_id}")


async def test_the_timeline_is_paged_in_both_orders(api: Web) -> None:
    job_id = await run(api, "stumbles")
    await until_ended(api, job_id)
    async with opened(api.dsn, application="test") as conn:
        job = await get_job(conn, job_id)
        every = [row["event_id"] for row in await find_events(conn, job, EventFilter(is_newest_first=False), limit=500)]
        down = await find_events(conn, job, EventFilter(cursor=every[5]), limit=3)
        up = await find_events(conn, job, EventFilter(cursor=every[5], is_newest_first=False), limit=3)
        of_step = await find_events(conn, job, EventFilter("node_failed", "step"), limit=10)
    assert [row["event_id"] for row in down] == [every[4], every[3], every[2]]
    assert [row["event_id"] for row in up] == every[6:9]
    assert len(of_step) == 2


async def test_a_workflows_return_value_is_on_the_job_page_and_in_the_api(api: Web) -> None:
    job_id = await run(api, "returns")
    await until_ended(api, job_id)
    page = await api.get(f"/ui/jobs/{job_id}?tab=data")
    assert "Return value" in page
    assert "seven" in page
    assert (await api.get(f"/api/v1/jobs/{job_id}"))["value"] == {"seven": 7}


async def test_partners_see_only_their_own_jobs(api: Web) -> None:
    ours, theirs = await api.key("ours", Role.PARTNER), await api.key("theirs", Role.PARTNER)
    job_id = await run(api, "stumbles", ours)
    await until_ended(api, job_id)
    for path in ("", "?tab=gantt", "?tab=timeline", "?tab=data", "?tab=related", "/timeline", "/nodes/step"):
        await api.get(f"/ui/jobs/{job_id}{path}", headers=ours)
        await api.get(f"/ui/jobs/{job_id}{path}", 404, headers=theirs)
    page = await api.get(f"/ui/jobs/{job_id}", headers=ours)
    assert "/ui/workflows/" not in page
    assert "Submit again" in page


async def test_viewers_have_no_action_buttons(api: Web) -> None:
    admin, viewer = await api.key("root"), await api.key("eve", Role.VIEWER)
    job_id = await run(api, "fails", admin)
    await until_ended(api, job_id)
    for path in ("", "/nodes/step"):
        assert "data-action" in await api.get(f"/ui/jobs/{job_id}{path}", headers=admin)
        assert "data-action" not in await api.get(f"/ui/jobs/{job_id}{path}", headers=viewer)


async def test_a_job_that_waits_for_a_decision_is_shown_as_waiting(api: Web) -> None:
    job_id = await run(api, "asks")
    query = "SELECT status = 'running' AS ok FROM dagapp.dag_node_states WHERE job_id = %s AND node_id = 'ask'"
    await api.fleet.until(query, lambda: [job_id])
    listed = (await api.get("/ui/jobs")).partition(f'id="job-{job_id}"')[2].partition("</tr>")[0]
    assert "needs approval" in listed
    assert "badge is-running" not in listed
    assert "needs approval" in (await api.get(f"/ui/jobs/{job_id}?tab=data")).partition('id="job-head"')[2]
    for page in ("/ui/", "/ui/workflows"):
        workflow = (await api.get(page)).partition('id="workflow-asks"')[2]
        assert "needs approval" in workflow.partition("</tr>")[0].partition("</li>")[0]
    assert "needs approval" in (await api.get("/ui/workflows/asks")).partition("Last run")[2].partition("</dd>")[0]


async def test_a_waiting_node_says_so_on_every_page(api: Web) -> None:
    job_id = await run(api, "waits")
    query = "SELECT count(*) = 2 AS ok FROM dagapp.dag_node_states WHERE job_id = %s AND status = 'running'"
    await api.fleet.until(query, lambda: [job_id])
    job_page, all_nodes = await api.get(f"/ui/jobs/{job_id}"), await api.get("/ui/nodes")
    for node_id, words in (("signal", "awaits signal"), ("timer", "awaits timer")):
        line = job_page.partition(f'<tr id="node-{node_id}"')[2].partition("</tr>")[0]
        listed = all_nodes.partition(f'<tr id="node-{job_id}-{node_id}"')[2].partition("</tr>")[0]
        head = (await api.get(f"/ui/jobs/{job_id}/nodes/{node_id}")).partition('id="node-head"')[2]
        panel = await api.get(f"/ui/jobs/{job_id}/nodes/{node_id}/panel")
        for shown in (line, listed, head, panel):
            assert words in shown
            assert "badge is-running" not in shown
        assert "Available when the node starts" not in head


async def test_a_node_that_was_stopped_with_its_job_did_not_fail(api: Web) -> None:
    job_id = await run(api, "naps")
    query = "SELECT status = 'running' AS ok FROM dagapp.dag_node_states WHERE job_id = %s AND node_id = 'nap'"
    await api.fleet.until(query, lambda: [job_id])
    await api.post(f"/api/v1/jobs/{job_id}/cancel", {})
    await api.fleet.until("SELECT status = 'cancelled' AS ok FROM dagapp.dag_jobs WHERE job_id = %s", lambda: [job_id])
    page = await api.get(f"/ui/jobs/{job_id}/nodes/nap")
    assert "Why it was cancelled" in page
    assert "badge is-failed" not in page
    assert "nodes/nap/retry" not in page + await api.get(f"/ui/jobs/{job_id}/nodes/nap/panel")


async def test_only_the_nodes_of_failed_jobs_can_be_retried(api: Web) -> None:
    tolerant, failed = await run(api, "tolerant"), await run(api, "fails")
    for job_id in (tolerant, failed):
        await until_ended(api, job_id)
    for path in ("/nodes/step", "/nodes/step/panel"):
        assert "nodes/step/retry" not in await api.get(f"/ui/jobs/{tolerant}{path}")
        assert "nodes/step/retry" in await api.get(f"/ui/jobs/{failed}{path}")


async def test_the_head_of_a_job_counts_its_failed_nodes(api: Web) -> None:
    job_id = await run(api, "tolerant")
    await until_ended(api, job_id)
    head = (await api.get(f"/ui/jobs/{job_id}")).partition("<dt>Nodes</dt>")[2].partition("</div>")[0]
    assert "<small>2/3</small>" in head and ">1 failed</small>" in head


async def test_the_page_shows_the_same_as_the_api(api: Web) -> None:
    job_id = await run(api, "stumbles")
    await until_ended(api, job_id)
    graph = await api.get(f"/api/v1/jobs/{job_id}/graph")
    answer = await api.client.get(f"/ui/jobs/{job_id}/graph", headers={"Accept-Encoding": "gzip"})
    drawn = answer.json()
    assert drawn["nodes"]["node_id"] == [node["node_id"] for node in graph["nodes"]]
    assert drawn["nodes"]["children"] == [node["children"] or None for node in graph["nodes"]]
    assert drawn["edges"]["length"] == len(graph["edges"])
    assert drawn["last_event_id"] == graph["last_event_id"]
    assert f'data-graph="/ui/jobs/{job_id}/graph"' in await api.get(f"/ui/jobs/{job_id}")
    await api.get("/ui/jobs/1/graph", 404)


async def test_a_job_shows_its_deadline(api: Web) -> None:
    job_id = await run(api, "asks")
    query = "SELECT status = 'running' AS ok FROM dagapp.dag_node_states WHERE job_id = %s AND node_id = 'ask'"
    await api.fleet.until(query, lambda: [job_id])  # From then on its owner writes nothing.
    assert "<dt>Deadline</dt>" not in await api.get(f"/ui/jobs/{job_id}?tab=data")
    await rows(
        api.dsn, "UPDATE dagapp.dag_jobs SET deadline_at = now() + interval '23.5 hours' WHERE job_id = %s", job_id
    )
    page = await api.get(f"/ui/jobs/{job_id}?tab=data")
    assert re.search(r"<dt>Deadline</dt><dd><time[^>]*>in 23 h</time>", page)


async def test_only_approvers_get_approval_buttons(api: Web) -> None:
    ann, bob = await api.key("ann"), await api.key("bob")
    job_id = await run(api, "asks", ann)
    query = "SELECT status = 'running' AS ok FROM dagapp.dag_node_states WHERE job_id = %s AND node_id = 'ask'"
    await api.fleet.until(query, lambda: [job_id])
    for path in ("", "/nodes/ask", "/nodes/ask/panel"):
        assert "nodes/ask/approve" in await api.get(f"/ui/jobs/{job_id}{path}", headers=ann)
        assert "nodes/ask/approve" not in await api.get(f"/ui/jobs/{job_id}{path}", headers=bob)
    page = await api.get(f"/ui/jobs/{job_id}", headers=bob)
    assert "You are not an approver" in page


async def test_secrets_are_hidden(api: Web) -> None:
    job_id = await run(api, "fails")
    await until_ended(api, job_id)
    page = await api.get(f"/ui/jobs/{job_id}/nodes/step")
    assert "password" in page
    assert "hunter2" not in page


async def test_a_job_and_its_children_link_to_each_other(api: Web) -> None:
    job_id = await run(api, "calls")
    await until_ended(api, job_id)
    async with opened(api.dsn, application="test") as conn:
        cursor = await conn.execute("SELECT job_id FROM dagapp.dag_jobs WHERE parent_job_id = $1", [job_id])
        [child] = await cursor.fetchall()
    assert f"/ui/jobs/{child['job_id']}" in await api.get(f"/ui/jobs/{job_id}?tab=related")
    assert f"/ui/jobs/{job_id}/nodes/sub" in await api.get(f"/ui/jobs/{child['job_id']}?tab=related")


async def test_a_job_whose_definition_is_gone_is_still_shown(api: Web) -> None:
    job_id = await run(api, "fails")
    await until_ended(api, job_id)
    async with opened(api.dsn, application="test") as conn:
        job = await get_job(conn, job_id)
        await conn.execute("DELETE FROM dagapp.dag_workflows WHERE workflow_hash = $1", [job["workflow_hash"]])
        assert await load_definitions(conn, [job["workflow_hash"]]) == {}
    for path in ("", "?tab=gantt", "/nodes/step"):
        await api.get(f"/ui/jobs/{job_id}{path}")


PAGES = ("", "?tab=gantt", "?tab=timeline", "/timeline", "/nodes/step")


def mark_in(page: str) -> str:
    [mark] = re.findall(r'data-mark="([^"]*)"', page)
    return unescape(mark)


@pytest.mark.parametrize("path", PAGES)
async def test_an_ended_jobs_page_is_rendered_again_only_after_a_change(api: Web, path: str) -> None:
    job_id = await run(api, "fails")
    await until_ended(api, job_id)
    known = {"If-None-Match": mark_in(await api.get(f"/ui/jobs/{job_id}{path}"))}
    await until_ended(api, await run(api, "fails"))
    await api.get(f"/ui/jobs/{job_id}{path}", 304, headers=known)
    await api.post(f"/api/v1/jobs/{job_id}/retry", {})
    await until_ended(api, job_id)
    assert mark_in(await api.get(f"/ui/jobs/{job_id}{path}", headers=known)) != known["If-None-Match"]


async def test_running_jobs_and_pages_of_related_jobs_are_always_rendered_again(api: Web) -> None:
    job_id = await run(api, "asks")
    assert mark_in(await api.get(f"/ui/jobs/{job_id}")) == ""
    ended = await run(api, "fails")
    await until_ended(api, ended)
    assert mark_in(await api.get(f"/ui/jobs/{ended}?tab=related")) == ""


async def test_the_explanation_of_a_large_job_is_loaded_after_its_page(
    api: Web, monkeypatch: pytest.MonkeyPatch
) -> None:
    job_id = await run(api, "asks")
    query = "SELECT status = 'running' AS ok FROM dagapp.dag_node_states WHERE job_id = %s AND node_id = 'ask'"
    await api.fleet.until(query, lambda: [job_id])
    pages = [f"/ui/jobs/{job_id}{path}" for path in ("", "/nodes/ask", "/nodes/ask/panel")]
    for page in pages:
        assert "waiting for approval" in await api.get(page)
    monkeypatch.setattr(job, "QUICKLY_EXPLAINED", 2)
    monkeypatch.setattr(waits, "QUICKLY_EXPLAINED", 2)
    for page in pages:
        [address] = re.findall(r'hx-get="([^"]*/why)"', await api.get(page))
        assert "<code>ask</code>" in await api.get(address)
        assert "<html" not in await api.get(address)


def test_a_value_too_large_or_too_deep_is_shown_as_text() -> None:
    deep: list[object] = []
    for _ in range(MAX_DEPTH + 5):
        deep = [deep]
    assert not value_of(deep).is_tree
    large = value_of("x" * (MAX_TREE + 10))
    assert (large.is_tree, large.is_cut, len(large.text)) == (False, True, MAX_TREE)
    assert value_of({"a": [1]}).is_tree


def test_attempt_numbers_are_parsed_from_task_ids() -> None:
    assert attempt_number("12_step_0") == 1
    assert attempt_number("12_step_3") == 4
    assert attempt_number("by hand") == 1
