"""Progress, checkpoints and logs of a running task over HTTP."""

import pytest
from fleet import retry, rows, single
from http_worker import done, failed, registered_worker, submitted
from web import web


async def test_a_worker_reports_progress_and_checkpoints_of_a_task(dsn: str) -> None:
    async with web(dsn, single(retry=retry(2))) as api:
        await api.fleet.orchestrator()
        job_id = await submitted(api)
        worker = await registered_worker(api)
        [first] = await worker.claim()
        task_id = first["task_id"]
        await worker.post("progress", [{"task_id": task_id, "current": 3, "total": 12, "message": "page 3"}], 204)
        progress = await api.get(f"/api/v1/jobs/{job_id}/nodes/work/progress")
        assert (progress["progress_percent"], progress["progress_message"]) == (25.0, "page 3")
        checkpoints = [
            {"task_id": task_id, "phase": "one", "data": {"n": 1}},
            {"task_id": task_id, "phase": "two", "data": {"n": 2, "odd": "\u0000"}, "artifacts": [{"path": "x"}]},
        ]
        saved = [await worker.post("checkpoints", checkpoint, 201) for checkpoint in checkpoints]
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


async def test_progress_of_another_workers_task_is_not_stored(dsn: str) -> None:
    async with web(dsn, single(), max_output_bytes=1000) as api:
        await api.fleet.orchestrator()
        job_id = await submitted(api)
        holder, other = await registered_worker(api), await registered_worker(api)
        [task] = await holder.claim()
        task_id = task["task_id"]
        await other.post("progress", [{"task_id": task_id, "current": 1, "message": "forged"}], 204)
        assert await rows(dsn, "SELECT * FROM dagapp.dag_task_results") == []
        refused = await other.post("checkpoints", {"task_id": task_id, "phase": "x"}, 409)
        assert refused["error"]["code"] == "task_over"
        await other.post("checkpoints/1/discard", {"task_id": task_id, "reason": "x"}, 409)
        await holder.post("checkpoints", {"task_id": task_id, "phase": "x", "data": {"x": "y" * 2000}}, 413)
        await holder.post("checkpoints", {"task_id": "nonsense", "phase": "x"}, 409)
        await holder.report(done(task_id))
        await api.fleet.completed(job_id)
        await holder.post("checkpoints", {"task_id": task_id, "phase": "late"}, 409)
        assert await rows(dsn, "SELECT * FROM dagapp.dag_checkpoints") == []


async def test_a_log_chunk_is_stored_once_however_often_it_is_sent(dsn: str) -> None:
    async with web(dsn, single()) as api:
        await api.fleet.orchestrator()
        job_id = await submitted(api)
        worker = await registered_worker(api)
        [task] = await worker.claim()
        task_id = task["task_id"]
        first = {"task_id": task_id, "offset": 0, "text": "one\n"}
        second = {"task_id": task_id, "offset": 4, "data": "AP8K"}
        reply = await worker.post("logs", [first, first, second])
        assert reply["logs"][-1] == {"task_id": task_id, "outcome": "accepted", "size": 7}
        await worker.post("logs", [second, {"task_id": task_id, "offset": 4, "data": "AP8KIQ=="}])
        await worker.report(done(task_id, details={"has_log": True}))
        await api.fleet.completed(job_id)
        late = await worker.post("logs", [{"task_id": task_id, "offset": 8, "text": "?\n"}])
        assert late["logs"][0]["outcome"] == "accepted"
        assert await api.services.task_logs.read(task_id) == b"one\n\x00\xff\n!?\n"
        [stored] = await rows(dsn, "SELECT log_path FROM dagapp.dag_task_results")
        assert stored["log_path"] == api.services.task_logs.path_of(task_id)


async def test_the_log_of_another_workers_task_cannot_be_written(dsn: str) -> None:
    async with web(dsn, single()) as api:
        await api.fleet.orchestrator()
        await submitted(api)
        holder, other = await registered_worker(api), await registered_worker(api)
        [task] = await holder.claim()
        for task_id in (task["task_id"], "../../etc/passwd"):
            reply = await other.post("logs", [{"task_id": task_id, "offset": 0, "text": "forged"}])
            assert reply["logs"] == [{"task_id": task_id, "outcome": "over", "size": 0}]
        assert await api.services.task_logs.size(task["task_id"]) is None


async def test_the_server_limits_the_size_of_a_log(dsn: str) -> None:
    async with web(dsn, single(), log_max_bytes=1000) as api:
        await api.fleet.orchestrator()
        await submitted(api)
        worker = await registered_worker(api)
        [task] = await worker.claim()
        for offset in range(0, 100_000, 10_000):
            reply = await worker.post("logs", [{"task_id": task["task_id"], "offset": offset, "text": "x" * 10_000}])
        assert reply["logs"][0]["outcome"] == "over"
        assert await api.services.task_logs.size(task["task_id"]) == reply["logs"][0]["size"] < 10_000


@pytest.mark.parametrize("wrong", [{}, {"text": "x", "data": "eA=="}, {"data": "no base64!"}])
async def test_a_log_chunk_is_text_or_binary(dsn: str, wrong: dict[str, str]) -> None:
    async with web(dsn) as api:
        await (await registered_worker(api)).post("logs", [{"task_id": "1_a_0", "offset": 0, **wrong}], 422)
