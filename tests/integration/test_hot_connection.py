"""Statements sent directly through libpq fail, are cancelled and recover like the driver's own."""

import asyncio
from collections.abc import AsyncIterator, Coroutine
from datetime import UTC, datetime
from typing import Any

import psycopg
import pytest

from dagmaster.store.connect import connect, connect_hot, encode_ids, encode_texts
from dagmaster.store.hot_connection import HotConnection

ADD = b"SELECT $1::int + 1 AS number"
DIVIDE = b"SELECT 1 / $1::int AS number"
SLEEP = b"SELECT pg_sleep($1)"
INSERT = b"INSERT INTO dagapp.dag_mailbox (job_id, kind) VALUES ($1, 'test') RETURNING job_id"
COUNT = b"SELECT count(*) AS rows FROM dagapp.dag_mailbox WHERE kind = 'test'"


@pytest.fixture
async def hot(shared_dsn: str) -> AsyncIterator[HotConnection]:
    async with await connect_hot(shared_dsn, application="test") as conn:
        yield conn
        if not conn.closed:
            await conn.execute("TRUNCATE dagapp.dag_mailbox")


async def test_values_and_rows_have_their_types(hot: HotConnection) -> None:
    at = datetime(2026, 1, 2, 3, 4, 5, 6000, UTC)
    text = b"SELECT $1::text AS a, $2::bigint AS b, $3::bigint[] AS c, $4::text[] AS d, $5::boolean AS e, "
    text += b"$6::float AS f, $7::timestamptz AS g, $8::jsonb AS h, $9::text AS i"
    values = ["x", 2**62, [1, 2], ['a"b', ""], True, 0.5, at, '{"k": [1]}', None]
    [row] = await hot.fetch_prepared(text, values)
    assert list(row.values()) == ["x", 2**62, [1, 2], ['a"b', ""], True, 0.5, at, {"k": [1]}, None]
    assert list(row) == list("abcdefghi")


async def test_encoded_arrays_equal_the_lists(hot: HotConnection) -> None:
    ids, texts = [1, -(2**63), 2**63 - 1], ["a", "", 'q"\\"', "{b, NULL}", "NULL", " \n\té", "'"]
    [row] = await hot.fetch_prepared(
        b"SELECT $1::bigint[] AS ids, $2::text[] AS texts", [encode_ids(ids), encode_texts(texts)]
    )
    assert row == {"ids": ids, "texts": texts}
    assert encode_ids([]) is None and encode_texts([]) is None


async def test_a_statement_without_rows_returns_none(hot: HotConnection) -> None:
    assert await hot.fetch_prepared(b"SELECT 1 AS number WHERE false", []) == []
    assert await hot.fetch_prepared(b"DELETE FROM dagapp.dag_mailbox", []) == []


async def test_a_failed_statement_leaves_a_usable_connection(hot: HotConnection) -> None:
    for _ in range(2):
        with pytest.raises(psycopg.errors.DivisionByZero):
            await hot.fetch_prepared(DIVIDE, [0])
        assert await hot.fetch_prepared(DIVIDE, [1]) == [{"number": 1}]
    with pytest.raises(psycopg.errors.UndefinedTable):
        await hot.fetch_prepared(b"SELECT * FROM nowhere", [])
    assert await hot.fetch_prepared(ADD, [1]) == [{"number": 2}]


async def test_values_larger_than_the_socket_buffer_are_sent_and_received(hot: HotConnection) -> None:
    text = "ab" * 10_000_000
    [row] = await hot.fetch_prepared(b"SELECT $1::text AS text", [text])
    assert row["text"] == text


