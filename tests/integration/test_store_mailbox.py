import asyncio
import re
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, cast, get_args

import pytest
from fleet import chain, fleet, rows, single
from job_owner import Owner, owner

from dagmaster.engine.messages import (
    ApprovalDecision,
    Cancel,
    Load,
    ManualRetry,
    Pause,
    Resume,
    SignalSent,
    TaskCheckpoint,
    TaskCompleted,
    TaskFailed,
    TaskLost,
    TaskStarted,
)
from dagmaster.model.added_nodes import AddedNode
from dagmaster.model.dynamic_nodes import encode_slices
from dagmaster.store import mailbox
from dagmaster.store.connect import Connection, opened
from dagmaster.store.job_control import request_cancel
from dagmaster.store.mail_codec import Mailed, MailKind, MailRow, encode, encode_slice
from dagmaster.store.mailbox import close_late_mail, jobs_with_mail, read_mail


@pytest.fixture
async def me(dsn: str) -> AsyncIterator[Owner]:
    async with owner(dsn) as created:
        yield created


async def read(me: Owner, limit: int = 1000) -> list[Any]:
    """The mail without that of submissions."""
    return [mail.message for mail in await read_mail(me.conn, me.id, limit) if not isinstance(mail.message, Load)]


async def add_mail(conn: Connection, rows: Sequence[dict[str, Any]]) -> None:
    """Any content: other programs may insert here too."""
    await mailbox.add_mail(conn, cast("Sequence[MailRow]", rows))


def report(me: Owner, kind: str, **more: Any) -> dict[str, Any]:
    node = {"node_id": "work", "task_id": f"{me.job_id}_work_0", "worker_id": "w"}
    return {"job_id": me.job_id, "kind": kind, **node, **more}


async def test_a_message_is_decoded_as_it_was_sent(me: Owner) -> None:
    await me.submit(single())
    task, now = f"{me.job_id}_work_0", datetime.now(UTC)
    attempt = ("work", task, "w", now)
    details = {"log_path": "/logs/1", "peak_memory_bytes": 7, "cpu_seconds": 0.5, "metrics": {"rows": 3}}
    checkpoint = {"phase_index": 1, "phase_total": None, "is_final": True}
    sent: list[Mailed] = [
        TaskCompleted(*attempt, b'{"a":[1,null]}', 5, details),
        TaskCompleted(*attempt, b"{}"),
        TaskFailed(*attempt, "why", True, 0.0, 6, ("KeyError", "LookupError"), details, timed_out=True),
        TaskFailed(*attempt, "why"),
        TaskLost(*attempt),
        TaskLost(*attempt, given_back=True),
        TaskCheckpoint(*attempt, "half", b'{"n":1}', checkpoint),
        TaskCheckpoint(*attempt, "half"),
        ApprovalDecision("work", task, True, now, "ada", "fine"),
        ApprovalDecision("work", task, False, now),
        SignalSent("go", 0, now, "ada"),
        SignalSent("go", None, now),
        Cancel("ada", "enough"),
        Cancel(),
        Pause("ada", "for lunch"),
        Resume("ada"),
        ManualRetry("work", "ada"),
        ManualRetry(),
        ManualRetry(None, "ada", frozenset({"tile__1", "tile__7"})),
    ]
    await mailbox.add_mail(me.conn, [encode(me.job_id, message) for message in sent])
    assert [replace(message, at=now) if hasattr(message, "at") else message for message in await read(me)] == sent


async def test_added_nodes_are_decoded_as_they_were_sent(me: Owner) -> None:
    await me.submit(single())
    [content] = encode_slices([AddedNode("added.1", "echo", queue="q")])
    await mailbox.add_mail(me.conn, [encode_slice(me.job_id, content, "ada")])
    [added] = await read(me)
    assert (added.node_id, added.actor, [node.node_id for node in added.nodes]) == (None, "ada", ["added.1"])


def test_statements_store_only_known_kinds() -> None:
    folder = Path(mailbox.__file__).parent
    paths = [*folder.glob("sql/*.sql"), *folder.glob("migrations/versions/*.sql")]
    insert = re.compile(r"INSERT INTO dagapp\.dag_mailbox \([^)]*\)\s+SELECT [\w.]+, '(\w+)'")
    kinds = {kind for path in paths for kind in insert.findall(path.read_text())}
    assert "started" in kinds
    assert kinds <= set(get_args(MailKind))


