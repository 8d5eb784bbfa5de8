"""A fan-out has one outcome, which is the same wherever it is shown."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import datetime
from typing import Any

import pytest
from command_line import call
from fleet import graph, retry, rows, task
from web import Web, web

from dagmaster.cli import local
from dagmaster.cli.job_watch import list_shown_nodes, look
from dagmaster.handlers.contract import HandlerContext
from dagmaster.ids import JobId
from dagmaster.model.graph import Graph
from dagmaster.model.workflow import ChildTask, FanInNode, FanOutNode, StartNode
from dagmaster.settings import load_settings
from dagmaster.store.connect import opened
from dagmaster.store.estimates import Histories
from dagmaster.store.jobs import get_job
from dagmaster.store.nodes import failed_nodes
from dagmaster.web.ui.gantt import gantt_of
from dagmaster.web.ui.job_nodes import definition_of

# Created per test: an event belongs to one loop.
HELD: list[asyncio.Event] = []
BREAKING: list[asyncio.Event] = []


async def pick(ctx: HandlerContext) -> dict[str, Any]:
    if ctx.params["item"] == "held":
        await HELD[-1].wait()
    if ctx.params["item"] == "bad":
        raise RuntimeError("a bad item")
    return {"item": ctx.params["item"]}


async def break_when_told(ctx: HandlerContext) -> dict[str, Any]:
    await BREAKING[-1].wait()
    raise RuntimeError("it breaks")


def spreading(name: str, *items: str, beside: dict[str, Any] | None = None, **options: Any) -> Graph:
    """`beside` are nodes that start together with the fan-out."""
    child = ChildTask(handler="pick", queue="q", params={"item": "{{ item }}"}, retry=retry(0))
    nodes: dict[str, Any] = {
        "spread": FanOutNode(source=list(items), task=child, next=("gather",), **options),
        "gather": FanInNode(next=("after",)),
        "after": task("echo", "END"),
    }
    beside = beside or {}
    return graph({"START": StartNode(next=("spread", *beside)), **nodes, **beside}, name)


GRAPHS = {
    "failed": spreading("breaks", "good", "bad", max_parallel=1),
    "completed_with_failures": spreading("tolerates", "good", "bad", "good", allow_failure=True),
    "completed": spreading("works", "good", "good"),
    "running": spreading("waits", "good", "held"),
}
BREAKS_ELSEWHERE = spreading(
    "breaks_elsewhere", "good", "held", beside={"broken": task("break_when_told", "END")}, allow_failure=True
)


@pytest.fixture
async def api(dsn: str) -> AsyncIterator[Web]:
    HELD.append(asyncio.Event())
    BREAKING.append(asyncio.Event())
    functions = {"pick": pick, "break_when_told": break_when_told}
    async with web(dsn, *GRAPHS.values(), BREAKS_ELSEWHERE, runs=True, functions=functions) as site:
        yield site
        HELD.pop().set()
        BREAKING.pop().set()


async def submitted(api: Web, outcome: str) -> JobId:
    """A job whose fan-out has this outcome."""
    workflow_id = GRAPHS[outcome].workflow.workflow_id
    job_id = JobId(int((await api.post("/api/v1/jobs", {"workflow_id": workflow_id}, 201))["job_id"]))
    ended = "SELECT status IN ('completed', 'failed') AS ok FROM dagapp.dag_jobs WHERE job_id = %s"
    held = """SELECT count(*) = 2 AS ok FROM dagapp.dag_node_states WHERE job_id = %s
              AND (node_id, status::text) IN (('spread__0', 'completed'), ('spread__1', 'running'))"""
    await api.fleet.until(held if outcome == "running" else ended, lambda: [job_id])
    return job_id


async def shown_by_api(api: Web, job_id: JobId) -> dict[str, str]:
    def of(nodes: list[dict[str, Any]]) -> str:
        return str(next(node["outcome"] for node in nodes if node["node_id"] == "spread"))

    path = f"/api/v1/jobs/{job_id}"
    return {
        "job": of((await api.get(path))["nodes"]),
        "graph": of((await api.get(f"{path}/graph"))["nodes"]),
        "nodes": of((await api.get(f"{path}/nodes"))["items"]),
        "node": (await api.get(f"{path}/nodes/spread"))["outcome"],
        "progress": (await api.get(f"{path}/nodes/spread/progress"))["outcome"],
        "all nodes": of((await api.get(f"/api/v1/nodes?job_id={job_id}"))["items"]),
    }


async def shown_by_cli(api: Web, job_id: JobId) -> dict[str, str]:
    async with opened(api.dsn, application="test") as conn:
        view = await look(conn, job_id, ["spread"], Histories())
        listed = await list_shown_nodes(conn, job_id, view.outlook.now)
    return {
        "live": view.nodes[0].shown_status,
        "show": next(str(node["outcome"]) for node in listed if node["node_id"] == "spread"),
    }


@pytest.mark.parametrize("outcome", GRAPHS)
async def test_a_fan_out_has_the_same_outcome_everywhere(api: Web, outcome: str) -> None:
    job_id = await submitted(api, outcome)
    outcomes = await shown_by_api(api, job_id) | await shown_by_cli(api, job_id)
    assert outcomes == dict.fromkeys(outcomes, outcome)
    badge = f"badge is-{outcome}"
    workflow_id = GRAPHS[outcome].workflow.workflow_id
    row = (await api.get(f"/ui/jobs/{job_id}")).partition('id="node-spread"')[2].partition("</tr>")[0]
    assert badge in row
    listed = (await api.get("/ui/nodes")).partition(f'id="node-{job_id}-spread"')[2].partition("</tr>")[0]
    assert badge in listed
    grid = (await api.get(f"/ui/workflows/{workflow_id}")).partition('<tr id="node-spread">')[2].partition("</tr>")[0]
    assert f"cell is-{outcome}" in grid
    for path in ("", "/panel"):
        assert badge in await api.get(f"/ui/jobs/{job_id}/nodes/spread{path}")


async def test_a_fan_out_lasts_until_its_last_child_ends_wherever_its_duration_is_shown(api: Web) -> None:
    job_id = await submitted(api, "completed")
    async with opened(api.dsn, application="test") as conn:
        await conn.execute(
            """UPDATE dagapp.dag_node_states c SET completed_at = p.started_at + interval '5 seconds'
               FROM dagapp.dag_node_states p
               WHERE c.job_id = $1 AND c.node_id = 'spread__1' AND p.job_id = $1 AND p.node_id = 'spread'""",
            [job_id],
        )
        view = await look(conn, job_id, ["spread"], Histories())
    path = f"/api/v1/jobs/{job_id}"
    nodes = [
        *(await api.get(path))["nodes"],
        *(await api.get(f"{path}/graph"))["nodes"],
        *(await api.get(f"{path}/nodes"))["items"],
        await api.get(f"{path}/nodes/spread"),
    ]
    durations = [node["duration_seconds"] for node in nodes if node["node_id"] == "spread"]
    assert (durations, view.nodes[0].seconds) == ([5.0] * 4, 5.0)
    async with api.real_server() as url:
        for server in (["--database-url", api.dsn], ["--url", url]):
            shown = await asyncio.to_thread(call, *server, "show", str(job_id))
            [line] = [line for line in shown.out.splitlines() if line.startswith("spread")]
            assert line.split() == ["spread", "completed", "1", "5", "s"], shown.out


async def test_all_counts_agree_and_count_a_fan_out_by_its_outcome(api: Web) -> None:
    job_id = await submitted(api, "failed")
    job = await api.get(f"/api/v1/jobs/{job_id}")
    progress = await api.get(f"/api/v1/jobs/{job_id}/progress")
    assert job["summary"] == progress["nodes"]
    assert job["summary"]["failed"] == 2  # The item and its fan-out.
    assert sum(number for name, number in job["summary"].items() if name != "total") == job["summary"]["total"]
    [spread] = [node for node in job["nodes"] if node["node_id"] == "spread"]
    assert (spread["status"], spread["children"]) == ("completed", {"completed": 1, "failed": 1})
    listed = (await api.get("/ui/jobs")).partition(f'id="job-{job_id}"')[2].partition("</tr>")[0]
    assert "2 failed" in listed


async def test_nodes_can_be_filtered_by_outcome(api: Web) -> None:
    job_id = await submitted(api, "failed")
    assert 'id="node-spread"' in await api.get(f"/ui/jobs/{job_id}?status=failed")
    assert 'id="node-spread"' not in await api.get(f"/ui/jobs/{job_id}?status=completed")


async def test_a_fan_in_reports_how_many_failed(api: Web) -> None:
    job_id = await submitted(api, "completed_with_failures")
    result = (await api.get(f"/api/v1/jobs/{job_id}"))["result_data"]["gather"]
    assert result == {"results": [{"item": "good"}, None, {"item": "good"}], "count": 3, "failed": 1}


async def cancelled_job(api: Web) -> JobId:
    """A job cancelled while a child of its fan-out was running."""
    job_id = await submitted(api, "running")
    await api.post(f"/api/v1/jobs/{job_id}/cancel")
    await api.fleet.until("SELECT status = 'cancelled' AS ok FROM dagapp.dag_jobs WHERE job_id = %s", lambda: [job_id])
    return job_id


async def broken_job(api: Web) -> JobId:
    """A job that another node failed while a child of its tolerant fan-out was running."""
    job_id = JobId(int((await api.post("/api/v1/jobs", {"workflow_id": "breaks_elsewhere"}, 201))["job_id"]))
    query = """SELECT count(*) FILTER (WHERE node_id = 'spread__0' AND status = 'completed') = 1
        AND count(*) FILTER (WHERE status = 'running') = 2 AS ok FROM dagapp.dag_node_states WHERE job_id = %s"""
    await api.fleet.until(query, lambda: [job_id])
    BREAKING[-1].set()
    await api.fleet.until("SELECT status = 'failed' AS ok FROM dagapp.dag_jobs WHERE job_id = %s", lambda: [job_id])
    return job_id


@pytest.mark.parametrize(
    ("ended_job", "ended_by", "workflow_id", "failures"),
    [(cancelled_job, "cancelled", "waits", 0), (broken_job, "revoked", "breaks_elsewhere", 1)],
)
async def test_nodes_active_when_their_job_ended_are_cancelled_everywhere(
    api: Web, ended_job: Callable[[Web], Awaitable[JobId]], ended_by: str, workflow_id: str, failures: int
) -> None:
    job_id = await ended_job(api)
    outcomes = await shown_by_api(api, job_id) | await shown_by_cli(api, job_id)
    assert outcomes == dict.fromkeys(outcomes, "cancelled")
    path = f"/api/v1/jobs/{job_id}"
    job, progress = await api.get(path), await api.get(f"{path}/progress")
    assert job["summary"] == progress["nodes"]
    assert (job["summary"]["failed"], job["summary"]["cancelled"]) == (failures, 2)  # The item and its fan-out.
    child = await api.get(f"{path}/nodes/spread__1")
    assert (child["status"], child["ended_by"], child["outcome"]) == ("failed", ended_by, "cancelled")
    assert (await api.get(f"{path}/nodes?parent=spread&status=failed"))["items"] == []
    [listed] = (await api.get(f"{path}/nodes?parent=spread&status=cancelled"))["items"]
    assert listed["node_id"] == "spread__1"
    measured = (await api.get(f"/api/v1/metrics/workflows/{workflow_id}/nodes"))["items"]
    assert sum(node["failed"] for node in measured) == failures
    for page in (
        f"/ui/jobs/{job_id}?parent=spread",
        f"/ui/jobs/{job_id}/nodes/spread__1",
        "/ui/nodes?status=cancelled",
    ):
        assert "badge is-cancelled" in await api.get(page)
    assert "spread__1" not in await api.get("/ui/nodes?status=failed")
    line = (await api.get("/ui/jobs")).partition(f'id="job-{job_id}"')[2].partition("</tr>")[0]
    assert "2 cancelled" in line and (" failed" in line) is bool(failures)


async def test_a_fan_outs_duration_includes_its_last_child(api: Web) -> None:
    job_id = await submitted(api, "completed")
    job = await api.get(f"/api/v1/jobs/{job_id}?children=true")
    nodes = {node["node_id"]: node for node in job["nodes"]}
    assert nodes["spread"]["duration_seconds"] >= nodes["spread__1"]["duration_seconds"]
    last = max(nodes[name]["completed_at"] for name in ("spread__0", "spread__1"))
    took = datetime.fromisoformat(last) - datetime.fromisoformat(nodes["spread"]["started_at"])
    assert nodes["spread"]["duration_seconds"] == round(took.total_seconds(), 3)
    async with opened(api.dsn, application="test") as conn:
        job = await get_job(conn, job_id)
        chart = await gantt_of(conn, job, await definition_of(conn, job), nodes=10, offset=0)
    [row] = [row for row in chart.rows if row.strip is not None]
    assert row.bars[-1].started_at is not None
    assert row.strip is not None
    assert row.strip.since == row.bars[-1].started_at


async def test_tolerated_failures_are_listed_and_can_be_filtered(api: Web) -> None:
    job_id = await submitted(api, "completed_with_failures")
    listed = (await api.get("/ui/jobs")).partition(f'id="job-{job_id}"')[2].partition("</tr>")[0]
    assert "1 failure tolerated" in listed
    page = await api.get(f"/ui/jobs/{job_id}")
    assert "1 failure tolerated" in page
    assert "a bad item" in page.partition('id="tolerated"')[2].partition("</section>")[0]
    assert 'id="node-spread__1"' in await api.get(f"/ui/jobs/{job_id}?status=failed")


async def test_tolerated_failures_are_counted_by_the_api_and_the_command_line(api: Web) -> None:
    tolerated, clean, broken = [
        await submitted(api, outcome) for outcome in ("completed_with_failures", "completed", "failed")
    ]
    expected = {str(tolerated): 1, str(clean): 0, str(broken): 0}
    listed = (await api.get("/api/v1/jobs"))["items"]
    assert {job["job_id"]: job["tolerated_failures"] for job in listed} == expected
    assert (await api.get(f"/api/v1/jobs/{tolerated}"))["tolerated_failures"] == 1
    with local.opened(load_settings(database_url=api.dsn)) as backend:
        jobs = await asyncio.to_thread(backend.jobs, status=None, workflow_id=None, limit=9)
    assert {str(job["job_id"]): job["tolerated_failures"] for job in jobs} == expected
    plain = await asyncio.to_thread(call, "--database-url", api.dsn, "jobs", "--output", "plain")
    [row] = [line for line in plain.out.splitlines() if line.startswith(str(tolerated))]
    assert row.split()[2] == "completed" and row.endswith("1 tolerated failure")


async def test_failed_children_are_in_the_order_of_their_items(api: Web) -> None:
    job_id = await submitted(api, "completed_with_failures")
    add = """INSERT INTO dagapp.dag_node_states (job_id, node_id, parent_node_id, fan_out_index, status, completed_at)
             VALUES (%s, 'spread__' || %s, 'spread', %s, 'failed', now() - interval '1 second' * %s)"""
    for index in (107, 27, 127):
        await rows(api.dsn, add, job_id, index, index, index)
    async with opened(api.dsn, application="test") as conn:
        failed = await failed_nodes(conn, job_id, limit=10)
    assert [row["node_id"] for row in failed] == ["spread__1", "spread__27", "spread__107", "spread__127"]


async def test_the_page_of_a_fan_out_shows_its_items(api: Web) -> None:
    job_id = await submitted(api, "completed")
    page = await api.get(f"/ui/jobs/{job_id}/nodes/spread")
    assert f'hx-get="/ui/jobs/{job_id}/nodes/spread/items"' in page
    assert "hx-get" not in await api.get(f"/ui/jobs/{job_id}/nodes/after")
