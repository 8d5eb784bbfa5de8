import asyncio
import os
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from fleet import SOON, rows, single
from job_owner import owner

from dagmaster.engine.messages import Load
from dagmaster.store import instances, orchestrators, submission, workers
from dagmaster.store.connect import Connection, connect, opened
from dagmaster.store.instances import Instance, this_instance
from dagmaster.store.submission import NewJob

WORKER: dict[str, Any] = {"queues": ["q"], "concurrency": 4}


async def status(dsn: str, instance: Instance) -> str:
    [row] = await rows(
        dsn,
        """SELECT status FROM dagapp.dag_orchestrators WHERE orchestrator_id = %s
           UNION ALL SELECT status FROM dagapp.dag_workers WHERE worker_id = %s""",
        instance.instance_id,
        instance.instance_id,
    )
    return row["status"]


async def owners(dsn: str) -> list[tuple[str | None, int]]:
    jobs = await rows(dsn, "SELECT owner_id, owner_epoch FROM dagapp.dag_jobs ORDER BY job_id")
    return [(row["owner_id"], row["owner_epoch"]) for row in jobs]


async def grow_old(dsn: str, instance: Instance, seconds: float = 3600) -> None:
    for table, key, column in (
        ("dag_orchestrators", "orchestrator_id", "heartbeat_at"),
        ("dag_workers", "worker_id", "last_heartbeat"),
    ):
        update = f"UPDATE dagapp.{table} SET {column} = now() - make_interval(secs => %s) WHERE {key} = %s"
        await rows(dsn, update, seconds, instance.instance_id)


async def submit(conn: Connection, count: int, owner_id: str | None) -> list[int]:
    new = [NewJob(single(), {}) for _ in range(count)]
    return [job.job_id for job in await submission.submit_many(conn, new, threshold_seconds=30, owner_id=owner_id)]


def dead() -> Instance:
    """An instance of this machine whose process has ended."""
    ended = subprocess.Popen(["true"])
    ended.wait()
    return replace(this_instance(), pid=ended.pid)


def test_instances_have_unique_names_and_share_their_host_key() -> None:
    first, second = this_instance(), this_instance()
    assert first.instance_id != second.instance_id
    assert (first.host_key, first.pid) == (second.host_key, second.pid)


async def test_a_heartbeat_returns_the_time_and_stores_the_statistics(dsn: str) -> None:
    me = this_instance()
    async with opened(dsn, application="test") as conn:
        assert await instances.beat_orchestrator(conn, me, 0, {}) is None
        await instances.register_orchestrator(conn, me)
        await grow_old(dsn, me)
        at = await instances.beat_orchestrator(conn, me, 3, {"cycles": 5, "last_cycle_at": datetime.now(UTC)})
        assert at is not None and abs((datetime.now(UTC) - at).total_seconds()) < 60
        [row] = await orchestrators.list_orchestrators(conn)
    assert (row["jobs_owned"], row["stats"]["cycles"]) == (3, 5)
    assert (datetime.now(UTC) - row["heartbeat_at"]).total_seconds() < 60


async def test_a_lost_orchestrator_learns_it_at_its_next_heartbeat(dsn: str) -> None:
    """It registers again; otherwise it would get no jobs and lose those that it takes."""
    me = this_instance()
    async with opened(dsn, application="test") as conn:
        await instances.register_orchestrator(conn, me)
        for given_up in ("lost", "stopped"):
            await rows(dsn, "UPDATE dagapp.dag_orchestrators SET status = %s", given_up)
            assert await instances.beat_orchestrator(conn, me, 0, {}) is None
            await instances.register_orchestrator(conn, me)
            assert await instances.beat_orchestrator(conn, me, 0, {}) is not None
    assert await status(dsn, me) == "running"


async def test_a_lost_worker_learns_it_at_its_next_heartbeat(dsn: str) -> None:
    me = this_instance()
    async with opened(dsn, application="test") as conn:
        await instances.register_worker(conn, me, **WORKER)
        assert await instances.beat_worker(conn, me.worker_id, {"completed": 7, "failed": 2}) is not None
        [row] = await workers.list_workers(conn)
        assert (row["tasks_completed"], row["tasks_failed"], row["queues"], row["concurrency"]) == (7, 2, ["q"], 4)
        await rows(dsn, "UPDATE dagapp.dag_workers SET status = 'lost'")
        assert await instances.beat_worker(conn, me.worker_id, {"completed": 8, "failed": 2}) is None
        await instances.stop_worker(conn, me.worker_id, {"completed": 8})
    assert await status(dsn, me) == "lost"


