"""Retries, timeouts, failures and cancellation, with real delays."""

import asyncio
import threading
from datetime import timedelta
from typing import Any

from fleet import NEVER, Fleet, child, fan, fleet, graph, retry, rows, single, task

from dagmaster.engine.change_set import Rules
from dagmaster.engine.messages import Cancel
from dagmaster.handlers import HandlerContext, Permanent, Retry
from dagmaster.model.workflow import FanInNode, FanOutNode
from dagmaster.store.connect import opened
from dagmaster.store.mail_codec import encode
from dagmaster.store.mailbox import add_mail


async def attempts(running: Fleet, job_id: int, node: str = "work") -> list[dict[str, Any]]:
    selected = await running.events(job_id, "node_dispatched")
    return [row for row in selected if row["node_id"] == node]


async def gaps(running: Fleet, job_id: int) -> list[float]:
    """The seconds between an attempt's failure and the next dispatch."""
    failed = [row["created_at"] for row in await running.events(job_id, "node_failed")]
    again = [row["created_at"] for row in await attempts(running, job_id)][1:]
    return [(later - earlier).total_seconds() for earlier, later in zip(failed, again, strict=True)]


async def test_back_off_delays_the_retry(dsn: str) -> None:
    async with fleet(dsn) as running:
        await running.orchestrator()
        await running.worker()
        flaky: dict[str, Any] = {"handler": "flaky_echo", "params": {"fail_attempts": 2}}
        fixed = await running.submit(single(**flaky, retry=retry(3, 0.15, backoff="fixed")))
        doubled = await running.submit(single(**flaky, retry=retry(3, 0.15, backoff="exponential")))
        bounded = await running.submit(single(**flaky, retry=retry(3, 0.15, backoff="linear", max_delay_seconds=0.2)))
        at_once = await running.submit(single(**flaky, retry=retry(3, 0)))
        jobs = await running.completed(fixed, doubled, bounded, at_once)
        assert [job["result_data"]["work"]["retry_count"] for job in jobs] == [2, 2, 2, 2]
        for job_id, delays in (
            (fixed, [0.15, 0.15]),
            (doubled, [0.15, 0.3]),
            (bounded, [0.15, 0.2]),
            (at_once, [0, 0]),
        ):
            for waited, least in zip(await gaps(running, job_id), delays, strict=True):
                assert least <= waited < least + 30
        tasks = [row["task_id"] for row in await attempts(running, fixed)]
        assert tasks == [f"{fixed}_work_{n}" for n in range(3)]
        retrying = await running.events(fixed, "node_retrying")
        assert [row["event_data"]["attempt"] for row in retrying] == [1, 2]
        assert [row["event_data"]["will_retry"] for row in await running.events(fixed, "node_failed")] == [True, True]
        results = await rows(dsn, "SELECT task_id, status FROM dagapp.dag_task_results WHERE job_id = %s", fixed)
        assert {(row["task_id"][-1], row["status"]) for row in results} == {
            ("0", "failed"),
            ("1", "failed"),
            ("2", "completed"),
        }
        await running.is_clean()


async def test_a_node_that_keeps_failing_fails_its_job(dsn: str) -> None:
    async with fleet(dsn) as running:
        await running.orchestrator()
        await running.worker()
        job = await running.run(single("fail", params={"message": "as always"}, retry=retry(2)))
        assert job["status"] == "failed"
        assert job["error_message"] == "node work failed: as always"
        [failed] = await running.events(job["job_id"], "job_failed")
        assert failed["event_data"]["failed_nodes"] == ["work"]
        assert len(await attempts(running, job["job_id"])) == 3
        nodes = await running.nodes(job["job_id"])
        assert (nodes["work"]["status"], nodes["work"]["error_message"]) == ("failed", "as always")
        assert nodes["END"]["status"] == "skipped"
        [skipped] = await running.events(job["job_id"], "node_skipped")
        assert skipped["event_data"]["reason"] == "job_failed"


async def test_a_permanent_failure_is_not_retried(dsn: str) -> None:
    def refuse(ctx: HandlerContext) -> None:
        raise Permanent("this can never be")

    async with fleet(dsn, refuse=refuse) as running:
        await running.orchestrator()
        await running.worker()
        ids = [
            await running.submit(single(handler, params=params, retry=retry(5)))
            for handler, params in (("refuse", {}), ("fail", {"permanent": True}), ("sleep", {"seconds": "long"}))
        ]
        for job in await running.ended(*ids):
            assert job["status"] == "failed"
            assert len(await attempts(running, job["job_id"])) == 1
            [failed] = await running.events(job["job_id"], "node_failed")
            assert failed["event_data"]["will_retry"] is False


