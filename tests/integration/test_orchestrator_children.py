"""Nodes that run another workflow as a job, which is submitted once and cancelled with its caller."""

from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import pytest
from expired_jobs import remove_alone
from fleet import Fleet, fleet, graph, retry, single, task

from dagmaster.engine.change_set import Rules
from dagmaster.errors import UnknownJob
from dagmaster.handlers import HandlerContext, Permanent
from dagmaster.ids import TaskId
from dagmaster.model.compile import compile_graph
from dagmaster.model.graph import Graph
from dagmaster.model.workflow import WaitNode, WorkflowNode
from dagmaster.store.connect import opened
from dagmaster.store.explanations import explain_job
from dagmaster.store.job_control import cancel_orphans, request_retry
from dagmaster.store.retention import read_limits, remove_old
from dagmaster.store.signals import send_signal
from dagmaster.store.submission import Caller, NewJob, submit

RUNS: list[int] = []


async def flaky(ctx: HandlerContext) -> dict[str, Any]:
    RUNS.append(1)
    if len(RUNS) == 1:
        raise Permanent("no luck")
    return {"runs": len(RUNS)}


@pytest.fixture
async def running(dsn: str) -> AsyncIterator[Fleet]:
    RUNS.clear()
    async with fleet(dsn, flaky=flaky) as running:
        await running.orchestrator()
        await running.worker()
        yield running


def child(handler: str = "echo", **params: Any) -> Graph:
    return graph({"work": task(handler, "END", params=params)}, "child", start="work", inputs={"x": "integer"})


def patient() -> Graph:
    return graph({"w": WaitNode(signal="never", next=("END",))}, "patient", start="w")


def calls(definition: Graph, **fields: Any) -> Graph:
    """A parent with one node that calls it, with the definition pinned as at submission."""
    node = WorkflowNode(
        workflow=definition.workflow.workflow_id,
        workflow_hash=definition.workflow.content_hash,
        next=("END",),
        **fields,
    )
    return replace(graph({"sub": node}, "parent", start="sub"), called=(*definition.called, definition))


async def children(running: Fleet, job_id: int) -> list[dict[str, Any]]:
    return await running.rows("SELECT * FROM dagapp.dag_jobs WHERE parent_job_id = %s ORDER BY created_at", job_id)


async def until_called(running: Fleet, job_id: int) -> dict[str, Any]:
    query = "SELECT count(*) > 0 AS ok FROM dagapp.dag_jobs WHERE parent_job_id = %s AND status = 'running'"
    await running.until(query, lambda: [job_id])
    return (await children(running, job_id))[0]


async def test_the_childs_result_is_the_callers_output(running: Fleet) -> None:
    job = await running.run(calls(child(m="{{ inputs.x }}"), inputs={"x": "{{ 3 }}"}), priority=5, correlation_id="c1")
    assert job["status"] == "completed"
    [child_] = await children(running, job["job_id"])
    output = job["result_data"]["sub"]
    assert output["job_id"] == str(child_["job_id"])
    assert output["result"]["work"]["echoed_params"] == {"m": 3}
    assert (child_["submitted_by"], child_["priority"], child_["correlation_id"]) == ("dagmaster", 5, "c1")
    assert (child_["parent_node_id"], child_["parent_task_id"]) == ("sub", f"{job['job_id']}_sub_0")


async def test_a_failed_child_is_retried_as_a_new_job(running: Fleet) -> None:
    job = await running.run(calls(child("flaky"), inputs={"x": 1}, retry=retry(1)))
    assert job["status"] == "completed"
    assert [child["status"] for child in await children(running, job["job_id"])] == ["failed", "completed"]


async def test_the_childs_error_is_the_callers_error(running: Fleet) -> None:
    job = await running.run(calls(child("flaky"), inputs={"x": 1}))
    [child_] = await children(running, job["job_id"])
    expected = f"node sub failed: job {child_['job_id']} failed: node work failed: no luck"
    assert (job["status"], job["error_message"]) == ("failed", expected)


async def test_invalid_inputs_fail_the_caller(running: Fleet) -> None:
    job = await running.run(calls(child(), inputs={"x": "many"}, retry=retry(3)))
    assert job["status"] == "failed" and "cannot run workflow 'child'" in job["error_message"]
    assert not await children(running, job["job_id"])


