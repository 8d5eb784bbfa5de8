"""Retry rules and the on_oom queue, from the report to the rows, across owners."""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from fleet import NEVER, Fleet, OrchestratorRole, fan, fleet, retry, rows, single
from job_owner import owner

from dagmaster.engine.messages import Load, ManualRetry, TaskFailed
from dagmaster.handlers import HandlerContext, Retry
from dagmaster.ids import JobId, NodeId, TaskId, WorkerId
from dagmaster.model.compile import compile_graph
from dagmaster.orchestrator.handoff import queues_called, task_of
from dagmaster.queues.contract import TaskReport
from dagmaster.store.connect import opened
from dagmaster.store.explanations import explain_node
from dagmaster.store.mail_codec import encode
from dagmaster.store.mailbox import add_mail

EXHAUSTED = ("MemoryError", "Exception")
REFUSED = ("ConnectionRefusedError", "ConnectionError", "OSError", "Exception")


async def report(running: Fleet, job_id: JobId, error_types: Sequence[str], attempt: int = 0) -> None:
    """Report as a worker does."""
    task_id = f"{job_id}_work_{attempt}"
    message = TaskFailed("work", task_id, None, datetime.now(UTC), "no luck", error_types=tuple(error_types))
    async with opened(running.dsn, application="test") as conn:
        await add_mail(conn, [encode(job_id, message)])
        await conn.execute("NOTIFY dagmaster_mail")


async def waits(running: Fleet, job_id: JobId, attempt: int) -> str:
    """The queue of this waiting attempt."""
    task_id = f"{job_id}_work_{attempt}"
    query = "SELECT count(*) = 1 AS ok FROM dagapp.dag_tasks_waiting WHERE task_id = %s"
    await running.until(query, lambda: [task_id])
    return str(await running.value("SELECT queue FROM dagapp.dag_tasks_waiting WHERE task_id = %s", task_id))


async def lose(running: Fleet, role: OrchestratorRole) -> None:
    await role.kill()
    stale = "UPDATE dagapp.dag_orchestrators SET heartbeat_at = now() - interval '1 hour' WHERE orchestrator_id = %s"
    await running.rows(stale, role.id)


async def test_the_oom_queue_survives_a_change_of_owner(dsn: str) -> None:
    async with fleet(dsn) as running:
        first = await running.orchestrator(heartbeat_seconds=NEVER)
        job_id = await running.submit(single(retry=retry(3, on_oom="heavy")))
        assert await waits(running, job_id, 0) == "q"
        await report(running, job_id, EXHAUSTED)
        assert await waits(running, job_id, 1) == "heavy"
        await lose(running, first)
        await running.orchestrator()
        await running.until("SELECT owner_epoch = 2 AS ok FROM dagapp.dag_jobs")
        await report(running, job_id, REFUSED, attempt=1)
        assert await waits(running, job_id, 2) == "heavy"
        assert (await running.nodes(job_id))["work"]["queue"] == "heavy"
        dispatched = [row for row in await running.events(job_id, "node_dispatched") if row["node_id"] == "work"]
        assert [row["event_data"]["queue"] for row in dispatched] == ["q", "heavy", "heavy"]


async def test_the_explanation_refers_to_the_queue_of_the_current_attempt(dsn: str) -> None:
    async with fleet(dsn) as running:
        await running.orchestrator()
        job_id = await running.submit(single(retry=retry(3, on_oom="heavy")))
        assert await waits(running, job_id, 0) == "q"
        await report(running, job_id, EXHAUSTED)
        assert await waits(running, job_id, 1) == "heavy"
        async with opened(dsn, application="test") as conn:
            explanation = await explain_node(conn, job_id, NodeId("work"), threshold_seconds=30)
        assert explanation.sentence == "Node `work` is next in queue `heavy`; no worker consumes this queue."
        assert (explanation.data["queue"], explanation.data["depth"]) == ("heavy", 1)


async def test_a_rule_that_ends_the_retries_is_recorded(dsn: str) -> None:
    async with fleet(dsn) as running:
        await running.orchestrator()
        job_id = await running.submit(single(retry=retry(3, never=["OSError"])))
        await waits(running, job_id, 0)
        await report(running, job_id, REFUSED)
        [job] = await running.ended(job_id)
        assert (job["status"], job["error_message"]) == ("failed", "node work failed: no luck")
        [failed] = await running.events(job_id, "node_failed")
        assert failed["event_data"] == {
            "will_retry": False,
            "worker_id": None,
            "error_type": "ConnectionRefusedError",
            "retry_rule": "never: OSError",
            "ended_by": "failure",
        }
        [result] = await rows(dsn, "SELECT error_type FROM dagapp.dag_task_results WHERE job_id = %s", job_id)
        assert result["error_type"] == "ConnectionRefusedError"


