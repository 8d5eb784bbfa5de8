from collections.abc import AsyncIterator
from typing import Any

import pytest
from fleet import child, fan, graph, retry, single, task
from web import Web, web

from dagmaster.handlers import HandlerContext
from dagmaster.model.access import Role
from dagmaster.model.workflow import Branch, ConditionalNode, FanInNode, FanOutNode
from dagmaster.web import views


def forked() -> Any:
    """A workflow that takes branch `left` and then fans out."""
    nodes: dict[str, Any] = {
        "choose": ConditionalNode(
            branches=(
                Branch(name="yes", when="{{ inputs.n > 1 }}", next=("left",)),
                Branch(name="no", next=("right",)),
            )
        ),
        "left": FanOutNode(source="{{ inputs.items }}", task=child(), next=("gather",)),
        "gather": FanInNode(aggregation="collect", next=("END",)),
        "right": task("echo", "END"),
    }
    return graph(nodes, "forked", start="choose", inputs={"items": "array", "n": "integer"})


async def ran(api: Web, workflow_id: str, inputs: dict[str, Any] | None = None) -> str:
    submitted = await api.post("/api/v1/jobs", {"workflow_id": workflow_id, "input_params": inputs or {}}, 201)
    await api.fleet.ended(int(submitted["job_id"]))
    return str(submitted["job_id"])


async def test_the_timeline_has_descriptions_and_a_summary_of_all_events(dsn: str) -> None:
    async with web(dsn, single(), runs=True) as api:
        job_id = await ran(api, "single")
        page = await api.get(f"/api/v1/jobs/{job_id}/timeline?limit=2")
        assert [event["event_type"] for event in page["events"]] == ["job_created", "node_ready"]
        assert page["has_more"]
        assert page["summary"]["total_events"] == len(await api.fleet.events(int(job_id)))
        assert page["summary"]["event_counts"]["node_completed"] == 3
        next_page = await api.get(f"/api/v1/jobs/{job_id}/timeline?limit=1000&after={page['next_after']}")
        assert next_page["events"][-1]["message"].startswith("the job is completed after")
        assert len(next_page["events"]) == page["summary"]["total_events"] - 2
        only = await api.get(f"/api/v1/jobs/{job_id}/timeline?event_types=node_running,job_failed")
        assert [(event["event_type"], event["node_id"]) for event in only["events"]] == [
            ("node_started", node_id) for node_id in ("START", "work", "END")
        ]
        await api.get(f"/api/v1/jobs/{job_id}/timeline?event_types=nonsense", 422)
        await api.get("/api/v1/jobs/17/timeline", 404)
        for path in ("timeline", "events"):
            node = await api.get(f"/api/v1/jobs/{job_id}/nodes/work/{path}")
            assert {event["node_id"] for event in node["events"]} == {"work"}
        await api.get(f"/api/v1/jobs/{job_id}/nodes/nothing/timeline", 404)


async def test_retries_are_named_in_the_summary_and_kept_as_attempts(dsn: str) -> None:
    tries: list[int] = []

    def flaky(ctx: Any) -> dict[str, Any]:
        tries.append(1)
        if len(tries) == 1:
            raise ValueError("password=hunter2 was wrong")
        return {"api_key": "x", "n": len(tries)}

    async with web(dsn, single("flaky", retry=retry(1)), runs=True, functions={"flaky": flaky}) as api:
        job_id = await ran(api, "single")
        summary = (await api.get(f"/api/v1/jobs/{job_id}/timeline"))["summary"]
        assert summary["nodes_with_retries"] == ["work"]
        node = await api.get(f"/api/v1/jobs/{job_id}/nodes/work")
        assert [attempt["status"] for attempt in node["attempts"]] == ["failed", "completed"]
        assert node["output"] == {"api_key": "***", "n": 2}
        response = await api.client.get(f"/api/v1/jobs/{job_id}/timeline")
        assert "hunter2" not in response.text + str(node)