async def test_an_unpinned_definition_fails_the_caller(running: Fleet) -> None:
    job = await running.run(graph({"sub": WorkflowNode(workflow="x", next=("END",))}, start="sub"))
    assert "was not pinned" in job["error_message"]


async def test_cancelling_a_job_cancels_its_children(running: Fleet) -> None:
    job_id = await running.submit(calls(calls(patient())))
    first = await until_called(running, job_id)
    second = await until_called(running, first["job_id"])
    async with opened(running.dsn, application="test") as conn:
        explanation = await explain_job(conn, job_id, threshold_seconds=30)
    assert f"has been waiting for job {first['job_id']} of the workflow `parent` since" in explanation.sentence
    await running.cancel(job_id)
    ended = await running.ended(job_id, first["job_id"], second["job_id"])
    assert {job["status"] for job in ended} == {"cancelled"}


async def test_a_child_that_times_out_is_cancelled(running: Fleet) -> None:
    job = await running.run(calls(patient(), timeout_seconds=0.5))
    [child] = await children(running, job["job_id"])
    [called] = await running.ended(child["job_id"])
    assert "did not end within 0.5 s" in job["error_message"]
    assert called["status"] == "cancelled"


async def test_cancelling_the_child_fails_its_caller(running: Fleet) -> None:
    job_id = await running.submit(calls(patient()))
    child = await until_called(running, job_id)
    await running.cancel(child["job_id"])
    [job] = await running.ended(job_id)
    assert job["error_message"] == f"node sub failed: job {child['job_id']} was cancelled"


async def test_a_new_owner_submits_children_that_the_old_one_could_not(dsn: str) -> None:
    """The owner dies between writing the attempt and submitting the child."""
    async with fleet(dsn) as running:
        first = await running.orchestrator()
        await running.worker()

        async def die(*_: Any) -> list[Any]:
            return []

        with patch("dagmaster.orchestrator.orchestrator.start_children", die):
            job_id = await running.submit(calls(child(), inputs={"x": 1}))
            query = "SELECT status = 'running' AS ok FROM dagapp.dag_node_states WHERE job_id = %s AND node_id = 'sub'"
            await running.until(query, lambda: [job_id])
            await first.stop()
        assert not await children(running, job_id)
        await running.orchestrator()
        await running.completed(job_id)
        assert len(await children(running, job_id)) == 1


async def test_a_child_is_submitted_once_however_often_its_owner_changes(dsn: str) -> None:
    async with fleet(dsn) as running:
        first = await running.orchestrator()
        job_id = await running.submit(calls(patient()))
        await until_called(running, job_id)
        await first.stop()
        second = await running.orchestrator()
        query = "SELECT count(*) = 0 AS ok FROM dagapp.dag_jobs WHERE owner_id IS DISTINCT FROM %s"
        await running.until(query, lambda: [second.id])
        await running.until("SELECT count(*) = 0 AS ok FROM dagapp.dag_mailbox")
        assert len(await children(running, job_id)) == 1


async def test_an_ended_attempt_starts_no_child(running: Fleet) -> None:
    job_id = await running.submit(calls(patient()))
    child = await until_called(running, job_id)
    await running.cancel(job_id)
    await running.ended(job_id, child["job_id"])
    new = NewJob(
        patient(), {}, submitted_by="dagmaster", idempotency_key="late", caller=Caller(job_id, "sub", TaskId("late"))
    )
    async with opened(running.dsn, application="test") as conn:
        with pytest.raises(UnknownJob):
            await submit(conn, new, threshold_seconds=30)
    assert len(await children(running, job_id)) == 1


async def test_a_child_whose_caller_is_gone_is_cancelled(running: Fleet) -> None:
    job_id = await running.submit(calls(patient()))
    child = await until_called(running, job_id)
    async with opened(running.dsn, application="test") as conn:
        assert await cancel_orphans(conn, age_seconds=0) == 0
        await conn.execute("UPDATE dagapp.dag_jobs SET parent_task_id = 'other' WHERE job_id = $1", [child["job_id"]])
        assert await cancel_orphans(conn, age_seconds=0) == 1
        await conn.execute("NOTIFY dagmaster_mail")
    [called] = await running.ended(child["job_id"])
    assert called["status"] == "cancelled"