async def test_jobs_of_an_owner_without_heartbeats_are_taken_over(dsn: str) -> None:
    stale, alive, me = this_instance(), this_instance(), this_instance()
    async with opened(dsn, application="test") as conn:
        for instance in (stale, alive, me):
            await instances.register_orchestrator(conn, instance)
        taken_before = await submit(conn, 2, stale.instance_id)
        await submit(conn, 1, alive.instance_id)
        orphans = await submit(conn, 1, "nobody knows")
        [ended] = await submit(conn, 1, stale.instance_id)
        await rows(dsn, "UPDATE dagapp.dag_jobs SET status = 'failed', owner_id = NULL WHERE job_id = %s", ended)
        await grow_old(dsn, stale, 31)
        taken = await instances.take_over_jobs(conn, me, threshold_seconds=30, limit=100)
        assert sorted(taken) == taken_before + orphans
        assert await instances.take_over_jobs(conn, me, threshold_seconds=30, limit=100) == []
    mine = (me.instance_id, 2)
    assert await owners(dsn) == [mine, mine, (alive.instance_id, 1), mine, (None, 1)]
    events = await rows(
        dsn, "SELECT event_data, event_status FROM dagapp.dag_job_events WHERE event_type = 'job_taken_over'"
    )
    assert [(row["event_status"], row["event_data"]["to"]) for row in events] == [("warning", me.instance_id)] * 3
    assert {row["event_data"]["from"] for row in events} == {stale.instance_id, "nobody knows"}


async def test_jobs_without_an_owner_are_taken_over_oldest_first(dsn: str) -> None:
    me = this_instance()
    async with opened(dsn, application="test") as conn:
        ids = [(await submit(conn, 1, None))[0] for _ in range(5)]
        await instances.register_orchestrator(conn, me)
        assert sorted(await instances.take_over_jobs(conn, me, threshold_seconds=30, limit=2)) == ids[:2]
        assert sorted(await instances.take_over_jobs(conn, me, threshold_seconds=30, limit=9)) == ids[2:]


async def test_each_orphaned_job_is_taken_by_exactly_one_orchestrator(dsn: str) -> None:
    async with opened(dsn, application="test") as conn:
        ids = await submit(conn, 200, None)

    async def take() -> list[int]:
        taken: list[int] = []
        async with opened(dsn, application="test") as conn:
            me = this_instance()
            await instances.register_orchestrator(conn, me)
            while some := await instances.take_over_jobs(conn, me, threshold_seconds=30, limit=7):
                taken += some
        return taken

    shares = await asyncio.gather(*(take() for _ in range(4)))
    assert sorted(job_id for share in shares for job_id in share) == ids
    assert {epoch for _, epoch in await owners(dsn)} == {2}


async def test_jobs_are_handed_over_round_robin_to_live_orchestrators(dsn: str) -> None:
    me, stale, *heirs = (this_instance() for _ in range(4))
    async with opened(dsn, application="test") as conn:
        for instance in (me, stale, *heirs):
            await instances.register_orchestrator(conn, instance)
        await grow_old(dsn, stale)
        await submit(conn, 7, me.instance_id)
        await submit(conn, 1, stale.instance_id)
        await rows(dsn, "DELETE FROM dagapp.dag_mailbox")
        assert await instances.hand_over_jobs(conn, me, threshold_seconds=30) == 7
    *handed_over, remaining = await owners(dsn)
    assert remaining == (stale.instance_id, 1)
    assert {epoch for _, epoch in handed_over} == {2}
    shares = [[name for name, _ in handed_over].count(heir.instance_id) for heir in heirs]
    assert sorted(shares) == [3, 4]
    assert len(await rows(dsn, "SELECT 1 FROM dagapp.dag_mailbox WHERE kind = 'adopted'")) == 7


async def test_without_another_orchestrator_jobs_have_no_owner(dsn: str) -> None:
    me = this_instance()
    async with opened(dsn, application="test") as conn:
        await instances.register_orchestrator(conn, me)
        await submit(conn, 2, me.instance_id)
        assert await instances.hand_over_jobs(conn, me, threshold_seconds=30) == 2
    assert await owners(dsn) == [(None, 2), (None, 2)]