async def test_ended_by_is_a_value_independent_of_the_handlers_message(dsn: str) -> None:
    def sly(ctx: Any) -> None:
        raise RuntimeError("withdrawn: job_cancelled")

    async with web(dsn, single("sly", retry=retry(1)), runs=True, functions={"sly": sly}) as api:
        job_id = await ran(api, "single")
        job = await api.get(f"/api/v1/jobs/{job_id}")
        assert job["failed_node"] == "work"
        ended = {node["node_id"]: node["ended_by"] for node in job["nodes"]}
        assert ended == {"START": "result", "work": "failure", "END": "skipped"}
        node = await api.get(f"/api/v1/jobs/{job_id}/nodes/work")
        assert [attempt["ended_by"] for attempt in node["attempts"]] == ["failure", "failure"]
        drawn = (await api.get(f"/api/v1/jobs/{job_id}/graph"))["nodes"]
        assert {node["node_id"]: node["ended_by"] for node in drawn} == ended


async def test_a_graph_distinguishes_live_and_dead_branches(dsn: str) -> None:
    async with web(dsn, forked(), runs=True) as api:
        job_id = await ran(api, "forked", {"items": [1, 2, 3], "n": 2})
        drawn = await api.get(f"/api/v1/jobs/{job_id}/graph")
        edges = {(edge["source"], edge["target"]): (edge["kind"], edge["branch"]) for edge in drawn["edges"]}
        assert edges["choose", "left"] == ("live", "yes")
        assert edges["choose", "right"] == ("dead", "no")
        assert edges["right", "END"] == ("dead", None)
        assert edges["gather", "END"] == ("live", None)
        nodes = {node["node_id"]: node for node in drawn["nodes"]}
        assert nodes["left"]["children"] == {"completed": 3}
        assert nodes["choose"]["taken_branch"] == "yes"


async def test_a_waiting_jobs_graph_has_no_decided_edges(dsn: str) -> None:
    async with web(dsn, forked()) as api:
        submitted = await api.post(
            "/api/v1/jobs", {"workflow_id": "forked", "input_params": {"items": [], "n": 0}}, 201
        )
        drawn = await api.get(f"/api/v1/jobs/{submitted['job_id']}/graph")
        assert {edge["kind"] for edge in drawn["edges"]} == {"undecided"}


async def test_nodes_are_paged_and_children_are_listed_by_parent(dsn: str) -> None:
    async with web(dsn, fan(), single(), runs=True) as api:
        job_id = await ran(api, "fan", {"items": list(range(5))})
        newer = await ran(api, "single")
        own = await api.get(f"/api/v1/jobs/{job_id}/nodes")
        assert {node["node_id"] for node in own["items"]} == {"START", "spread", "gather", "END"}
        first = await api.get(f"/api/v1/jobs/{job_id}/nodes?parent=spread&limit=3")
        assert [node["fan_out_index"] for node in first["items"]] == [0, 1, 2]
        assert first["has_more"]
        last = await api.get(f"/api/v1/jobs/{job_id}/nodes?parent=spread&limit=3&offset=3")
        assert [node["fan_out_index"] for node in last["items"]] == [3, 4]
        everywhere = await api.get("/api/v1/nodes?limit=1000")
        assert everywhere["items"][0]["job_id"] == newer
        assert len(everywhere["items"]) == 4 + 5 + 3
        some = await api.get("/api/v1/nodes?status=COMPLETED&workflow_id=single")
        assert {node["job_id"] for node in some["items"]} == {newer}
        assert (await api.get("/api/v1/nodes?status=running"))["items"] == []
        await api.get("/api/v1/nodes?status=lost", 422)
        aliased = await api.get(f"/api/dag/jobs/{job_id}/nodes")
        assert aliased == own == await api.get(f"/api/v1/status/job/{job_id}/nodes")


