import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import pytest
from fleet import NO_RETRY, fan, graph, retry, rows, single, task
from job_owner import Owner, owner
from psycopg.errors import LockNotAvailable

from dagmaster.engine.messages import Cancel, Load, TaskFailed
from dagmaster.errors import TaskOver
from dagmaster.fleet import background
from dagmaster.ids import TaskId, WorkerId
from dagmaster.model.retry import RetryPolicy
from dagmaster.queues.contract import SavedCheckpoint, TaskMessage, TaskReport
from dagmaster.queues.postgres import PostgresLink
from dagmaster.store import instances, queues, tasks
from dagmaster.store.connect import Connection, connect, connect_hot, keep_json, opened
from dagmaster.store.instances import this_instance
from dagmaster.store.notifications import Notifier
from dagmaster.store.workers import list_workers


@pytest.fixture
async def me(dsn: str) -> AsyncIterator[Owner]:
    async with owner(dsn) as job_owner:
        yield job_owner


@dataclass
class Claimer:
    """A worker's side of the queue, without the worker."""

    queue: PostgresLink
    worker_id: WorkerId
    durable: Connection

    async def claim(self, limit: int) -> list[TaskMessage]:
        return await self.queue.exchange([], limit)

    async def report(self, *messages: TaskMessage, limit: int = 0, **report: Any) -> list[TaskMessage]:
        kind = report.pop("kind", "completed")
        reports = [TaskReport(message.task_id, message.job_id, message.node_id, kind, **report) for message in messages]
        return await self.queue.exchange(reports, limit)


@asynccontextmanager
async def claimer(dsn: str, *queues: str, is_registered: bool = True) -> AsyncIterator[Claimer]:
    async with (
        await connect_hot(dsn, application="test") as durable,
        await connect_hot(dsn, application="test", durable=False) as quick,
    ):
        for conn in (durable, quick):
            keep_json(conn)
        instance = this_instance()
        if is_registered:
            await instances.register_worker(quick, instance, queues or ["q"], 4)
        yield Claimer(PostgresLink(durable, quick, instance.worker_id, Notifier(dsn)), instance.worker_id, durable)


async def put(me: Owner, name: str = "work", queue: str = "q", retry: RetryPolicy = NO_RETRY, **options: Any) -> int:
    """A started job with one waiting task."""
    work = task("echo", "END", queue=queue, params={"n": name}, retry=retry)
    await me.submit(graph({name: work}, start=name), **options)
    await me.advance(Load())
    return me.job_id


async def count(dsn: str, table: str) -> int:
    [row] = await rows(dsn, f"SELECT count(*) AS n FROM dagapp.{table}")
    return row["n"]


async def test_a_claimed_task_has_all_fields_that_a_worker_needs(dsn: str, me: Owner) -> None:
    definition = single("resize", params={"x": [1, {"ü": None}]}, timeout_seconds=42)
    await me.submit(definition, correlation_id="c-9")
    turn = await me.advance(Load())
    async with claimer(dsn) as worker:
        [message] = await worker.claim(5)
    assert message == TaskMessage(
        task_id=TaskId(f"{me.job_id}_work_0"),
        job_id=me.job_id,
        node_id="work",
        handler="resize",
        queue="q",
        params=message.params,
        timeout_seconds=42.0,
        retry_count=0,
        dispatched_at=turn.now,
        correlation_id="c-9",
    )
    assert message.params.replace(b" ", b"") == '{"x":[1,{"ü":null}]}'.encode()
    [running] = await rows(dsn, "SELECT task_id, worker_id FROM dagapp.dag_tasks_running")
    assert running == {"task_id": message.task_id, "worker_id": worker.worker_id}


async def starts(dsn: str) -> list[tuple[str, str]]:
    started = await rows(
        dsn, "SELECT task_id, worker_id FROM dagapp.dag_mailbox WHERE kind = 'started' ORDER BY mail_id"
    )
    return [(row["task_id"], row["worker_id"]) for row in started]


