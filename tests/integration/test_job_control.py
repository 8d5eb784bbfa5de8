"""Pause, resume and manual retry of jobs."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from fleet import Fleet, chain, child, fan, fleet, graph, retry, rows, single, task

from dagmaster.engine.change_set import Rules
from dagmaster.engine.decide import decide
from dagmaster.engine.messages import Load, Message, Pause
from dagmaster.engine.state import new_job
from dagmaster.errors import Conflict, JobEnded, Unavailable, UnknownJob, UnknownNode
from dagmaster.handlers import HandlerContext, Permanent
from dagmaster.ids import JobId, NodeId, WorkerId
from dagmaster.model.workflow import FanInNode, FanOutNode, WaitNode
from dagmaster.orchestrator.pending_batch import PendingBatch, assign_local
from dagmaster.store.batch import Batch
from dagmaster.store.connect import Connection, opened
from dagmaster.store.job_control import request_pause, request_resume, request_retry, until
from dagmaster.web.views import run_seconds

THRESHOLD = 30.0


@asynccontextmanager
async def asking(running: Fleet) -> AsyncIterator[Connection]:
    async with opened(running.dsn, application="test") as conn:
        yield conn


async def pause(running: Fleet, job_id: JobId, actor: str = "ada") -> dict[str, Any]:
    async with asking(running) as conn:
        await request_pause(conn, job_id, actor=actor, reason=None)
        return await until(conn, job_id, lambda job: job["paused_at"] is not None, seconds=20)


async def resume(running: Fleet, job_id: JobId) -> dict[str, Any]:
    async with asking(running) as conn:
        await request_resume(conn, job_id, actor="bob")
        return await until(conn, job_id, lambda job: job["paused_at"] is None, seconds=20)


async def reopened(running: Fleet, job_id: JobId, *, times: int = 1) -> None:
    """Wait until the job was reopened this often."""
    await running.until(
        "SELECT count(*) = %s AS ok FROM dagapp.dag_job_events WHERE job_id = %s AND event_type = 'job_reopened'",
        lambda: [times, job_id],
    )


async def retry_job(running: Fleet, job_id: JobId, node_id: str | None = None) -> None:
    async with asking(running) as conn:
        named = NodeId(node_id) if node_id is not None else None
        await request_retry(conn, job_id, named, actor="ada", threshold_seconds=THRESHOLD)


class Faulty:
    """Fails permanently until it is fixed."""

    def __init__(self) -> None:
        self.is_mended = False
        self.calls: list[str] = []

    async def __call__(self, ctx: HandlerContext) -> dict[str, Any]:
        self.calls.append(ctx.task_id)
        if not self.is_mended:
            raise Permanent("broken")
        return {"node": ctx.node_id}


async def test_a_paused_job_starts_nothing_and_resumes(dsn: str) -> None:
    begun, may_end = asyncio.Event(), asyncio.Event()

    async def slow(ctx: HandlerContext) -> dict[str, Any]:
        begun.set()
        await may_end.wait()
        return {}

    async with fleet(dsn, slow=slow) as running:
        await running.orchestrator()
        await running.worker()
        job_id = await running.submit(chain(2, "slow"))
        await begun.wait()
        job = await pause(running, job_id)
        assert (job["status"], job["paused_by"]) == ("running", "ada")
        may_end.set()
        await running.until(
            "SELECT status = 'completed' AS ok FROM dagapp.dag_node_states WHERE job_id = %s AND node_id = 'n0'",
            lambda: [job_id],
        )
        assert (await running.statuses(job_id))["n1"] == "ready"
        job = await resume(running, job_id)
        assert job["paused_by"] is None
        await running.completed(job_id)
        [paused] = await running.events(job_id, "job_paused")
        [resumed] = await running.events(job_id, "job_resumed")
        assert paused["event_data"]["actor"] == "ada"
        assert resumed["event_data"]["actor"] == "bob"
        await running.is_clean()


async def test_waiting_tasks_are_held_while_their_job_is_paused(dsn: str) -> None:
    async with fleet(dsn) as running:
        await running.orchestrator()
        job_id = await running.submit(fan(), {"items": list(range(20))})
        await running.until("SELECT count(*) = 20 AS ok FROM dagapp.dag_tasks_waiting")
        await pause(running, job_id)
        assert await running.value("SELECT count(*) FROM dagapp.dag_tasks_waiting WHERE held") == 20
        await running.worker()
        other = await running.submit(single())
        await running.completed(other)
        assert await running.value("SELECT count(*) FROM dagapp.dag_tasks_waiting WHERE held") == 20
        await resume(running, job_id)
        await running.completed(job_id)
        await running.is_clean()


async def test_a_paused_job_can_be_taken_over_and_cancelled(dsn: str) -> None:
    async with fleet(dsn) as running:
        first = await running.orchestrator()
        blocked_id = await running.submit(single())
        dropped = await running.submit(single())
        await running.until("SELECT count(*) = 2 AS ok FROM dagapp.dag_tasks_waiting")
        await pause(running, blocked_id)
        await pause(running, dropped)
        await first.kill()
        await running.orchestrator(orphan_threshold_seconds=0.5)
        await running.worker()
        await running.cancel(dropped)
        [job] = await running.ended(dropped)
        assert job["status"] == "cancelled"
        assert (await running.statuses(blocked_id))["work"] == "dispatched"
        await resume(running, blocked_id)
        await running.completed(blocked_id)
        await running.is_clean()


async def test_pausing_twice_and_resuming_a_running_job_are_conflicts(dsn: str) -> None:
    async with fleet(dsn) as running, asking(running) as conn:
        await running.orchestrator()
        job_id = await running.submit(single())
        with pytest.raises(Conflict, match="not paused"):
            await request_resume(conn, job_id, actor=None)
        await pause(running, job_id)
        with pytest.raises(Conflict, match="by ada"):
            await request_pause(conn, job_id, actor="bob", reason=None)
        await running.cancel(job_id)
        await running.ended(job_id)
        with pytest.raises(JobEnded, match="cancelled"):
            await request_pause(conn, job_id, actor=None, reason=None)
        with pytest.raises(UnknownJob):
            await request_pause(conn, JobId(1), actor=None, reason=None)


async def test_a_failed_node_can_be_retried_and_its_job_continues(dsn: str) -> None:
    faulty = Faulty()
    async with fleet(dsn, faulty=faulty) as running:
        await running.orchestrator()
        await running.worker()
        job_id = await running.submit(
            graph(
                {"before": task("echo", "work"), "work": task("faulty", "after"), "after": task("echo", "END")},
                start="before",
            )
        )
        [job] = await running.ended(job_id)
        assert job["status"] == "failed"
        assert (await running.statuses(job_id))["after"] == "skipped"
        faulty.is_mended = True
        await retry_job(running, job_id, "work")
        await reopened(running, job_id)
        [job] = await running.completed(job_id)
        assert job["result_data"]["work"] == {"node": "work"}
        assert faulty.calls == [f"{job_id}_work_0", f"{job_id}_work_1"]
        assert set((await running.statuses(job_id)).values()) == {"completed"}
        [event] = await running.events(job_id, "job_reopened")
        assert event["event_data"]["actor"] == "ada"
        assert len([line for line in await running.trace(job_id) if line == "node_completed before"]) == 1
        await running.is_clean()


async def test_time_between_a_failure_and_its_manual_retry_is_not_run_time(dsn: str) -> None:
    faulty = Faulty()
    async with fleet(dsn, faulty=faulty) as running:
        await running.orchestrator()
        await running.worker()
        job_id = await running.submit(graph({"work": task("faulty", "END")}, start="work"))
        await running.ended(job_id)
        earlier = "started_at = started_at - interval '1 day', completed_at = completed_at - interval '1 day'"
        await rows(dsn, f"UPDATE dagapp.dag_jobs SET {earlier} WHERE job_id = %s", job_id)
        faulty.is_mended = True
        await retry_job(running, job_id)
        await reopened(running, job_id)
        [job] = await running.completed(job_id)
        [event] = await running.events(job_id, "job_completed")
    day = timedelta(days=1).total_seconds()
    assert event["event_data"]["duration_seconds"] == run_seconds(job)
    assert (job["completed_at"] - job["started_at"]).total_seconds() >= day
    assert day <= job["idle_seconds"] < day + 3600
    assert (run_seconds(job) or 0.0) < 3600


async def test_paused_time_is_not_run_time(dsn: str) -> None:
    async with fleet(dsn) as running:
        await running.orchestrator()
        await running.worker()
        job_id = await running.submit(graph({"nap": WaitNode(seconds=1000, next=("END",))}, start="nap"))
        begun = "SELECT started_at IS NOT NULL AS ok FROM dagapp.dag_jobs WHERE job_id = %s"
        await running.until(begun, lambda: [job_id])
        paused = await pause(running, job_id)
        took = (paused["paused_at"] - paused["started_at"]).total_seconds()
        job = await resume(running, job_id)
        [event] = await running.events(job_id, "job_resumed")
    assert run_seconds(paused) == round(took, 3)
    assert job["idle_seconds"] == pytest.approx(event["event_data"]["paused_seconds"], abs=0.01)


async def test_a_pause_across_a_failure_is_counted_once(dsn: str) -> None:
    begun, may_end, faulty = asyncio.Event(), asyncio.Event(), Faulty()

    async def slow(ctx: HandlerContext) -> dict[str, Any]:
        begun.set()
        await may_end.wait()
        return await faulty(ctx)

    async with fleet(dsn, slow=slow) as running:
        await running.orchestrator()
        await running.worker()
        job_id = await running.submit(graph({"work": task("slow", "END")}, start="work"))
        await begun.wait()
        await pause(running, job_id)
        may_end.set()
        await running.ended(job_id)
        times = ("started_at", "paused_at", "completed_at")
        earlier = ", ".join(f"{name} = {name} - interval '1 day'" for name in times)
        await rows(dsn, f"UPDATE dagapp.dag_jobs SET {earlier} WHERE job_id = %s", job_id)
        faulty.is_mended = True
        await retry_job(running, job_id)
        await reopened(running, job_id)
        await resume(running, job_id)
        [job] = await running.completed(job_id)
    day = timedelta(days=1).total_seconds()
    assert day <= job["idle_seconds"] < day + 3600


async def test_a_reopened_job_has_all_its_retries_again(dsn: str) -> None:
    async with fleet(dsn) as running:
        await running.orchestrator()
        await running.worker()
        job_id = await running.submit(single(handler="fail", retry=retry(1)))
        await running.ended(job_id)
        await retry_job(running, job_id)
        await reopened(running, job_id)
        [job] = await running.ended(job_id)
        assert job["status"] == "failed"
        node = (await running.nodes(job_id))["work"]
        assert (node["retry_count"], node["max_retries"]) == (3, 3)
        await running.is_clean()


async def test_a_retried_fan_out_keeps_its_completed_children(dsn: str) -> None:
    faulty = Faulty()

    async def work(ctx: HandlerContext) -> dict[str, Any]:
        return await faulty(ctx) if ctx.node_id.endswith("__7") else {"n": 1}

    nodes: dict[str, Any] = {
        "spread": FanOutNode(
            source="{{ inputs.items }}", task=child("work", retry=retry(0)), max_parallel=3, next=("gather",)
        ),
        "gather": FanInNode(aggregation="collect", next=("END",)),
    }
    async with fleet(dsn, work=work) as running:
        await running.orchestrator(rules=Rules(slice_size=4))
        await running.worker()
        job_id = await running.submit(
            graph(nodes, start="spread", inputs={"items": "array"}), {"items": list(range(12))}
        )
        [job] = await running.ended(job_id)
        assert job["status"] == "failed"
        faulty.is_mended = True
        await retry_job(running, job_id)
        await reopened(running, job_id)
        [job] = await running.completed(job_id)
        assert job["result_data"]["gather"]["count"] == 12
        completed = [row["node_id"] for row in await running.events(job_id, "node_completed")]
        assert len(completed) == len(set(completed))
        await running.is_clean()


async def test_a_manual_retry_ends_the_back_off(dsn: str) -> None:
    async with fleet(dsn) as running:
        await running.orchestrator()
        await running.worker()
        flaky: dict[str, Any] = {"handler": "flaky_echo", "params": {"fail_attempts": 1}}
        job_id = await running.submit(single(**flaky, retry=retry(3, 600, backoff="fixed", max_delay_seconds=600)))
        await running.until(
            "SELECT not_before IS NOT NULL AS ok FROM dagapp.dag_node_states WHERE job_id = %s AND node_id = 'work'",
            lambda: [job_id],
        )
        await retry_job(running, job_id, "work")
        await running.completed(job_id)


async def test_a_refused_manual_retry_says_why(dsn: str) -> None:
    async with fleet(dsn) as running, asking(running) as conn:
        await running.orchestrator()
        await running.worker()
        done = await running.submit(single())
        await running.completed(done)
        for job_id, node_id, error, message in (
            (done, None, JobEnded, "only a failed job"),
            (done, NodeId("work"), Conflict, "'work' is completed"),
            (done, NodeId("nope"), UnknownNode, "no node 'nope'"),
            (JobId(1), None, UnknownJob, "no job 1"),
        ):
            with pytest.raises(error, match=message):
                await request_retry(conn, job_id, node_id, actor=None, threshold_seconds=THRESHOLD)


async def test_without_an_orchestrator_a_failed_job_stays_failed(dsn: str) -> None:
    async with fleet(dsn) as running:
        only = await running.orchestrator()
        await running.worker()
        job_id = await running.submit(single(handler="fail", retry=retry(0)))
        await running.ended(job_id)
        await only.stop()
        with pytest.raises(Unavailable, match="no orchestrator"):
            await retry_job(running, job_id)


async def test_a_pending_reopen_survives_the_new_owners_death(dsn: str) -> None:
    faulty = Faulty()
    async with fleet(dsn, faulty=faulty) as running:
        first = await running.orchestrator()
        await running.worker()
        job_id = await running.submit(single(handler="faulty"))
        await running.ended(job_id)
        faulty.is_mended = True
        await first.kill()  # Its row still says that it is alive, so it is chosen.
        await retry_job(running, job_id)
        await running.orchestrator(orphan_threshold_seconds=0.5)
        await reopened(running, job_id)
        await running.completed(job_id)
        await running.is_clean()


async def test_a_full_queue_delays_dispatch_until_it_has_room(dsn: str) -> None:
    async with fleet(dsn) as running:
        role = await running.orchestrator()
        role.instance.closed_queues.add("q")
        await running.worker()
        job_id = await running.submit(fan(), {"items": list(range(5))})
        await running.completed(job_id)


class Eager:
    """A local worker that always has a free slot."""

    worker_id = "eager"

    def reserve(self, queue: str, handler: str) -> bool:
        return True


async def test_a_job_paused_in_the_batch_that_starts_it_runs_nothing() -> None:
    turns: list[tuple[list[Message], int]] = [([Load()], 1), ([Load(), Pause()], 0)]
    for messages, claimed in turns:
        turn = decide(new_job(JobId(1), single(), {}, datetime.now(UTC)), messages, datetime.now(UTC), Rules())
        assert len(turn.dispatches) == 1
        pending = PendingBatch(Batch("me", WorkerId("eager"), change_sets=[(turn, 1)]), {})
        assign_local(pending, Eager())  # type: ignore[arg-type]
        assert len(pending.local) == claimed
