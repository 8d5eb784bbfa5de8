"""Claims and reports of a worker over HTTP."""

import asyncio
from time import monotonic
from typing import Any

import httpx
import pytest
from fleet import retry, rows, single
from http_worker import WORKERS, done, failed, registered_worker, submitted
from web import web

from dagmaster.model.access import Role
from dagmaster.web import remote_workers

# Claims


async def test_a_waiting_claim_is_woken_at_once(dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote_workers, "POLL_SECONDS", 60)
    async with web(dsn, single()) as api:
        await api.fleet.orchestrator()
        worker = await registered_worker(api)
        waiting = asyncio.create_task(worker.claim(wait_seconds=30))
        await api.fleet.until("SELECT count(*) > 0 AS ok FROM pg_stat_activity WHERE query = 'LISTEN dagmaster_tasks'")
        await submitted(api)
        assert len(await asyncio.wait_for(waiting, 60)) == 1


async def test_a_waiting_claim_holds_no_connection(dsn: str) -> None:
    async with web(dsn, api_pool_size=2) as api:
        workers = [await registered_worker(api) for _ in range(6)]
        waiting = [asyncio.create_task(worker.claim(wait_seconds=30)) for worker in workers]
        await asyncio.sleep(0.3)
        await api.get("/api/v1/jobs")
        assert not any(task.done() for task in waiting)
        for task in waiting:
            task.cancel()


async def test_a_claim_respects_its_limit_queues_and_handlers(dsn: str) -> None:
    others = (single("other", workflow_id="other"), single(workflow_id="elsewhere", queue="elsewhere"))
    async with web(dsn, single(), *others) as api:
        await api.fleet.orchestrator()
        for name in ("single", "single", "single", "other", "elsewhere"):
            await submitted(api, name)
        await api.fleet.until("SELECT count(*) = 5 AS ok FROM dagapp.dag_tasks_waiting")
        worker = await registered_worker(api)
        assert await worker.claim(0, wait_seconds=0) == []
        assert len(await worker.claim(2)) == 2
        assert len(await worker.claim(4)) == 1
        assert await worker.claim(4, wait_seconds=0) == []


async def test_a_claim_with_reports_returns_at_once(dsn: str) -> None:
    async with web(dsn, single()) as api:
        await api.fleet.orchestrator()
        job_id = await submitted(api)
        worker = await registered_worker(api)
        [task] = await worker.claim()
        began = monotonic()
        reply = await worker.post("claim", {"limit": 4, "wait_seconds": 30, "reports": [done(task["task_id"])]})
        assert monotonic() - began < 20
        assert (reply["tasks"], [entry["outcome"] for entry in reply["outcomes"]]) == ([], ["accepted"])
        await api.fleet.completed(job_id)


async def test_a_client_that_disconnects_while_claiming_loses_no_task(dsn: str) -> None:
    async with web(dsn, single()) as api, api.real_server() as url:
        await api.fleet.orchestrator()
        worker = await registered_worker(api)
        path = f"{url}{WORKERS}/{worker.id}/claim"
        async with httpx.AsyncClient() as client:
            with pytest.raises(httpx.ReadTimeout):
                await client.post(path, json={"limit": 4, "wait_seconds": 15}, timeout=httpx.Timeout(60, read=0.5))
        await submitted(api)
        # Whether or not the server noticed in time: the worker holds the task, or it still waits.
        found: list[Any] = []
        async with asyncio.timeout(60):
            while not found:
                found = await worker.claim(wait_seconds=1) or await worker.claimed()
        assert len(found) == 1


async def test_a_lost_claim_response_is_found_among_the_workers_tasks(dsn: str) -> None:
    async with web(dsn, single(params={"x": [1, None]})) as api:
        await api.fleet.orchestrator()
        await submitted(api)
        worker = await registered_worker(api)
        claimed = await worker.claim()
        assert (await api.get(f"{WORKERS}/{worker.id}/tasks"))["tasks"] == claimed


