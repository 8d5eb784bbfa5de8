"""Ownership of jobs and how it changes."""

import asyncio
import subprocess
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import partial
from time import monotonic
from typing import Any

import pytest
from fleet import NEVER, Fleet, OrchestratorRole, chain, fan, fleet, graph, retry, single, task, wait_until

from dagmaster.engine.change_set import Rules
from dagmaster.engine.messages import TimerDue, TimerKind
from dagmaster.handlers import HandlerContext
from dagmaster.orchestrator import chores, clock, liveness
from dagmaster.orchestrator.envelopes import Envelope
from dagmaster.orchestrator.orchestrator import Orchestrator
from dagmaster.store.connect import connect, connect_hot, keep_json
from dagmaster.store.notifications import Notifier

# psycopg's pipelines raise in the background when their connection is lost.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")


class Gate:
    """A handler that waits for the gate and counts its runs."""

    def __init__(self) -> None:
        self.entered, self.open = asyncio.Event(), asyncio.Event()
        self.runs: Counter[str] = Counter()

    async def __call__(self, ctx: HandlerContext) -> dict[str, Any]:
        self.runs[ctx.task_id] += 1
        self.entered.set()
        await self.open.wait()
        return {"by": ctx.worker_id}


async def make_stale(running: Fleet, role: OrchestratorRole) -> None:
    update = "UPDATE dagapp.dag_orchestrators SET heartbeat_at = now() - interval '1 hour' WHERE orchestrator_id = %s"
    await running.rows(update, role.id)


async def owner_of(running: Fleet, job_id: int) -> tuple[str | None, int]:
    [row] = await running.rows("SELECT owner_id, owner_epoch FROM dagapp.dag_jobs WHERE job_id = %s", job_id)
    return row["owner_id"], row["owner_epoch"]


async def assert_nothing_doubled(running: Fleet, job_id: int) -> None:
    doubled = """SELECT event_type, node_id, task_id FROM dagapp.dag_job_events WHERE job_id = %s
                 AND event_type NOT IN ('job_taken_over', 'result_ignored')
                 GROUP BY 1, 2, 3 HAVING count(*) > 1"""
    assert await running.rows(doubled, job_id) == []


async def test_two_orchestrators_share_the_jobs(dsn: str) -> None:
    async with fleet(dsn) as running:
        pair = [await running.orchestrator(), await running.orchestrator()]
        await running.worker(concurrency=16)
        ids = [await running.submit(chain(3)) for _ in range(40)]
        await running.completed(*ids)
        # The rows exist before their owners know.
        await wait_until(lambda: sum(role.instance.stats.jobs_ended for role in pair) == 40)
        assert all(role.instance.stats.jobs_ended for role in pair)
        for job_id in ids:
            await assert_nothing_doubled(running, job_id)
        await running.is_clean()


async def test_a_lost_owners_job_is_taken_over_and_its_running_task_counts(dsn: str) -> None:
    gate = Gate()
    async with fleet(dsn, gate=gate) as running:
        first = await running.orchestrator()
        await running.worker()
        job_id = await running.submit(graph({"a": task("gate", "b"), "b": task("echo", "END")}, start="a"))
        await asyncio.wait_for(gate.entered.wait(), 60)
        await running.until("SELECT count(*) = 1 AS ok FROM dagapp.dag_node_states WHERE status = 'running'")
        await first.kill()
        second = await running.orchestrator()
        assert await owner_of(running, job_id) == (first.id, 1)
        await make_stale(running, first)
        await running.until("SELECT owner_epoch = 2 AS ok FROM dagapp.dag_jobs")
        gate.open.set()
        await running.completed(job_id)
        assert gate.runs == {f"{job_id}_a_0": 1}
        assert second.instance.stats.jobs_reclaimed == 1
        [taken] = await running.events(job_id, "job_taken_over")
        assert taken["event_data"] == {"from": first.id, "to": second.id, "epoch": 2}
        await assert_nothing_doubled(running, job_id)


async def test_a_former_owner_that_resumes_can_change_nothing(dsn: str) -> None:
    gate = Gate()
    async with fleet(dsn, gate=gate) as running:
        first = await running.orchestrator()
        await running.worker()
        job_id = await running.submit(chain(2, "gate"))
        await asyncio.wait_for(gate.entered.wait(), 60)
        await running.until("SELECT count(*) = 1 AS ok FROM dagapp.dag_node_states WHERE status = 'running'")
        await first.kill()
        assert job_id in first.instance.jobs
        await make_stale(running, first)
        second = await running.orchestrator()
        assert await owner_of(running, job_id) == (second.id, 2)
        async with await connect_hot(dsn, application="woken") as conn:
            keep_json(conn)
            before = await running.events(job_id), await running.nodes(job_id)
            first.instance.inbox.extend([Envelope(job_id, TimerDue(TimerKind.TIMEOUT, "n0", 0))])
            await first.instance.cycle(conn)
            assert job_id not in first.instance.jobs
            assert before == (await running.events(job_id), await running.nodes(job_id))
            gate.open.set()
            await running.completed(job_id)
            before = await running.events(job_id), await running.nodes(job_id)
            await first.instance.cycle(conn)
            assert before == (await running.events(job_id), await running.nodes(job_id))
        await assert_nothing_doubled(running, job_id)


