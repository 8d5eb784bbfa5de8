from typing import Any

import pytest
from fleet import retry, rows, single
from web import Web, web

from dagmaster.engine.change_set import Rules
from dagmaster.model.access import Role
from dagmaster.store.connect import opened
from dagmaster.store.statements import fetch


async def waiting(api: Web, **options: Any) -> str:
    """The task of a job without workers."""
    submitted = await api.post("/api/v1/jobs", {"workflow_id": "single"}, 201)
    task_id = f"{submitted['job_id']}_work_{options.get('attempt', 0)}"
    await api.fleet.until(f"SELECT count(*) = 1 AS ok FROM dagapp.dag_tasks_waiting WHERE task_id = '{task_id}'")
    return task_id


def job_of(task_id: str) -> int:
    return int(task_id.partition("_")[0])


async def ignored(api: Web, task_id: str) -> list[dict[str, Any]]:
    path = f"/api/v1/jobs/{job_of(task_id)}/timeline?event_types=result_ignored"
    return (await api.get(path))["events"]


def result(task_id: str, **fields: Any) -> dict[str, Any]:
    return {"task_id": task_id, "status": "completed", "output": {"n": 7}, **fields}


RESULT, PROGRESS, CHECKPOINT = (f"/api/v1/callbacks/{name}" for name in ("task-result", "task-progress", "checkpoint"))


async def test_the_first_report_counts_before_its_owner_reads_it(dsn: str) -> None:
    async with web(dsn, single()) as api:
        role = await api.fleet.orchestrator()
        task_id = await waiting(api)
        await role.kill()
        assert not (await api.post(RESULT, result(task_id), 202))["duplicate"]
        await api.post(RESULT, result(task_id, output={"n": 8}), 409)
        assert (await api.post(RESULT, result(task_id), 202))["duplicate"]
        [noted] = await ignored(api, task_id)
        assert not noted["data"]["kept"]


async def test_an_external_result_ends_the_task_once(dsn: str) -> None:
    async with web(dsn, single()) as api:
        await api.fleet.orchestrator()
        task_id = await waiting(api)
        report = result(task_id, worker_id="far", execution_duration_ms=12)
        assert await api.post(RESULT, report, 202) == {"task_id": task_id, "accepted": True, "duplicate": False}
        assert (await api.post(RESULT, report, 202))["duplicate"]
        refused = await api.post(RESULT, result(task_id, output={"n": 8}), 409)
        assert refused["error"]["code"] == "task_over"
        [job] = await api.fleet.completed(job_of(task_id))
        assert (await api.fleet.nodes(job["job_id"]))["work"]["output"] == {"n": 7}
        assert (await api.post(RESULT, result(task_id), 202))["duplicate"]
        await api.post(RESULT, result(task_id, output={"n": 8}), 409)
        assert len(await ignored(api, task_id)) == 1
        await api.fleet.is_clean()


async def test_the_documented_worker_message_is_accepted(dsn: str) -> None:
    async with web(dsn, single()) as api:
        await api.fleet.orchestrator()
        task_id = await waiting(api)
        message = {
            "task_id": task_id,
            "job_id": str(job_of(task_id)),
            "node_id": "work",
            "status": "completed",
            "output": {"n": 7},
            "error_message": None,
            "worker_id": "far",
            "execution_duration_ms": 12,
            "progress": {"progress_current": 4, "progress_total": 4},
            "checkpoint": {"phase_name": "last", "state_data": {"at": 4}},
        }
        for wrong in ({"job_id": "17"}, {"node_id": "other"}, {"status": "failed"}, {"error_message": "no"}):
            await api.post(RESULT, {**message, **wrong}, 422)
        await api.post(RESULT, {**message, "job_id": job_of(task_id)}, 202)
        await api.fleet.completed(job_of(task_id))
        node = await api.get(f"/api/v1/jobs/{job_of(task_id)}/nodes/work")
        assert (node["checkpoint_phase"], node["attempts"][0]["progress_percent"]) == ("last", 100.0)
        assert (await api.post(RESULT, message, 202))["duplicate"]