async def test_instances_whose_process_is_dead_are_marked_lost_at_once(dsn: str) -> None:
    alive, gone, gone_worker = this_instance(), dead(), dead()
    elsewhere = replace(dead(), host_key="another machine")
    async with opened(dsn, application="test") as conn:
        for instance in (alive, gone, elsewhere):
            await instances.register_orchestrator(conn, instance)
        await instances.register_worker(conn, gone_worker, **WORKER)
        buried = await instances.mark_dead_lost(conn, alive.host_key)
        assert sorted(buried) == sorted([gone.instance_id, gone_worker.instance_id])
        assert await instances.mark_dead_lost(conn, alive.host_key) == []
    assert [await status(dsn, instance) for instance in (alive, gone, gone_worker, elsewhere)] == [
        "running",
        "lost",
        "lost",
        "running",
    ]


@pytest.fixture
def unreaped() -> Iterator[int]:
    """The pid of an ended process that has not been reaped."""
    child = subprocess.Popen(["true"])
    yield child.pid
    child.wait()


async def test_a_zombie_counts_as_dead(dsn: str, unreaped: int) -> None:
    async with opened(dsn, application="test") as conn:
        instance = replace(this_instance(), pid=unreaped)
        await instances.register_worker(conn, instance, **WORKER)
        async with asyncio.timeout(SOON):
            while not (buried := await instances.mark_dead_lost(conn, instance.host_key)):  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        assert buried == [instance.instance_id]


async def held_task(dsn: str, worker: Instance) -> int:
    """A job whose one task this worker has claimed."""
    async with owner(dsn) as me:
        await me.submit(single())
        await me.advance(Load())
        await rows(
            dsn,
            """WITH gone AS (DELETE FROM dagapp.dag_tasks_waiting WHERE job_id = %s RETURNING *)
               INSERT INTO dagapp.dag_tasks_running (task_id, job_id, node_id, retry_count, queue, priority,
                   job_started_at, handler, timeout_seconds, dispatched_at, worker_id)
               SELECT task_id, job_id, node_id, retry_count, queue, priority, job_started_at, handler,
                   timeout_seconds, dispatched_at, %s FROM gone""",
            me.job_id,
            worker.instance_id,
        )
        return me.job_id


async def test_tasks_of_workers_without_heartbeats_are_lost(dsn: str) -> None:
    alive, stale, stopped, unknown = (this_instance() for _ in range(4))
    async with opened(dsn, application="test") as conn:
        for instance in (alive, stale, stopped):
            await instances.register_worker(conn, instance, **WORKER)
        await instances.stop_worker(conn, stopped.worker_id, {})
        owners_of_tasks = (alive, stale, stopped, unknown)
        job_ids = {instance.instance_id: await held_task(dsn, instance) for instance in owners_of_tasks}
        await grow_old(dsn, stale, 31)
        assert await instances.rescue_tasks(conn, lost_after_seconds=30) == 3
        assert await instances.rescue_tasks(conn, lost_after_seconds=30) == 0
    assert await status(dsn, stale) == "lost"
    remaining = await rows(dsn, "SELECT job_id FROM dagapp.dag_tasks_running")
    assert remaining == [{"job_id": job_ids[alive.instance_id]}]
    lost = await rows(dsn, "SELECT job_id, worker_id FROM dagapp.dag_mailbox WHERE kind = 'lost'")
    assert {row["worker_id"]: row["job_id"] for row in lost} == {
        name: job_id for name, job_id in job_ids.items() if name != alive.instance_id
    }


async def test_two_concurrent_rescues_notify_each_owner_once(dsn: str) -> None:
    gone = this_instance()
    for _ in range(10):
        await held_task(dsn, gone)

    async def rescue() -> int:
        async with opened(dsn, application="test") as conn:
            return await instances.rescue_tasks(conn, lost_after_seconds=30)

    assert sum(await asyncio.gather(*(rescue() for _ in range(4)))) == 10
    lost = await rows(
        dsn, "SELECT count(*) AS n, count(DISTINCT task_id) AS tasks FROM dagapp.dag_mailbox WHERE kind = 'lost'"
    )
    assert lost == [{"n": 10, "tasks": 10}]


