import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any

import orjson
import psycopg
import pytest
from fleet import chain, fan, graph, retry, rows, single, task
from job_owner import Owner, owner

from dagmaster.engine.decide import claim_here
from dagmaster.engine.messages import Cancel, Load, TaskCompleted, TaskFailed, TaskStarted, TimerDue, TimerKind
from dagmaster.engine.values import Value
from dagmaster.store import job_states, jobs
from dagmaster.store.batch import OwnershipLost, RowsDiffer, commit, settle_versions
from dagmaster.store.instances import take_over_jobs, this_instance

TABLES = ("dag_jobs", "dag_node_states", "dag_job_events", "dag_task_results", "dag_tasks_waiting", "dag_tasks_running")


@pytest.fixture
async def me(dsn: str) -> AsyncIterator[Owner]:
    async with owner(dsn) as created:
        yield created


async def everything(dsn: str) -> dict[str, list[dict[str, Any]]]:
    """All rows of all tables that a commit may write."""
    by_table = {}
    for table in (*TABLES, "dag_mailbox"):
        by_table[table] = await rows(dsn, f"SELECT * FROM dagapp.{table} ORDER BY 1, 2, 3")
    return by_table


def now() -> datetime:
    return datetime.now(UTC)


def completed(me: Owner, node: str = "work", attempt: int = 0, output: bytes = b"{}", **more: Any) -> TaskCompleted:
    return TaskCompleted(node, f"{me.job_id}_{node}_{attempt}", "worker", now(), output, **more)


def failed(me: Owner, node: str = "work", attempt: int = 0, **more: Any) -> TaskFailed:
    return TaskFailed(node, f"{me.job_id}_{node}_{attempt}", "worker", now(), "broken", **more)


def decoded(value: Value | None) -> Any:
    return orjson.loads(value) if isinstance(value, bytes) else value


async def test_a_batch_writes_job_nodes_tasks_and_events(dsn: str, me: Owner) -> None:
    await me.submit(single(params={"a": [1, "ü"]}, timeout_seconds=77), priority=5, correlation_id="c")
    await me.advance(Load())
    [job] = await rows(dsn, "SELECT * FROM dagapp.dag_jobs")
    assert (job["status"], job["owner_id"], job["version"]) == ("running", me.id, 1)
    assert job["started_at"] is not None
    nodes = {row["node_id"]: row for row in await rows(dsn, "SELECT * FROM dagapp.dag_node_states")}
    assert {name: row["status"] for name, row in nodes.items()} == {
        "START": "completed",
        "work": "dispatched",
        "END": "pending",
    }
    assert nodes["work"]["task_id"] == f"{me.job_id}_work_0"
    assert nodes["work"]["input_params"] == {"a": [1, "ü"]}
    [waiting] = await rows(dsn, "SELECT * FROM dagapp.dag_tasks_waiting")
    assert waiting | {"seq": 0} == {
        "task_id": f"{me.job_id}_work_0",
        "seq": 0,
        "job_id": me.job_id,
        "node_id": "work",
        "retry_count": 0,
        "queue": "q",
        "priority": 5,
        "job_started_at": job["started_at"],
        "handler": "echo",
        "timeout_seconds": 77.0,
        "correlation_id": "c",
        "trace_parent": None,
        "held": False,
        "dispatched_at": nodes["work"]["dispatched_at"],
    }
    events = await rows(dsn, "SELECT * FROM dagapp.dag_job_events ORDER BY event_id")
    assert [row["event_type"] for row in events][:3] == ["job_created", "node_ready", "job_started"]
    assert events[-1]["event_type"] == "node_dispatched"
    assert events[-1]["event_data"] == {"queue": "q", "handler": "echo"}
    assert events[-1]["task_id"] == f"{me.job_id}_work_0"