async def test_the_owner_is_notified_of_the_start_of_a_longer_task(dsn: str, me: Owner) -> None:
    """A task that ends at once needs no mail for its start: its report implies it."""
    await put(me, "short")
    await put(me, "long")
    async with claimer(dsn) as worker:
        short, long = await worker.claim(2)
        await worker.report(short)
        async with background(worker.queue.tell_starts()):
            while not (started := await starts(dsn)):  # noqa: ASYNC110 - the other end is a table
                await asyncio.sleep(0.01)
    assert started == [(long.task_id, worker.worker_id)]


async def test_the_start_of_a_task_is_reported_before_its_checkpoint_and_its_nodes(dsn: str, me: Owner) -> None:
    await put(me, "first")
    await put(me, "second")
    async with claimer(dsn) as worker:
        first, second = await worker.claim(2)
        await worker.queue.save(first.task_id, SAVED)
        await worker.queue.add(second.task_id, [b'{"nodes": []}'])
    mail = await rows(dsn, "SELECT kind FROM dagapp.dag_mailbox WHERE kind <> 'submitted' ORDER BY mail_id")
    assert [row["kind"] for row in mail] == ["started", "checkpoint", "started", "added"]


async def test_a_start_lost_with_a_connection_is_reported_on_the_next(dsn: str, me: Owner) -> None:
    await put(me, "known")
    await put(me, "forgotten")
    async with claimer(dsn) as worker:
        known, forgotten = await worker.claim(2)
        link = PostgresLink(worker.queue._durable, worker.queue._quick, worker.worker_id, Notifier(dsn))
        assert [message.task_id for message in await link.forgotten([known.task_id])] == [forgotten.task_id]
        async with background(link.tell_starts()):
            while not (started := await starts(dsn)):  # noqa: ASYNC110 - the other end is a table
                await asyncio.sleep(0.01)
    assert {task_id for task_id, _ in started} == {known.task_id, forgotten.task_id}


async def test_claims_for_remote_workers_report_starts_at_once(dsn: str, me: Owner) -> None:
    await put(me)
    async with claimer(dsn) as worker:
        [row] = await tasks.claim_and_announce(worker.durable, worker.worker_id, 5)
    assert await starts(dsn) == [(row["task_id"], worker.worker_id)]


SAVED = SavedCheckpoint("two", b'{"a": 1}', b'[{"path": "s3://b/x"}]')


async def test_the_next_attempt_carries_the_newest_valid_checkpoint(dsn: str, me: Owner) -> None:
    await put(me, retry=retry(3))
    async with claimer(dsn) as worker:
        [message] = await worker.claim(1)
        assert message.checkpoint_phase is None
        await worker.queue.save(message.task_id, SavedCheckpoint("one", b"{}"))
        await worker.queue.save(message.task_id, SAVED)
        # The owner has received the failure, but not yet the checkpoints.
        await me.advance(TaskFailed("work", message.task_id, worker.worker_id, datetime.now(UTC), "no"))
        [again] = await worker.claim(1)
        assert (again.retry_count, again.checkpoint_phase, again.checkpoint_data) == (1, "two", b'{"a": 1}')
        assert again.checkpoint_artifacts == b'[{"path": "s3://b/x"}]'
        assert again.checkpoint_id is not None
        before = await worker.queue.discard(again.task_id, again.checkpoint_id, "the file is gone")
        assert before is not None and before.checkpoint_id is not None
        assert (before.phase, before.data, before.artifacts) == ("one", b"{}", None)
        assert await worker.queue.discard(again.task_id, before.checkpoint_id, "gone too") is None
    events = await rows(
        dsn,
        "SELECT event_data ->> 'warning' AS warning FROM dagapp.dag_job_events "
        "WHERE checkpoint_name IS NOT NULL ORDER BY event_id",
    )
    assert [event["warning"] for event in events] == [
        "the checkpoint two was discarded: the file is gone",
        "the checkpoint one was discarded: gone too",
    ]