async def test_progress_buckets_sum_to_the_total(dsn: str) -> None:
    async with web(dsn, single()) as api:
        await api.fleet.orchestrator()
        submitted = await api.post("/api/v1/jobs", {"workflow_id": "single"}, 201)
        await api.fleet.until("SELECT count(*) = 1 AS ok FROM dagapp.dag_tasks_waiting")
        progress = await api.get(f"/api/v1/jobs/{submitted['job_id']}/progress")
        counts = progress["nodes"]
        assert counts.pop("total") == sum(counts.values()) == 3
        assert counts["dispatched"] == 1
        assert progress["overall_percent"] == 33.3
        assert [task["node_id"] for task in progress["current_tasks"]] == ["work"]
        [waiting] = (await api.get("/api/v1/tasks?state=waiting&handler=echo"))["items"]
        assert waiting["task_id"] == f"{submitted['job_id']}_work_0"
        assert (await api.get("/api/v1/tasks?state=running"))["items"] == []
        [queue] = (await api.get("/api/v1/queues/status"))["queues"]
        assert (queue["depth"], queue["consumers"], queue["workflows"]) == (1, 0, ["single"])
        node = await api.get(f"/api/v1/jobs/{submitted['job_id']}/nodes/work/progress")
        assert node["status"] == "dispatched"
        why = await api.get(f"/api/v1/jobs/{submitted['job_id']}/nodes/work/explain")
        assert (why["node_id"], "queue `q`" in why["sentence"]) == ("work", True), why["sentence"]
        assert (await api.get(f"/api/v1/jobs/{submitted['job_id']}/explain"))["sentence"]
        await api.get(f"/api/v1/jobs/{submitted['job_id']}/nodes/nothing/explain", 404)


async def test_workflows_show_their_inputs_nodes_and_edges(dsn: str) -> None:
    async with web(dsn, forked()) as api:
        [listed] = (await api.get("/api/v1/workflows"))["workflows"]
        workflow = await api.get("/api/v1/workflows/forked")
        assert listed["workflow_id"] == workflow["workflow_id"] == "forked"
        assert workflow["inputs"]["required"] == ["items", "n"]
        assert {"source": "choose", "target": "right", "branch": "no", "rule": "all_of"} in workflow["edges"]
        assert {node["node_id"]: node["queue"] for node in workflow["nodes"]}["left"] == "q"
        await api.get("/api/v1/workflows/nothing", 404)
        await api.post("/api/v1/workflows/reload")
        assert (await api.get("/api/v1/audit"))["items"][0]["command"] == "workflows.reload"


async def test_orchestrators_are_described_and_without_one_it_is_503(dsn: str) -> None:
    async with web(dsn, single()) as api:
        for path in ("status", "stats", "activity"):
            await api.get(f"/api/v1/orchestrator/{path}", 503)
    async with web(dsn, single(), runs=True) as api:
        await ran(api, "single")
        await api.until_counted(1)
        status = await api.get("/api/v1/orchestrator/status")
        assert (status["is_running"], status["tasks_dispatched"], len(status["instances"])) == (True, 1, 1)
        assert (await api.get("/api/v1/orchestrator/stats"))["counters"]["jobs_completed"] == 1
        activity = await api.get("/api/v1/orchestrator/activity")
        assert activity["phase"] in ("idle", "polling_results", "evaluating_jobs", "dispatching")
        assert (activity["queue_depth"], activity["db_unprocessed_results"]) == (0, 0)
        assert [worker["status"] for worker in (await api.get("/api/v1/workers?status=active"))["items"]] == ["active"]


async def test_statistics_are_shown_and_refused_for_a_task_token(dsn: str) -> None:
    async with web(dsn, single(), runs=True) as api:
        await ran(api, "single")
        [measured] = (await api.get("/api/v1/metrics/workflows?days=1"))["items"]
        assert measured["workflow_id"] == "single"
        assert (await api.get("/api/v1/metrics/workflows/single/nodes"))["items"]
        assert (await api.get("/api/v1/metrics/failures"))["items"] == []
        assert len((await api.get("/api/v1/metrics/throughput?hours=2"))["items"]) >= 2
        await api.get("/api/v1/metrics/workflows?days=91", 422)
        assert "dagmaster_" in await api.get("/metrics")
        await api.get("/metrics", 401, headers={"Authorization": "Bearer dmt_anything"})