async def test_a_result_ends_the_job_and_keeps_the_reported_values(dsn: str, me: Owner) -> None:
    await me.submit(single())
    await me.advance(Load())
    await me.advance(completed(me, output=b'{"big": 1}', duration_ms=12))
    [job] = await rows(dsn, "SELECT * FROM dagapp.dag_jobs")
    assert (job["status"], job["owner_id"]) == ("completed", None)
    assert job["result_data"]["work"] == {"big": 1}
    assert job["result_data"]["_provenance"] == {
        "workflow_id": "single",
        "workflow_version": 1,
        "job_id": str(me.job_id),
        "completed_at": job["completed_at"].isoformat(),
    }
    [result] = await rows(dsn, "SELECT * FROM dagapp.dag_task_results")
    assert (result["task_id"], result["status"], result["output"]) == (f"{me.job_id}_work_0", "completed", {"big": 1})
    assert (result["worker_id"], result["execution_duration_ms"], result["processed"]) == ("worker", 12, True)
    assert await rows(dsn, "SELECT * FROM dagapp.dag_tasks_waiting") == []


async def test_a_batch_sets_updated_at(dsn: str, me: Owner) -> None:
    await me.submit(single())
    for table in ("dag_jobs", "dag_node_states"):
        await rows(dsn, f"UPDATE dagapp.{table} SET updated_at = '2000-01-01'")
    await me.advance(Load())
    old = "updated_at < '2001-01-01'"
    assert await rows(dsn, f"SELECT job_id FROM dagapp.dag_jobs WHERE {old}") == []
    assert await rows(dsn, f"SELECT node_id FROM dagapp.dag_node_states WHERE {old}") == [{"node_id": "END"}]


async def test_a_task_started_locally_has_no_waiting_row(dsn: str, me: Owner) -> None:
    await me.submit(single())
    loaded = await me.load()
    changes = me.decide(loaded, Load())
    [dispatch] = changes.dispatches.values()
    claim_here(changes, dispatch, "local")
    await commit(me.conn, me.batch((changes, 1), worker_id="local", local={dispatch.task_id}))
    assert await rows(dsn, "SELECT * FROM dagapp.dag_tasks_waiting") == []
    [running] = await rows(dsn, "SELECT task_id, worker_id FROM dagapp.dag_tasks_running")
    assert running == {"task_id": dispatch.task_id, "worker_id": "local"}
    assert await rows(dsn, "SELECT status FROM dagapp.dag_node_states WHERE node_id = 'work'") == [
        {"status": "running"}
    ]


async def test_an_owner_that_lost_a_job_writes_nothing_and_learns_which(dsn: str, me: Owner) -> None:
    other = await me.submit(single())
    await me.submit(single())
    loaded = {job_id: await me.load(job_id) for job_id in (other.job_id, me.job_id)}
    change_sets = [(me.decide(job, Load()), job.owner_epoch) for job in loaded.values()]
    await rows(dsn, "UPDATE dagapp.dag_jobs SET owner_id = 'thief' WHERE job_id = %s", me.job_id)
    before = await everything(dsn)
    with pytest.raises(OwnershipLost) as caught:
        await commit(me.conn, me.batch(*change_sets, mail=[1, 2]))
    assert caught.value.job_ids == {me.job_id}
    assert await everything(dsn) == before


async def test_a_job_owned_again_under_a_new_epoch_is_lost_to_the_old_one(dsn: str, me: Owner) -> None:
    await me.submit(single())
    loaded = await me.load()
    await rows(dsn, "UPDATE dagapp.dag_jobs SET owner_epoch = owner_epoch + 1")
    before = await everything(dsn)
    with pytest.raises(OwnershipLost):
        await commit(me.conn, me.batch((me.decide(loaded, Load()), loaded.owner_epoch)))
    assert await everything(dsn) == before
    assert (await me.load()).owner_epoch == 2


async def test_a_deleted_job_is_lost(dsn: str, me: Owner) -> None:
    await me.submit(single())
    loaded = await me.load()
    await rows(dsn, "DELETE FROM dagapp.dag_jobs")
    with pytest.raises(OwnershipLost) as caught:
        await commit(me.conn, me.batch((me.decide(loaded, Load()), 1)))
    assert caught.value.job_ids == {me.job_id}