async def test_each_kind_of_mail_is_decoded_to_its_message(me: Owner) -> None:
    await me.submit(single())
    task = f"{me.job_id}_work_0"
    await add_mail(
        me.conn,
        [
            report(me, "started"),
            report(me, "completed", output={"a": [1, None]}, duration_ms=5),
            report(me, "failed", error="why", data={"permanent": True, "retry_after_seconds": 2.5}, duration_ms=6),
            report(me, "failed"),
            report(me, "lost"),
            report(me, "given_back"),
        ],
    )
    await request_cancel(me.conn, me.job_id, actor="ada", reason="enough")
    started, completed, failed, bare, lost, given_back, cancel = await read(me)
    at = started.at
    assert (datetime.now(UTC) - at).total_seconds() < 60
    assert started == TaskStarted("work", task, "w", at)
    assert completed == TaskCompleted("work", task, "w", completed.at, b'{"a":[1,null]}', 5)
    assert failed == TaskFailed(
        "work", task, "w", failed.at, "why", permanent=True, retry_after_seconds=2.5, duration_ms=6
    )
    assert bare.error and not bare.permanent and bare.retry_after_seconds is None
    assert lost == TaskLost("work", task, "w", lost.at, given_back=False)
    assert given_back.given_back
    assert cancel == Cancel("ada", "enough")


async def test_mail_is_read_in_order_of_arrival(me: Owner) -> None:
    for _ in range(3):
        await me.submit(single())
    for number in range(30):
        await add_mail(me.conn, [report(me, "failed", error=str(number))])
    assert [message.error for message in await read(me)] == [str(number) for number in range(30)]
    weighed = await read_mail(me.conn, me.id, 1000, window=1000)
    assert [mail._replace(job=None) for mail in weighed] == [
        mail._replace(job=None) for mail in await read_mail(me.conn, me.id, 1000)
    ]
    assert [mail.mail_id for mail in await read_mail(me.conn, me.id, 5)] == sorted(
        mail.mail_id for mail in await read_mail(me.conn, me.id, 1000)
    )[:5]


async def test_small_mail_is_read_before_large_mail_of_another_job(me: Owner) -> None:
    await me.submit(single())
    much, large = me.job_id, {"text": "x" * 100_000}
    await add_mail(me.conn, [report(me, "completed", output=large) for _ in range(10)])
    await me.submit(single())
    await add_mail(me.conn, [report(me, "started")])
    mail = await read_mail(me.conn, me.id, 1000, max_bytes=250_000)
    assert [item.job_id for item in mail] == [much, much, much, much, me.job_id, me.job_id]
    assert mail.is_cut and not mail.is_all
    assert sum(item.stored_bytes for item in mail) > 3 * 100_000
    assert await jobs_with_mail(me.conn, [much, me.job_id], mail) == {much}


async def test_the_oldest_mail_is_read_whatever_its_size(me: Owner) -> None:
    await me.submit(single())
    await me.conn.execute(b"DELETE FROM dagapp.dag_mailbox")
    await add_mail(me.conn, [report(me, "completed", output={"text": "x" * 100_000})])
    for _ in range(3):
        await me.submit(single())
    oldest, *others = await read_mail(me.conn, me.id, 1000, max_bytes=1)
    assert oldest.stored_bytes > 100_000
    assert len(others) == 1


async def test_an_owner_reads_only_mail_of_its_own_jobs(dsn: str, me: Owner) -> None:
    await me.submit(single())
    async with owner(dsn) as other:
        await other.submit(single())
        assert {mail.job_id for mail in await read_mail(me.conn, me.id, 10)} == {me.job_id}
        assert {mail.job_id for mail in await read_mail(other.conn, other.id, 10)} == {other.job_id}


async def test_malformed_mail_is_ignored(me: Owner) -> None:
    """It is closed like any other mail and never stops an orchestrator."""
    await me.submit(single())
    await add_mail(
        me.conn,
        [
            report(me, "a kind of tomorrow", data={"x": 1}),
            report(me, "failed", data=[1, 2]) | {"node_id": None},
            report(me, "completed") | {"task_id": None},
            report(me, "started") | {"node_id": None, "task_id": None},
            report(me, "cancel", data="x"),
        ],
    )
    *nonsense, cancel = await read(me)
    assert nonsense == [None] * 4
    assert cancel == Cancel(None, None)


async def test_only_processed_mail_is_deleted(dsn: str, me: Owner) -> None:
    await me.submit(single())
    await add_mail(me.conn, [report(me, "a kind of tomorrow"), report(me, "started")])
    first, second, third = await read_mail(me.conn, me.id, 10)
    await me.advance(Load(), mail=(first.mail_id, second.mail_id))
    assert [row["mail_id"] for row in await rows(dsn, "SELECT mail_id FROM dagapp.dag_mailbox")] == [third.mail_id]


async def ended_job(me: Owner) -> None:
    await me.submit(single())
    await me.advance(Load())
    await me.advance(Cancel())
    await me.conn.execute(b"DELETE FROM dagapp.dag_mailbox")