@pytest.mark.parametrize(
    "path, sign",
    [
        ("task-result", {"status": "running"}),
        ("task-result", {"status": "running", "progress": 25}),
        ("task-progress", {"progress_current": 1}),
        ("checkpoint", {"phase_name": "first"}),
    ],
)
async def test_any_report_of_progress_starts_the_node(dsn: str, path: str, sign: dict[str, Any]) -> None:
    async with web(dsn, single()) as api:
        await api.fleet.orchestrator()
        task_id = await waiting(api)
        status = 202 if path == "task-result" else 200
        await api.post(f"/api/v1/callbacks/{path}", {"task_id": task_id, **sign}, status)
        await api.fleet.until(
            "SELECT status = 'running' AND started_at IS NOT NULL AS ok FROM dagapp.dag_node_states "
            "WHERE node_id = 'work'"
        )


async def test_an_externally_running_task_is_neither_claimed_nor_lost(dsn: str) -> None:
    async with web(dsn, single()) as api:
        await api.fleet.orchestrator()
        task_id = await waiting(api)
        assert not (await api.post(RESULT, {"task_id": task_id, "status": "running"}, 202))["duplicate"]
        assert (await api.post(RESULT, {"task_id": task_id, "status": "running"}, 202))["duplicate"]
        await api.fleet.until("SELECT status = 'running' AS ok FROM dagapp.dag_node_states WHERE node_id = 'work'")
        await api.fleet.worker()
        async with opened(dsn, application="test") as conn:
            assert await fetch(conn, "rescue_tasks") == []
        [task] = (await api.get("/api/v1/tasks"))["items"]
        assert (task["task_id"], task["state"], task["worker_id"]) == (task_id, "running", None)
        await api.post(RESULT, result(task_id), 202)
        [job] = await api.fleet.completed(job_of(task_id))
        assert job["result_data"]["work"] == {"n": 7}
        await api.fleet.is_clean()


@pytest.mark.parametrize("names", [(None, "far"), ("far", None), (None, "far", None)])
async def test_the_worker_of_an_attempt_is_the_named_one(dsn: str, names: tuple[str | None, ...]) -> None:
    async with web(dsn, single()) as api:
        await api.fleet.orchestrator()
        task_id = await waiting(api)
        *progressed, last = names
        for percent, name in enumerate(progressed):
            await api.post(
                RESULT, {"task_id": task_id, "status": "running", "progress": percent, "worker_id": name}, 202
            )
        await api.post(RESULT, result(task_id, worker_id=last), 202)
        await api.fleet.completed(job_of(task_id))
        [attempt] = (await api.get(f"/api/v1/jobs/{job_of(task_id)}/nodes/work"))["attempts"]
        assert attempt["worker_id"] == "far"


async def test_a_report_of_a_superseded_attempt_is_refused_and_recorded(dsn: str) -> None:
    async with web(dsn, single(timeout_seconds=1, retry=retry(1))) as api:
        await api.fleet.orchestrator(rules=Rules(timeout_grace_seconds=0))
        first = await waiting(api)
        second = first[:-1] + "1"
        await api.post(RESULT, {"task_id": first, "status": "running", "progress": 50}, 202)
        await api.fleet.until(f"SELECT count(*) = 1 AS ok FROM dagapp.dag_tasks_waiting WHERE task_id = '{second}'")
        path = f"/api/v1/jobs/{job_of(first)}/nodes/work"
        [attempt] = (await api.get(path))["attempts"]
        assert (attempt["status"], attempt["error_message"]) == ("failed", "timed out after 1 s")
        for _ in range(2):
            refused = await api.post(RESULT, result(first), 409)
            assert second in refused["error"]["message"]
        [noted] = await ignored(api, first)
        assert "superseded" in noted["message"]
        [stored] = await rows(dsn, "SELECT status, output, ended_by FROM dagapp.dag_task_results")
        assert stored == {"status": "completed", "output": {"n": 7}, "ended_by": "result"}
        await api.post(RESULT, result(second, output={"n": 9}), 202)
        [job] = await api.fleet.completed(job_of(first))
        assert job["result_data"]["work"] == {"n": 9}
        await api.fleet.is_clean()


