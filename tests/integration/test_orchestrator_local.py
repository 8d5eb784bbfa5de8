"""A worker in the orchestrator's own process: one commit per step and fair scheduling."""

import asyncio
from typing import Any

from fleet import NEVER, Fleet, chain, fan, fleet, single, wait_until

from dagmaster.handlers import HandlerContext
from dagmaster.ids import JobId, TaskId
from dagmaster.queues.contract import TaskReport

QUIET: dict[str, Any] = {
    "heartbeat_seconds": NEVER,
    "orphan_scan_seconds": NEVER,
    "late_mail_seconds": NEVER,
    "worker_lost_after_seconds": NEVER,
    "vacuum_seconds": NEVER,
}


async def transactions(running: Fleet) -> int:
    """The number of writing transactions so far, as counted by the server."""
    return int(await running.value("SELECT pg_snapshot_xmax(pg_current_snapshot())::text"))


async def test_a_step_costs_one_commit(dsn: str) -> None:
    async with fleet(dsn) as running:
        role = await running.orchestrator(poll=5.0, **QUIET)
        await running.worker(owner=role, poll_interval_seconds=5.0, heartbeat_interval_seconds=NEVER)
        await running.run(chain(2))
        spent = []
        for length in (10, 50):
            before = await transactions(running)
            job = await running.run(chain(length))
            assert job["status"] == "completed"
            spent.append(await transactions(running) - before)
        assert (spent[1] - spent[0]) / 40 <= 1.3, spent
        assert spent[0] <= 10 * 1.3 + 5


async def test_a_fan_out_is_committed_in_batches(dsn: str) -> None:
    async with fleet(dsn) as running:
        role = await running.orchestrator(poll=5.0, **QUIET)
        await running.worker(owner=role, concurrency=32, poll_interval_seconds=5.0, heartbeat_interval_seconds=NEVER)
        before = await transactions(running)
        job = await running.run(fan(), {"items": list(range(400))})
        assert job["status"] == "completed"
        assert await transactions(running) - before < 200


async def test_local_tasks_have_rows_like_all_others(dsn: str) -> None:
    gate = asyncio.Event()

    async def wait(ctx: HandlerContext) -> None:
        await gate.wait()

    async with fleet(dsn, wait=wait) as running:
        role = await running.orchestrator()
        worker = await running.worker(owner=role)
        job_id = await running.submit(single("wait"))
        await running.until("SELECT count(*) = 1 AS ok FROM dagapp.dag_tasks_running")
        [task] = await running.rows("SELECT task_id, worker_id, handler FROM dagapp.dag_tasks_running")
        assert task == {"task_id": f"{job_id}_work_0", "worker_id": worker.id, "handler": "wait"}
        # Before its first empty claim, the worker claims the task from the queue: it runs once the worker reports so.
        await running.until("SELECT status = 'running' AS ok FROM dagapp.dag_node_states WHERE node_id = 'work'")
        gate.set()
        await running.completed(job_id)
        await running.is_clean()


async def order_of(running: Fleet, submissions: list[dict[str, Any]], ran: list[str], gate: asyncio.Event) -> list[str]:
    """Occupy the one slot, submit these jobs and return the order in which they ran."""
    first = await running.submit(single("note", params={"name": "first"}))
    await running.until("SELECT count(*) = 1 AS ok FROM dagapp.dag_tasks_running")
    ids = []
    for submission in submissions:
        ids.append(
            await running.submit(
                single("note", params={"name": submission["name"]}), priority=submission.get("priority", 0)
            )
        )
        waiting = "SELECT count(*) = %s AS ok FROM dagapp.dag_tasks_waiting"
        await running.until(waiting, lambda: [len(ids)])
    gate.set()
    await running.completed(first, *ids)
    return ran


async def test_waiting_jobs_are_served_in_order(dsn: str) -> None:
    gate, ran = asyncio.Event(), []

    async def note(ctx: HandlerContext) -> None:
        ran.append(ctx.params["name"])
        await gate.wait()

    async with fleet(dsn, note=note) as running:
        role = await running.orchestrator()
        await running.worker(owner=role, concurrency=1)
        names = [{"name": f"job{n}"} for n in range(5)]
        assert await order_of(running, names, ran, gate) == ["first", "job0", "job1", "job2", "job3", "job4"]


async def test_the_highest_priority_gets_the_free_slot(dsn: str) -> None:
    gate, ran = asyncio.Event(), []

    async def note(ctx: HandlerContext) -> None:
        ran.append(ctx.params["name"])
        await gate.wait()

    async with fleet(dsn, note=note) as running:
        role = await running.orchestrator()
        await running.worker(owner=role, concurrency=1)
        jobs: list[dict[str, Any]] = [
            {"name": "low", "priority": -5},
            {"name": "normal"},
            {"name": "high", "priority": 5},
        ]
        assert await order_of(running, jobs, ran, gate) == ["first", "high", "normal", "low"]


