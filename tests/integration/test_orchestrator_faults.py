"""Poisoned jobs, lost connections and a restarted server: nothing is lost and nothing happens twice."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import psycopg
import pytest
from fleet import NEVER, Fleet, chain, fan, fleet, graph, retry, rows, single, task

from dagmaster.engine.decide import decide
from dagmaster.handlers import HandlerContext
from dagmaster.ids import JobId
from dagmaster.orchestrator import chores, inbox, job_loader, liveness, orchestrator, pending_batch
from dagmaster.store.batch import commit
from dagmaster.store.connect import Connection, opened
from dagmaster.store.embedded import EmbeddedServer
from dagmaster.store.instances import register_worker, this_instance
from dagmaster.store.job_control import request_cancel
from dagmaster.store.mailbox import read_mail
from dagmaster.store.submission import NewJob

# psycopg's pipelines raise in the background when their connection is lost.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")

Commit = Callable[..., Any]


async def assert_poisoned(running: Fleet, job_id: int, named: str) -> None:
    [job] = await running.ended(job_id)
    assert job["status"] == "failed" and named in job["error_message"]
    kinds = Counter(row["event_type"] for row in await running.events(job_id))
    assert kinds["orchestrator_error"] >= 1 and kinds["job_failed"] == 1
    assert set((await running.statuses(job_id)).values()) <= {"completed", "failed", "skipped"}


async def good_jobs(running: Fleet, count: int = 10) -> list[JobId]:
    return await running.submit_all([NewJob(chain(2), {}) for _ in range(count)])


CORRUPTIONS = {
    "not a workflow": "UPDATE dagapp.dag_workflows SET definition = '[1, 2]' WHERE workflow_id = 'bad'",
    "no nodes": "UPDATE dagapp.dag_workflows SET definition = definition - 'nodes' WHERE workflow_id = 'bad'",
    "a cycle": """UPDATE dagapp.dag_workflows SET workflow_id = 'bad',
                  definition = jsonb_set(definition, '{nodes,work,next}', '["work"]') WHERE workflow_id = 'bad'""",
    "gone": "DELETE FROM dagapp.dag_workflows WHERE workflow_id = 'bad'",
}


async def test_a_job_with_an_unreadable_definition_fails_alone(dsn: str) -> None:
    async with fleet(dsn) as running:
        bad = []
        for number, (name, corruption) in enumerate(CORRUPTIONS.items()):
            bad.append(await running.submit(single(workflow_id="bad", params={"n": number})))
            await running.rows(corruption)
            await running.rows("UPDATE dagapp.dag_workflows SET workflow_id = %s WHERE workflow_id = 'bad'", name)
        good = await good_jobs(running)
        await running.orchestrator()
        await running.worker()
        await running.completed(*good)
        for job_id in bad:
            await assert_poisoned(running, job_id, "definition")
        await running.is_clean()


async def test_a_job_with_inconsistent_rows_fails_alone(dsn: str) -> None:
    async with fleet(dsn) as running:
        first = await running.orchestrator()
        bad = [await running.submit(chain(2, queue="deserted")) for _ in range(2)]
        good = [await running.submit(chain(2, queue="later")) for _ in range(5)]
        await running.until("SELECT count(*) = 7 AS ok FROM dagapp.dag_jobs WHERE status = 'running'")
        await first.stop()
        update = "UPDATE dagapp.dag_node_states SET {} WHERE job_id = %s AND node_id = 'n1'"
        await running.rows(update.format("node_id = 'no_such_node'"), bad[0])
        await running.rows(update.format("status = 'dispatched', dispatched_at = NULL"), bad[1])
        await running.orchestrator()
        await running.worker(queues=("later",))
        await running.completed(*good)
        [job] = await running.ended(bad[0])
        assert job["status"] == "failed"
        assert (await running.ended(bad[1]))[0]["status"] == "failed"


async def test_a_job_on_which_the_engine_raises_fails_alone(dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    bad: set[JobId] = set()

    def stumble(job: Any, *arguments: Any) -> Any:
        if job.job_id in bad:
            raise RuntimeError("a bug \0 with strange text")
        return decide(job, *arguments)

    monkeypatch.setattr(orchestrator, "decide", stumble)
    async with fleet(dsn) as running:
        role = await running.orchestrator()
        await running.worker()
        bad.add(await running.submit(single(queue="deserted")))
        good = await good_jobs(running)
        await running.cancel(next(iter(bad)))
        await running.completed(*good)
        await assert_poisoned(running, next(iter(bad)), "a bug")
        assert role.instance.stats.errors >= 3 and "a bug" in (role.instance.stats.last_error or "")
        beat = "SELECT (stats->>'errors')::int >= 3 AS ok FROM dagapp.dag_orchestrators"
        await running.until(beat)  # It keeps sending heartbeats.
        await running.completed(*await good_jobs(running, 2))
        await running.is_clean()


async def test_a_job_that_cannot_be_written_fails_alone(dsn: str) -> None:
    """In one batch with good jobs: some limits of PostgreSQL look like a lost connection to the driver."""
    await rows(
        dsn,
        """CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$
               BEGIN RAISE 'cannot be written' USING ERRCODE = NEW.input_params->>'evil'; END $$;
           CREATE TRIGGER refuse BEFORE UPDATE ON dagapp.dag_node_states FOR EACH ROW
               WHEN (NEW.input_params->>'evil' IS NOT NULL AND NEW.status = 'dispatched')
               EXECUTE FUNCTION refuse()""",
    )
    async with fleet(dsn) as running:
        evil = [NewJob(single(params={"evil": sqlstate}), {}) for sqlstate in ("P0001", "54000", "22P05")]
        good = [NewJob(chain(2), {}) for _ in range(6)]
        ids = await running.submit_all([*good[:3], *evil, *good[3:]])
        await running.orchestrator()
        await running.worker()
        await running.completed(*ids[:3], *ids[6:])
        for bad in ids[3:6]:
            await assert_poisoned(running, bad, "cannot be written")
        await running.is_clean()


async def test_a_malformed_message_stops_no_job(dsn: str) -> None:
    async with fleet(dsn) as running:
        await running.orchestrator()
        await running.worker()
        job_id = await running.submit(single("sleep", params={"seconds": 0.3}))
        letter = """INSERT INTO dagapp.dag_mailbox (job_id, kind, node_id, task_id, data, output)
                    VALUES (%s, %s, %s, %s, %s, %s)"""
        for kind, node, name, data, output in (
            ("completed", None, None, None, None),
            ("failed", "work", None, "[1]", None),
            ("started", None, "x", '"text"', None),
            ("nonsense", "work", "x", None, None),
            ("completed", "no_such_node", f"{job_id}_no_such_node_0", None, "{}"),
            ("completed", "work", f"{job_id}_work_17", None, "{}"),
        ):
            await running.rows(letter, job_id, kind, node, name, data, output)
            await running.rows(letter, 4711, kind, node, name, data, output)
        [job] = await running.completed(job_id)
        assert job["result_data"]["work"] == {"slept_seconds": 0.3}
        await running.is_clean()


async def test_a_failed_chore_is_retried_and_jobs_continue(dsn: str) -> None:
    async with fleet(dsn) as running:
        await running.orchestrator()
        await running.worker()
        await running.rows("ALTER FUNCTION dagapp.as_jsonb RENAME TO as_jsonb_gone")
        done = await running.run(single())
        late = """INSERT INTO dagapp.dag_mailbox (job_id, kind, node_id, task_id, output)
                  VALUES (%s, 'completed', 'work', %s, '{}')"""
        await running.rows(late, done["job_id"], f"{done['job_id']}_work_5")
        await asyncio.sleep(0.3)
        await running.completed(*await good_jobs(running, 2))
        await running.rows("ALTER FUNCTION dagapp.as_jsonb_gone RENAME TO as_jsonb")
        await running.is_clean()


async def test_more_workflows_than_the_compile_cache_holds_can_run(dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_loader, "KEEP", 3)
    async with fleet(dsn) as running:
        await running.orchestrator()
        await running.worker()
        graphs = [single(workflow_id=f"w{n}") for n in range(8)]
        for some in (graphs[:3], graphs[3:] + graphs[:3], graphs):  # New ones evict old ones that are used again.
            await running.completed(*await running.submit_all([NewJob(definition, {}) for definition in some]))


async def kill_connections(dsn: str, application: str = "dagmaster%") -> int:
    ended = await rows(
        dsn,
        """SELECT pg_terminate_backend(pid) FROM pg_stat_activity
           WHERE datname = current_database() AND pid <> pg_backend_pid() AND application_name LIKE %s""",
        application,
    )
    return len(ended)


async def assert_each_node_ended_once(running: Fleet, job_id: int) -> None:
    doubled = """SELECT node_id FROM dagapp.dag_job_events WHERE job_id = %s AND event_type = 'node_completed'
                 GROUP BY node_id HAVING count(*) > 1"""
    assert await running.rows(doubled, job_id) == []


@pytest.mark.parametrize("is_local", [True, False], ids=["near", "far"])
async def test_terminated_connections_fail_no_job(dsn: str, is_local: bool) -> None:
    async with fleet(dsn) as running:
        role = await running.orchestrator()
        worker = await running.worker(owner=role if is_local else None, concurrency=16)
        job_id = await running.submit(fan(retry=retry(20)), {"items": list(range(300))})
        chained = await running.submit(chain(10, retry=retry(20)))
        killed = 0
        while killed < 25:  # An orchestrator has four connections, a worker three.
            await asyncio.sleep(0.12)
            killed += await kill_connections(dsn)
        [job, _] = await running.ended(job_id, chained, seconds=60)
        assert job["status"] == "completed", job["error_message"]
        results = job["result_data"]["gather"]["results"]
        assert [result["echoed_params"]["x"] for result in results] == list(range(300))
        for each_id in (job_id, chained):
            await assert_each_node_ended_once(running, each_id)
        assert not role.has_ended and not worker.has_ended
        await running.completed(*await good_jobs(running, 2))
        await running.is_clean()


async def test_a_database_crash_during_a_job_loses_nothing(dsn: str, pg_server: EmbeddedServer) -> None:
    async with fleet(dsn) as running:
        role = await running.orchestrator()
        await running.worker(owner=role)
        await running.worker()
        ids = [
            await running.submit(fan(retry=retry(20)), {"items": list(range(100))}),
            await running.submit(chain(20, retry=retry(20))),
        ]
        begun = "SELECT count(*) >= 20 AS ok FROM dagapp.dag_node_states WHERE status = 'completed'"
        await running.until(begun)
        await asyncio.to_thread(pg_server.restart, immediate=True)
        await running.completed(*ids, seconds=60)
        for job_id in ids:
            await assert_each_node_ended_once(running, job_id)
        await running.is_clean()


@asynccontextmanager
async def counted_chain(dsn: str, length: int, *, repeats: Callable[[], bool] = lambda: False) -> AsyncIterator[None]:
    """A completed chain whose tasks ran once each, on a local worker; preceded by others while `repeats`."""
    runs: Counter[str] = Counter()

    async def count(ctx: HandlerContext) -> None:
        runs[ctx.task_id] += 1

    async with fleet(dsn, count=count) as running:
        role = await running.orchestrator()
        await running.worker(owner=role)
        while True:
            job_id = await running.submit(chain(length, "count"))
            await running.completed(job_id, seconds=60)
            assert set(runs.values()) == {1}, runs
            await assert_each_node_ended_once(running, job_id)
            if not repeats():
                break
        yield


async def test_a_commit_with_a_lost_response_counts_and_its_local_tasks_start(
    dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The transaction succeeded without a response: tasks that it gave to the local worker still run."""
    losses = 3

    async def lose_the_answer(*args: Any) -> None:
        nonlocal losses
        await commit(*args)
        if losses and args[1].local:
            losses -= 1
            raise psycopg.OperationalError("the answer was lost")

    monkeypatch.setattr(pending_batch, "commit", lose_the_answer)
    # After each loss the worker claims from the queue for a while: not every chain has three local tasks.
    async with counted_chain(dsn, 6, repeats=lambda: losses > 0):
        assert losses == 0