async def test_a_handler_can_choose_the_retry_delay(dsn: str) -> None:
    async def later(ctx: HandlerContext) -> None:
        if ctx.retry_count == 0:
            raise Retry("not yet", after=0.2)

    async with fleet(dsn, later=later) as running:
        await running.orchestrator()
        await running.worker()
        job = await running.run(single("later", retry=retry(1, 60)))
        assert job["status"] == "completed"
        [waited] = await gaps(running, job["job_id"])
        assert 0.2 <= waited < 40  # Less than the delay of the policy.


async def test_a_worker_ends_a_task_that_times_out(dsn: str) -> None:
    stopped = asyncio.Event()

    async def endless(ctx: HandlerContext) -> None:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            stopped.set()
            raise

    async with fleet(dsn, endless=endless) as running:
        await running.orchestrator(rules=Rules(timeout_grace_seconds=NEVER))
        await running.worker()
        job = await running.run(single("endless", timeout_seconds=1))
        assert job["error_message"] == "node work failed: timed out after 1 s"
        assert stopped.is_set()
        [result] = await rows(dsn, "SELECT status, execution_duration_ms FROM dagapp.dag_task_results")
        assert result["status"] == "failed"
        assert 1000 <= result["execution_duration_ms"] < 60_000


async def test_the_owner_times_out_a_task_whose_worker_cannot_stop_it(dsn: str) -> None:
    """A coroutine that ignores its cancellation keeps its worker's slot but does not block its job."""
    let_go = asyncio.Event()
    runs = []

    async def stubborn(ctx: HandlerContext) -> dict[str, Any]:
        runs.append(ctx.retry_count)
        while ctx.retry_count == 0 and not let_go.is_set():
            try:
                await let_go.wait()
            except asyncio.CancelledError:
                continue
        return {"attempt": ctx.retry_count}

    async with fleet(dsn, stubborn=stubborn) as running:
        await running.orchestrator(rules=Rules(timeout_grace_seconds=0.2))
        worker = await running.worker()
        # The second attempt is the last, unless the machine stands still for a second.
        job = await running.run(single("stubborn", timeout_seconds=1, retry=retry(20)))
        assert job["status"] == "completed"
        last = job["result_data"]["work"]["attempt"]
        [failed, *more] = await running.events(job["job_id"], "node_failed")
        assert (failed["event_data"]["timeout"], len(more)) == ("execution", last - 1)
        let_go.set()
        await worker.stop()
        assert (runs[0], runs[-1]) == (0, last) and runs == sorted(set(runs))
        await running.is_clean()
        late = await running.events(job["job_id"], "result_ignored")
        assert len(late) <= last
        assert (await running.nodes(job["job_id"]))["work"]["output"] == {"attempt": last}


async def test_a_thread_that_cannot_be_stopped_does_not_block_its_job(dsn: str) -> None:
    let_go = threading.Event()

    def stuck(ctx: HandlerContext) -> dict[str, Any]:
        if ctx.retry_count == 0:
            let_go.wait(NEVER)
        return {"attempt": ctx.retry_count, "is_cancelled": ctx.cancelled.is_set()}

    async with fleet(dsn, stuck=stuck) as running:
        await running.orchestrator()
        await running.worker(concurrency=2, stop_within_seconds=0.1)  # It keeps its slot until it ends.
        job_id = await running.submit(single("stuck", timeout_seconds=1, retry=retry(20)))
        try:
            [job] = await running.completed(job_id)
        finally:
            let_go.set()
        result = job["result_data"]["work"]
        assert result["attempt"] > 0 and not result["is_cancelled"]


async def test_a_task_that_no_worker_claims_times_out(dsn: str) -> None:
    async with fleet(dsn) as running:
        await running.orchestrator(rules=Rules(dispatch_timeout_seconds=0.1))
        job = await running.run(single(queue="deserted", retry=retry(1)))
        assert job["status"] == "failed"
        assert "no worker took it from queue 'deserted'" in job["error_message"]
        failed = await running.events(job["job_id"], "node_failed")
        assert [row["event_data"]["timeout"] for row in failed] == ["dispatch", "dispatch"]
        await running.is_clean()


async def test_a_stalled_job_is_ended(dsn: str) -> None:
    """It waits for nothing that could still happen, because its rows were changed."""
    async with fleet(dsn) as running:
        first = await running.orchestrator()
        job_id = await running.submit(single(queue="deserted"))
        await running.until("SELECT count(*) = 1 AS ok FROM dagapp.dag_tasks_waiting")
        await first.stop()
        await running.rows("UPDATE dagapp.dag_node_states SET status = 'pending' WHERE node_id = 'work'")
        await running.rows("DELETE FROM dagapp.dag_tasks_waiting")
        await running.orchestrator(rules=Rules(zombie_after_seconds=0.2))
        [job] = await running.ended(job_id)
        assert job["status"] == "failed"
        assert "no progress" in job["error_message"]