async def test_a_late_report_is_kept_and_recorded_and_changes_nothing(dsn: str, me: Owner) -> None:
    await ended_job(me)
    before = await rows(dsn, "SELECT * FROM dagapp.dag_jobs") + await rows(dsn, "SELECT * FROM dagapp.dag_node_states")
    await add_mail(me.conn, [report(me, "completed", output={"late": 1}, duration_ms=9)])
    assert await close_late_mail(me.conn) == 1
    after = await rows(dsn, "SELECT * FROM dagapp.dag_jobs") + await rows(dsn, "SELECT * FROM dagapp.dag_node_states")
    assert after == before
    [result] = await rows(dsn, "SELECT * FROM dagapp.dag_task_results")
    assert (result["status"], result["output"], result["processed"]) == ("completed", {"late": 1}, True)
    assert (result["worker_id"], result["execution_duration_ms"]) == ("w", 9)
    [note] = await rows(dsn, "SELECT * FROM dagapp.dag_job_events WHERE event_type = 'result_ignored'")
    assert (note["event_status"], note["task_id"]) == ("warning", f"{me.job_id}_work_0")
    assert await close_late_mail(me.conn) == 0


async def test_a_second_late_report_of_the_same_task_is_not_recorded_again(dsn: str, me: Owner) -> None:
    await ended_job(me)
    for kind in ("completed", "failed"):
        await add_mail(me.conn, [report(me, kind, output={"n": kind}, error=kind), report(me, kind)])
        await close_late_mail(me.conn)
    [result] = await rows(dsn, "SELECT status, output FROM dagapp.dag_task_results")
    assert result == {"status": "completed", "output": {"n": "completed"}}
    assert len(await rows(dsn, "SELECT 1 FROM dagapp.dag_job_events WHERE event_type = 'result_ignored'")) == 1
    assert await rows(dsn, "SELECT 1 FROM dagapp.dag_mailbox") == []


async def test_a_late_report_of_a_task_that_reported_progress_is_kept_and_recorded(dsn: str, me: Owner) -> None:
    await ended_job(me)
    await me.conn.execute(
        b"INSERT INTO dagapp.dag_task_results "
        b"(task_id, job_id, node_id, status, worker_id, progress_percent, reported_at) "
        b"VALUES ($1, $2, 'work', 'running', 'w', 40, now())",
        [f"{me.job_id}_work_0", me.job_id],
    )
    await add_mail(me.conn, [report(me, "completed", output={"late": 1}, duration_ms=9)])
    await close_late_mail(me.conn)
    [result] = await rows(dsn, "SELECT * FROM dagapp.dag_task_results")
    assert (result["status"], result["output"], result["processed"]) == ("completed", {"late": 1}, True)
    assert (result["ended_by"], result["execution_duration_ms"], result["progress_percent"]) == ("result", 9, 40)
    assert len(await rows(dsn, "SELECT 1 FROM dagapp.dag_job_events WHERE event_type = 'result_ignored'")) == 1


async def test_late_signals_and_tasks_are_recorded(dsn: str, me: Owner) -> None:
    """Their senders were told that they would be processed."""
    await ended_job(me)
    signal = {"job_id": me.job_id, "kind": "signal", "data": {"name": "go", "data": 1, "actor": "ann"}}
    await add_mail(me.conn, [signal, {"job_id": me.job_id, "kind": "added", "output": {}, "data": {"actor": "bob"}}])
    assert await close_late_mail(me.conn) == 2
    query = "SELECT event_data FROM dagapp.dag_job_events WHERE event_type = %s AND event_status = 'warning'"
    [received] = await rows(dsn, query, "signal_received")
    late = {"name": "go", "actor": "ann", "woke": [], "kept": False, "reason": "the job has ended"}
    assert received["event_data"] == late
    [warned] = await rows(dsn, query, "job_warning")
    refusal = {"warning": "the added nodes were refused: the job has ended", "refused": "added", "actor": "bob"}
    assert warned["event_data"] == refusal


async def test_mail_of_unknown_jobs_and_other_late_mail_is_deleted_silently(dsn: str, me: Owner) -> None:
    await ended_job(me)
    await add_mail(
        me.conn,
        [
            {"job_id": 4711, "kind": "completed", "node_id": "n", "task_id": "4711_n_0", "output": {}},
            {"job_id": 4711, "kind": "cancel"},
            report(me, "started"),
            report(me, "cancel"),
            report(me, "a kind of tomorrow"),
            report(me, "completed", task_id="999_work_0"),
            report(me, "completed", task_id=None),
        ],
    )
    before = await rows(dsn, "SELECT count(*) FROM dagapp.dag_job_events")
    assert await close_late_mail(me.conn) == 7
    assert await rows(dsn, "SELECT count(*) FROM dagapp.dag_job_events") == before
    assert await rows(dsn, "SELECT 1 FROM dagapp.dag_task_results") == []


