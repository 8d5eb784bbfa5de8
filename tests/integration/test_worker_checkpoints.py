"""A saved phase is not repeated, whatever happened to its attempt."""

import asyncio
import threading
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from fleet import Fleet, fleet, graph, retry, single, task, wait_until

from dagmaster.handlers import HandlerContext

PHASES = ["one", "two", "three", "four"]


class Phases:
    """An async generator of four phases that can be held in one of them."""

    def __init__(self, hold_in: str | None = None, fail_after: str | None = None) -> None:
        self.ran: Counter[str] = Counter()
        self.hold_in, self.fail_after = hold_in, fail_after
        self.is_held, self.go_on = asyncio.Event(), asyncio.Event()

    async def __call__(self, ctx: HandlerContext) -> AsyncIterator[Any]:
        done = list(ctx.resumed_from.data["done"]) if ctx.resumed_from else []
        for phase in ctx.remaining(PHASES):
            if phase == self.hold_in:
                self.is_held.set()
                await self.go_on.wait()
            self.ran[phase] += 1
            done.append(phase)
            yield {"type": "checkpoint", "phase": phase, "data": {"done": done}}
            if phase == self.fail_after:
                self.fail_after = None
                raise ConnectionError("the network is gone")
        yield {"type": "result", "output": {"done": done, "attempt": ctx.retry_count}}


async def result_of(running: Fleet, job_id: int) -> dict[str, Any]:
    [job] = await running.completed(job_id)
    return job["result_data"]["work"]


async def test_a_failed_attempt_resumes_after_its_last_checkpoint(dsn: str) -> None:
    phases = Phases(fail_after="two")
    async with fleet(dsn, phases=phases.__call__) as running:
        owner = await running.orchestrator()
        await running.worker(owner=owner)
        job_id = await running.submit(single("phases", retry=retry(2)))
        assert await result_of(running, job_id) == {"done": PHASES, "attempt": 1}
        saved = await running.rows(
            "SELECT phase_name, state_data, task_id FROM dagapp.dag_checkpoints WHERE job_id = %s ORDER BY created_at",
            job_id,
        )
        assert [row["phase_name"] for row in saved] == PHASES
        assert [row["task_id"].rpartition("_")[2] for row in saved] == ["0", "0", "1", "1"]
        assert saved[1]["state_data"] == {"done": ["one", "two"]}
        await running.until("SELECT count(*) = 0 AS ok FROM dagapp.dag_mailbox")
        events = await running.events(job_id, "node_checkpoint", "node_failed", "node_retrying")
        names = [row["checkpoint_name"] or row["event_type"] for row in events]
        assert names == ["one", "two", "node_failed", "node_retrying", "three", "four"]
    assert phases.ran == dict.fromkeys(PHASES, 1)


async def test_a_finalizer_resumes_from_its_checkpoint_on_a_local_worker(dsn: str) -> None:
    """Its parameters are evaluated for each attempt; its checkpoints are not in the orchestrator's memory."""
    phases = Phases(fail_after="two")
    nodes: dict[str, Any] = {
        "work": task("echo", "END"),
        "clean": task("phases", params={"n": "{{ job.status }}"}, retry=retry(2)),
    }
    async with fleet(dsn, phases=phases.__call__) as running:
        owner = await running.orchestrator()
        await running.worker(owner=owner)
        job_id = await running.submit(graph(nodes, start="work", finally_=("clean",)))
        await running.completed(job_id)
        assert (await running.nodes(job_id))["clean"]["output"] == {"done": PHASES, "attempt": 1}
    assert phases.ran == dict.fromkeys(PHASES, 1)


async def test_the_phases_of_a_killed_worker_are_not_repeated(dsn: str) -> None:
    phases = Phases(hold_in="three")
    async with fleet(dsn, phases=phases.__call__) as running:
        await running.orchestrator()
        first = await running.worker()
        job_id = await running.submit(single("phases", retry=retry(2)))
        await asyncio.wait_for(phases.is_held.wait(), 60)
        await running.until("SELECT count(*) = 1 AS ok FROM dagapp.dag_node_states WHERE checkpoint_phase = 'two'")
        assert (await running.nodes(job_id))["work"]["checkpoint_data"] == {"done": ["one", "two"]}
        await first.kill()
        await running.rows("UPDATE dagapp.dag_workers SET last_heartbeat = now() - interval '1 hour'")
        phases.go_on.set()
        await running.worker()
        assert await result_of(running, job_id) == {"done": PHASES, "attempt": 1}
    assert phases.ran == dict.fromkeys(PHASES, 1)