async def test_rows_that_changed_meanwhile_refuse_the_whole_batch(dsn: str, me: Owner) -> None:
    other = await me.submit(single())
    for table in ("dag_jobs", "dag_node_states"):
        await me.submit(single())
        loaded = [await me.load(other.job_id), await me.load()]
        await rows(dsn, f"UPDATE dagapp.{table} SET version = version + 1 WHERE job_id = %s", me.job_id)
        before = await everything(dsn)
        with pytest.raises(RowsDiffer):
            await commit(me.conn, me.batch(*((me.decide(job, Load()), 1) for job in loaded)))
        assert await everything(dsn) == before


async def test_committing_the_same_change_set_twice_is_refused(dsn: str, me: Owner) -> None:
    await me.submit(fan(), {"items": [1, 2]})
    loaded = await me.load()
    batch = me.batch((me.decide(loaded, Load()), 1))
    await commit(me.conn, batch)
    before = await everything(dsn)
    with pytest.raises((RowsDiffer, psycopg.Error)):
        await commit(me.conn, batch)
    assert await everything(dsn) == before


async def test_a_job_that_has_ended_never_changes(dsn: str, me: Owner) -> None:
    await me.submit(single())
    loaded = await me.load()
    changes = me.decide(loaded, Load())
    for status in ("completed", "failed", "cancelled"):
        await rows(dsn, "UPDATE dagapp.dag_jobs SET status = %s::dagapp.job_status", status)
        before = await everything(dsn)
        with pytest.raises(RowsDiffer):  # Still owned, after a manual change.
            await commit(me.conn, me.batch((changes, 1)))
        assert await everything(dsn) == before
    await rows(dsn, "UPDATE dagapp.dag_jobs SET owner_id = NULL")
    with pytest.raises(OwnershipLost):
        await commit(me.conn, me.batch((changes, 1)))


async def test_events_are_written_with_the_change_or_not_at_all(dsn: str, me: Owner) -> None:
    await me.submit(single())
    loaded = await me.load()
    await rows(
        dsn,
        """CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'no more'; END $$;
           CREATE TRIGGER refuse BEFORE INSERT ON dagapp.dag_job_events FOR EACH ROW EXECUTE FUNCTION refuse()""",
    )
    before = await everything(dsn)
    with pytest.raises(psycopg.errors.RaiseException):
        await commit(me.conn, me.batch((me.decide(loaded, Load()), 1)))
    assert await everything(dsn) == before


async def test_the_first_report_of_an_attempt_is_kept(dsn: str, me: Owner) -> None:
    await me.submit(chain(2))
    await me.advance(Load())
    await me.advance(completed(me, "n0", output=b'{"first": true}'))
    await me.advance(failed(me, "n0"), completed(me, "n0", output=b'{"second": true}'))
    [result] = await rows(dsn, "SELECT status, output, error_message FROM dagapp.dag_task_results")
    assert result == {"status": "completed", "output": {"first": True}, "error_message": None}


async def test_a_report_replaces_a_row_that_says_running(dsn: str, me: Owner) -> None:
    await me.submit(single())
    await me.advance(Load())
    await rows(
        dsn,
        """INSERT INTO dagapp.dag_task_results (task_id, job_id, node_id, status, worker_id)
           VALUES (%s, %s, 'work', 'running', 'first')""",
        f"{me.job_id}_work_0",
        me.job_id,
    )
    await me.advance(completed(me, output=b'{"a": 1}'))
    [result] = await rows(dsn, "SELECT status, output, worker_id, processed FROM dagapp.dag_task_results")
    assert result == {"status": "completed", "output": {"a": 1}, "worker_id": "first", "processed": True}


async def test_a_report_of_a_superseded_attempt_is_kept_and_changes_nothing(dsn: str, me: Owner) -> None:
    await me.submit(single(retry=retry(1)))
    await me.advance(Load())
    await me.advance(TaskStarted("work", f"{me.job_id}_work_0", "worker", now()))
    await me.advance(TimerDue(TimerKind.TIMEOUT, "work", 0))
    before = (await everything(dsn))["dag_node_states"]
    await me.advance(completed(me, attempt=0, output=b'{"late": 1}'))
    assert (await everything(dsn))["dag_node_states"] == before
    [late] = await rows(
        dsn, "SELECT task_id, output, processed FROM dagapp.dag_task_results WHERE status = 'completed'"
    )
    assert late == {"task_id": f"{me.job_id}_work_0", "output": {"late": 1}, "processed": True}
    [note] = await rows(dsn, "SELECT * FROM dagapp.dag_job_events WHERE event_type = 'result_ignored'")
    assert note["event_status"] == "warning"
    assert note["event_data"]["reported_task_id"] == f"{me.job_id}_work_0"