async def test_a_report_for_a_cancelled_job_is_kept_and_recorded(dsn: str) -> None:
    async with web(dsn, single()) as api:
        await api.fleet.orchestrator()
        task_id = await waiting(api)
        await api.post(f"/api/v1/jobs/{job_of(task_id)}/cancel", {})
        await api.fleet.ended(job_of(task_id))
        await api.post(RESULT, result(task_id), 409)
        assert len(await ignored(api, task_id)) == 1
        [kept] = await rows(dsn, "SELECT output, ended_by FROM dagapp.dag_task_results")
        assert kept == {"output": {"n": 7}, "ended_by": "result"}


async def test_an_attempt_that_ended_without_a_result_is_listed(dsn: str) -> None:
    async with web(dsn, single()) as api:
        await api.fleet.orchestrator()
        task_id = await waiting(api)
        path = f"/api/v1/jobs/{job_of(task_id)}"
        await api.post(RESULT, {"task_id": task_id, "status": "running", "worker_id": "far"}, 202)
        await api.fleet.until("SELECT status = 'running' AS ok FROM dagapp.dag_node_states WHERE node_id = 'work'")
        await api.post(f"{path}/cancel", {})
        await api.fleet.ended(job_of(task_id))
        [attempt] = (await api.get(f"{path}/nodes/work"))["attempts"]
        assert (attempt["task_id"], attempt["status"], attempt["ended_by"]) == (task_id, "failed", "cancelled")
        assert (attempt["worker_id"], attempt["error_message"]) == ("far", "stopped because the job was cancelled")
        [listed] = (await api.get(f"{path}/nodes/work/attempts"))["items"]
        assert (listed["attempt"], listed["ended_by"]) == (1, "cancelled")
        assert (await api.get(f"{path}/nodes/END"))["attempts"] == []


async def test_a_failure_is_retried_and_a_late_result_of_the_first_attempt_is_refused(dsn: str) -> None:
    async with web(dsn, single(retry=retry(1))) as api:
        await api.fleet.orchestrator()
        first = await waiting(api)
        await api.post(RESULT, {"task_id": first, "status": "failed", "error_message": "no\u0000pe"}, 202)
        second = first[:-1] + "1"
        await api.fleet.until(f"SELECT count(*) = 1 AS ok FROM dagapp.dag_tasks_waiting WHERE task_id = '{second}'")
        await api.post(RESULT, result(first), 409)
        await api.post(PROGRESS, {"task_id": first, "progress_current": 1}, 409)
        await api.post(CHECKPOINT, {"task_id": first, "phase_name": "x"}, 409)
        await api.post(RESULT, {"task_id": second, "status": "failed", "error_message": "no", "permanent": True}, 202)
        [job] = await api.fleet.ended(job_of(first))
        assert job["status"] == "failed"


async def test_reports_on_an_ended_attempt_are_answered_before_the_next_one(dsn: str) -> None:
    async with web(dsn, single(retry=retry(1, delay=200))) as api:
        await api.fleet.orchestrator()
        task_id = await waiting(api)
        failure = {"task_id": task_id, "status": "failed", "error_message": "no"}
        await api.post(RESULT, failure, 202)
        await api.fleet.until("SELECT status = 'ready' AS ok FROM dagapp.dag_node_states WHERE node_id = 'work'")
        assert (await api.post(RESULT, failure, 202))["duplicate"]
        refused = await api.post(RESULT, result(task_id), 409)
        assert refused["error"]["message"] == f"task {task_id} is over; its node is ready"
        assert len(await ignored(api, task_id)) == 1
        await api.post(PROGRESS, {"task_id": task_id, "progress_current": 1}, 409)
        await api.post(RESULT, result(task_id[:-1] + "1"), 404)


@pytest.mark.parametrize("task_id", ["17_work_0", "nonsense", "__", "1_work_x", "99999999999999999999_a_0"])
async def test_an_unknown_task_is_not_found(dsn: str, task_id: str) -> None:
    async with web(dsn) as api:
        await api.post(RESULT, result(task_id), 404)
        await api.post(PROGRESS, {"task_id": task_id}, 404)
        await api.post(CHECKPOINT, {"task_id": task_id, "phase_name": "x"}, 404)
        await api.post(f"/api/v1/tasks/{task_id}/token", status=404)


async def test_a_future_attempt_is_not_found(dsn: str) -> None:
    async with web(dsn, single()) as api:
        await api.fleet.orchestrator()
        task_id = await waiting(api)
        await api.post(RESULT, result(task_id[:-1] + "1"), 404)