async def test_the_first_failure_ends_the_job_and_revokes_running_tasks(dsn: str) -> None:
    started, revoked = asyncio.Event(), asyncio.Event()

    async def long(ctx: HandlerContext) -> None:
        started.set()
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            revoked.set()
            raise

    async def fail_then(ctx: HandlerContext) -> None:
        await started.wait()
        raise ValueError("broken")

    nodes = {
        "fork": task("echo", "long", "broken", "queued"),
        "long": task("long", "END"),
        "broken": task("fail_then", "END"),
        "queued": task("echo", "END", queue="deserted"),
        "after": task("echo", "END", depends_on={"all_of": ["long"]}),
    }
    async with fleet(dsn, long=long, fail_then=fail_then) as running:
        await running.orchestrator()
        await running.worker()
        job = await running.run(graph(nodes, start="fork"))
        assert job["status"] == "failed"
        assert job["error_message"] == "node broken failed: ValueError: broken"
        assert await running.statuses(job["job_id"]) == {
            "START": "completed",
            "fork": "completed",
            "long": "failed",
            "broken": "failed",
            "queued": "failed",
            "after": "skipped",
            "END": "skipped",
        }
        await asyncio.wait_for(revoked.wait(), 60)
        await running.is_clean()
        reasons = {row["node_id"]: row["error_message"] for row in await running.events(job["job_id"], "node_failed")}
        assert reasons["long"] == reasons["queued"] == "stopped because the job failed"


async def test_a_failed_child_fails_the_job_and_cancels_its_siblings(dsn: str) -> None:
    async with fleet(dsn) as running:
        await running.orchestrator()
        await running.worker(concurrency=4)
        definition = fan(handler="chunk_processor", params={"chunk": "{{ item }}", "operation": "sum"})
        job = await running.run(definition, {"items": [[1]] * 30 + [["x"]] + [[2]] * 200})
        assert job["status"] == "failed"
        assert "spread__30" in job["error_message"]
        counts = await rows(dsn, "SELECT status, count(*) AS n FROM dagapp.dag_node_states GROUP BY status")
        assert {row["status"] for row in counts} <= {"completed", "failed", "skipped"}
        await running.is_clean()


async def test_a_cancelled_job_stops_its_running_task(dsn: str) -> None:
    started, revoked = asyncio.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()
    at: dict[str, float] = {}

    async def long(ctx: HandlerContext) -> None:
        started.set()
        try:
            await asyncio.sleep(60)
        finally:
            at["revoked"] = loop.time()
            revoked.set()

    async with fleet(dsn, long=long) as running:
        await running.orchestrator(poll=0.5)
        await running.worker(poll_interval_seconds=0.5)
        job_id = await running.submit(graph({"work": task("long", "next"), "next": task("echo", "END")}, start="work"))
        await asyncio.wait_for(started.wait(), 60)
        at["asked"] = loop.time()
        await running.cancel(job_id, actor="ada")
        [job] = await running.ended(job_id)
        assert job["status"] == "cancelled"
        await asyncio.wait_for(revoked.wait(), 60)
        assert at["revoked"] - at["asked"] < 40  # Less than the task takes.
        assert await running.statuses(job_id) == {
            "START": "completed",
            "work": "failed",
            "next": "skipped",
            "END": "skipped",
        }
        [event] = await running.events(job_id, "job_cancelled")
        assert (event["event_status"], event["event_data"]["actor"]) == ("warning", "ada")
        await running.is_clean()


async def test_a_job_can_be_cancelled_before_it_starts_and_not_after_it_ended(dsn: str) -> None:
    async with fleet(dsn) as running:
        early = await running.submit(single())
        await running.cancel(early)
        await running.orchestrator()
        await running.worker()
        [job] = await running.ended(early)
        assert job["status"] in ("cancelled", "completed")
        assert job["status"] == "cancelled"
        done = await running.run(single())
        before = await running.trace(done["job_id"])
        async with opened(dsn, application="test") as conn:
            await add_mail(conn, [encode(done["job_id"], Cancel())])
        await running.is_clean()
        assert await running.trace(done["job_id"]) == before
        assert (await running.ended(done["job_id"]))[0]["status"] == "completed"


