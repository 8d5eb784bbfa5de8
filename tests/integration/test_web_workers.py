"""A worker that has nothing but HTTP: here it is httpx."""

import asyncio
from time import monotonic
from typing import Any

import httpx
import pytest
from fleet import chain, retry, rows, single, task
from web import Web, web

from dagmaster.model.access import Role
from dagmaster.web import working

WORKERS = "/api/v1/workers"
OFFER = {"hostname": "far", "pid": 7, "queues": ["q"], "handlers": ["echo"], "concurrency": 4}


class Far:
    """A registered worker, by hand."""

    def __init__(self, it: Web, worker_id: str, headers: dict[str, str]) -> None:
        self.it, self.id, self.headers = it, worker_id, headers

    async def post(self, verb: str, body: Any, status: int = 200) -> Any:
        return await self.it.post(f"{WORKERS}/{self.id}/{verb}", body, status, headers=self.headers)

    async def claim(self, limit: int = 4, wait_seconds: float = 10, **body: Any) -> list[dict[str, Any]]:
        said = await self.post("claim", {"limit": limit, "wait_seconds": wait_seconds, **body})
        return list(said["tasks"])

    async def report(self, *reports: dict[str, Any]) -> list[str]:
        return [one["outcome"] for one in (await self.post("results", list(reports)))["outcomes"]]

    async def beat(self, *running: str, status: int = 200, **counts: Any) -> Any:
        return await self.post("heartbeat", {"running": list(running), **counts}, status)

    async def held(self) -> list[str]:
        said = await self.it.get(f"{WORKERS}/{self.id}/tasks", headers=self.headers)
        return [one["task_id"] for one in said["tasks"]]

    async def leave(self) -> None:
        await self.it.ask("DELETE", f"{WORKERS}/{self.id}", 204, headers=self.headers)


async def far(it: Web, headers: dict[str, str] | None = None, **offer: Any) -> Far:
    said = await it.post(WORKERS, {**OFFER, **offer}, 201, headers=headers)
    return Far(it, said["worker_id"], headers or {})


async def submitted(it: Web, workflow_id: str = "single", **body: Any) -> int:
    return int((await it.post("/api/v1/jobs", {"workflow_id": workflow_id, **body}, 201))["job_id"])


def done(task_id: str, **fields: Any) -> dict[str, Any]:
    return {"task_id": task_id, "kind": "completed", "output": {"n": 7}, "duration_ms": 12, **fields}


def failed(task_id: str, **fields: Any) -> dict[str, Any]:
    return {"task_id": task_id, "kind": "failed", "error": "no", **fields}


async def test_a_whole_job_is_done_by_a_worker_made_of_httpx(dsn: str) -> None:
    async with web(dsn, chain(3, params={"x": 1})) as it:
        await it.fleet.orchestrator()
        key = await it.key("far", Role.WORKER)
        operator = await it.key("me")
        made = await it.post("/api/v1/jobs", {"workflow_id": "chain"}, 201, headers=operator)
        worker = await far(it, key)
        reports: list[dict[str, Any]] = []
        for _ in range(3):
            claimed: list[dict[str, Any]] = []
            while not claimed:
                claimed = await worker.claim(reports=reports)
                reports = []
            [one] = claimed
            assert (one["params"], one["handler"], one["queue"], one["checkpoint"]) == ({"x": 1}, "echo", "q", None)
            reports = [done(one["task_id"], output={"was": one["node_id"]})]
        assert await worker.report(*reports) == ["accepted"]
        [job] = await it.fleet.completed(int(made["job_id"]))
        assert job["result_data"]["n2"] == {"was": "n2"}
        await worker.leave()
        await it.fleet.is_clean()