async def test_a_manual_retry_uses_the_queue_of_the_last_attempt(dsn: str) -> None:
    async with owner(dsn) as me:
        await me.submit(single(retry=retry(0, on_oom="heavy")))
        await me.advance(Load())
        task_id = f"{me.job_id}_work_0"
        await me.advance(TaskFailed("work", task_id, "w", datetime.now(UTC), "full", error_types=EXHAUSTED))
        await rows(dsn, "UPDATE dagapp.dag_jobs SET owner_id = %s, owner_epoch = owner_epoch + 1", me.id)
        me.loaded = None
        await me.advance(Load(), ManualRetry("work", "ann"))
        [waiting] = await rows(dsn, "SELECT task_id, queue FROM dagapp.dag_tasks_waiting")
        assert waiting == {"task_id": f"{me.job_id}_work_1", "queue": "heavy"}


async def test_a_local_worker_gets_tasks_of_the_rerouted_queue(dsn: str) -> None:
    async with owner(dsn) as me:
        await me.submit(fan(handler="echo", retry=retry(1, on_oom="heavy")), {"items": [1, 2]})
        await me.advance(Load())
        task_id = f"{me.job_id}_spread__1_0"
        failure = TaskReport(TaskId(task_id), me.job_id, "spread__1", "failed", error="full", error_types=EXHAUSTED)
        changes = await me.advance(failure.message(WorkerId("w"), datetime.now(UTC)))
        [dispatch] = changes.dispatches.values()
        assert (task_of(changes, dispatch).queue, queues_called(changes, ())) == ("heavy", {"heavy"})
        selected = await rows(dsn, "SELECT node_id, queue FROM dagapp.dag_node_states WHERE parent_node_id IS NOT NULL")
        assert {row["node_id"]: row["queue"] for row in selected} == {"spread__0": None, "spread__1": "heavy"}


async def test_retry_rules_match_the_exceptions_of_handlers(dsn: str) -> None:
    class Busy(ConnectionError):
        pass

    def call(ctx: HandlerContext) -> dict[str, Any]:
        kind = ctx.params["raises"]
        if ctx.retry_count == 0 and kind == "Busy":
            raise Busy("try later")
        if ctx.retry_count == 0 and kind == "Retry":
            raise Retry("not yet", after=0)
        if kind == "ValueError":
            raise ValueError("for ever")
        return {}

    async with fleet(dsn, call=call) as running:
        await running.orchestrator()
        await running.worker()
        policy = retry(3, on=["OSError"])
        ids = [
            await running.submit(single("call", params={"raises": name}, retry=policy))
            for name in ("Busy", "Retry", "ValueError")
        ]
        assert [job["status"] for job in await running.ended(*ids)] == ["completed", "completed", "failed"]
        types = await rows(dsn, "SELECT error_type FROM dagapp.dag_task_results WHERE status = 'failed'")
        assert {row["error_type"] for row in types} == {"Busy", "Retry", "ValueError"}
        [failed] = await running.events(ids[2], "node_failed")
        assert failed["event_data"]["retry_rule"] == "on: OSError"


async def test_a_task_that_ran_out_of_memory_is_retried_on_a_larger_worker(dsn: str) -> None:
    async def greedy(ctx: HandlerContext) -> dict[str, Any]:
        if ctx.worker_id != bigger.id:
            raise MemoryError
        return {"item": ctx.params["x"]}

    async with fleet(dsn, greedy=greedy) as running:
        await running.orchestrator()
        bigger = await running.worker(queues=("heavy",))
        await running.worker(queues=("q",))
        job = await running.run(
            fan(handler="greedy", retry=retry(1, on=["OSError"], on_oom="heavy")), {"items": [1, 2]}
        )
        assert (job["status"], job["error_message"]) == ("completed", None)
        assert job["result_data"]["gather"]["results"] == [{"item": 1}, {"item": 2}]
        await running.is_clean()


async def test_a_job_ends_at_the_deadline_of_its_workflow(dsn: str) -> None:
    """Even if its task is never claimed; the deadline is stored from the start."""
    limited = single("echo", queue="nobody")
    limited = compile_graph(limited.workflow.model_copy(update={"timeout_seconds": 0.3}))
    async with fleet(dsn) as running:
        await running.orchestrator()
        [job] = await running.ended(await running.submit(limited))
        assert (job["status"], job["error_message"]) == ("failed", "Timeout: the job did not end within 0.3 s")
        assert (job["deadline_at"] - job["started_at"]).total_seconds() == 0.3