async def test_an_older_job_continues_before_a_younger_one_starts(dsn: str) -> None:
    """A step of an older job precedes the first step of a younger one."""
    ran: list[str] = []

    async def note(ctx: HandlerContext) -> None:
        ran.append(f"{ctx.correlation_id}{ctx.node_id[-1]}")
        await asyncio.sleep(0.03)

    async with fleet(dsn, note=note) as running:
        role = await running.orchestrator()
        await running.worker(owner=role, concurrency=1)
        ids = []
        for name in "abc":
            ids.append(await running.submit(chain(3, "note"), correlation_id=name))
            await running.until(
                "SELECT count(*) = %s AS ok FROM dagapp.dag_jobs WHERE status <> 'pending'", lambda: [len(ids)]
            )
        await running.completed(*ids)
        assert [step for step in ran if step[0] == "a"] == ["a0", "a1", "a2"]
        assert ran.index("a2") < ran.index("b2") < ran.index("c2")


async def test_tasks_for_other_queues_and_handlers_are_left_to_other_workers(dsn: str) -> None:
    async with fleet(dsn) as running:
        role = await running.orchestrator()
        await running.worker(owner=role, queues=("light",))
        heavy = await running.submit(single(queue="heavy"))
        light = await running.submit(single(queue="light"))
        await running.completed(light)
        assert (await running.statuses(heavy))["work"] == "dispatched"
        await running.worker(queues=("heavy",))
        await running.completed(heavy)


async def test_local_and_remote_workers_share_a_fan_out(dsn: str) -> None:
    at_work, both = set(), asyncio.Event()

    async def where(ctx: HandlerContext) -> dict[str, Any]:
        at_work.add(ctx.worker_id)
        if len(at_work) == 2:
            both.set()
        await both.wait()  # One of them may be slow to begin.
        return {"worker": ctx.worker_id}

    async with fleet(dsn, where=where) as running:
        role = await running.orchestrator()
        near = await running.worker(owner=role, concurrency=4)
        far = await running.worker(concurrency=4)
        job = await running.run(fan(handler="where"), {"items": list(range(150))})
        workers = [result["worker"] for result in job["result_data"]["gather"]["results"]]
        assert set(workers) == {near.id, far.id}
        await running.is_clean()


async def test_a_report_for_a_job_that_is_not_in_memory_is_refused(dsn: str) -> None:
    async with fleet(dsn) as running:
        role = await running.orchestrator()
        await running.worker(owner=role)
        assert role.instance.deliver(TaskReport(TaskId("1_a_0"), JobId(1), "a", "completed")) is False


async def test_a_stopped_orchestrator_accepts_no_reports(dsn: str) -> None:
    """Its worker then reports by mail, and earlier reports are in the mailbox for the next owner."""
    entered, gate = asyncio.Event(), asyncio.Event()
    runs: list[str] = []

    async def wait(ctx: HandlerContext) -> None:
        runs.append(ctx.task_id)
        entered.set()
        await gate.wait()

    async with fleet(dsn, wait=wait) as running:
        first = await running.orchestrator()
        await running.worker(owner=first)
        job_id = await running.submit(chain(2, "wait"))
        await asyncio.wait_for(entered.wait(), 60)
        first._stop.set()
        gate.set()
        await first.stop()
        second = await running.orchestrator()
        await running.completed(job_id)
        assert runs == [f"{job_id}_n0_0", f"{job_id}_n1_0"]
        await wait_until(lambda: second.instance.stats.jobs_ended == 1)  # The row exists before its owner knows.
        await running.is_clean()


async def test_a_stopping_local_worker_leaves_waiting_tasks_to_others(dsn: str) -> None:
    started, gate = asyncio.Event(), asyncio.Event()

    async def wait(ctx: HandlerContext) -> dict[str, Any]:
        started.set()
        if ctx.retry_count == 0:
            await gate.wait()
        return {"attempt": ctx.retry_count}

    async with fleet(dsn, wait=wait) as running:
        role = await running.orchestrator()
        near = await running.worker(owner=role, shutdown_grace_seconds=0.1)
        job_id = await running.submit(single("wait"))
        await asyncio.wait_for(started.wait(), 60)
        await near.stop()
        await running.worker()
        [job] = await running.completed(job_id)
        assert job["result_data"]["work"] == {"attempt": 1}
        node = (await running.nodes(job_id))["work"]
        assert (node["retry_count"], node["max_retries"]) == (1, 1)