async def test_a_checkpoint_of_an_ended_attempt_is_refused(dsn: str, me: Owner) -> None:
    await put(me, retry=retry(3))
    async with claimer(dsn) as worker:
        [message] = await worker.claim(1)
        await me.advance(TaskFailed("work", message.task_id, worker.worker_id, datetime.now(UTC), "no"))
        with pytest.raises(TaskOver, match="is over"):
            await worker.queue.save(message.task_id, SAVED)
        [again] = await worker.claim(1)
        assert again.checkpoint_phase is None


# As after a server crash, which may lose a claim so that it is repeated.
UNDO_CLAIMS = """
    WITH undone AS (DELETE FROM dagapp.dag_tasks_running RETURNING *)
    INSERT INTO dagapp.dag_tasks_waiting (
        task_id, job_id, node_id, retry_count, queue, priority, job_started_at, handler, timeout_seconds, dispatched_at
    )
    SELECT task_id, job_id, node_id, retry_count, queue, priority, job_started_at, handler, timeout_seconds,
        dispatched_at
    FROM undone
"""


async def test_a_checkpoint_of_another_workers_task_is_refused(dsn: str, me: Owner) -> None:
    """It neither claims the waiting task nor counts for the worker that holds it."""
    await put(me, retry=retry(3))
    async with claimer(dsn) as first, claimer(dsn) as second:
        [message] = await first.claim(1)
        await rows(dsn, UNDO_CLAIMS)
        with pytest.raises(TaskOver, match=f"no longer held by worker {first.worker_id}"):
            await first.queue.save(message.task_id, SAVED)
        assert await count(dsn, "dag_tasks_waiting") == 1
        assert [claimed.task_id for claimed in await second.claim(1)] == [message.task_id]
        await second.queue.save(message.task_id, SavedCheckpoint("one", b"{}"))
        with pytest.raises(TaskOver):
            await first.queue.save(message.task_id, SAVED)
    assert [row["phase_name"] for row in await rows(dsn, "SELECT phase_name FROM dagapp.dag_checkpoints")] == ["one"]


async def test_a_task_is_not_revoked_while_its_checkpoint_is_being_saved(dsn: str, me: Owner) -> None:
    """Otherwise the next attempt could start without it."""
    await put(me, retry=retry(3))
    async with claimer(dsn) as worker, await connect(dsn, application="test", lock_timeout_seconds=0.1) as conn:
        [message] = await worker.claim(1)
        await rows(dsn, "UPDATE dagapp.dag_workers SET status = 'lost'")
        async with worker.durable.transaction():
            await worker.queue.save(message.task_id, SAVED)
            with pytest.raises(LockNotAvailable):
                await instances.rescue_tasks(conn, lost_after_seconds=60)
        assert await instances.rescue_tasks(conn, lost_after_seconds=60) == 1


async def test_tasks_are_ordered_by_priority_then_job_start_then_creation(dsn: str, me: Owner) -> None:
    old = await put(me, "old")
    urgent = await put(me, "urgent", priority=9)
    await me.submit(fan(), {"items": [0, 1, 2]})
    await me.advance(Load())
    young = await put(me, "young")
    urgent_too = await put(me, "urgent2", priority=9)
    low = await put(me, "low", priority=-1)
    async with claimer(dsn) as worker:
        claimed = await worker.claim(100)
    assert [message.node_id for message in claimed] == [
        "urgent",
        "urgent2",
        "old",
        "spread__0",
        "spread__1",
        "spread__2",
        "young",
        "low",
    ]
    assert len({old, urgent, young, urgent_too, low}) == 5


async def test_later_tasks_of_an_older_job_precede_tasks_of_a_younger_one(dsn: str, me: Owner) -> None:
    await put(me, "young")
    await put(me, "old")
    await rows(
        dsn,
        "UPDATE dagapp.dag_tasks_waiting SET job_started_at = job_started_at - interval '1 hour' WHERE node_id = 'old'",
    )
    async with claimer(dsn) as worker:
        assert [message.node_id for message in await worker.claim(2)] == ["old", "young"]