async def test_a_definition_that_may_still_be_called_is_not_removed(running: Fleet) -> None:
    nodes: dict[str, Any] = {
        "w": WaitNode(signal="never", next=("sub",)),
        "sub": WorkflowNode(workflow="child", workflow_hash=child().workflow.content_hash, next=("END",)),
    }
    await running.submit(replace(graph(nodes, "parent", start="w"), called=(child(),)))
    unused = compile_graph(child().workflow.model_copy(update={"version": 2}))
    await running.run(unused, {"x": 1})
    async with opened(running.dsn, application="test") as conn:
        await conn.execute("UPDATE dagapp.dag_workflows SET created_at = now() - interval '2 days'")
        await conn.execute("DELETE FROM dagapp.dag_jobs WHERE workflow_hash = $1", [unused.workflow.content_hash])
        await remove_alone(conn)
        await remove_old(conn, await read_limits(conn, 30))
    stored = await running.rows("SELECT workflow_hash FROM dagapp.dag_workflows")
    hashes = {row["workflow_hash"] for row in stored}
    assert child().workflow.content_hash in hashes and unused.workflow.content_hash not in hashes


async def test_an_unreadable_definition_fails_only_the_caller(running: Fleet) -> None:
    """Pinned by another version or damaged; the orchestrator continues."""
    callee = child()
    nodes: dict[str, Any] = {
        "w": WaitNode(signal="go", next=("sub",)),
        "sub": WorkflowNode(workflow="child", workflow_hash=callee.workflow.content_hash, next=("END",)),
    }
    job_id = await running.submit(replace(graph(nodes, "parent", start="w"), called=(callee,)))
    spoil = "UPDATE dagapp.dag_workflows SET definition = '{}' WHERE workflow_id = 'child' RETURNING 1"
    await running.rows(spoil)
    async with opened(running.dsn, application="test") as conn:
        await send_signal(conn, job_id, "go", data=None, actor=None)
    [job] = await running.ended(job_id)
    assert job["status"] == "failed" and "cannot run workflow 'child'" in job["error_message"]
    assert (await running.run(single()))["status"] == "completed"


async def test_a_manually_retried_child_is_not_cancelled(running: Fleet) -> None:
    """Its caller has failed with it and no longer waits; completed work is not repeated."""
    job = await running.run(calls(child("flaky"), inputs={"x": 1}))
    [child_] = await children(running, job["job_id"])
    nap = "UPDATE dagapp.dag_jobs SET created_at = now() - interval '1 hour' WHERE job_id = %s RETURNING 1"
    await running.rows(nap, child_["job_id"])
    async with opened(running.dsn, application="test") as conn:
        await request_retry(conn, child_["job_id"], None, actor="ada", threshold_seconds=30)
        await running.until(
            "SELECT status <> 'failed' AS ok FROM dagapp.dag_jobs WHERE job_id = %s", lambda: [child_["job_id"]]
        )
        assert await cancel_orphans(conn, age_seconds=0) == 0
    query = "SELECT status = 'completed' AS ok FROM dagapp.dag_jobs WHERE job_id = %s"
    await running.until(query, lambda: [child_["job_id"]])
    [parent] = await running.ended(job["job_id"])
    assert parent["status"] == "failed"


async def test_a_child_gets_the_stored_inputs_whoever_submits_it(dsn: str) -> None:
    """The owner dies in between; the next one has another environment, in which the inputs are invalid."""
    async with fleet(dsn) as running:
        first = await running.orchestrator(rules=Rules(env={"X": "3"}))
        await running.worker()

        async def die(*_: Any) -> list[Any]:
            return []

        with patch("dagmaster.orchestrator.orchestrator.start_children", die):
            job_id = await running.submit(calls(child(m="{{ inputs.x }}"), inputs={"x": "{{ env.X | int }}"}))
            query = "SELECT status = 'running' AS ok FROM dagapp.dag_node_states WHERE job_id = %s AND node_id = 'sub'"
            await running.until(query, lambda: [job_id])
            await first.stop()
        await running.orchestrator()
        await running.completed(job_id)
        [called] = await children(running, job_id)
        assert called["input_params"] == {"x": 3}