async def test_a_local_report_reaches_the_new_owner(dsn: str) -> None:
    """The local worker of the former owner has finished a task that now belongs to another owner."""
    gate = Gate()
    async with fleet(dsn, gate=gate) as running:
        first = await running.orchestrator()
        await running.worker(owner=first)
        job_id = await running.submit(chain(2, "gate"))
        await asyncio.wait_for(gate.entered.wait(), 60)
        second = await running.orchestrator()
        await running.rows("UPDATE dagapp.dag_jobs SET owner_id = %s, owner_epoch = owner_epoch + 1", second.id)
        second.instance.adopt([job_id])
        await running.until("SELECT true AS ok")
        gate.open.set()
        await running.completed(job_id)
        assert gate.runs == {f"{job_id}_n0_0": 1, f"{job_id}_n1_0": 1}
        await assert_nothing_doubled(running, job_id)


async def test_an_orchestrator_can_take_over_from_itself(dsn: str) -> None:
    """Its heartbeat was late, it took its own jobs for orphans, and it holds them under an old epoch."""
    gate = Gate()
    async with fleet(dsn, gate=gate) as running:
        only = await running.orchestrator(heartbeat_seconds=NEVER)
        await running.worker()
        job_id = await running.submit(single("gate"))
        await running.until("SELECT count(*) = 1 AS ok FROM dagapp.dag_node_states WHERE status = 'running'")
        await make_stale(running, only)
        await running.until("SELECT owner_epoch > 1 AS ok FROM dagapp.dag_jobs")
        await running.rows("UPDATE dagapp.dag_orchestrators SET heartbeat_at = now()")
        gate.open.set()
        await running.completed(job_id)


async def test_on_stop_jobs_are_handed_to_another_orchestrator(dsn: str) -> None:
    gate = Gate()
    async with fleet(dsn, gate=gate) as running:
        first = await running.orchestrator()
        await running.worker()
        ids = [await running.submit(chain(2, "gate")) for _ in range(4)]
        waiting = await running.submit(single("flaky_echo", params={"fail_attempts": 1}, retry=retry(1, 0.5)))
        await running.until("SELECT count(*) = 5 AS ok FROM dagapp.dag_jobs WHERE status <> 'pending'")
        second = await running.orchestrator(orphan_scan_seconds=NEVER, poll=NEVER)
        await first.stop()
        assert {await owner_of(running, job_id) for job_id in ids} == {(second.id, 2)}
        gate.open.set()
        await running.completed(*ids, waiting)
        [row] = await running.rows("SELECT status FROM dagapp.dag_orchestrators WHERE orchestrator_id = %s", first.id)
        assert row["status"] == "stopped"
        await running.is_clean()


async def test_on_stop_without_another_orchestrator_jobs_wait_for_the_next_start(dsn: str) -> None:
    gate = Gate()
    async with fleet(dsn, gate=gate) as running:
        first = await running.orchestrator()
        await running.worker()
        job_id = await running.submit(chain(2, "gate"))
        await asyncio.wait_for(gate.entered.wait(), 60)
        await first.stop()
        assert await owner_of(running, job_id) == (None, 2)
        gate.open.set()
        await running.until("SELECT count(*) = 1 AS ok FROM dagapp.dag_mailbox WHERE kind = 'completed'")
        await running.orchestrator(orphan_scan_seconds=NEVER)
        await running.completed(job_id)
        assert set(gate.runs.values()) == {1}
        await assert_nothing_doubled(running, job_id)


async def test_jobs_submitted_without_an_orchestrator_are_adopted_at_start(dsn: str) -> None:
    async with fleet(dsn) as running:
        ids = [await running.submit(chain(2)) for _ in range(3)]
        assert {await owner_of(running, job_id) for job_id in ids} == {(None, 1)}
        await running.orchestrator(orphan_scan_seconds=NEVER)
        await running.worker()
        await running.completed(*ids)


