"""Signals, approvals and rejections over HTTP, and who may send them."""

from collections.abc import AsyncIterator

import pytest
from fleet import graph, task
from web import Web, web

from dagmaster.client import AsyncClient
from dagmaster.model.access import Role
from dagmaster.model.workflow import ApprovalNode, WaitNode, WorkflowNode

WAITING = graph({"w": WaitNode(signal="go", next=("END",))}, "waiting", start="w")
ASKING = graph(
    {"ask": ApprovalNode(message="Ship it?", approvers=("ann",), next=("ship",)), "ship": task("echo", "END")},
    "asking",
    start="ask",
)
CALLING = graph({"sub": WorkflowNode(workflow="waiting", next=("END",))}, "calling", start="sub")
CIRCLE = graph({"sub": WorkflowNode(workflow="circle", next=("END",))}, "circle", start="sub")
LOST = graph({"sub": WorkflowNode(workflow="nowhere", next=("END",))}, "lost", start="sub")


@pytest.fixture
async def api(dsn: str) -> AsyncIterator[Web]:
    async with web(dsn, WAITING, ASKING, CALLING, CIRCLE, LOST, runs=True) as started:
        yield started


async def submitted(api: Web, workflow_id: str, headers: dict[str, str] | None = None) -> str:
    body = {"workflow_id": workflow_id}
    created = await api.post("/api/v1/jobs", body, 201, headers=headers)
    return str(created["job_id"])


async def until_running(api: Web, job_id: str, node_id: str) -> None:
    query = "SELECT status = 'running' AS ok FROM dagapp.dag_node_states WHERE job_id = %s AND node_id = %s"
    await api.fleet.until(query, lambda: [int(job_id), node_id])


async def test_a_signal_delivers_its_data_to_the_node(api: Web) -> None:
    key = await api.key("ann")
    job_id = await submitted(api, "waiting", key)
    reply = await api.post(f"/api/v1/jobs/{job_id}/signals/go", {"data": {"rows": 17}}, 202, headers=key)
    assert (reply["job_id"], reply["name"]) == (job_id, "go")
    [job] = await api.fleet.completed(int(job_id))
    assert job["result_data"]["w"]["signal"] == {"name": "go", "data": {"rows": 17}, "actor": "ann"}
    again = await api.post(f"/api/v1/jobs/{job_id}/signals/go", None, 409, headers=key)
    assert again["error"]["code"] == "job_ended"


async def test_a_partner_can_signal_only_its_own_jobs(api: Web) -> None:
    admin, partner = await api.key("ann"), await api.key("partner", Role.PARTNER)
    foreign, own = await submitted(api, "waiting", admin), await submitted(api, "waiting", partner)
    await api.post(f"/api/v1/jobs/{foreign}/signals/go", None, 404, headers=partner)
    await api.post(f"/api/v1/jobs/{own}/signals/go", None, 202, headers=partner)
    await api.fleet.completed(int(own))


async def test_invalid_signals_are_refused(api: Web) -> None:
    job_id = await submitted(api, "waiting")
    refusal = await api.post(f"/api/v1/jobs/{job_id}/signals/1st", None, 422)
    assert "is not a valid signal name" in refusal["error"]["message"]
    await api.post(f"/api/v1/jobs/{job_id}/signals/go", {"datum": 1}, 422)
    await api.post("/api/v1/jobs/1/signals/go", None, 404)


async def test_only_an_approvers_key_can_approve(api: Web) -> None:
    ann, eve = await api.key("ann", Role.OPERATOR), await api.key("eve", Role.OPERATOR)
    viewer = await api.key("viewer", Role.VIEWER)
    job_id = await submitted(api, "asking", ann)
    await until_running(api, job_id, "ask")
    path = f"/api/v1/jobs/{job_id}/nodes/ask/approve"
    refusal = await api.post(path, None, 403, headers=eve)
    assert "is decided by ann, not by eve" in refusal["error"]["message"]
    await api.post(path, None, 403, headers=viewer)
    node = await api.get(f"/api/v1/jobs/{job_id}/nodes/ask", headers=eve)
    assert node["params"] == {"message": "Ship it?", "approvers": ["ann"]}
    decided = await api.post(path, {"comment": "fine"}, 200, headers=ann)
    assert (decided["status"], decided["is_done"]) == ("completed", True)
    [job] = await api.fleet.completed(int(job_id))
    assert job["result_data"]["ask"]["by"] == "ann"
    timeline = await api.get(
        f"/api/v1/jobs/{job_id}/timeline?event_types=approval_requested,approval_decided", headers=ann
    )
    assert [event["event_type"] for event in timeline["events"]] == ["approval_requested", "approval_decided"]