async def test_a_failed_commit_is_repeated_with_its_local_report(dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    number = 0

    async def fail_every_other(*args: Any) -> None:
        nonlocal number
        number += 1
        if number % 2:
            raise psycopg.OperationalError("no connection")
        await commit(*args)

    monkeypatch.setattr(pending_batch, "commit", fail_every_other)
    async with counted_chain(dsn, 4):
        assert number > 1


async def test_a_timer_that_expires_during_a_database_outage_still_fires(
    dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The batch that contains it may fail before it is written."""
    failures = 0

    async def fail_with_timers(*args: Any, **limits: Any) -> Any:
        nonlocal failures
        if role.instance.stats.results_processed == 1 and failures < 5:
            failures += 1
            raise psycopg.OperationalError("no connection")
        return await read_mail(*args, **limits)

    async with fleet(dsn) as running:
        role = await running.orchestrator(poll=0.01)
        monkeypatch.setattr(inbox, "read_mail", fail_with_timers)
        await running.worker()
        definition = single("flaky_echo", params={"fail_attempts": 1}, retry=retry(1, 0.3))
        await running.completed(await running.submit(definition))
        assert failures == 5


async def test_a_job_is_never_cancelled_before_the_request(dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Even if its owner was disconnected while reading its mail: the mail may be newer than its query."""
    is_cut_off, is_back = asyncio.Event(), asyncio.Event()

    async def read_late(conn: Connection, *args: Any, **options: Any) -> Any:
        if not is_back.is_set():
            is_cut_off.set()
            await is_back.wait()
        return await read_mail(conn, *args, **options)

    async with fleet(dsn) as running:
        role = await running.orchestrator()
        job_id = await running.submit(single())
        await running.until("SELECT count(*) = 1 AS ok FROM dagapp.dag_jobs WHERE status = 'running'")
        monkeypatch.setattr(inbox, "read_mail", read_late)
        await asyncio.wait_for(is_cut_off.wait(), 60)
        async with opened(dsn, application="test") as conn:
            await request_cancel(conn, job_id, actor="somebody", reason=None)
        asked_at = role.instance.clock.now()  # The database's clock may be a little ahead of it.
        is_back.set()
        [job] = await running.ended(job_id)
        assert job["status"] == "cancelled" and job["completed_at"] >= asked_at


async def test_jobs_submitted_during_a_connection_outage_are_found(dsn: str) -> None:
    async with fleet(dsn) as running:
        await running.orchestrator(poll=0.3, orphan_scan_seconds=NEVER)
        await running.worker()
        for _ in range(3):
            await kill_connections(dsn)
            await running.completed(await running.submit(graph({"a": task("echo", "END")}, start="a")))


async def test_after_an_outage_no_worker_is_declared_lost_for_one_lease(
    dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PostgreSQL hung, or the table of workers was locked: no heartbeat could be written or read."""
    now = 1000.0
    monkeypatch.setattr(liveness, "monotonic", lambda: now)
    old = "UPDATE dagapp.dag_workers SET last_heartbeat = clock_timestamp() - interval '1 minute'"
    status = "SELECT status FROM dagapp.dag_workers"
    async with fleet(dsn) as running, opened(dsn, application="test") as conn:
        role = await running.orchestrator(worker_lost_after_seconds=NEVER)
        await register_worker(conn, this_instance(), queues=["q"], concurrency=1)
        rescue = chores.Rescue(role.instance, replace(role.intervals, worker_lost_after_seconds=10.0), role.notifier)
        await rescue.run_once(conn)
        await running.rows(old)
        now += 8  # The previous check was too long ago.
        await rescue.run_once(conn)
        assert await running.value(status) == "active"
        for _ in range(3):
            now += 3
            await rescue.run_once(conn)
        assert await running.value(status) == "active"
        now += 3  # A whole lease has passed.
        await rescue.run_once(conn)
        assert await running.value(status) == "lost"