async def test_a_stopping_server_ends_waiting_claims(dsn: str) -> None:
    async with web(dsn) as api, httpx.AsyncClient(timeout=60) as client:
        worker = await registered_worker(api)
        async with api.real_server() as url:
            path = f"{url}{WORKERS}/{worker.id}/claim"
            waiting = asyncio.create_task(client.post(path, json={"limit": 1, "wait_seconds": 30}))
            await api.fleet.until("SELECT count(*) > 0 AS ok FROM pg_stat_activity WHERE query LIKE 'LISTEN %%'")
            began = monotonic()
        assert monotonic() - began < 20
        assert (await waiting).json() == {"tasks": [], "outcomes": []}


async def test_a_claim_notices_that_its_client_disconnected() -> None:
    answers = iter([False, True])

    async def is_given_up() -> bool:
        return next(answers)

    async with asyncio.timeout(60):
        assert not await remote_workers._is_signalled(asyncio.Event(), monotonic() + 600, is_given_up)


# Reports


async def test_a_report_can_be_repeated(dsn: str) -> None:
    async with web(dsn, single()) as api:
        await api.fleet.orchestrator()
        job_id = await submitted(api)
        worker = await registered_worker(api)
        [task] = await worker.claim()
        assert await worker.report(done(task["task_id"])) == ["accepted"]
        assert await worker.report(done(task["task_id"], output={"n": 8})) == ["over"]
        [job] = await api.fleet.completed(job_id)
        assert await worker.report(done(task["task_id"], output={"n": 9})) == ["over"]
        assert job["result_data"]["work"] == {"n": 7}
        await api.fleet.is_clean()
        assert "result_ignored work" not in await api.fleet.trace(job_id)


async def test_concurrent_identical_reports_count_once(dsn: str) -> None:
    async with web(dsn, single()) as api:
        await api.fleet.orchestrator()
        job_id = await submitted(api)
        worker = await registered_worker(api)
        [task] = await worker.claim()
        replies = await asyncio.gather(*(worker.report(done(task["task_id"])) for _ in range(5)))
        assert sorted(outcome for [outcome] in replies) == ["accepted", *["over"] * 4]
        await api.fleet.completed(job_id)


async def test_a_failure_reports_its_kind_and_metrics(dsn: str) -> None:
    async with web(dsn, single(retry=retry(1))) as api:
        await api.fleet.orchestrator()
        job_id = await submitted(api)
        worker = await registered_worker(api)
        [first] = await worker.claim()
        details = {"peak_memory_bytes": 4096, "cpu_seconds": 0.5, "metrics": {"rows": 3, "odd": "\u0000"}}
        error = "Traceback: password=hunter2 \u0000"
        names = ["MemoryError", "Exception"]
        await worker.report(failed(first["task_id"], error=error, error_types=names, details=details))
        [second] = await worker.claim()
        assert second["retry_count"] == 1
        await worker.report(failed(second["task_id"], permanent=True))
        [job] = await api.fleet.ended(job_id)
        assert job["status"] == "failed"
        [stored] = await rows(dsn, "SELECT * FROM dagapp.dag_task_results WHERE task_id = %s", first["task_id"])
        assert (stored["error_type"], stored["peak_memory_bytes"], stored["cpu_seconds"]) == ("MemoryError", 4096, 0.5)
        assert stored["metrics"] == {"rows": 3, "odd": "\ufffd"}
        assert "hunter2" not in stored["error_message"]


async def test_a_returned_task_costs_no_attempt(dsn: str) -> None:
    async with web(dsn, single()) as api:
        await api.fleet.orchestrator()
        job_id = await submitted(api)
        worker = await registered_worker(api)
        [first] = await worker.claim()
        assert await worker.report({"task_id": first["task_id"], "kind": "given_back"}) == ["accepted"]
        [second] = await worker.claim()
        await worker.report(done(second["task_id"]))
        await api.fleet.completed(job_id)


async def test_an_output_that_is_too_large_is_refused_alone(dsn: str) -> None:
    async with web(dsn, single(), max_output_bytes=1000) as api:
        await api.fleet.orchestrator()
        jobs = [await submitted(api), await submitted(api)]
        worker = await registered_worker(api)
        claimed: list[Any] = []
        while len(claimed) < 2:
            claimed += await worker.claim()
        large, small = (task["task_id"] for task in claimed)
        reply = await worker.post("results", [done(large, output={"x": "y" * 2000}), done(small)])
        assert [entry["outcome"] for entry in reply["outcomes"]] == ["refused", "accepted"]
        assert "the limit is 1,000" in reply["outcomes"][0]["reason"]
        assert await worker.claimed() == [large]
        assert await worker.report(failed(large, permanent=True)) == ["accepted"]
        assert {job["status"] for job in await api.fleet.ended(*jobs)} == {"completed", "failed"}


