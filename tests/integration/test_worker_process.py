"""A worker's slots, heartbeats, shutdown and database outages."""

import asyncio
import threading
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from time import monotonic
from typing import Any

import psycopg
import pytest
from fleet import NEVER, POLL, Fleet, WorkerRole, chain, fan, fleet, handlers, retry, rows, single, wait_until
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from dagmaster.handlers import HandlerContext
from dagmaster.ids import JobId, TaskId
from dagmaster.queues.contract import TaskMessage

# psycopg's pipelines raise in the background when their connection is lost.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")


class Gate:
    """A handler whose tasks wait for the gate unless told otherwise."""

    def __init__(self) -> None:
        self.open, self.entered = asyncio.Event(), asyncio.Event()
        self.at_once = self.most = 0
        self.runs: Counter[str] = Counter()
        self.cancelled: list[str] = []

    async def __call__(self, ctx: HandlerContext) -> dict[str, Any]:
        self.runs[ctx.task_id] += 1
        self.at_once += 1
        self.most = max(self.most, self.at_once)
        self.entered.set()
        try:
            await self.open.wait()
        except asyncio.CancelledError:
            self.cancelled.append(ctx.task_id)
            raise
        finally:
            self.at_once -= 1
        return {"worker": ctx.worker_id, "attempt": ctx.retry_count}


async def status_of(running: Fleet, worker_id: str) -> str:
    return await running.value("SELECT status FROM dagapp.dag_workers WHERE worker_id = %s", worker_id)


async def test_a_worker_runs_at_most_as_many_tasks_as_slots(dsn: str) -> None:
    gate = Gate()
    async with fleet(dsn, gate=gate) as running:
        await running.orchestrator()
        await running.worker(concurrency=3)
        job_id = await running.submit(fan(handler="gate"), {"items": list(range(10))})
        await running.until("SELECT count(*) = 3 AS ok FROM dagapp.dag_tasks_running")
        await wait_until(lambda: gate.at_once == 3)
        await asyncio.sleep(3 * POLL)
        assert gate.at_once == 3
        assert len(await running.rows("SELECT 1 FROM dagapp.dag_tasks_waiting")) == 7
        gate.open.set()
        await running.completed(job_id)
        assert gate.most == 3


async def test_threads_are_limited_by_slots_too(dsn: str) -> None:
    at_once, most, lock, two = 0, 0, threading.Lock(), threading.Barrier(2)

    def busy(ctx: HandlerContext) -> None:
        nonlocal at_once, most
        with lock:
            at_once += 1
            most = max(most, at_once)
        two.wait(60)
        with lock:
            at_once -= 1

    async with fleet(dsn, busy=busy) as running:
        await running.orchestrator()
        await running.worker(concurrency=2)
        job = await running.run(fan(handler="busy"), {"items": list(range(12))})
        assert job["status"] == "completed"
    assert most == 2


async def test_a_thousand_tasks_run_once_each(dsn: str) -> None:
    runs: Counter[str] = Counter()

    async def count(ctx: HandlerContext) -> dict[str, Any]:
        runs[ctx.task_id] += 1
        return {"x": ctx.params["x"]}

    async with fleet(dsn, count=count) as running:
        await running.orchestrator()
        worker = await running.worker(concurrency=32)
        job = await running.run(fan("sum", handler="count"), {"items": list(range(1000))})
        assert job["result_data"]["gather"] == {"total": sum(range(1000)), "count": 1000, "failed": 0}
        assert len(runs) == 1000 and set(runs.values()) == {1}
        assert worker.instance.completed == 1000
        await running.is_clean()


async def test_a_worker_claims_only_tasks_it_has_handlers_for(dsn: str) -> None:
    async with fleet(dsn) as running:
        await running.orchestrator()
        await running.worker()
        special = await running.submit(single("special"))
        plain = await running.submit(single())
        await running.completed(plain)
        assert (await running.statuses(special))["work"] == "dispatched"

        async def do(ctx: HandlerContext) -> dict[str, bool]:
            return {"special": True}

        await running.worker(known=handlers(special=do))
        [job] = await running.completed(special)
        assert job["result_data"]["work"] == {"special": True}