async def test_a_worker_claims_only_from_its_own_queues(dsn: str, me: Owner) -> None:
    for queue in ("light", "heavy", "other"):
        await put(me, f"in-{queue}", queue)
    await put(me, "urgent", "heavy", priority=5)
    async with claimer(dsn, "light", "heavy") as worker:
        assert [message.node_id for message in await worker.claim(2)] == ["urgent", "in-light"]
        assert [message.node_id for message in await worker.claim(9)] == ["in-heavy"]
        assert await worker.claim(9) == []
    assert await count(dsn, "dag_tasks_waiting") == 1


async def test_a_claim_never_exceeds_its_limit(dsn: str, me: Owner) -> None:
    await me.submit(fan(), {"items": list(range(10))})
    await me.advance(Load())
    async with claimer(dsn) as worker:
        assert len(await worker.claim(3)) == 3
        assert await worker.claim(0) == []
        assert len(await worker.claim(100)) == 7


async def test_two_concurrent_claims_never_return_the_same_task(dsn: str, me: Owner) -> None:
    await me.submit(fan(), {"items": list(range(500))})
    await me.advance(Load())

    async def take_all() -> list[str]:
        taken: list[str] = []
        async with claimer(dsn) as worker:
            messages: list[TaskMessage] = []
            while True:
                messages = await worker.report(*messages, limit=7) if messages else await worker.claim(7)
                if not messages:
                    return taken
                taken += [message.task_id for message in messages]

    shares = await asyncio.gather(*(take_all() for _ in range(4)))
    everything = [task_id for share in shares for task_id in share]
    assert len(everything) == len(set(everything)) == 500
    assert await count(dsn, "dag_tasks_waiting") == await count(dsn, "dag_tasks_running") == 0
    mailed = await rows(dsn, "SELECT kind, count(*) AS n FROM dagapp.dag_mailbox GROUP BY kind")
    assert {row["kind"]: row["n"] for row in mailed} == {"submitted": 1, "completed": 500}


async def test_a_claim_skips_rows_locked_by_another(dsn: str, me: Owner) -> None:
    await put(me, "first", priority=5)
    await put(me, "second")
    async with claimer(dsn) as slow, claimer(dsn) as quick, slow.durable.transaction():
        assert [row["node_id"] for row in await tasks.claim(slow.durable, slow.worker_id, 1)] == ["first"]
        assert [message.node_id for message in await quick.claim(5)] == ["second"]


async def test_an_inactive_worker_claims_nothing(dsn: str, me: Owner) -> None:
    await put(me)
    async with claimer(dsn, is_registered=False) as unknown, claimer(dsn) as worker:
        assert await unknown.claim(5) == []
        for status in ("lost", "stopped"):
            await rows(dsn, "UPDATE dagapp.dag_workers SET status = %s", status)
            assert await worker.claim(5) == []
            assert await worker.report(limit=5) == []
    assert await count(dsn, "dag_tasks_waiting") == 1


async def test_a_report_deletes_the_running_row_and_mails_the_owner(dsn: str, me: Owner) -> None:
    await put(me)
    async with claimer(dsn) as worker:
        [message] = await worker.claim(1)
        await worker.report(
            message, kind="failed", error="no 🚀", permanent=True, retry_after_seconds=1.5, duration_ms=20
        )
    assert await count(dsn, "dag_tasks_running") == 0
    [mail] = await rows(dsn, "SELECT * FROM dagapp.dag_mailbox WHERE kind = 'failed'")
    assert (mail["task_id"], mail["node_id"], mail["worker_id"]) == (message.task_id, "work", worker.worker_id)
    assert (mail["error"], mail["duration_ms"], mail["output"]) == ("no 🚀", 20, None)
    assert mail["data"] == {"permanent": True, "retry_after_seconds": 1.5}


async def test_reporting_and_claiming_share_one_transaction(dsn: str, me: Owner) -> None:
    await put(me, "first")
    await put(me, "second")
    async with claimer(dsn) as worker:
        [first] = await worker.claim(1)
        [second] = await worker.report(first, limit=1, output=b'{"a":1}')
        assert second.node_id == "second"
    [mail] = await rows(dsn, "SELECT xmin::text FROM dagapp.dag_mailbox WHERE kind = 'completed'")
    [held] = await rows(dsn, "SELECT xmin::text FROM dagapp.dag_tasks_running")
    assert mail == held


