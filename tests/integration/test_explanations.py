"""Explanations of jobs in a real database."""

import asyncio
import re
from collections.abc import Callable
from pathlib import Path
from time import process_time
from typing import Any

import orjson
import pytest
from command_line import call
from fleet import NEVER, Fleet, fan, fleet, graph, handlers, retry, single, task
from job_owner import owner

from dagmaster.engine.messages import Load
from dagmaster.errors import UnknownJob, UnknownNode
from dagmaster.explain.facts import Explanation, Kind
from dagmaster.handlers import HandlerContext, Permanent
from dagmaster.ids import JobId, NodeId
from dagmaster.model.workflow import Branch, ConditionalNode, DependsOn, StartNode
from dagmaster.store.audit import note_orchestrator
from dagmaster.store.connect import opened
from dagmaster.store.explanations import explain_job, explain_node
from dagmaster.store.job_control import request_pause, request_retry, until

THRESHOLD = 120.0


async def why(running: Fleet, job_id: JobId, node_id: str | None = None, threshold: float = THRESHOLD) -> Explanation:
    async with opened(running.dsn, application="test") as conn:
        explanation = (
            await explain_job(conn, job_id, threshold_seconds=threshold)
            if node_id is None
            else await explain_node(conn, job_id, NodeId(node_id), threshold_seconds=threshold)
        )
    assert orjson.dumps(explanation.data)
    return explanation


async def settled(running: Fleet, job_id: JobId, node_id: str, status: str) -> None:
    query = "SELECT status::text = %s AS ok FROM dagapp.dag_node_states WHERE job_id = %s AND node_id = %s"
    await running.until(query, lambda: [status, job_id, node_id])


def waiting_handler() -> tuple[Callable[[HandlerContext], Any], asyncio.Event, asyncio.Event]:
    begun, may_end = asyncio.Event(), asyncio.Event()

    async def slow(ctx: HandlerContext) -> dict[str, Any]:
        begun.set()
        await may_end.wait()
        return {}

    return slow, begun, may_end


async def test_a_task_in_a_queue_without_workers_is_explained(dsn: str) -> None:
    async with fleet(dsn) as running:
        await running.orchestrator()
        first = await running.submit(single())
        await settled(running, first, "work", "dispatched")
        second = await running.submit(single())
        await settled(running, second, "work", "dispatched")
        explanation = await why(running, second, "work")
        assert (
            explanation.sentence == "Node `work` waits in queue `q` after 1 other task; no worker consumes this queue."
        )
        assert (explanation.kind, explanation.data["ahead"], explanation.data["consumers"]) == (Kind.QUEUED, 1, 0)
        of_job = await why(running, first)
        expected = f"Job {first} waits for `work`, which is next in queue `q`; no worker consumes this queue."
        assert of_job.sentence == expected


async def test_workers_without_the_handler_are_told_from_busy_ones(dsn: str) -> None:
    slow, begun, may_end = waiting_handler()
    async with fleet(dsn, slow=slow) as running:
        await running.orchestrator()
        await running.worker(known=handlers())
        job_id = await running.submit(single("slow"))
        await settled(running, job_id, "work", "dispatched")
        explanation = await why(running, job_id, "work")
        assert explanation.sentence == (
            "Node `work` is next in queue `q`; its only worker does not have the handler `slow`, which no worker has "
            "registered."
        )
        able = await running.worker(concurrency=1)
        await begun.wait()
        await settled(running, job_id, "work", "running")
        explanation = await why(running, job_id, "work")
        assert (explanation.kind, explanation.data["worker_id"]) == (Kind.RUNNING, able.id)
        other = await running.submit(single("slow"))
        await settled(running, other, "work", "dispatched")
        explanation = await why(running, other, "work")
        assert explanation.sentence.endswith("; the only worker that takes such tasks is busy.")
        may_end.set()
        await running.completed(job_id, other)


async def test_a_node_waits_for_undecided_predecessors(dsn: str) -> None:
    slow, _, may_end = waiting_handler()
    nodes: dict[str, Any] = {
        "START": StartNode(next=("left", "right", "done")),
        "left": task("slow"),
        "right": task("slow"),
        "done": task("echo"),
        "merge": task("echo", depends_on=DependsOn(all_of=("left", "right", "done"))),
        "after": task("echo", "END", depends_on=DependsOn(all_of=("merge",))),
    }
    async with fleet(dsn, slow=slow) as running:
        await running.orchestrator()
        await running.worker()
        job_id = await running.submit(graph(nodes))
        for node_id, status in (("left", "running"), ("right", "running"), ("done", "completed")):
            await settled(running, job_id, node_id, status)
        explanation = await why(running, job_id, "merge")
        assert explanation.sentence == "Node `merge` waits for `left` and `right`, which are running."
        assert (await why(running, job_id, "after")).sentence == "Node `after` waits for `merge`, which is waiting."
        of_job = await why(running, job_id)
        assert {group["node_id"] for group in of_job.data["stands"]} == {"left", "right"}
        may_end.set()
        await running.completed(job_id)