async def test_without_keys_there_are_no_approvers(api: Web) -> None:
    job_id = await submitted(api, "asking")
    await until_running(api, job_id, "ask")
    refusal = await api.post(f"/api/v1/jobs/{job_id}/nodes/ask/approve", None, 403)
    assert "is decided by ann: use the API key of that name with a server" in refusal["error"]["message"]


async def test_a_rejected_node_can_be_retried(api: Web) -> None:
    ann = await api.key("ann", Role.OPERATOR)
    job_id = await submitted(api, "asking", ann)
    await until_running(api, job_id, "ask")
    path = f"/api/v1/jobs/{job_id}/nodes/ask"
    await api.post(f"{path}/reject", None, 200, headers=ann)
    await api.fleet.ended(int(job_id))
    await api.post(f"{path}/approve", None, 409, headers=ann)
    await api.post(f"{path}/retry", None, 200, headers=ann)
    await until_running(api, job_id, "ask")
    await api.post(f"{path}/approve", None, 200, headers=ann)
    [job] = await api.fleet.completed(int(job_id))
    assert job["result_data"]["ask"]["by"] == "ann"


async def test_a_rejection_shows_its_reason(api: Web) -> None:
    ann = await api.key("ann", Role.OPERATOR)
    job_id = await submitted(api, "asking", ann)
    await until_running(api, job_id, "ask")
    decided = await api.post(f"/api/v1/jobs/{job_id}/nodes/ask/reject", {"comment": "no"}, 200, headers=ann)
    assert decided["status"] == "failed"
    [job] = await api.fleet.ended(int(job_id))
    assert job["error_message"] == "node ask failed: rejected by ann: no"


async def test_called_workflows_are_pinned_with_the_job(api: Web) -> None:
    job_id = await submitted(api, "calling")
    query = "SELECT count(*) = 1 AS ok FROM dagapp.dag_jobs WHERE parent_job_id = %s"
    await api.fleet.until(query, lambda: [int(job_id)])
    [child] = await api.fleet.rows("SELECT job_id FROM dagapp.dag_jobs WHERE parent_job_id = %s", int(job_id))
    await api.post(f"/api/v1/jobs/{child['job_id']}/signals/go", None, 202)
    [job] = await api.fleet.completed(int(job_id))
    assert job["result_data"]["sub"]["job_id"] == str(child["job_id"])
    called = await api.get(f"/api/v1/jobs/{child['job_id']}")
    assert (called["parent_job_id"], called["parent_node_id"]) == (job_id, "sub")


async def test_call_cycles_and_unknown_workflows_are_refused(api: Web) -> None:
    refusal = await api.post("/api/v1/jobs", {"workflow_id": "circle"}, 422)
    assert refusal["error"]["message"] == "workflows must not call each other in a cycle: circle -> circle"
    refusal = await api.post("/api/v1/jobs", {"workflow_id": "lost"}, 422)
    assert (
        "node 'sub' of workflow 'lost' calls 'nowhere': no workflow is named 'nowhere'" in refusal["error"]["message"]
    )


async def test_the_client_sends_signals_and_decisions(api: Web) -> None:
    ann = await api.key("ann", Role.OPERATOR)
    async with api.real_server() as url, AsyncClient(url, ann["Authorization"].removeprefix("Bearer ")) as client:
        waiting, asking = await client.submit("waiting"), await client.submit("asking")
        assert (await client.signal(waiting.job_id, "go", [1])).name == "go"
        await until_running(api, asking.job_id, "ask")
        assert (await client.approve(asking.job_id, "ask", "yes")).is_done
        other = await client.submit("asking")
        await until_running(api, other.job_id, "ask")
        assert (await client.reject(other.job_id, "ask")).status == "failed"
        await api.fleet.ended(int(waiting.job_id), int(asking.job_id), int(other.job_id))