async def test_a_partner_sees_only_what_it_submitted(dsn: str) -> None:
    async with web(dsn, single(), runs=True) as api:
        mine, other = await api.key("mine", Role.PARTNER), await api.key("other", Role.PARTNER)
        submitted = await api.post("/api/v1/submit", {"workflow_id": "single"}, 201, headers=mine)
        path = f"/api/v1/jobs/{submitted['job_id']}"
        for below in ("", "/nodes", "/nodes/work", "/timeline", "/graph", "/progress", "/nodes/work/checkpoints"):
            await api.get(path + below, headers=mine)
            await api.get(path + below, 404, headers=other)
        await api.get(path + "/stream", 404, headers=other)
        for everything in ("nodes", "tasks", "workers", "queues/status", "audit", "keys", "doctor", "bootstrap/status"):
            await api.get(f"/api/v1/{everything}", 403, headers=mine)


async def test_asset_fields_are_refused_for_a_plain_workflow(dsn: str) -> None:
    async with web(dsn, single()) as api:
        refused = await api.post("/api/v1/submit", {"workflow_id": "single", "platform_id": "x"}, 422)
        assert "platform_id" in refused["error"]["message"]
        submitted = await api.post("/api/dag/submit", {"workflow_id": "single"}, 201)
        assert (await api.get(f"/api/dag/jobs/{submitted['job_id']}"))["job_id"] == submitted["job_id"]


async def swell(ctx: HandlerContext) -> dict[str, Any]:
    return {"text": "x" * ctx.params["x"]}


async def test_lists_omit_large_outputs(dsn: str) -> None:
    async with web(dsn, fan(handler="swell"), runs=True, functions={"swell": swell}) as api:
        path = f"/api/v1/jobs/{await ran(api, 'fan', {'items': [10, 100_000]})}"
        for nodes in (
            (await api.get(path, params={"children": True}))["nodes"],
            (await api.get(f"{path}/nodes", params={"parent": "spread"}))["items"],
        ):
            sizes = {node["node_id"]: (node["output"] is not None, node["output_bytes"]) for node in nodes}
            assert sizes["spread__0"] == (True, 21)
            assert sizes["spread__1"] == (False, 100_011)
        node = await api.get(f"{path}/nodes/spread__1")
        assert len(node["output"]["text"]) == 100_000


async def test_the_nodes_of_a_job_are_paged(dsn: str) -> None:
    async with web(dsn, fan(), runs=True) as api:
        path = f"/api/v1/jobs/{await ran(api, 'fan', {'items': [1, 2, 3]})}"
        first = await api.get(path, params={"children": True, "limit": 4})
        second = await api.get(path, params={"children": True, "limit": 4, "offset": 4})
        assert (len(first["nodes"]), first["nodes_has_more"]) == (4, True)
        assert (len(second["nodes"]), second["nodes_has_more"]) == (3, False)
        assert len({node["node_id"] for node in first["nodes"] + second["nodes"]}) == 7


async def test_a_large_result_is_encoded_outside_the_event_loop_and_streamed(
    dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes: list[int] = []
    pieces = views._pieces

    async def counted(content: bytes) -> AsyncIterator[bytes]:
        async for piece in pieces(content):
            sizes.append(len(piece))
            yield piece

    monkeypatch.setattr(views, "_pieces", counted)
    async with web(dsn, single("swell", params={"x": 3_000_000}), runs=True, functions={"swell": swell}) as api:
        job = await api.get(f"/api/v1/jobs/{await ran(api, 'single')}")
        assert len(job["result_data"]["work"]["text"]) == 3_000_000
    assert len(sizes) > 10
    assert max(sizes) <= views.PIECE_BYTES
