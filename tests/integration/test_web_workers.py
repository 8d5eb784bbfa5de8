"""A worker over HTTP, from its registration to its end."""

from typing import Any

import pytest
from fleet import chain, retry, rows, single, task
from http_worker import OFFER, WORKERS, HttpWorker, done, registered_worker, submitted
from web import web

from dagmaster.model.access import Role


async def test_a_plain_http_client_can_run_a_whole_job(dsn: str) -> None:
    async with web(dsn, chain(3, params={"x": 1})) as api:
        await api.fleet.orchestrator()
        key = await api.key("far", Role.WORKER)
        operator = await api.key("me")
        submitted = await api.post("/api/v1/jobs", {"workflow_id": "chain"}, 201, headers=operator)
        worker = await registered_worker(api, key)
        reports: list[dict[str, Any]] = []
        for _ in range(3):
            claimed: list[dict[str, Any]] = []
            while not claimed:
                claimed = await worker.claim(reports=reports)
                reports = []
            [task] = claimed
            assert (task["params"], task["handler"], task["queue"], task["checkpoint"]) == ({"x": 1}, "echo", "q", None)
            reports = [done(task["task_id"], output={"was": task["node_id"]})]
        assert await worker.report(*reports) == ["accepted"]
        [job] = await api.fleet.completed(int(submitted["job_id"]))
        assert job["result_data"]["n2"] == {"was": "n2"}
        await worker.leave()
        await api.fleet.is_clean()


async def test_registering_returns_all_limits_and_intervals(dsn: str) -> None:
    async with web(dsn, max_output_bytes=10_000_000, max_body_bytes=1_000_000, worker_lost_after_seconds=77) as api:
        registration = await api.post(WORKERS, OFFER, 201)
        assert registration["protocol"] == 1
        assert registration["lost_after_seconds"] == 77
        assert registration["heartbeat_interval_seconds"] < 77
        assert 0 < registration["max_output_bytes"] < registration["max_body_bytes"] == 1_000_000
        [listed] = (await api.get(f"{WORKERS}?status=active"))["items"]
        assert (listed["hostname"], listed["pid"], listed["queues"], listed["handlers"]) == ("far", 7, ["q"], ["echo"])
        [stored] = await rows(dsn, "SELECT host_key FROM dagapp.dag_workers")
        assert stored["host_key"] == f"http-{registration['worker_id']}"


@pytest.mark.parametrize(
    "wrong", [{"queues": []}, {"handlers": []}, {"concurrency": 0}, {"pid": -1}, {"hostname": ""}, {"more": 1}]
)
async def test_an_invalid_registration_is_refused(dsn: str, wrong: dict[str, Any]) -> None:
    async with web(dsn) as api:
        refused = await api.post(WORKERS, {**OFFER, **wrong}, 422)
        assert next(iter(wrong)) in refused["error"]["message"]


# Lifecycle


async def test_a_worker_without_heartbeats_is_lost_and_told_so(dsn: str) -> None:
    async with web(dsn, single(retry=retry(1))) as api:
        await api.fleet.orchestrator()
        job_id = await submitted(api)
        worker = await registered_worker(api)
        [first] = await worker.claim()
        await rows(dsn, "UPDATE dagapp.dag_workers SET last_heartbeat = now() - interval '1 hour'")
        await api.fleet.until("SELECT count(*) = 1 AS ok FROM dagapp.dag_workers WHERE status = 'lost'")
        await worker.beat(status=410)
        gone = await worker.post("claim", {"limit": 1}, 410)
        assert gone["error"]["code"] == "worker_gone"
        await worker.post("results", [done(first["task_id"])], 410)
        again = await registered_worker(api)
        [second] = await again.claim()
        assert second["retry_count"] == 1
        assert await again.report(done(first["task_id"], output={"n": "late"})) == ["over"]
        assert await again.report(done(second["task_id"])) == ["accepted"]
        [job] = await api.fleet.completed(job_id)
        assert job["result_data"]["work"] == {"n": 7}
        assert "result_ignored work" in await api.fleet.trace(job_id)