async def test_a_waiting_retry_names_its_last_error_and_its_time(dsn: str) -> None:
    async with fleet(dsn) as running:
        await running.orchestrator()
        await running.worker()
        job_id = await running.submit(single("flaky_echo", params={"fail_attempts": 1}, retry=retry(3, 200)))
        query = "SELECT not_before IS NOT NULL AS ok FROM dagapp.dag_node_states WHERE job_id = %s AND node_id = 'work'"
        await running.until(query, lambda: [job_id])
        explanation = await why(running, job_id, "work")
        assert (explanation.kind, explanation.data["failures"]) == (Kind.RETRY, 1)
        assert (
            explanation.sentence.startswith("Node `work` failed once (last: ")
            and "will be retried at " in explanation.sentence
        )
        assert 150 < explanation.data["in_seconds"] < 201  # The orchestrator's clock may be a little ahead.
        assert explanation.data["last_error"]


async def test_max_parallel_and_a_pause_explain_waiting_children(dsn: str) -> None:
    async with fleet(dsn) as running:
        await running.orchestrator()
        job_id = await running.submit(fan(max_parallel=2), {"items": list(range(5))})
        await running.until("SELECT count(*) = 2 AS ok FROM dagapp.dag_tasks_waiting")
        explanation = await why(running, job_id, "spread__4")
        assert explanation.sentence == (
            "Node `spread__4` waits for one of 2 slots (max_parallel), held by `spread__0` and `spread__1`."
        )
        gather = await why(running, job_id, "gather")
        assert gather.sentence == "Node `gather` waits for `spread`, which is expanded with 5 of 5 children open."
        of_job = await why(running, job_id)
        assert of_job.sentence.startswith(f"Job {job_id} waits for `spread` (2 of 5 children): `spread__0` is next in")
        async with opened(dsn, application="test") as conn:
            await request_pause(conn, job_id, actor="ada", reason=None)
            await until(conn, job_id, lambda job: job["paused_at"] is not None, seconds=20)
        explanation = await why(running, job_id, "spread__0")
        assert explanation.sentence.startswith(f"Node `spread__0` is blocked: job {job_id} was paused by ada ")
        assert [reason["kind"] for reason in explanation.data["also"]] == ["queued"]
        assert (await why(running, job_id)).sentence.startswith(f"Job {job_id} was paused by ada ")


async def test_a_full_queue_is_named_with_its_depth_and_limit(dsn: str) -> None:
    async with owner(dsn) as job_owner:
        submitted = await job_owner.submit(single())
        await job_owner.advance(Load())
        running = Fleet(dsn)
        # As left by a held dispatch: ready, with no row in the queue.
        await running.rows("DELETE FROM dagapp.dag_tasks_waiting")
        await running.rows(
            "UPDATE dagapp.dag_node_states SET status = 'ready', dispatched_at = NULL WHERE node_id = 'work'"
        )
        data = {"queue": "q", "depth": 7, "limit": 5, "instance_id": job_owner.id}
        async with opened(dsn, application="test") as conn:
            await note_orchestrator(conn, "orchestrator_backpressure", {**data, "state": "closed"})
            explanation = await explain_node(conn, submitted.job_id, NodeId("work"), threshold_seconds=THRESHOLD)
            assert explanation.sentence == (
                "Node `work` is not dispatched because queue `q` is full (0 tasks waiting, the limit is 5)."
            )
            await note_orchestrator(conn, "orchestrator_backpressure", {**data, "state": "open"})
            explanation = await explain_node(conn, submitted.job_id, NodeId("work"), threshold_seconds=THRESHOLD)
            assert explanation.kind is Kind.ABOUT_TO_RUN


async def test_a_job_without_a_live_owner_is_explained(dsn: str) -> None:
    async with fleet(dsn) as running:
        job_id = await running.submit(single())
        assert (await why(running, job_id)).sentence == "No orchestrator is running."
        first = await running.orchestrator()
        await settled(running, job_id, "work", "dispatched")
        await first.kill()
        await running.orchestrator(orphan_scan_seconds=NEVER, orphan_threshold_seconds=1000.0)
        beat = "UPDATE dagapp.dag_orchestrators SET heartbeat_at = now() - interval '90 s' WHERE orchestrator_id = %s"
        await running.rows(beat, first.id)
        explanation = await why(running, job_id)
        assert re.fullmatch(
            rf"Job {job_id} has no living owner: orchestrator {first.id} last beat 1 min [345]\d s ago; "
            r"another one takes over after 2 min\.",
            explanation.sentence,
        )
        node = await why(running, job_id, "work")
        assert (node.kind, [reason["kind"] for reason in node.data["also"]]) == (Kind.QUEUED, ["no_owner"])