async def test_a_retried_node_keeps_its_params_and_clears_the_rest(dsn: str, me: Owner) -> None:
    await me.submit(single(params={"p": 1}, retry=retry(2, delay=60)))
    await me.advance(Load())
    await me.advance(failed(me))
    [node] = await rows(dsn, "SELECT * FROM dagapp.dag_node_states WHERE node_id = 'work'")
    assert (node["status"], node["retry_count"], node["max_retries"]) == ("ready", 1, 2)
    assert node["input_params"] == {"p": 1}
    assert [node[name] for name in ("task_id", "dispatched_at", "started_at", "completed_at", "error_message")] == [
        None
    ] * 5
    assert timedelta(seconds=50) < node["not_before"] - now() <= timedelta(seconds=60)
    assert await rows(dsn, "SELECT * FROM dagapp.dag_tasks_waiting") == []


async def test_a_cancelled_job_leaves_no_queue_rows(dsn: str, me: Owner) -> None:
    await me.submit(fan(), {"items": list(range(20))})
    await me.advance(Load())
    assert len(await rows(dsn, "SELECT 1 FROM dagapp.dag_tasks_waiting")) == 20
    await me.advance(Cancel("ada", "enough"))
    assert await rows(dsn, "SELECT 1 FROM dagapp.dag_tasks_waiting") == []
    [job] = await rows(dsn, "SELECT status, error_message, owner_id FROM dagapp.dag_jobs")
    assert job == {"status": "cancelled", "error_message": "enough", "owner_id": None}
    open_nodes = "SELECT 1 FROM dagapp.dag_node_states WHERE status NOT IN ('completed', 'failed', 'skipped')"
    assert await rows(dsn, open_nodes) == []


async def test_long_errors_are_truncated_to_the_columns(dsn: str, me: Owner) -> None:
    await me.submit(single())
    await me.advance(Load())
    await me.advance(TaskFailed("work", f"{me.job_id}_work_0", "w", now(), "\U0001f680" * 5000))
    for table in ("dag_jobs", "dag_task_results", "dag_node_states", "dag_job_events"):
        [row] = await rows(dsn, f"SELECT max(length(error_message)) AS n FROM dagapp.{table}")
        assert row == {"n": 2000}


async def test_a_loaded_job_equals_the_committed_one(me: Owner) -> None:
    definition = graph(
        {"a": task("echo", "b", "c"), "b": task("echo", "d"), "c": task("echo", "d"), "d": task("echo", "END")},
        start="a",
    )
    await me.submit(definition)
    await me.advance(Load())
    await me.advance(completed(me, "a", output=b'{"x": [1, 2]}'))
    await me.advance(completed(me, "b"))
    assert me.loaded is not None
    mine, stored = me.loaded.state, (await me.load()).state
    assert stored.status == mine.status and stored.open == mine.open and stored.started_at == mine.started_at
    assert stored.last_progress_at == mine.last_progress_at
    for name, node in mine.nodes.items():
        twin = stored.nodes[name]
        for part in ("status", "attempt", "version", "all_open", "any_open", "live", "max_retries", "dispatched_at"):
            assert getattr(twin, part) == getattr(node, part), (name, part)
        assert decoded(twin.output) == decoded(node.output)