async def test_late_mail_that_cannot_be_stored_does_not_block_the_rest(dsn: str, me: Owner) -> None:
    """JSON can contain NUL, jsonb cannot."""
    await ended_job(me)
    await rows(
        dsn,
        """INSERT INTO dagapp.dag_mailbox (job_id, kind, node_id, task_id, output)
           VALUES (%s, 'completed', 'work', %s, %s)""",
        me.job_id,
        f"{me.job_id}_work_0",
        '{"a": "\\u0000"}',
    )
    await add_mail(me.conn, [report(me, "completed", task_id=f"{me.job_id}_work_1")])
    assert await close_late_mail(me.conn) == 2
    results = await rows(dsn, "SELECT task_id, output FROM dagapp.dag_task_results ORDER BY task_id")
    assert [row["task_id"] for row in results] == [f"{me.job_id}_work_0", f"{me.job_id}_work_1"]


async def test_mail_of_live_jobs_is_kept(dsn: str, me: Owner) -> None:
    await me.submit(single())
    await add_mail(me.conn, [report(me, "started")])
    assert await close_late_mail(me.conn) == 0
    assert len(await rows(dsn, "SELECT 1 FROM dagapp.dag_mailbox")) == 2


async def test_concurrent_closers_close_late_mail_once(dsn: str, me: Owner) -> None:
    await ended_job(me)
    await add_mail(me.conn, [report(me, "completed", task_id=f"{me.job_id}_work_{n}") for n in range(300)])

    async def close() -> int:
        closed = 0
        async with opened(dsn, application="test") as conn:
            while some := await close_late_mail(conn, limit=50):
                closed += some
        return closed

    assert sum(await asyncio.gather(close(), close())) == 300
    assert len(await rows(dsn, "SELECT 1 FROM dagapp.dag_job_events WHERE event_type = 'result_ignored'")) == 300


async def test_a_result_inserted_by_sql_counts(dsn: str) -> None:
    """A worker with database access needs nothing else."""
    async with fleet(dsn) as running:
        await running.orchestrator()
        job_id = await running.submit(chain(2))
        insert = """INSERT INTO dagapp.dag_task_results (task_id, job_id, node_id, status, output, worker_id)
                    VALUES (%s, %s, %s, 'completed', '{"by": "hand"}', 'psql')"""
        for node in ("n0", "n1"):
            waiting = "SELECT count(*) = 1 AS ok FROM dagapp.dag_tasks_waiting WHERE node_id = %s"
            await running.until(waiting, partial(list, [node]))
            await rows(dsn, insert, f"{job_id}_{node}_0", job_id, node)
        [job] = await running.completed(job_id)
        assert job["result_data"]["n1"] == {"by": "hand"}
        results = await rows(dsn, "SELECT processed, worker_id FROM dagapp.dag_task_results")
        assert results == [{"processed": True, "worker_id": "psql"}] * 2
        await running.is_clean()


RUNNING = "INSERT INTO dagapp.dag_task_results (task_id, job_id, node_id, status) VALUES (%s, %s, 'work', 'running')"


async def test_a_result_row_that_says_running_starts_the_node(dsn: str) -> None:
    async with fleet(dsn) as running:
        await running.orchestrator()
        job_id = await running.submit(single())
        task = f"{job_id}_work_0"
        await running.until("SELECT count(*) = 1 AS ok FROM dagapp.dag_tasks_waiting WHERE node_id = 'work'")
        await rows(dsn, RUNNING, task, job_id)
        await running.until(
            "SELECT status = 'running' AND started_at IS NOT NULL AS ok FROM dagapp.dag_node_states "
            "WHERE node_id = 'work'"
        )
        await rows(dsn, "UPDATE dagapp.dag_task_results SET progress_percent = 50")
        await rows(dsn, "UPDATE dagapp.dag_task_results SET status = 'completed', output = '{\"by\": \"hand\"}'")
        [job] = await running.completed(job_id)
        assert job["result_data"]["work"] == {"by": "hand"}
        await running.is_clean()


async def test_a_result_row_updated_from_running_to_completed_is_mailed_once(dsn: str, me: Owner) -> None:
    await me.submit(single())
    task = f"{me.job_id}_work_0"
    await rows(dsn, RUNNING, task, me.job_id)
    assert await read(me) == []
    await rows(dsn, "UPDATE dagapp.dag_task_results SET status = 'failed', error_message = 'no'")
    [message] = await read(me)
    assert (message.task_id, message.error) == (task, "no")
    await me.advance(Load())
    await me.advance(message)
    mailed = await rows(dsn, "SELECT 1 FROM dagapp.dag_mailbox WHERE kind = 'failed'")
    assert len(mailed) == 1  # The owner's own update of the row is not mailed.