async def test_a_worker_reports_its_statistics(dsn: str) -> None:
    async with fleet(dsn) as running:
        await running.orchestrator()
        worker = await running.worker(concurrency=5)
        await running.completed(await running.submit(chain(3)))
        await running.ended(await running.submit(single("fail")))
        counted = "SELECT tasks_completed = 3 AND tasks_failed = 1 AS ok FROM dagapp.dag_workers"
        await running.until(counted)
        [row] = await running.rows("SELECT queues, concurrency, status FROM dagapp.dag_workers")
        assert row == {"queues": ["q"], "concurrency": 5, "status": "active"}
        await worker.stop()
        [row] = await running.rows("SELECT status, tasks_completed FROM dagapp.dag_workers")
        assert row == {"status": "stopped", "tasks_completed": 3}


async def test_on_stop_running_tasks_finish_and_no_new_ones_start(dsn: str) -> None:
    gate = Gate()
    async with fleet(dsn, gate=gate) as running:
        await running.orchestrator()
        worker = await running.worker(concurrency=2, shutdown_grace_seconds=60)
        job_id = await running.submit(fan(handler="gate"), {"items": [0, 1, 2, 3]})
        await wait_until(lambda: gate.at_once == 2)
        stopping = asyncio.create_task(worker.stop())
        await asyncio.sleep(2 * POLL)
        assert not stopping.done()
        gate.open.set()
        await asyncio.wait_for(stopping, 60)
        assert sum(gate.runs.values()) == 2
        assert gate.cancelled == []
        await running.until("SELECT count(*) = 2 AS ok FROM dagapp.dag_node_states WHERE output ? 'worker'")
        assert len(await running.rows("SELECT 1 FROM dagapp.dag_tasks_waiting")) == 2
        await running.worker()
        await running.completed(job_id)
        assert set(gate.runs.values()) == {1}


async def test_a_stopping_worker_sends_heartbeats_and_reports(dsn: str) -> None:
    """One long task must neither delay the results of the others nor look like a dead worker."""
    gate, short_gate = Gate(), Gate()
    async with fleet(dsn, gate=gate, short=short_gate) as running:
        await running.orchestrator()
        worker = await running.worker(shutdown_grace_seconds=60)
        blocked_id = await running.submit(single("gate"))
        short = await running.submit(single("short"))
        await running.until("SELECT count(*) = 2 AS ok FROM dagapp.dag_node_states WHERE status = 'running'")
        stopping = asyncio.create_task(worker.stop())
        await wait_until(lambda: worker.instance.is_stopping)
        short_gate.open.set()
        await running.completed(short)
        now = await running.value("SELECT clock_timestamp()")
        await running.until("SELECT last_heartbeat > %s AS ok FROM dagapp.dag_workers", lambda: [now])
        assert await status_of(running, worker.id) == "active"
        assert not stopping.done()
        gate.open.set()
        await stopping
        await running.completed(blocked_id)
        assert set(gate.runs.values()) == {1}


async def test_unfinished_tasks_are_returned_at_shutdown_and_cost_no_retry(dsn: str) -> None:
    gate = Gate()
    async with fleet(dsn, gate=gate) as running:
        await running.orchestrator()
        first = await running.worker(shutdown_grace_seconds=0.1)
        job_id = await running.submit(single("gate", retry=retry(0)))
        await asyncio.wait_for(gate.entered.wait(), 60)
        await asyncio.wait_for(first.stop(), 60)
        assert gate.cancelled == [f"{job_id}_work_0"]
        gate.open.set()
        second = await running.worker()
        [job] = await running.completed(job_id)
        assert job["result_data"]["work"] == {"worker": second.id, "attempt": 1}
        node = (await running.nodes(job_id))["work"]
        assert (node["retry_count"], node["max_retries"]) == (1, 1)
        [failed] = await running.events(job_id, "node_failed")
        assert failed["event_status"] == "warning" and "gave it back" in failed["error_message"]


async def test_a_worker_with_a_long_poll_interval_stops_in_time(dsn: str) -> None:
    gate = Gate()
    async with fleet(dsn, gate=gate) as running:
        await running.orchestrator()
        worker = await running.worker(shutdown_grace_seconds=0.2, poll_interval_seconds=NEVER)
        job_id = await running.submit(single("gate"))
        await asyncio.wait_for(gate.entered.wait(), 60)
        await asyncio.wait_for(worker.stop(), 60)
        await running.cancel(job_id)
        await running.ended(job_id)