async def test_jobs_of_a_dead_local_process_are_taken_over_at_once(dsn: str) -> None:
    gate = Gate()
    async with fleet(dsn, gate=gate) as running:
        first = await running.orchestrator()
        worker = await running.worker(owner=first)
        job_id = await running.submit(chain(2, "gate", retry=retry(1)))
        await asyncio.wait_for(gate.entered.wait(), 60)
        await worker.kill()
        await first.kill()
        gate.open.set()
        ended = await asyncio.create_subprocess_exec("true", stdout=subprocess.DEVNULL)
        await ended.wait()
        for table in ("dag_orchestrators", "dag_workers"):
            await running.rows(f"UPDATE dagapp.{table} SET pid = %s", ended.pid)
        second = await running.orchestrator(orphan_scan_seconds=NEVER)
        await running.worker(owner=second)
        [job] = await running.completed(job_id)
        assert gate.runs == {f"{job_id}_n0_0": 1, f"{job_id}_n0_1": 1, f"{job_id}_n1_0": 1}
        assert job["status"] == "completed"
        await running.is_clean()


async def test_a_job_whose_owners_are_killed_repeatedly_ends_once(dsn: str) -> None:
    async with fleet(dsn) as running:
        job_id = await running.submit(chain(12, retry=retry(30)))
        for round_number in range(4):
            role = await running.orchestrator()
            worker = await running.worker(owner=role)
            done = """SELECT count(*) >= %s AS ok FROM dagapp.dag_node_states WHERE status = 'completed'"""
            await running.until(done, partial(list, [1 + 3 * round_number]))
            await worker.kill()
            await role.kill()
            await make_stale(running, role)
            await running.rows("UPDATE dagapp.dag_workers SET last_heartbeat = now() - interval '1 hour'")
        role = await running.orchestrator()
        await running.worker(owner=role)
        [job] = await running.ended(job_id)
        assert job["status"] == "completed"
        ends = await running.events(job_id, "node_completed", "job_completed")
        assert Counter(row["node_id"] for row in ends).most_common(1)[0][1] == 1
        await running.is_clean()


async def test_an_instance_whose_row_was_deleted_registers_again(dsn: str) -> None:
    gate = Gate()
    async with fleet(dsn, gate=gate) as running:
        role = await running.orchestrator()
        await running.worker(owner=role)
        job_id = await running.submit(chain(2, "gate"))
        await asyncio.wait_for(gate.entered.wait(), 60)
        await running.rows("DELETE FROM dagapp.dag_orchestrators")
        await running.until("SELECT count(*) = 1 AS ok FROM dagapp.dag_orchestrators WHERE status = 'running'")
        gate.open.set()
        await running.completed(job_id)
        assert set(gate.runs.values()) == {1}


async def test_reloading_all_jobs_loses_no_local_report(dsn: str) -> None:
    async with fleet(dsn) as running:
        role = await running.orchestrator()
        await running.worker(owner=role)
        job_id = await running.submit(chain(40))
        for _ in range(10):
            await asyncio.sleep(0.01)
            role.instance.forget_all()
        await running.completed(job_id)
        await assert_nothing_doubled(running, job_id)


STATUS = "SELECT status FROM dagapp.dag_orchestrators"