@pytest.mark.parametrize("task_id", ["17_work_0", "nonsense", "__", "1_work_x", "99999999999999999999_a_0", "1_\0_0"])
async def test_a_report_for_an_unknown_task_is_over(dsn: str, task_id: str) -> None:
    async with web(dsn) as api:
        worker = await registered_worker(api)
        assert await worker.report(done(task_id), failed(task_id)) == ["over", "over"]
        assert await rows(dsn, "SELECT * FROM dagapp.dag_mailbox") == []


async def test_a_report_for_a_task_of_another_key_is_refused(dsn: str) -> None:
    async with web(dsn, single()) as api:
        await api.fleet.orchestrator()
        operator = await api.key("me")
        submitted = await api.post("/api/v1/jobs", {"workflow_id": "single"}, 201, headers=operator)
        first, second = (
            await registered_worker(api, await api.key("a", Role.WORKER)),
            await registered_worker(api, await api.key("b", Role.WORKER)),
        )
        [task] = await first.claim()
        assert await second.report(done(task["task_id"], output={"n": "forged"})) == ["over"]
        assert await first.report(done(task["task_id"])) == ["accepted"]
        [job] = await api.fleet.completed(int(submitted["job_id"]))
        assert job["result_data"]["work"] == {"n": 7}


async def test_a_waiting_task_cannot_be_reported(dsn: str) -> None:
    async with web(dsn, single()) as api:
        await api.fleet.orchestrator()
        job_id = await submitted(api)
        await api.fleet.until("SELECT count(*) = 1 AS ok FROM dagapp.dag_tasks_waiting")
        worker = await registered_worker(api)
        assert await worker.report(done(f"{job_id}_work_0"), done(f"{job_id}_work_1")) == ["over", "over"]
        assert len(await worker.claim()) == 1


async def test_a_restarted_worker_can_report_for_its_predecessor_with_the_same_key(dsn: str) -> None:
    async with web(dsn, single()) as api:
        await api.fleet.orchestrator()
        job_id = await submitted(api)
        [task] = await (await registered_worker(api)).claim()
        heir = await registered_worker(api)
        assert await heir.report(done(task["task_id"])) == ["accepted"]
        await api.fleet.completed(job_id)


ODD = [b'"\\ud800"', b'"\\u0000"', b"1" + b"0" * 400, b"1e400", b"[" * 200 + b"]" * 200, b'{"\\u0000": null}']


@pytest.mark.parametrize("odd", ODD, ids=range(len(ODD)))
async def test_unusual_values_are_stored_or_refused(dsn: str, odd: bytes) -> None:
    async with web(dsn, single(retry=retry(1))) as api:
        await api.fleet.orchestrator()
        await submitted(api)
        worker = await registered_worker(api)
        [task] = await worker.claim()
        field = b'"task_id": "' + task["task_id"].encode() + b'"'
        bodies = {
            "heartbeat": b'{"stats": {"x": ' + odd + b"}}",
            "checkpoints": b"{" + field + b', "phase": "p", "data": {"x": ' + odd + b'}, "artifacts": [' + odd + b"]}",
            "results": b"[{" + field + b', "kind": "failed", "details": {"metrics": {"x": ' + odd + b"}}}]",
        }
        for verb, body in bodies.items():
            path, headers = f"{WORKERS}/{worker.id}/{verb}", {"content-type": "application/json"}
            answer = await api.client.post(path, content=body, headers=headers)
            assert answer.status_code in (200, 201, 422), answer.text
        [again] = await worker.claim()
        path = f"{WORKERS}/{worker.id}/results"
        field = b'"task_id": "' + again["task_id"].encode() + b'"'
        answer = await api.client.post(
            path, content=b"[{" + field + b', "kind": "completed", "output": {"x": ' + odd + b"}}]"
        )
        assert answer.status_code in (200, 422), answer.text