async def test_registering_tells_all_that_a_worker_has_to_keep_to(dsn: str) -> None:
    async with web(dsn, max_output_bytes=10_000_000, max_body_bytes=1_000_000, worker_lost_after_seconds=77) as it:
        said = await it.post(WORKERS, OFFER, 201)
        assert said["protocol"] == 1
        assert said["lost_after_seconds"] == 77
        assert said["heartbeat_interval_seconds"] < 77
        assert 0 < said["max_output_bytes"] < said["max_body_bytes"] == 1_000_000
        [shown] = (await it.get(f"{WORKERS}?status=active"))["items"]
        assert (shown["hostname"], shown["pid"], shown["queues"], shown["handlers"]) == ("far", 7, ["q"], ["echo"])
        [stored] = await rows(dsn, "SELECT host_key FROM dagapp.dag_workers")
        assert stored["host_key"] == f"http-{said['worker_id']}"


@pytest.mark.parametrize(
    "wrong", [{"queues": []}, {"handlers": []}, {"concurrency": 0}, {"pid": -1}, {"hostname": ""}, {"more": 1}]
)
async def test_an_offer_that_makes_no_sense_is_refused(dsn: str, wrong: dict[str, Any]) -> None:
    async with web(dsn) as it:
        refused = await it.post(WORKERS, {**OFFER, **wrong}, 422)
        assert next(iter(wrong)) in refused["error"]["message"]


# Claims