async def test_a_report_does_not_delete_the_running_row_of_another_worker(dsn: str, me: Owner) -> None:
    await put(me)
    async with claimer(dsn) as first, claimer(dsn) as second:
        [message] = await first.claim(1)
        await second.report(message)
        assert await count(dsn, "dag_tasks_running") == 1


async def test_a_claim_with_a_lost_response_is_found_again(dsn: str, me: Owner) -> None:
    await me.submit(fan(), {"items": list(range(4))})
    await me.advance(Load())
    async with claimer(dsn) as worker, claimer(dsn) as other:
        known, lost = await worker.claim(2), await worker.claim(1)
        await other.claim(1)
        assert await worker.queue.forgotten([message.task_id for message in known]) == lost
        assert len(await worker.queue.forgotten([])) == 3
        assert await worker.queue.forgotten([message.task_id for message in known + lost]) == []


async def test_a_task_is_revoked_when_its_job_ends(dsn: str, me: Owner) -> None:
    await put(me, "kept")
    await put(me, "cancelled")
    async with claimer(dsn) as worker:
        ids = {message.node_id: message.task_id for message in await worker.claim(2)}
        assert (await worker.queue.orders(list(ids.values()))).withdrawn == set()
        await me.advance(Cancel())
        assert (await worker.queue.orders([*ids.values(), TaskId("no_such_task")])).withdrawn == {
            ids["cancelled"],
            "no_such_task",
        }


async def test_a_task_is_revoked_from_a_lost_worker(dsn: str, me: Owner) -> None:
    await put(me)
    async with claimer(dsn) as worker, opened(dsn, application="test") as conn:
        [message] = await worker.claim(1)
        await rows(dsn, "UPDATE dagapp.dag_workers SET status = 'lost'")
        assert await instances.rescue_tasks(conn, lost_after_seconds=30) == 1
        assert (await worker.queue.orders([message.task_id])).withdrawn == {message.task_id}


async def test_tasks_of_a_cancelled_job_cannot_be_claimed(dsn: str, me: Owner) -> None:
    await put(me)
    await me.advance(Cancel())
    async with claimer(dsn) as worker:
        assert await worker.claim(5) == []


async def test_the_depth_of_each_queue_is_counted(dsn: str, me: Owner) -> None:
    await put(me, "a1", "a")
    await put(me, "a2", "a")
    await put(me, "b1", "b")
    async with claimer(dsn, "a") as worker, opened(dsn, application="test") as conn:
        await worker.claim(1)
        depths = await queues.list_queues(conn)
    assert [(row["queue"], row["depth"], row["running"]) for row in depths] == [("a", 1, 1), ("b", 1, 0)]
    assert depths[0]["oldest_dispatched_at"] is not None


async def test_a_worker_never_holds_more_tasks_than_slots(dsn: str, me: Owner) -> None:
    await me.submit(fan(), {"items": list(range(5))})
    await me.advance(Load())
    async with claimer(dsn) as worker, opened(dsn, application="test") as conn:
        [ended, *_] = await worker.claim(4)
        await worker.claim(1)  # For the slot of a task whose report is on its way.
        [row] = await list_workers(conn)
        assert (row["running_tasks"], row["concurrency"]) == (4, 4)
        await worker.report(ended)
        [row] = await list_workers(conn)
        assert row["running_tasks"] == 4


async def test_a_thousand_tasks_are_reported_in_one_transaction(dsn: str, me: Owner) -> None:
    await me.submit(fan(), {"items": list(range(1000))})
    await me.advance(Load())
    async with claimer(dsn) as worker:
        claimed = await worker.claim(2000)
        assert len(claimed) == 1000
        assert [message.node_id for message in claimed] == [f"spread__{n}" for n in range(1000)]
        await worker.report(*claimed, output=b'{"a":"\xc3\xbc"}')
    assert await count(dsn, "dag_tasks_running") == 0