async def test_takeovers_and_commits_do_not_wait_for_each_other(dsn: str, me: Owner) -> None:
    """A job that is being written is skipped; a job that was taken is lost to the owner that waited for it."""
    await me.submit(single())
    loaded = await me.load()
    await rows(dsn, "UPDATE dagapp.dag_orchestrators SET heartbeat_at = now() - interval '1 hour'")
    async with owner(dsn) as thief:
        async with thief.conn.transaction():
            taken = await take_over_jobs(thief.conn, thief.me, threshold_seconds=30, limit=10)
            assert taken == [me.job_id]
            waiting = asyncio.create_task(commit(me.conn, me.batch((me.decide(loaded, Load()), 1))))
            await blocked(dsn)
        with pytest.raises(OwnershipLost):
            await waiting
    async with owner(dsn) as late, me.conn.transaction():
        await rows(dsn, "UPDATE dagapp.dag_jobs SET owner_id = %s", me.id)
        again = await me.load()
        await commit(me.conn, me.batch((me.decide(again, Load()), again.owner_epoch)))
        assert await take_over_jobs(late.conn, late.me, threshold_seconds=30, limit=10) == []


async def blocked(dsn: str) -> None:
    """Wait until a statement waits for a lock."""
    for _ in range(1000):
        if await rows(
            dsn, "SELECT 1 FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
        ):
            return
        await asyncio.sleep(0.005)
    raise AssertionError("nobody waits")


async def test_a_commit_in_progress_when_its_job_was_lost_is_not_repeated(dsn: str, me: Owner) -> None:
    """The client lost its connection and loads the job again while the server still runs the first commit."""
    await me.submit(single())
    loaded = await me.load()
    first = me.batch((me.decide(loaded, Load()), 1))
    async with owner(dsn) as again:
        again.me, again.graphs, again.job_id = me.me, me.graphs, me.job_id
        async with me.conn.transaction():
            await commit(me.conn, first)
            stale = await again.load()
            second = asyncio.create_task(commit(again.conn, again.batch((again.decide(stale, Load()), 1))))
            await blocked(dsn)
        with pytest.raises(RowsDiffer):
            await second
    settle_versions(first)
    assert len(await rows(dsn, "SELECT 1 FROM dagapp.dag_tasks_waiting")) == 1
    assert len(await rows(dsn, "SELECT 1 FROM dagapp.dag_job_events WHERE event_type = 'job_started'")) == 1


async def test_a_poisoned_job_can_be_failed_without_the_engine(dsn: str, me: Owner) -> None:
    other = await me.submit(chain(2))
    await me.submit(chain(2))
    await me.advance(Load())
    assert await job_states.fail_poisoned(me.conn, me.id, me.job_id, "what a pity\0" + "x" * 5000)
    assert not await job_states.fail_poisoned(me.conn, me.id, me.job_id, "twice")
    assert not await job_states.fail_poisoned(me.conn, this_instance().instance_id, other.job_id, "not mine")
    [job] = await rows(dsn, "SELECT * FROM dagapp.dag_jobs WHERE job_id = %s", me.job_id)
    assert (job["status"], job["owner_id"], job["error_message"][:11]) == ("failed", None, "what a pity")
    assert job["started_at"] <= job["completed_at"] and job["ended_by"] == "unprocessable"
    nodes = await rows(dsn, "SELECT node_id, status FROM dagapp.dag_node_states WHERE job_id = %s", me.job_id)
    assert {row["node_id"]: row["status"] for row in nodes} == {
        "START": "completed",
        "n0": "failed",
        "n1": "skipped",
        "END": "skipped",
    }
    assert await rows(dsn, "SELECT 1 FROM dagapp.dag_tasks_waiting") == []
    events = await rows(
        dsn, "SELECT event_type FROM dagapp.dag_job_events WHERE job_id = %s ORDER BY event_id", me.job_id
    )
    kinds = [row["event_type"] for row in events]
    assert kinds[-1] == "job_failed"
    assert (
        kinds.count("orchestrator_error") == 1 and kinds.count("node_skipped") == 2 and kinds.count("node_failed") == 1
    )
    assert (await jobs.get_job(me.conn, other.job_id))["status"] == "pending"


async def test_an_error_is_recorded_whatever_its_text(dsn: str, me: Owner) -> None:
    await me.submit(single())
    await job_states.note_error(me.conn, me.job_id, "KeyError: 'a\0b' \ud800 " + "x" * 5000, strike=2)
    [event] = await rows(dsn, "SELECT * FROM dagapp.dag_job_events WHERE event_type = 'orchestrator_error'")
    assert event["event_data"] == {"strike": 2}
    assert len(event["error_message"]) == 2000