async def test_a_stopping_worker_returns_a_task_at_its_next_checkpoint(dsn: str) -> None:
    phases = Phases(hold_in="two")
    async with fleet(dsn, phases=phases.__call__) as running:
        await running.orchestrator()
        first = await running.worker(shutdown_grace_seconds=60)
        job_id = await running.submit(single("phases"))  # Without retries: a returned task costs none.
        await asyncio.wait_for(phases.is_held.wait(), 60)
        stopping = asyncio.create_task(first.stop())
        await wait_until(lambda: first.instance.is_stopping)
        phases.go_on.set()
        await asyncio.wait_for(stopping, 60)
        assert phases.ran == {"one": 1, "two": 1}
        await running.worker()
        assert await result_of(running, job_id) == {"done": PHASES, "attempt": 1}
    assert phases.ran == dict.fromkeys(PHASES, 1)


async def test_a_thread_waits_for_its_checkpoint_and_ends_at_one_when_its_worker_stops(dsn: str) -> None:
    seen: list[str] = []
    at_two, go_on = threading.Event(), threading.Event()

    def work(ctx: HandlerContext) -> dict[str, Any]:
        for phase in ctx.remaining(PHASES):
            if phase == "two" and not go_on.is_set():
                at_two.set()
                go_on.wait(100)
            ctx.checkpoint(phase)
            seen.append(phase)
        return {"attempt": ctx.retry_count}

    async with fleet(dsn, work=work) as running:
        await running.orchestrator()
        first = await running.worker(shutdown_grace_seconds=60)
        job_id = await running.submit(single("work"))
        assert await asyncio.to_thread(at_two.wait, 60)
        assert await running.value("SELECT count(*) FROM dagapp.dag_checkpoints") == 1
        stopping = asyncio.create_task(first.stop())
        await wait_until(lambda: first.instance.is_stopping)
        go_on.set()
        await asyncio.wait_for(stopping, 60)
        assert seen == ["one"]
        await running.worker()
        assert await result_of(running, job_id) == {"attempt": 1}
    assert seen == ["one", "three", "four"]


async def test_a_checkpoint_whose_files_are_missing_is_replaced_by_the_previous_one(dsn: str, tmp_path: Path) -> None:
    resumed: list[str | None] = []

    def work(ctx: HandlerContext) -> dict[str, Any]:
        resumed.append(ctx.resumed_from.phase if ctx.resumed_from else None)
        for phase in ctx.remaining(PHASES):
            file = tmp_path / f"{phase}.bin"
            file.write_bytes(b"x")
            ctx.checkpoint(phase, artifacts=[str(file)])
            if phase == "three" and ctx.retry_count == 0:
                file.unlink()
                raise OSError("the scratch disk died")
        return {}

    async with fleet(dsn, work=work) as running:
        await running.orchestrator()
        await running.worker()
        job_id = await running.submit(single("work", retry=retry(1)))
        await running.completed(job_id)
        assert resumed == [None, "two"]
        [warning] = await running.events(job_id, "node_warning")
        assert warning["event_data"]["warning"].startswith("the checkpoint three was discarded: its artifact")


async def test_checkpoints_saved_during_a_database_outage_are_stored_later(dsn: str) -> None:
    saved, go_on = asyncio.Event(), asyncio.Event()

    async def work(ctx: HandlerContext) -> dict[str, Any]:
        if ctx.resumed_from is None:
            saved.set()
            await go_on.wait()
            ctx.checkpoint("one", {"a": 1})
            raise ValueError("as if by chance")
        return ctx.resumed_from.data

    async with fleet(dsn, work=work) as running:
        await running.orchestrator()
        worker = await running.worker()
        job_id = await running.submit(single("work", retry=retry(1)))
        await asyncio.wait_for(saved.wait(), 60)
        await running.rows(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'dagmaster worker'"
        )
        go_on.set()
        assert await result_of(running, job_id) == {"a": 1}
        await wait_until(lambda: worker.instance.is_connected)