@pytest.fixture
def pass_time(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Advance the orchestrator's monotonic clock."""
    passed = 0.0

    def advance(seconds: float) -> None:
        nonlocal passed
        passed += seconds

    for module in (liveness, clock):
        monkeypatch.setattr(module, "monotonic", lambda: monotonic() + passed)
    return advance


async def test_an_instance_with_a_blocked_loop_is_stalled_until_it_continues(
    dsn: str, pass_time: Callable[[float], None]
) -> None:
    async with fleet(dsn) as running:
        role = await running.orchestrator(heartbeat_seconds=NEVER, poll=NEVER, listens=False)
        await running.until("SELECT count(*) = 1 AS ok FROM dagapp.dag_orchestrators WHERE heartbeat_at > started_at")
        judged = role.instance.liveness
        await wait_until(lambda: judged._cycled_at is not None and judged.seconds_without_progress == 0)
        async with await connect(dsn, application="test") as conn:
            for _ in range(3):
                assert await running.value(STATUS) == "running"
                pass_time(role.intervals.orphan_threshold_seconds / 2.5)
                await chores.beat(conn, role.instance, role.intervals)
            assert await running.value(STATUS) == "stalled"
            await wait_until(lambda: judged.seconds_since_cycle < 10)
            await chores.beat(conn, role.instance, role.intervals)
            assert await running.value(STATUS) == "running"


async def test_a_stalled_instance_adopts_no_jobs(dsn: str, pass_time: Callable[[float], None]) -> None:
    """Not even those without an owner, such as the jobs that it has just released."""
    async with fleet(dsn) as running, await connect(dsn, application="test") as conn:
        job_id = await running.submit(single())
        instance, intervals = Orchestrator(Rules(), Notifier(dsn)), chores.Intervals()
        instance.liveness.begin_cycle()
        pass_time(2 * intervals.orphan_threshold_seconds)
        for may_judge in (True, False):
            await chores.adopt(conn, instance, intervals, may_judge=may_judge)
            assert (await owner_of(running, job_id))[0] is None
        instance.liveness.begin_cycle()
        instance.liveness.complete_cycle()
        await chores.adopt(conn, instance, intervals, may_judge=False)
        assert (await owner_of(running, job_id))[0] == instance.me.instance_id


async def test_a_suspended_instance_is_not_stalled(dsn: str, pass_time: Callable[[float], None]) -> None:
    """Or one whose machine slept: only the time since it resumed counts."""
    async with fleet(dsn) as running:
        role = await running.orchestrator(heartbeat_seconds=NEVER, poll=NEVER, listens=False)
        await running.until("SELECT count(*) = 1 AS ok FROM dagapp.dag_orchestrators WHERE heartbeat_at > started_at")
        async with await connect(dsn, application="test") as conn:
            pass_time(3600)
            await chores.beat(conn, role.instance, role.intervals)
            assert await running.value(STATUS) == "running"


class SlowClock(datetime):
    @classmethod
    def now(cls, tz: Any = None) -> Any:
        return datetime.now(tz) - timedelta(hours=3)


async def test_all_timestamps_are_the_databases(dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clock, "datetime", SlowClock)
    async with fleet(dsn) as running:
        role = await running.orchestrator()
        await running.worker()
        await running.until("SELECT heartbeat_at > started_at AS ok FROM dagapp.dag_orchestrators")
        assert abs((role.instance.clock.now() - datetime.now(UTC)).total_seconds()) < 60
        job = await running.run(single("flaky_echo", params={"fail_attempts": 1}, retry=retry(1, 0.1)))
        near = timedelta(minutes=1)  # As exact as a round trip to the database on a busy machine.
        for event in await running.events(job["job_id"]):
            assert job["created_at"] - near < event["created_at"] < job["completed_at"] + near
        assert datetime.now(UTC) - job["started_at"] < timedelta(minutes=5)


async def test_a_waiting_job_causes_no_queries(dsn: str) -> None:
    gate = Gate()
    async with fleet(dsn, gate=gate) as running:
        role = await running.orchestrator(poll=NEVER, heartbeat_seconds=NEVER)
        await running.worker(concurrency=2, poll_interval_seconds=NEVER, heartbeat_interval_seconds=NEVER)
        job_id = await running.submit(fan(handler="gate"), {"items": list(range(60))})
        await asyncio.wait_for(gate.entered.wait(), 60)
        await running.until("SELECT count(*) = 2 AS ok FROM dagapp.dag_node_states WHERE status = 'running'")
        await running.until("SELECT count(*) = 0 AS ok FROM dagapp.dag_mailbox")
        async with asyncio.timeout(60):  # Until the notifications of its start have all been read.
            before = -1
            while role.instance.stats.cycles != before:
                before = role.instance.stats.cycles
                await asyncio.sleep(0.4)
        gate.open.set()
        await running.completed(job_id)


async def test_an_idle_orchestrator_queries_once_per_poll(dsn: str) -> None:
    async with fleet(dsn) as running:
        role = await running.orchestrator(poll=0.1)
        await wait_until(lambda: role.instance.stats.cycles > 0)
        await asyncio.sleep(0.2)
        before, began = role.instance.stats.cycles, monotonic()
        await asyncio.sleep(0.5)
        assert role.instance.stats.cycles - before <= (monotonic() - began) / 0.1 + 2


async def test_jobs_run_without_notifications(dsn: str) -> None:
    """Without LISTEN, and with a timer that expires before every poll."""
    async with fleet(dsn) as running:
        await running.orchestrator(listens=False, poll=0.3)
        await running.worker()
        ticking = [
            await running.submit(single("fail", queue="q", retry=retry(400, 0.05, backoff="fixed"))) for _ in range(3)
        ]
        job_id = await running.submit(chain(3))
        await running.completed(job_id)
        for task in ticking:
            await running.cancel(task)
        await running.ended(*ticking)


async def test_with_notifications_jobs_do_not_wait_for_polls(dsn: str) -> None:
    async with fleet(dsn) as running:
        await running.orchestrator(poll=NEVER)
        await running.worker(poll_interval_seconds=NEVER)
        await running.completed(await running.submit(chain(5)))