async def test_a_claim_that_waits_is_woken_at_once(dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(working, "POLL_SECONDS", 60)
    async with web(dsn, single()) as it:
        await it.fleet.orchestrator()
        worker = await far(it)
        waiting = asyncio.create_task(worker.claim(wait_seconds=30))
        await it.fleet.until("SELECT count(*) > 0 AS ok FROM pg_stat_activity WHERE query = 'LISTEN dagmaster_tasks'")
        await submitted(it)
        assert len(await asyncio.wait_for(waiting, 20)) == 1


async def test_a_claim_that_waits_holds_no_connection(dsn: str) -> None:
    async with web(dsn, api_pool_size=2) as it:
        workers = [await far(it) for _ in range(6)]
        waiting = [asyncio.create_task(worker.claim(wait_seconds=15)) for worker in workers]
        await asyncio.sleep(0.3)
        await it.get("/api/v1/jobs")
        assert not any(task.done() for task in waiting)
        for task in waiting:
            task.cancel()


async def test_a_claim_gets_no_more_than_it_asked_for_and_only_what_the_worker_takes(dsn: str) -> None:
    others = (single("other", workflow_id="other"), single(workflow_id="elsewhere", queue="elsewhere"))
    async with web(dsn, single(), *others) as it:
        await it.fleet.orchestrator()
        for name in ("single", "single", "single", "other", "elsewhere"):
            await submitted(it, name)
        await it.fleet.until("SELECT count(*) = 5 AS ok FROM dagapp.dag_tasks_waiting")
        worker = await far(it)
        assert await worker.claim(0, wait_seconds=0) == []
        assert len(await worker.claim(2)) == 2
        assert len(await worker.claim(4)) == 1
        assert await worker.claim(4, wait_seconds=0) == []


async def test_a_claim_with_reports_is_answered_at_once(dsn: str) -> None:
    async with web(dsn, single()) as it:
        await it.fleet.orchestrator()
        job_id = await submitted(it)
        worker = await far(it)
        [one] = await worker.claim()
        began = monotonic()
        said = await worker.post("claim", {"limit": 4, "wait_seconds": 10, "reports": [done(one["task_id"])]})
        assert monotonic() - began < 5
        assert (said["tasks"], [one["outcome"] for one in said["outcomes"]]) == ([], ["accepted"])
        await it.fleet.completed(job_id)


async def test_who_hangs_up_while_it_waits_loses_nothing(dsn: str) -> None:
    async with web(dsn, single()) as it, it.real_server() as url:
        await it.fleet.orchestrator()
        worker = await far(it)
        path = f"{url}{WORKERS}/{worker.id}/claim"
        async with httpx.AsyncClient() as client:
            with pytest.raises(httpx.ReadTimeout):
                await client.post(path, json={"limit": 4, "wait_seconds": 15}, timeout=0.5)
        await submitted(it)
        # Whether the claim noticed in time or not: the task is this worker's, or still waits.
        claimed = [one["task_id"] for one in await worker.claim(wait_seconds=1)]
        assert len(claimed or await worker.held()) == 1


async def test_an_answer_that_got_lost_is_found_among_the_tasks(dsn: str) -> None:
    async with web(dsn, single(params={"x": [1, None]})) as it:
        await it.fleet.orchestrator()
        await submitted(it)
        worker = await far(it)
        claimed = await worker.claim()
        assert (await it.get(f"{WORKERS}/{worker.id}/tasks"))["tasks"] == claimed


async def test_a_server_that_stops_lets_nobody_wait(dsn: str) -> None:
    async with web(dsn) as it, httpx.AsyncClient(timeout=20) as client:
        worker = await far(it)
        async with it.real_server() as url:
            path = f"{url}{WORKERS}/{worker.id}/claim"
            waiting = asyncio.create_task(client.post(path, json={"limit": 1, "wait_seconds": 20}))
            await it.fleet.until("SELECT count(*) > 0 AS ok FROM pg_stat_activity WHERE query LIKE 'LISTEN %%'")
            began = monotonic()
        assert monotonic() - began < 4
        assert (await waiting).json() == {"tasks": [], "outcomes": []}


# Reports


async def test_a_report_may_be_sent_again(dsn: str) -> None:
    async with web(dsn, single()) as it:
        await it.fleet.orchestrator()
        job_id = await submitted(it)
        worker = await far(it)
        [one] = await worker.claim()
        assert await worker.report(done(one["task_id"])) == ["accepted"]
        assert await worker.report(done(one["task_id"], output={"n": 8})) == ["over"]
        [job] = await it.fleet.completed(job_id)
        assert await worker.report(done(one["task_id"], output={"n": 9})) == ["over"]
        assert job["result_data"]["work"] == {"n": 7}
        await it.fleet.is_clean()
        assert "result_ignored work" not in await it.fleet.trace(job_id)


async def test_two_who_send_the_same_report_at_once_are_heard_once(dsn: str) -> None:
    async with web(dsn, single()) as it:
        await it.fleet.orchestrator()
        job_id = await submitted(it)
        worker = await far(it)
        [one] = await worker.claim()
        heard = await asyncio.gather(*(worker.report(done(one["task_id"])) for _ in range(5)))
        assert sorted(outcome for [outcome] in heard) == ["accepted", *["over"] * 4]
        await it.fleet.completed(job_id)


async def test_a_failure_tells_its_kind_and_its_measures(dsn: str) -> None:
    async with web(dsn, single(retry=retry(1))) as it:
        await it.fleet.orchestrator()
        job_id = await submitted(it)
        worker = await far(it)
        [first] = await worker.claim()
        details = {"peak_memory_bytes": 4096, "cpu_seconds": 0.5, "metrics": {"rows": 3, "odd": "\u0000"}}
        error = "Traceback: password=hunter2 \u0000"
        names = ["MemoryError", "Exception"]
        await worker.report(failed(first["task_id"], error=error, error_types=names, details=details))
        [second] = await worker.claim()
        assert second["retry_count"] == 1
        await worker.report(failed(second["task_id"], permanent=True))
        [job] = await it.fleet.ended(job_id)
        assert job["status"] == "failed"
        [kept] = await rows(dsn, "SELECT * FROM dagapp.dag_task_results WHERE task_id = %s", first["task_id"])
        assert (kept["error_type"], kept["peak_memory_bytes"], kept["cpu_seconds"]) == ("MemoryError", 4096, 0.5)
        assert kept["metrics"] == {"rows": 3, "odd": "\ufffd"}
        assert "hunter2" not in kept["error_message"]


async def test_what_is_given_back_costs_no_attempt(dsn: str) -> None:
    async with web(dsn, single()) as it:
        await it.fleet.orchestrator()
        job_id = await submitted(it)
        worker = await far(it)
        [first] = await worker.claim()
        assert await worker.report({"task_id": first["task_id"], "kind": "given_back"}) == ["accepted"]
        [second] = await worker.claim()
        await worker.report(done(second["task_id"]))
        await it.fleet.completed(job_id)


async def test_an_output_that_is_too_large_is_refused_alone(dsn: str) -> None:
    async with web(dsn, single(), max_output_bytes=1000) as it:
        await it.fleet.orchestrator()
        jobs = [await submitted(it), await submitted(it)]
        worker = await far(it)
        claimed = []
        while len(claimed) < 2:
            claimed += await worker.claim()
        large, small = (one["task_id"] for one in claimed)
        said = await worker.post("results", [done(large, output={"x": "y" * 2000}), done(small)])
        assert [one["outcome"] for one in said["outcomes"]] == ["refused", "accepted"]
        assert "the limit is 1,000" in said["outcomes"][0]["reason"]
        assert await worker.held() == [large]
        assert await worker.report(failed(large, permanent=True)) == ["accepted"]
        assert {job["status"] for job in await it.fleet.ended(*jobs)} == {"completed", "failed"}


@pytest.mark.parametrize("task_id", ["17_work_0", "nonsense", "__", "1_work_x", "99999999999999999999_a_0", "1_\0_0"])
async def test_a_task_that_never_was_is_over(dsn: str, task_id: str) -> None:
    async with web(dsn) as it:
        worker = await far(it)
        assert await worker.report(done(task_id), failed(task_id)) == ["over", "over"]
        assert await rows(dsn, "SELECT * FROM dagapp.dag_mailbox") == []


async def test_nobody_reports_for_a_task_that_a_worker_with_another_key_has(dsn: str) -> None:
    async with web(dsn, single()) as it:
        await it.fleet.orchestrator()
        operator = await it.key("me")
        made = await it.post("/api/v1/jobs", {"workflow_id": "single"}, 201, headers=operator)
        first, second = await far(it, await it.key("a", Role.WORKER)), await far(it, await it.key("b", Role.WORKER))
        [one] = await first.claim()
        assert await second.report(done(one["task_id"], output={"n": "forged"})) == ["over"]
        assert await first.report(done(one["task_id"])) == ["accepted"]
        [job] = await it.fleet.completed(int(made["job_id"]))
        assert job["result_data"]["work"] == {"n": 7}


async def test_a_task_that_still_waits_cannot_be_reported(dsn: str) -> None:
    async with web(dsn, single()) as it:
        await it.fleet.orchestrator()
        job_id = await submitted(it)
        await it.fleet.until("SELECT count(*) = 1 AS ok FROM dagapp.dag_tasks_waiting")
        worker = await far(it)
        assert await worker.report(done(f"{job_id}_work_0"), done(f"{job_id}_work_1")) == ["over", "over"]
        assert len(await worker.claim()) == 1


async def test_a_process_that_died_is_spoken_for_by_the_next_with_its_key(dsn: str) -> None:
    async with web(dsn, single()) as it:
        await it.fleet.orchestrator()
        job_id = await submitted(it)
        [one] = await (await far(it)).claim()
        heir = await far(it)
        assert await heir.report(done(one["task_id"])) == ["accepted"]
        await it.fleet.completed(job_id)


ODD = [b'"\\ud800"', b'"\\u0000"', b"1" + b"0" * 400, b"1e400", b"[" * 200 + b"]" * 200, b'{"\\u0000": null}']


@pytest.mark.parametrize("odd", ODD, ids=range(len(ODD)))
async def test_odd_values_are_stored_or_refused(dsn: str, odd: bytes) -> None:
    async with web(dsn, single(retry=retry(1))) as it:
        await it.fleet.orchestrator()
        await submitted(it)
        worker = await far(it)
        [one] = await worker.claim()
        task = b'"task_id": "' + one["task_id"].encode() + b'"'
        bodies = {
            "heartbeat": b'{"stats": {"x": ' + odd + b"}}",
            "checkpoints": b"{" + task + b', "phase": "p", "data": {"x": ' + odd + b'}, "artifacts": [' + odd + b"]}",
            "results": b"[{" + task + b', "kind": "failed", "details": {"metrics": {"x": ' + odd + b"}}}]",
        }
        for verb, body in bodies.items():
            path, headers = f"{WORKERS}/{worker.id}/{verb}", {"content-type": "application/json"}
            answer = await it.client.post(path, content=body, headers=headers)
            assert answer.status_code in (200, 201, 422), answer.text
        [again] = await worker.claim()
        path = f"{WORKERS}/{worker.id}/results"
        task = b'"task_id": "' + again["task_id"].encode() + b'"'
        answer = await it.client.post(
            path, content=b"[{" + task + b', "kind": "completed", "output": {"x": ' + odd + b"}}]"
        )
        assert answer.status_code in (200, 422), answer.text


# A worker's life


async def test_a_worker_that_does_not_beat_is_given_up_and_told_so(dsn: str) -> None:
    async with web(dsn, single(retry=retry(1))) as it:
        await it.fleet.orchestrator(worker_lost_after_seconds=0.6)
        job_id = await submitted(it)
        worker = await far(it)
        [first] = await worker.claim()
        await it.fleet.until("SELECT count(*) = 1 AS ok FROM dagapp.dag_workers WHERE status = 'lost'")
        await worker.beat(status=410)
        gone = await worker.post("claim", {"limit": 1}, 410)
        assert gone["error"]["code"] == "worker_gone"
        await worker.post("results", [done(first["task_id"])], 410)
        again = await far(it)
        [second] = await again.claim()
        assert second["retry_count"] == 1
        assert await again.report(done(first["task_id"], output={"n": "late"})) == ["over"]
        assert await again.report(done(second["task_id"])) == ["accepted"]
        [job] = await it.fleet.completed(job_id)
        assert job["result_data"]["work"] == {"n": 7}
        assert "result_ignored work" in await it.fleet.trace(job_id)


async def test_a_heartbeat_keeps_the_worker_and_shows_how_it_is(dsn: str) -> None:
    async with web(dsn) as it:
        worker = await far(it)
        assert await worker.beat(completed=3, failed=1, stats={"memory": 5}) == {"withdrawn": [], "wanted": "run"}
        await worker.beat()
        [shown] = (await it.get(WORKERS))["items"]
        assert (shown["tasks_completed"], shown["tasks_failed"]) == (3, 1)
        assert (await rows(dsn, "SELECT stats FROM dagapp.dag_workers"))[0]["stats"] == {"memory": 5}


async def test_a_heartbeat_tells_what_was_withdrawn(dsn: str) -> None:
    async with web(dsn, single()) as it:
        await it.fleet.orchestrator()
        job_id = await submitted(it)
        worker = await far(it)
        [one] = await worker.claim()
        assert (await worker.beat(one["task_id"]))["withdrawn"] == []
        await it.post(f"/api/v1/jobs/{job_id}/cancel", {})
        await it.fleet.ended(job_id)
        assert (await worker.beat(one["task_id"], "nonsense"))["withdrawn"] == [one["task_id"], "nonsense"]


async def test_who_leaves_gives_back_what_it_holds(dsn: str) -> None:
    async with web(dsn, single()) as it:
        await it.fleet.orchestrator()
        job_id = await submitted(it)
        first, second = await far(it), await far(it)
        assert len(await first.claim()) == 1
        await first.leave()
        await first.beat(status=410)
        [again] = await second.claim()
        await second.report(done(again["task_id"]))
        await it.fleet.completed(job_id)


async def test_only_the_key_that_came_with_a_worker_speaks_for_it(dsn: str) -> None:
    async with web(dsn) as it:
        first, second = await it.key("first", Role.WORKER), await it.key("second", Role.WORKER)
        worker = await far(it, first)
        await worker.beat()
        for headers in (second, await it.key("root")):
            stranger = Far(it, worker.id, headers)
            refused = await stranger.beat(status=403)
            assert "another key" in refused["error"]["message"]
            for verb, body in (("claim", {"limit": 1}), ("results", []), ("progress", []), ("logs", [])):
                await stranger.post(verb, body, 403)
            await it.get(f"{WORKERS}/{worker.id}/tasks", 403, headers=headers)
            await it.ask("DELETE", f"{WORKERS}/{worker.id}", 403, headers=headers)
        await Far(it, "17", first).beat(status=404)


# While a task runs


async def test_progress_and_checkpoints_of_a_task(dsn: str) -> None:
    async with web(dsn, single(retry=retry(2))) as it:
        await it.fleet.orchestrator()
        job_id = await submitted(it)
        worker = await far(it)
        [first] = await worker.claim()
        task_id = first["task_id"]
        await worker.post("progress", [{"task_id": task_id, "current": 3, "total": 12, "message": "page 3"}], 204)
        said = await it.get(f"/api/v1/jobs/{job_id}/nodes/work/progress")
        assert (said["progress_percent"], said["progress_message"]) == (25.0, "page 3")
        checkpoints = [
            {"task_id": task_id, "phase": "one", "data": {"n": 1}},
            {"task_id": task_id, "phase": "two", "data": {"n": 2, "odd": "\u0000"}, "artifacts": [{"path": "x"}]},
        ]
        saved = [await worker.post("checkpoints", one, 201) for one in checkpoints]
        await worker.report(failed(task_id))
        [second] = await worker.claim()
        assert second["checkpoint"] == {
            "checkpoint_id": saved[1]["checkpoint_id"],
            "phase": "two",
            "data": {"n": 2, "odd": "\ufffd"},
            "artifacts": [{"path": "x"}],
        }
        body = {"task_id": second["task_id"], "reason": "x is gone"}
        before = await worker.post(f"checkpoints/{saved[1]['checkpoint_id']}/discard", body)
        assert (before["checkpoint"]["phase"], before["checkpoint"]["data"]) == ("one", {"n": 1})
        none = await worker.post(f"checkpoints/{saved[0]['checkpoint_id']}/discard", body)
        assert none == {"checkpoint": None}


async def test_of_a_task_that_is_not_the_workers_nothing_is_kept(dsn: str) -> None:
    async with web(dsn, single(), max_output_bytes=1000) as it:
        await it.fleet.orchestrator()
        job_id = await submitted(it)
        holder, other = await far(it), await far(it)
        [one] = await holder.claim()
        task_id = one["task_id"]
        await other.post("progress", [{"task_id": task_id, "current": 1, "message": "forged"}], 204)
        assert await rows(dsn, "SELECT * FROM dagapp.dag_task_results") == []
        refused = await other.post("checkpoints", {"task_id": task_id, "phase": "x"}, 409)
        assert refused["error"]["code"] == "task_over"
        await other.post("checkpoints/1/discard", {"task_id": task_id, "reason": "x"}, 409)
        await holder.post("checkpoints", {"task_id": task_id, "phase": "x", "data": {"x": "y" * 2000}}, 413)
        await holder.post("checkpoints", {"task_id": "nonsense", "phase": "x"}, 409)
        await holder.report(done(task_id))
        await it.fleet.completed(job_id)
        await holder.post("checkpoints", {"task_id": task_id, "phase": "late"}, 409)
        assert await rows(dsn, "SELECT * FROM dagapp.dag_checkpoints") == []


async def test_a_log_is_kept_once_however_often_it_is_sent(dsn: str) -> None:
    async with web(dsn, single()) as it:
        await it.fleet.orchestrator()
        job_id = await submitted(it)
        worker = await far(it)
        [one] = await worker.claim()
        task_id = one["task_id"]
        first = {"task_id": task_id, "offset": 0, "text": "one\n"}
        second = {"task_id": task_id, "offset": 4, "data": "AP8K"}
        said = await worker.post("logs", [first, first, second])
        assert said["logs"][-1] == {"task_id": task_id, "outcome": "accepted", "size": 7}
        await worker.post("logs", [second, {"task_id": task_id, "offset": 4, "data": "AP8KIQ=="}])
        await worker.report(done(task_id, details={"has_log": True}))
        await it.fleet.completed(job_id)
        late = await worker.post("logs", [{"task_id": task_id, "offset": 8, "text": "?\n"}])
        assert late["logs"][0]["outcome"] == "accepted"
        assert await it.services.task_logs.read(task_id) == b"one\n\x00\xff\n!?\n"
        [kept] = await rows(dsn, "SELECT log_path FROM dagapp.dag_task_results")
        assert kept["log_path"] == it.services.task_logs.path_of(task_id)


async def test_the_log_of_another_workers_task_is_not_touched(dsn: str) -> None:
    async with web(dsn, single()) as it:
        await it.fleet.orchestrator()
        await submitted(it)
        holder, other = await far(it), await far(it)
        [one] = await holder.claim()
        for task_id in (one["task_id"], "../../etc/passwd"):
            said = await other.post("logs", [{"task_id": task_id, "offset": 0, "text": "forged"}])
            assert said["logs"] == [{"task_id": task_id, "outcome": "over", "size": 0}]
        assert await it.services.task_logs.size(one["task_id"]) is None


async def test_a_log_is_bounded_by_the_server(dsn: str) -> None:
    async with web(dsn, single(), log_max_bytes=1000) as it:
        await it.fleet.orchestrator()
        await submitted(it)
        worker = await far(it)
        [one] = await worker.claim()
        for offset in range(0, 100_000, 10_000):
            said = await worker.post("logs", [{"task_id": one["task_id"], "offset": offset, "text": "x" * 10_000}])
        assert said["logs"][0]["outcome"] == "over"
        assert await it.services.task_logs.size(one["task_id"]) == said["logs"][0]["size"] < 10_000


@pytest.mark.parametrize("wrong", [{}, {"text": "x", "data": "eA=="}, {"data": "no base64!"}])
async def test_a_piece_of_log_is_text_or_data(dsn: str, wrong: dict[str, str]) -> None:
    async with web(dsn) as it:
        await (await far(it)).post("logs", [{"task_id": "1_a_0", "offset": 0, **wrong}], 422)


# What operators ask of it


async def test_a_drained_worker_gets_nothing_until_it_is_resumed(dsn: str) -> None:
    async with web(dsn, single()) as it:
        await it.fleet.orchestrator()
        worker = await far(it)
        path = f"{WORKERS}/{worker.id}"
        assert await it.post(f"{path}/drain") == {"worker_id": worker.id, "wanted": "drain"}
        await submitted(it)
        await it.fleet.until("SELECT count(*) = 1 AS ok FROM dagapp.dag_tasks_waiting")
        assert await worker.claim(wait_seconds=0) == []
        assert (await worker.beat())["wanted"] == "drain"
        await it.post(f"{path}/resume")
        assert len(await worker.claim(wait_seconds=0)) == 1
        await it.post(f"{path}/stop")
        assert (await worker.beat())["wanted"] == "stop"
        audit = (await it.get("/api/v1/audit"))["items"]
        assert {entry["command"] for entry in audit} == {
            "workers.drain",
            "workers.resume",
            "workers.stop",
        }


async def test_a_worker_that_is_not_there_cannot_be_drained(dsn: str) -> None:
    async with web(dsn) as it:
        worker = await far(it)
        await worker.leave()
        await it.post(f"{WORKERS}/{worker.id}/drain", status=409)
        unknown = await it.post(f"{WORKERS}/17/stop", status=404)
        assert unknown["error"]["code"] == "unknown_worker"
        assert (await it.get("/api/v1/audit"))["items"] == []


async def test_a_worker_on_the_database_is_nobodys_to_speak_for(dsn: str) -> None:
    async with web(dsn, runs=True, functions={"slow": task}) as it:
        [shown] = (await it.get(f"{WORKERS}?status=active"))["items"]
        refused = await Far(it, shown["worker_id"], {}).beat(status=403)
        assert "works on the database" in refused["error"]["message"]
        await it.post(f"{WORKERS}/{shown['worker_id']}/drain")