async def test_a_rescue_waits_for_a_worker_that_is_reporting(dsn: str) -> None:
    """Either the report counts or the loss, never both."""
    late = this_instance()
    job_id = await held_task(dsn, late)
    async with await connect(dsn, application="test") as conn:
        async with conn.transaction():
            await conn.execute(b"DELETE FROM dagapp.dag_tasks_running")

            async def rescue() -> int:
                async with opened(dsn, application="test") as other:
                    return await instances.rescue_tasks(other, lost_after_seconds=30)

            rescuer = asyncio.create_task(rescue())
            for _ in range(1000):
                if await rows(dsn, "SELECT 1 FROM pg_locks WHERE NOT granted"):
                    break
                await asyncio.sleep(0.005)
        assert await rescuer == 0
    assert await rows(dsn, "SELECT 1 FROM dagapp.dag_mailbox WHERE kind = 'lost' AND job_id = %s", job_id) == []


async def test_instances_that_stopped_long_ago_are_deleted(dsn: str) -> None:
    async with opened(dsn, application="test") as conn:
        stopped, recent, running = (this_instance() for _ in range(3))
        for instance in (stopped, recent, running):
            await instances.register_orchestrator(conn, instance)
            await instances.register_worker(conn, instance, **WORKER)
        for instance in (stopped, recent):
            await instances.stop_orchestrator(conn, instance, {})
            await instances.stop_worker(conn, instance.worker_id, {})
        for instance in (stopped, running):
            await grow_old(dsn, instance, 8 * 86_400)
        await instances.forget_instances(conn, days=7)
        for listed in (await orchestrators.list_orchestrators(conn), await workers.list_workers(conn)):
            assert len(listed) == 2


async def test_a_stalled_orchestrator_that_dies_is_marked_lost(dsn: str, sleeper: subprocess.Popen[bytes]) -> None:
    """Otherwise the doctor would keep reporting it."""
    sleeper.kill()
    sleeper.wait()
    async with opened(dsn, application="test") as conn:
        dead = replace(this_instance(), pid=sleeper.pid)
        await instances.register_orchestrator(conn, dead)
        await instances.stall_orchestrator(conn, dead, {})
        assert await instances.mark_dead_lost(conn, dead.host_key) == [dead.instance_id]
        [row] = await orchestrators.list_orchestrators(conn)
        assert row["status"] == "lost"


# Hidden processes.


@pytest.fixture
def hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    """/proc as another user sees it with hidepid=2, or in a systemd unit with ProtectProc."""
    original = Path.read_text

    def read_text(path: Path, *args: Any, **options: Any) -> str:
        if str(path).startswith("/proc/") and path.name == "stat":
            raise FileNotFoundError(2, "No such file or directory", str(path))
        return original(path, *args, **options)

    monkeypatch.setattr(Path, "read_text", read_text)


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(["sleep", "60"]) as process:
        yield process
        process.kill()


@pytest.mark.usefixtures("hidden")
async def test_a_process_hidden_from_proc_is_not_dead(dsn: str, sleeper: subprocess.Popen[bytes]) -> None:
    async with opened(dsn, application="test") as conn:
        alive = replace(this_instance(), pid=sleeper.pid)
        await instances.register_worker(conn, alive, **WORKER)
        assert await instances.mark_dead_lost(conn, alive.host_key) == []
        sleeper.kill()
        sleeper.wait()
        assert await instances.mark_dead_lost(conn, alive.host_key) == [alive.instance_id]


@pytest.mark.parametrize(("error", "gone"), [(PermissionError(1, "no"), False), (ProcessLookupError(3, "no"), True)])
def test_only_an_unused_pid_is_dead(monkeypatch: pytest.MonkeyPatch, hidden: None, error: OSError, gone: bool) -> None:
    def kill(pid: int, number: int) -> None:
        raise error

    monkeypatch.setattr(os, "kill", kill)
    assert instances.is_gone(4711) is gone


def test_an_unreadable_boot_id_gives_an_unknown_host(monkeypatch: pytest.MonkeyPatch) -> None:
    def read_text(path: Path, *args: Any, **options: Any) -> str:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "read_text", read_text)
    first, second = instances.host_key(), instances.host_key()
    assert first.startswith("unknown-")
    assert first != second  # It is never taken for the same machine.