async def test_a_heartbeat_renews_the_lease_and_stores_the_statistics(dsn: str) -> None:
    async with web(dsn) as api:
        worker = await registered_worker(api)
        assert await worker.beat(completed=3, failed=1, stats={"memory": 5}) == {"withdrawn": [], "wanted": "run"}
        await worker.beat()
        [listed] = (await api.get(WORKERS))["items"]
        assert (listed["tasks_completed"], listed["tasks_failed"]) == (3, 1)
        assert (await rows(dsn, "SELECT stats FROM dagapp.dag_workers"))[0]["stats"] == {"memory": 5}


async def test_a_heartbeat_returns_revoked_tasks(dsn: str) -> None:
    async with web(dsn, single()) as api:
        await api.fleet.orchestrator()
        job_id = await submitted(api)
        worker = await registered_worker(api)
        [task] = await worker.claim()
        assert (await worker.beat(task["task_id"]))["withdrawn"] == []
        await api.post(f"/api/v1/jobs/{job_id}/cancel", {})
        await api.fleet.ended(job_id)
        assert (await worker.beat(task["task_id"], "nonsense"))["withdrawn"] == [task["task_id"], "nonsense"]


async def test_a_leaving_worker_returns_its_tasks(dsn: str) -> None:
    async with web(dsn, single()) as api:
        await api.fleet.orchestrator()
        job_id = await submitted(api)
        first, second = await registered_worker(api), await registered_worker(api)
        assert len(await first.claim()) == 1
        await first.leave()
        await first.beat(status=410)
        [again] = await second.claim()
        await second.report(done(again["task_id"]))
        await api.fleet.completed(job_id)


async def test_only_the_registering_key_can_act_for_a_worker(dsn: str) -> None:
    async with web(dsn) as api:
        first, second = await api.key("first", Role.WORKER), await api.key("second", Role.WORKER)
        worker = await registered_worker(api, first)
        await worker.beat()
        for headers in (second, await api.key("root")):
            stranger = HttpWorker(api, worker.id, headers)
            refused = await stranger.beat(status=403)
            assert "another API key" in refused["error"]["message"]
            for verb, body in (("claim", {"limit": 1}), ("results", []), ("progress", []), ("logs", [])):
                await stranger.post(verb, body, 403)
            await api.get(f"{WORKERS}/{worker.id}/tasks", 403, headers=headers)
            await api.ask("DELETE", f"{WORKERS}/{worker.id}", 403, headers=headers)
        await HttpWorker(api, "17", first).beat(status=404)


# Commands of operators


async def test_a_drained_worker_claims_nothing_until_resumed(dsn: str) -> None:
    async with web(dsn, single()) as api:
        await api.fleet.orchestrator()
        worker = await registered_worker(api)
        path = f"{WORKERS}/{worker.id}"
        assert await api.post(f"{path}/drain") == {"worker_id": worker.id, "wanted": "drain"}
        await submitted(api)
        await api.fleet.until("SELECT count(*) = 1 AS ok FROM dagapp.dag_tasks_waiting")
        assert await worker.claim(wait_seconds=0) == []
        assert (await worker.beat())["wanted"] == "drain"
        await api.post(f"{path}/resume")
        assert len(await worker.claim(wait_seconds=0)) == 1
        await api.post(f"{path}/stop")
        assert (await worker.beat())["wanted"] == "stop"
        audit = (await api.get("/api/v1/audit"))["items"]
        assert {entry["command"] for entry in audit} == {
            "workers.drain",
            "workers.resume",
            "workers.stop",
        }


async def test_an_unknown_worker_cannot_be_drained(dsn: str) -> None:
    async with web(dsn) as api:
        worker = await registered_worker(api)
        await worker.leave()
        await api.post(f"{WORKERS}/{worker.id}/drain", status=409)
        unknown = await api.post(f"{WORKERS}/17/stop", status=404)
        assert unknown["error"]["code"] == "unknown_worker"
        assert (await api.get("/api/v1/audit"))["items"] == []


async def test_no_key_can_act_for_a_worker_on_the_database(dsn: str) -> None:
    async with web(dsn, runs=True, functions={"slow": task}) as api:
        [listed] = (await api.get(f"{WORKERS}?status=active"))["items"]
        refused = await HttpWorker(api, listed["worker_id"], {}).beat(status=403)
        assert "is connected to the database" in refused["error"]["message"]
        await api.post(f"{WORKERS}/{listed['worker_id']}/drain")