async def test_an_ended_job_is_explained_by_how_and_why_it_ended(dsn: str) -> None:
    async def broken(ctx: HandlerContext) -> dict[str, Any]:
        raise Permanent("disk full")

    nodes: dict[str, Any] = {
        "route": ConditionalNode(
            subject="inputs.n",
            branches=(Branch(name="big", when="> 5", next=("huge",)), Branch(name="rest", next=("ok",))),
        ),
        "huge": task("echo", "after_huge"),
        "after_huge": task("echo", "END"),
        "ok": task("broken", "last"),
        "last": task("echo", "END"),
    }
    async with fleet(dsn, broken=broken) as running:
        await running.orchestrator()
        await running.worker()
        job_id = await running.submit(graph(nodes, start="route", inputs={"n": "integer"}), {"n": 1})
        await running.ended(job_id)
        of_job = await why(running, job_id)
        assert (of_job.kind, of_job.data["cause"]) == (Kind.ENDED, ["ok"])
        assert of_job.sentence.startswith(f"Job {job_id} failed at ") and "disk full" in of_job.sentence
        by_node = {node_id: await why(running, job_id, node_id) for node_id in nodes}
        assert by_node["ok"].sentence.startswith("Node `ok` failed permanently after 1 attempt: ")
        skipped = "was skipped because `route` took the branch `rest`, which does not lead to it."
        assert by_node["huge"].sentence == f"Node `huge` {skipped}"
        assert by_node["after_huge"].sentence == f"Node `after_huge` {skipped}"
        assert by_node["last"].sentence.startswith(
            f"Node `last` was skipped because job {job_id} failed (node ok failed"
        )
        assert by_node["route"].sentence.startswith("Node `route` completed at ")


async def test_a_failed_job_with_a_pending_retry_is_explained(dsn: str) -> None:
    async with fleet(dsn) as running:
        first = await running.orchestrator()
        await running.worker()
        job_id = await running.submit(single("fail", retry=retry(0)))
        await running.ended(job_id)
        await first.kill()
        async with opened(dsn, application="test") as conn:
            await request_retry(conn, job_id, None, actor=None, threshold_seconds=30)
        explanation = await why(running, job_id)
        assert (
            explanation.sentence == f"Job {job_id} failed and is about to be retried: its owner acts within a moment."
        )


async def test_explaining_an_unknown_job_or_node_is_an_error(dsn: str) -> None:
    async with fleet(dsn) as running:
        job_id = await running.submit(single())
        with pytest.raises(UnknownJob, match="no job 1"):
            await why(running, JobId(1))
        with pytest.raises(UnknownNode, match="no node 'nope'"):
            await why(running, job_id, "nope")


async def test_explaining_a_job_with_a_hundred_thousand_children_takes_seconds(dsn: str) -> None:
    async with fleet(dsn) as running:
        job_id = await running.submit(fan(), {"items": [1]})
        await running.rows(
            """WITH job AS (
                   UPDATE dagapp.dag_jobs SET status = 'running', started_at = now() RETURNING job_id
               ), parent AS (
                   UPDATE dagapp.dag_node_states SET status = 'completed', completed_at = now(),
                       output = '{"fan_out_count": 100000}' WHERE node_id = 'spread'
               ), children AS (
                   INSERT INTO dagapp.dag_node_states
                       (job_id, node_id, status, parent_node_id, fan_out_index, dispatched_at)
                   SELECT job_id, 'spread__' || i, 'dispatched', 'spread', i, now()
                   FROM job, generate_series(0, 99999) i
               )
               INSERT INTO dagapp.dag_tasks_waiting
                   (task_id, job_id, node_id, retry_count, queue, priority, job_started_at, handler, timeout_seconds,
                    dispatched_at)
               SELECT job_id || '_spread__' || i || '_0', job_id, 'spread__' || i, 0, 'q', 0, now(), 'echo', 60, now()
               FROM job, generate_series(0, 99999) i"""
        )
        start = process_time()  # CPU time, because the machine may be busy.
        explanation = await why(running, job_id, "spread__99999")
        of_job = await why(running, job_id)
        assert process_time() - start < 10
        assert (explanation.kind, explanation.data["ahead"], explanation.data["depth"]) == (
            Kind.QUEUED,
            99_999,
            100_000,
        )
        assert of_job.data["stands"][0]["count"] == 100_000
        assert of_job.sentence == "No orchestrator is running."


async def test_the_command_prints_the_sentence_first(dsn: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DAGMASTER_DATABASE_URL", dsn)
    async with fleet(dsn) as running:
        await running.orchestrator()
        job_id = await running.submit(single())
        await settled(running, job_id, "work", "dispatched")
        result = await asyncio.to_thread(call, "explain", job_id)
        assert result.code == 0, result.err
        assert result.out.splitlines()[:2] == [
            f"Job {job_id} waits for `work`, which is next in queue `q`; no worker consumes this queue.",
            "  `work` is next in queue `q`; no worker consumes this queue.",
        ]
        node = await asyncio.to_thread(call, "explain", job_id, "work", "--json")
        assert (node.json["kind"], node.json["data"]["queue"]) == ("queued", "q")
        explained = await asyncio.to_thread(call, "explain", job_id, "END")
        assert explained.out.startswith("Node `END` waits for `work`, which is queued.")
        missing = await asyncio.to_thread(call, "explain", job_id, "nope")
        assert (missing.code, "no node 'nope'" in missing.err) == (2, True)