async def test_an_output_that_is_too_large_is_refused_and_the_task_continues(dsn: str) -> None:
    async with web(dsn, single(), max_output_bytes=100) as api:
        await api.fleet.orchestrator()
        task_id = await waiting(api)
        await api.post(RESULT, result(task_id, output={"x": "y" * 200}), 413)
        await api.post(CHECKPOINT, {"task_id": task_id, "phase_name": "x", "state_data": {"x": "y" * 200}}, 413)
        await api.post(RESULT, result(task_id), 202)
        await api.fleet.completed(job_of(task_id))


async def test_progress_never_overwrites_a_result(dsn: str) -> None:
    async with web(dsn, single()) as api:
        await api.fleet.orchestrator()
        task_id = await waiting(api)
        await api.post(
            PROGRESS, {"task_id": task_id, "progress_current": 1, "progress_total": 4, "progress_message": "a"}
        )
        await api.post(PROGRESS, {"task_id": task_id, "progress_current": 2, "progress_total": 4})
        node = await api.get(f"/api/v1/jobs/{job_of(task_id)}/nodes/work/progress")
        assert (node["progress_percent"], node["progress_message"]) == (50.0, None)
        await api.post(RESULT, result(task_id), 202)
        await api.fleet.completed(job_of(task_id))
        await api.post(PROGRESS, {"task_id": task_id, "progress_current": 3}, 409)
        [stored] = await rows(dsn, "SELECT * FROM dagapp.dag_task_results")
        assert (stored["status"], stored["output"], stored["progress_current"]) == ("completed", {"n": 7}, 2)


async def test_a_checkpoint_is_stored_with_the_node_its_history_and_the_timeline(dsn: str) -> None:
    async with web(dsn, single()) as api:
        await api.fleet.orchestrator()
        task_id = await waiting(api)
        path = f"/api/v1/jobs/{job_of(task_id)}/nodes/work"
        for number, phase in enumerate(("read", "write")):
            body = {"task_id": task_id, "phase_name": phase, "phase_index": number, "state_data": {"password": "x"}}
            await api.post(CHECKPOINT, body)
        await api.fleet.until("SELECT count(*) = 0 AS ok FROM dagapp.dag_mailbox")
        history = (await api.get(f"{path}/checkpoints"))["items"]
        assert [checkpoint["phase_name"] for checkpoint in history] == ["write", "read"]
        assert history[0]["state_data"] == {"password": "***"}
        assert (await api.get(path))["checkpoint_phase"] == "write"
        events = (await api.get(f"{path}/timeline?event_types=node_checkpoint"))["events"]
        assert [event["message"] for event in events] == ["checkpoint read", "checkpoint write"]
        await api.post(RESULT, result(task_id), 202)
        await api.fleet.completed(job_of(task_id))


async def test_a_task_token_is_valid_for_its_task_only(dsn: str) -> None:
    async with web(dsn, single()) as api:
        await api.fleet.orchestrator()
        mine, other = await waiting(api), await waiting(api)
        worker, viewer = await api.key("worker", Role.WORKER), await api.key("viewer", Role.VIEWER)
        await api.post(f"/api/v1/tasks/{mine}/token", status=403, headers=viewer)
        token = (await api.post(f"/api/v1/tasks/{mine}/token", headers=worker))["token"]
        headers = {"Authorization": f"Bearer {token}"}
        await api.post(RESULT, result(mine), 401)
        await api.post(RESULT, result(mine), 403, headers={"Authorization": f"Bearer {token[:-1]}"})
        await api.post(RESULT, result(other), 403, headers=headers)
        await api.post(PROGRESS, {"task_id": other}, 403, headers=headers)
        await api.post(CHECKPOINT, {"task_id": other, "phase_name": "x"}, 403, headers=headers)
        await api.post(f"/api/v1/tasks/{other}/token", status=401, headers=headers)
        await api.get(f"/api/v1/jobs/{job_of(mine)}", 401, headers=headers)
        await api.post(PROGRESS, {"task_id": mine, "progress_current": 1}, headers=headers)
        await api.post(RESULT, result(mine), 202, headers=headers)
        await api.post(RESULT, result(mine), 202, headers=headers)
        await api.fleet.completed(job_of(mine))