async def cancel_asleep(conn: HotConnection, dsn: str, sleeping: Coroutine[Any, Any, Any]) -> None:
    """Cancel it when the server executes it: before, the server ignores the request, and the connection is closed."""
    task = asyncio.create_task(sleeping)
    async with await connect(dsn, application="test") as other:
        asleep = "SELECT FROM pg_stat_activity WHERE pid = $1 AND wait_event = 'PgSleep'"
        while not await (await other.execute(asleep, [conn.info.backend_pid])).fetchall():  # noqa: ASYNC110
            await asyncio.sleep(0.005)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_a_cancelled_statement_leaves_a_usable_connection(hot: HotConnection, shared_dsn: str) -> None:
    await cancel_asleep(hot, shared_dsn, hot.fetch_prepared(SLEEP, [60]))
    assert await hot.fetch_prepared(ADD, [1]) == [{"number": 2}]
    assert not hot.closed


async def test_a_statement_cancelled_while_it_receives_leaves_a_usable_connection(
    hot: HotConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = HotConnection._read

    def read_and_cancel(self: HotConnection) -> None:
        read(self)
        task.cancel()

    monkeypatch.setattr(HotConnection, "_read", read_and_cancel)
    task = asyncio.create_task(hot.fetch_prepared(ADD, [1]))
    with pytest.raises(asyncio.CancelledError):
        await task
    monkeypatch.undo()
    assert await hot.fetch_prepared(ADD, [2]) == [{"number": 3}]


async def test_a_cancelled_transaction_leaves_a_usable_connection(hot: HotConnection, shared_dsn: str) -> None:
    await cancel_asleep(hot, shared_dsn, hot.fetch_atomically([(INSERT, [1]), (SLEEP, [60])]))
    assert await hot.fetch_prepared(COUNT, []) == [{"rows": 0}]


async def test_concurrent_statements_of_several_tasks_do_not_mix(hot: HotConnection) -> None:
    answers = await asyncio.gather(*(hot.fetch_prepared(ADD, [number]) for number in range(50)))
    assert [row["number"] for [row] in answers] == list(range(1, 51))


async def test_a_lost_connection_is_an_operational_error(hot: HotConnection, shared_dsn: str) -> None:
    waiting = asyncio.create_task(hot.fetch_prepared(SLEEP, [60]))
    async with await connect(shared_dsn, application="test") as other:
        terminated = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid = $1 AND wait_event = 'PgSleep'"
        while not await (await other.execute(terminated, [hot.info.backend_pid])).fetchall():  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    with pytest.raises(psycopg.OperationalError):
        await waiting
    with pytest.raises(psycopg.OperationalError):
        await hot.fetch_prepared(ADD, [1])
    assert hot.closed


async def test_a_connection_lost_within_a_transaction_is_an_operational_error(
    hot: HotConnection, shared_dsn: str
) -> None:
    terminate: tuple[bytes, list[Any]] = (b"SELECT pg_terminate_backend(pg_backend_pid())", [])
    with pytest.raises(psycopg.OperationalError):
        await hot.fetch_atomically([(INSERT, [1]), terminate, (SLEEP, [60])])
    async with await connect(shared_dsn, application="test") as other:
        assert await (await other.execute(COUNT)).fetchall() == [{"rows": 0}]


async def test_batched_statements_succeed_or_fail_together(hot: HotConnection) -> None:
    assert await hot.fetch_atomically([(INSERT, [1]), (ADD, [1])]) == [[{"job_id": 1}], [{"number": 2}]]
    for statements in ([(INSERT, [2]), (DIVIDE, [0])], [(DIVIDE, [0]), (INSERT, [2])]):
        with pytest.raises(psycopg.errors.DivisionByZero):
            await hot.fetch_atomically(statements)
    assert await hot.fetch_prepared(COUNT, []) == [{"rows": 1}]


async def test_prepared_statements_take_part_in_the_drivers_transaction(hot: HotConnection) -> None:
    with pytest.raises(psycopg.errors.DivisionByZero):
        async with hot.transaction():
            await hot.fetch_prepared(INSERT, [1])
            await hot.fetch_prepared(DIVIDE, [0])
    assert await hot.fetch_prepared(COUNT, []) == [{"rows": 0}]


async def test_forgotten_statements_are_prepared_again(hot: HotConnection) -> None:
    assert await hot.fetch_prepared(ADD, [1]) == [{"number": 2}]
    hot.forget_prepared()
    assert await hot.fetch_prepared(ADD, [1]) == [{"number": 2}]


async def test_direct_and_driver_statements_can_alternate(hot: HotConnection) -> None:
    for number in range(3):
        assert await hot.fetch_prepared(ADD, [number]) == [{"number": number + 1}]
        assert await (await hot.execute(ADD, [number])).fetchall() == [{"number": number + 1}]
        async with hot.transaction():
            assert await hot.fetch_atomically([(ADD, [number])]) == [[{"number": number + 1}]]


async def test_a_connection_lost_while_idle_fails_the_next_statement_and_no_other_connection(shared_dsn: str) -> None:
    async with await connect_hot(shared_dsn, application="test") as lost:
        await lost.fetch_prepared(ADD, [1])
        async with await connect_hot(shared_dsn, application="test") as other:
            await other.fetch_prepared(b"SELECT pg_terminate_backend($1, 10000)", [lost.info.backend_pid])
            with pytest.raises(psycopg.OperationalError):
                await lost.fetch_prepared(ADD, [1])
            async with await connect_hot(shared_dsn, application="test") as next_conn:  # With the socket's old number.
                await next_conn.fetch_prepared(ADD, [1])
                await lost.close()
                assert await next_conn.fetch_prepared(ADD, [1]) == [{"number": 2}]
            assert await other.fetch_prepared(ADD, [1]) == [{"number": 2}]


async def listen_on(conn: HotConnection) -> "asyncio.Queue[str]":
    notifications: asyncio.Queue[str] = asyncio.Queue()
    await conn.listen("test_channel", lambda channel, payload: notifications.put_nowait(f"{channel} {payload}"))
    return notifications


async def test_notifications_arrive_whatever_the_connection_does(hot: HotConnection, shared_dsn: str) -> None:
    notifications = await listen_on(hot)
    async with await connect(shared_dsn, application="test") as other:
        await other.execute("NOTIFY test_channel, 'at rest'")
        assert await notifications.get() == "test_channel at rest"

        running = asyncio.create_task(hot.fetch_prepared(SLEEP, [0.05]))
        await other.execute("NOTIFY test_channel, 'in a statement'")
        assert await notifications.get() == "test_channel in a statement"
        await running

        with pytest.raises(psycopg.errors.DivisionByZero):
            await hot.fetch_prepared(DIVIDE, [0])
        await other.execute("NOTIFY test_channel, 'after a failure'")
        assert await notifications.get() == "test_channel after a failure"

        await hot.execute("SELECT 1")
        await other.execute("NOTIFY test_channel, 'after the way of the driver'")
        assert await notifications.get() == "test_channel after the way of the driver"

        await hot.fetch_atomically([(ADD, [1]), (ADD, [2])])
        await other.execute("NOTIFY test_channel, 'after a pipeline'")
        assert await notifications.get() == "test_channel after a pipeline"

        await cancel_asleep(hot, shared_dsn, hot.fetch_prepared(SLEEP, [60]))
        await other.execute("NOTIFY test_channel, 'after a cancellation'")
        assert await notifications.get() == "test_channel after a cancellation"

        async with hot.transaction():
            await other.execute("NOTIFY test_channel, 'in a transaction'")
            await hot.execute("SELECT 1")
        assert await notifications.get() == "test_channel in a transaction"
    assert notifications.empty()


async def test_a_listener_is_told_that_the_connection_is_lost(hot: HotConnection, shared_dsn: str) -> None:
    notifications = await listen_on(hot)
    async with await connect(shared_dsn, application="test") as other:
        await other.execute("SELECT pg_terminate_backend($1)", [hot.info.backend_pid])
    assert await notifications.get() == "test_channel "
    with pytest.raises(psycopg.OperationalError):
        await hot.fetch_prepared(ADD, [1])