async def test_a_killed_worker_loses_its_task_to_another(dsn: str) -> None:
    gate = Gate()
    async with fleet(dsn, gate=gate) as running:
        await running.orchestrator()
        first = await running.worker()
        job_id = await running.submit(single("gate", retry=retry(1)))
        await asyncio.wait_for(gate.entered.wait(), 60)
        await first.kill()
        await running.rows("UPDATE dagapp.dag_workers SET last_heartbeat = now() - interval '1 hour'")
        gate.open.set()
        second = await running.worker()
        [job] = await running.completed(job_id)
        assert job["result_data"]["work"] == {"worker": second.id, "attempt": 1}
        [failed] = await running.events(job_id, "node_failed")
        assert "was lost" in failed["error_message"]
        assert (await running.nodes(job_id))["work"]["max_retries"] == 1


async def test_a_lost_worker_restarts_under_a_new_name(dsn: str) -> None:
    gate, stubborn_runs = Gate(), []
    let_go = asyncio.Event()

    async def stubborn(ctx: HandlerContext) -> dict[str, Any]:
        stubborn_runs.append(ctx.retry_count)
        while ctx.retry_count == 0 and not let_go.is_set():
            try:
                await let_go.wait()
            except asyncio.CancelledError:
                continue
        return {"attempt": ctx.retry_count}

    async with fleet(dsn, gate=gate, stubborn=stubborn) as running:
        await running.orchestrator()
        worker = await running.worker()
        old = worker.id
        job_id = await running.submit(single("stubborn", retry=retry(1)))
        await running.until("SELECT count(*) = 1 AS ok FROM dagapp.dag_node_states WHERE status = 'running'")
        await running.rows("UPDATE dagapp.dag_workers SET status = 'lost'")
        await running.until("SELECT count(*) = 1 AS ok FROM dagapp.dag_workers WHERE status = 'active'")
        await running.completed(job_id)
        assert worker.id != old
        assert await status_of(running, old) == "lost"
        let_go.set()
        await running.until("SELECT count(*) >= 2 AS ok FROM dagapp.dag_task_results")
        await running.is_clean()
        assert stubborn_runs == [0, 1]
        assert (await running.nodes(job_id))["work"]["output"] == {"attempt": 1}
        [job] = await running.ended(job_id)
        assert job["result_data"]["work"] == {"attempt": 1}
        await running.completed(await running.submit(chain(3)))  # It keeps running.


async def test_a_revoked_task_frees_its_slot(dsn: str) -> None:
    gate = Gate()
    async with fleet(dsn, gate=gate) as running:
        await running.orchestrator()
        await running.worker(concurrency=1)
        job_id = await running.submit(single("gate"))
        await asyncio.wait_for(gate.entered.wait(), 60)
        await running.cancel(job_id)
        await running.completed(await running.submit(single()))
        assert gate.cancelled == [f"{job_id}_work_0"]


async def test_a_task_revoked_before_it_started_frees_its_slot(dsn: str) -> None:
    async with fleet(dsn) as running:
        worker = await running.worker(concurrency=2, shutdown_grace_seconds=60)
        message = TaskMessage(TaskId("1_work_0"), JobId(1), "work", "echo", "q", b"{}", 10.0, 0, datetime.now(UTC))
        worker.instance.task_runner.begin(message, monotonic())
        worker.instance.task_runner.revoke([message.task_id])  # Before the event loop starts it.
        await wait_until(lambda: worker.instance.free_slots == 2)
        await asyncio.wait_for(worker.stop(), 60)


