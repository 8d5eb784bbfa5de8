"""Waits, signals, approvals and finalizers, on a real database."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from fleet import Fleet, fleet, graph, task

from dagmaster.errors import Conflict, Forbidden, Invalid, JobEnded, UnknownNode
from dagmaster.handlers import HandlerContext, Permanent
from dagmaster.ids import NodeId
from dagmaster.model.graph import Graph
from dagmaster.model.states import NodeStatus
from dagmaster.model.workflow import ApprovalNode, WaitNode
from dagmaster.store.connect import opened
from dagmaster.store.explanations import explain_job
from dagmaster.store.job_control import request_retry
from dagmaster.store.signals import request_decision, send_signal, until_decided

HEARD: list[Any] = []

ASK = NodeId("ask")


async def give_up(ctx: HandlerContext) -> dict[str, Any]:
    raise Permanent("no luck")


async def hear(ctx: HandlerContext) -> dict[str, Any]:
    HEARD.append(ctx.params)
    return {}


@pytest.fixture
async def running(dsn: str) -> AsyncIterator[Fleet]:
    HEARD.clear()
    async with fleet(dsn, give_up=give_up, hear=hear) as running:
        await running.orchestrator()
        await running.worker()
        yield running


def waiting(**fields: Any) -> Graph:
    return graph({"w": WaitNode(next=("after",), **fields), "after": task("echo", "END")}, start="w")


async def until_running(running: Fleet, job_id: int, node_id: str) -> None:
    query = "SELECT status = 'running' AS ok FROM dagapp.dag_node_states WHERE job_id = %s AND node_id = %s"
    await running.until(query, lambda: [job_id, node_id])


async def test_a_timed_wait_ends_in_time(running: Fleet) -> None:
    job = await running.run(waiting(seconds=0.2))
    assert job["status"] == "completed"
    assert 0.2 <= job["result_data"]["w"]["waited_seconds"] < 60


async def test_a_wait_survives_its_owner(dsn: str) -> None:
    async with fleet(dsn) as running:
        first = await running.orchestrator()
        await running.worker()
        job_id = await running.submit(waiting(seconds=60.0))
        await until_running(running, job_id, "w")
        await first.stop()
        # Only now is the wait short: it cannot be over before its owner stops.
        await running.rows("UPDATE dagapp.dag_node_states SET not_before = not_before - interval '59 seconds'")
        await running.orchestrator()
        [job] = await running.completed(job_id)
    assert 1.0 <= job["result_data"]["w"]["waited_seconds"] < 60


async def test_a_signal_completes_the_node_that_waits_for_it(running: Fleet) -> None:
    job_id = await running.submit(waiting(signal="go"))
    await until_running(running, job_id, "w")
    async with opened(running.dsn, application="test") as conn:
        explanation = await explain_job(conn, job_id, threshold_seconds=30)
        await send_signal(conn, job_id, "go", data={"n": 1}, actor="ann")
    assert (
        explanation.kind == "waiting_for_signal"
        and "has been waiting for the signal `go` since" in explanation.sentence
    )
    [job] = await running.completed(job_id)
    assert job["result_data"]["w"]["signal"] == {"name": "go", "data": {"n": 1}, "actor": "ann"}
    assert "signal_received" in [row["event_type"] for row in await running.events(job_id)]


async def test_an_early_signal_is_kept_until_a_node_waits_for_it(running: Fleet) -> None:
    first = WaitNode(signal="first", next=("second",))
    job_id = await running.submit(
        graph({"first": first, "second": WaitNode(signal="go", next=("END",))}, start="first")
    )
    async with opened(running.dsn, application="test") as conn:
        await send_signal(conn, job_id, "go", data="early", actor=None)
        await running.until("SELECT signals IS NOT NULL AS ok FROM dagapp.dag_jobs WHERE job_id = %s", lambda: [job_id])
        await send_signal(conn, job_id, "first", data=None, actor=None)
    [job] = await running.completed(job_id)
    assert job["result_data"]["second"]["signal"]["data"] == "early"
    assert job["signals"] is None


async def test_a_signal_needs_a_name_and_a_running_job(running: Fleet) -> None:
    job = await running.run(waiting(seconds=0))
    async with opened(running.dsn, application="test") as conn:
        with pytest.raises(Invalid, match="is not a valid signal name"):
            await send_signal(conn, job["job_id"], "a b", data=None, actor=None)
        with pytest.raises(JobEnded, match="is completed and takes no signals"):
            await send_signal(conn, job["job_id"], "go", data=None, actor=None)
        other = await running.submit(waiting(signal="go"))
        with pytest.raises(Invalid, match="NUL"):
            await send_signal(conn, other, "go", data="\x00", actor=None)


def asking(**fields: Any) -> Graph:
    node = ApprovalNode(message="Ship it?", next=("ship",), **fields)
    return graph({"ask": node, "ship": task("echo", "END")}, start="ask")


async def test_only_approvers_can_decide(running: Fleet) -> None:
    job_id = await running.submit(asking(approvers=("ann", "bob")))
    await until_running(running, job_id, "ask")
    async with opened(running.dsn, application="test") as conn:
        explanation = await explain_job(conn, job_id, threshold_seconds=30)
        with pytest.raises(Forbidden, match="is decided by ann or bob, not by eve"):
            await request_decision(conn, job_id, ASK, approved=True, actor="eve", comment=None)
        with pytest.raises(UnknownNode):
            await request_decision(conn, job_id, NodeId("ax"), approved=True, actor="ann", comment=None)
        with pytest.raises(Conflict, match="is a task: only an approval"):
            await request_decision(conn, job_id, NodeId("ship"), approved=True, actor="ann", comment=None)
        await request_decision(conn, job_id, ASK, approved=True, actor="bob", comment="fine")
    assert "has been waiting for approval by ann or bob since" in explanation.sentence
    [job] = await running.completed(job_id)
    decision = job["result_data"]["ask"]
    assert (decision["approved"], decision["by"], decision["comment"]) == (True, "bob", "fine")


async def test_a_rejection_fails_the_job(running: Fleet) -> None:
    job_id = await running.submit(asking())
    await until_running(running, job_id, "ask")
    async with opened(running.dsn, application="test") as conn:
        async with conn.transaction():  # Both are sent, and the first one counts.
            await request_decision(conn, job_id, ASK, approved=False, actor="ann", comment="not today")
            await request_decision(conn, job_id, ASK, approved=True, actor="bob", comment=None)
        [job] = await running.ended(job_id)
        assert await until_decided(conn, job_id, ASK, approved=False, seconds=0) is NodeStatus.FAILED
        with pytest.raises(Conflict, match="is failed: another event has ended its wait"):
            await until_decided(conn, job_id, ASK, approved=True, seconds=0)
        assert job["error_message"] == "node ask failed: rejected by ann: not today"
        with pytest.raises(JobEnded):
            await request_decision(conn, job_id, ASK, approved=True, actor="ann", comment=None)


async def test_finalizers_run_before_the_job_is_failed(running: Fleet) -> None:
    nodes = {
        "a": task("give_up", "END"),
        "alarm": task("hear", params={"why": "{{ job.error }}", "node": "{{ job.failed_node }}"}),
        "clean": task("hear", params={"how": "{{ job.status }}", "a": "{{ nodes.a.status }}"}),
    }
    job = await running.run(graph(nodes, start="a", on_failure=("alarm",), finally_=("clean",)))
    assert (job["status"], job["error_message"]) == ("failed", "node a failed: no luck")
    assert HEARD == [{"why": "node a failed: no luck", "node": "a"}, {"how": "failed", "a": "failed"}]


async def test_a_new_owner_finishes_the_finalizers(dsn: str) -> None:
    nodes: dict[str, Any] = {
        "a": task("give_up", "END"),
        "alarm": WaitNode(signal="go", next=("told",)),
        "told": task("hear", params={"why": "{{ job.error }}"}),
    }
    HEARD.clear()
    async with fleet(dsn, give_up=give_up, hear=hear) as running:
        first = await running.orchestrator()
        await running.worker()
        job_id = await running.submit(graph(nodes, start="a", on_failure=("alarm",)))
        await until_running(running, job_id, "alarm")
        await first.stop()
        await running.orchestrator()
        async with opened(dsn, application="test") as conn:
            await send_signal(conn, job_id, "go", data=None, actor=None)
        [job] = await running.ended(job_id)
    assert (job["status"], job["error_message"]) == ("failed", "node a failed: no luck")
    assert HEARD == [{"why": "node a failed: no luck"}]


async def test_a_job_completes_despite_tolerated_failures(running: Fleet) -> None:
    nodes: dict[str, Any] = {
        "a": task("give_up", "b", allow_failure=True),
        "b": task("echo", "w"),
        "w": WaitNode(signal="x", next=("END",)),
    }
    job_id = await running.submit(graph(nodes, start="a"))
    await until_running(running, job_id, "w")
    async with opened(running.dsn, application="test") as conn:
        with pytest.raises(Conflict, match="continues without it"):
            await request_retry(conn, job_id, NodeId("a"), actor=None, threshold_seconds=30)
        await send_signal(conn, job_id, "x", data=None, actor=None)
    await running.completed(job_id)
    assert (await running.nodes(job_id))["a"]["status"] == "failed"


async def test_many_concurrent_signals_are_all_delivered(running: Fleet) -> None:
    nodes = {f"w{n}": WaitNode(signal=f"s{n}", next=(f"w{n + 1}" if n < 19 else "END",)) for n in range(20)}
    job_id = await running.submit(graph(nodes, start="w0"))

    async def send(number: int) -> None:
        async with opened(running.dsn, application="test") as conn:
            await send_signal(conn, job_id, f"s{number}", data=number, actor=None)

    await asyncio.gather(*(send(number) for number in reversed(range(20))))
    [job] = await running.completed(job_id)
    assert [job["result_data"][f"w{n}"]["signal"]["data"] for n in range(20)] == list(range(20))