async def test_a_report_after_the_jobs_end_is_kept_and_recorded(dsn: str) -> None:
    started, let_go = asyncio.Event(), asyncio.Event()

    async def deaf(ctx: HandlerContext) -> dict[str, Any]:
        started.set()
        while not let_go.is_set():
            try:
                await let_go.wait()
            except asyncio.CancelledError:
                continue
        return {"too": "late"}

    async with fleet(dsn, deaf=deaf) as running:
        await running.orchestrator()
        await running.worker()
        job_id = await running.submit(single("deaf"))
        await asyncio.wait_for(started.wait(), 60)
        await running.cancel(job_id)
        [before] = await running.ended(job_id)
        let_go.set()
        await running.until("SELECT count(*) = 1 AS ok FROM dagapp.dag_task_results")
        [result] = await rows(dsn, "SELECT status, output, processed FROM dagapp.dag_task_results")
        assert result == {"status": "completed", "output": {"too": "late"}, "processed": True}
        [note] = await running.events(job_id, "result_ignored")
        assert note["event_status"] == "warning"
        assert await running.ended(job_id) == [before]


async def test_a_retry_of_a_child_uses_its_stored_params(dsn: str) -> None:
    seen: dict[int, list[Any]] = {}

    async def flaky(ctx: HandlerContext) -> dict[str, Any]:
        seen.setdefault(ctx.retry_count, []).append(ctx.params["x"])
        if ctx.retry_count == 0:
            raise OSError("try again")
        return {"x": ctx.params["x"]}

    async with fleet(dsn, flaky=flaky) as running:
        await running.orchestrator()
        await running.worker()
        job = await running.run(fan(handler="flaky", retry=retry(1)), {"items": ["a", "b", "c"]})
        assert job["result_data"]["gather"]["results"] == [{"x": "a"}, {"x": "b"}, {"x": "c"}]
        assert sorted(seen[0]) == sorted(seen[1]) == ["a", "b", "c"]


async def test_a_node_run_by_the_engine_is_retried_too(dsn: str) -> None:
    again = retry(2, 0.02, backoff="fixed", on=("ExpressionFailed",))
    nodes: dict[str, Any] = {
        "first": task("echo", "spread"),
        "spread": FanOutNode(source="{{ nodes.first.output }}", task=child(), next=("gather",), retry=again),
        "gather": FanInNode(next=("END",)),
    }
    async with fleet(dsn) as running:
        await running.orchestrator()
        await running.worker()
        job = await running.run(graph(nodes, start="first"))
        assert job["status"] == "failed"
        assert "must be a list" in job["error_message"]
        assert len(await running.events(job["job_id"], "node_retrying")) == 2


async def test_many_concurrent_failures_and_cancellations_leave_no_rows(dsn: str) -> None:
    async def sometimes(ctx: HandlerContext) -> None:
        await asyncio.sleep(0.002)
        if ctx.params["x"] == 37:
            raise ValueError("thirty-seven")

    nodes: dict[str, Any] = {
        "spread": FanOutNode(source="{{ inputs.items }}", task=child("sometimes"), next=("gather",)),
        "gather": FanInNode(next=("END",)),
    }
    definition = graph(nodes, start="spread", inputs={"items": "array"})
    async with fleet(dsn, sometimes=sometimes) as running:
        await running.orchestrator()
        for _ in range(2):
            await running.worker(concurrency=8)
        failing = [await running.submit(definition, {"items": list(range(60))}) for _ in range(5)]
        cancelled = [await running.submit(definition, {"items": [1] * 200}) for _ in range(3)]
        for job_id in cancelled:
            await running.cancel(job_id)
        fine = [await running.submit(definition, {"items": [1, 2, 3]}) for _ in range(3)]
        assert {job["status"] for job in await running.ended(*failing)} == {"failed"}
        assert {job["status"] for job in await running.ended(*cancelled)} <= {"cancelled", "completed"}
        await running.completed(*fine)
        await running.is_clean()
        open_nodes = """SELECT count(*) AS n FROM dagapp.dag_node_states
                        WHERE status NOT IN ('completed', 'failed', 'skipped')"""
        assert await running.value(open_nodes) == 0


async def test_a_retry_delay_survives_its_owner(dsn: str) -> None:
    async with fleet(dsn) as running:
        first = await running.orchestrator()
        await running.worker()
        job_id = await running.submit(single("flaky_echo", params={"fail_attempts": 1}, retry=retry(1, 60.0)))
        await running.until("SELECT count(*) = 1 AS ok FROM dagapp.dag_node_states WHERE not_before IS NOT NULL")
        await first.stop()
        # Only now is the delay short: it cannot be over before its owner stops.
        await running.rows("UPDATE dagapp.dag_node_states SET not_before = not_before - interval '59 seconds'")
        await running.orchestrator()
        await running.completed(job_id)
        [waited] = await gaps(running, job_id)
        assert timedelta(seconds=1) <= timedelta(seconds=waited) < timedelta(seconds=60)