async def test_invalid_outputs_fail_their_job_and_not_the_worker(dsn: str) -> None:
    async def odd(ctx: HandlerContext) -> Any:
        return {"a\0b": object()}

    def large(ctx: HandlerContext) -> dict[str, str]:
        return {"x": "y" * 5000}

    async def nul(ctx: HandlerContext) -> dict[str, str]:
        return {"x": "a\0b"}

    async def rude(ctx: HandlerContext) -> None:
        raise RuntimeError("with NUL \0 in its text")

    async with fleet(dsn, odd=odd, large=large, nul=nul, rude=rude) as running:
        await running.orchestrator()
        worker = await running.worker(max_output_bytes=1000)
        failing = [await running.submit(single(handler)) for handler in ("odd", "large", "rude")]
        fine = await running.submit(single("nul"))
        jobs = await running.ended(*failing)
        assert [job["status"] for job in jobs] == ["failed"] * 3
        for job, named in zip(jobs, ("is not JSON", "the limit is 1,000", "in its text"), strict=True):
            assert named in job["error_message"]
        [job] = await running.completed(fine)
        assert job["result_data"]["work"] == {"x": "a\ufffdb"}
        assert not worker.has_ended


@asynccontextmanager
async def closed(dsn: str) -> AsyncIterator[None]:
    """Close all connections to this database and refuse new ones."""
    name = conninfo_to_dict(dsn)["dbname"]
    admin = make_conninfo(dsn, dbname="postgres")

    async def execute(statement: str) -> None:
        async with await psycopg.AsyncConnection.connect(admin, autocommit=True) as conn:
            await conn.execute(statement)

    await execute(f"ALTER DATABASE {name} ALLOW_CONNECTIONS false")
    try:
        await execute(f"SELECT pg_terminate_backend(pid, 60000) FROM pg_stat_activity WHERE datname = '{name}'")
        yield
    finally:
        await execute(f"ALTER DATABASE {name} ALLOW_CONNECTIONS true")


async def outage(dsn: str, running: Fleet, gate: Gate, worker: WorkerRole) -> None:
    job_id = await running.submit(fan(handler="gate"), {"items": [0, 1, 2]})
    await running.until("SELECT count(*) = 3 AS ok FROM dagapp.dag_node_states WHERE status = 'running'")
    async with closed(dsn):
        gate.open.set()
        await wait_until(lambda: gate.at_once == 0)
        await asyncio.sleep(0.3)
    [job] = await running.completed(job_id)
    assert len(job["result_data"]["gather"]["results"]) == 3
    assert not worker.has_ended


async def test_reports_survive_a_database_outage(dsn: str) -> None:
    gate = Gate()
    async with fleet(dsn, gate=gate) as running:
        await running.orchestrator()
        worker = await running.worker()
        await outage(dsn, running, gate, worker)
        assert set(gate.runs.values()) == {1}
        assert worker.instance.completed == 3


async def test_local_reports_survive_a_database_outage(dsn: str) -> None:
    gate = Gate()
    async with fleet(dsn, gate=gate) as running:
        role = await running.orchestrator()
        worker = await running.worker(owner=role)
        await outage(dsn, running, gate, worker)
        doubled = """SELECT node_id FROM dagapp.dag_job_events WHERE event_type = 'node_completed'
                     GROUP BY node_id HAVING count(*) > 1"""
        assert await running.rows(doubled) == []


async def test_a_worker_can_stop_during_a_database_outage(dsn: str) -> None:
    gate = Gate()
    async with fleet(dsn, gate=gate) as running:
        role = await running.orchestrator()
        worker = await running.worker(shutdown_grace_seconds=0.1)
        job_id = await running.submit(single("gate", retry=retry(1)))
        await asyncio.wait_for(gate.entered.wait(), 60)
        async with closed(dsn):
            await asyncio.wait_for(worker.stop(), 60)
        gate.open.set()
        # After an outage, each worker has a whole lease to renew its own.
        await rows(dsn, "UPDATE dagapp.dag_workers SET status = 'lost'")
        await running.worker()
        await running.completed(job_id)
        assert not role.has_ended


async def test_an_orchestrator_can_stop_during_a_database_outage(dsn: str) -> None:
    async with fleet(dsn) as running:
        role = await running.orchestrator()
        async with closed(dsn):
            await asyncio.wait_for(role.stop(), 60)


async def test_a_task_that_cannot_be_executed_is_reported_as_failed(dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any) -> None:
        raise MemoryError("no room for a log")

    async with fleet(dsn) as running:
        await running.orchestrator()
        monkeypatch.setattr("dagmaster.worker.logbook.Logbook.open", broken)
        await running.worker()
        job = await running.run(single())
        assert job["status"] == "failed"
        assert "cannot be executed: MemoryError: no room for a log" in job["error_message"]
