"""Engines that do not respond."""

import asyncio
import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from clickhouse_connect.driver.exceptions import DatabaseError, OperationalError

from dagmaster.data import objects
from dagmaster.data.cluster_engine import ClusterHost
from dagmaster.data.engine import NO_LIMITS, EngineRunner
from dagmaster.data.server_engine import ServerEngine
from dagmaster.data.service_process import Watch
from dagmaster.data.table_store import TableStore
from dagmaster.errors import EngineLost, QueryFailed
from dagmaster.python.data_context import DataContext, ProgramLease

LOST = OperationalError("connection refused")
STOPPING = DatabaseError("Code: 236. DB::Exception: The server is shutting down. (ABORTED)", code=236)
SHARD_LOST = DatabaseError("Code: 210. DB::Exception: Connection refused. (NETWORK_ERROR)", code=210)


class Server(ServerEngine):
    pauses = (0.0, 0.0)

    def _connect(self) -> Any:
        return object()


class Shard(ClusterHost, Server):
    pauses = (0.0, 0.0)


def answering(*answers: Any) -> Any:
    """Called once per response; exceptions are raised."""
    pending: Iterator[Any] = iter(answers)

    def ask(_: Any) -> Any:
        answer = next(pending)
        if isinstance(answer, Exception):
            raise answer
        return answer

    return ask


def server(kind: type[Server] = Server) -> Server:
    return kind(NO_LIMITS, host="db.example", port=8123)


def test_a_request_to_a_restarting_server_is_retried() -> None:
    assert server().call(answering(STOPPING, LOST, 7)) == 7
    with pytest.raises(EngineLost, match=r"db\.example:8123 does not answer: connection refused"):
        server().call(answering(LOST, LOST, LOST, 7))


def test_a_statement_that_may_have_run_is_not_repeated() -> None:
    with pytest.raises(EngineLost):
        server().call(answering(LOST, 7), is_repeatable=False)


def test_an_unreachable_cluster_host_is_waited_for() -> None:
    assert server(Shard).call(answering(SHARD_LOST, 7)) == 7
    with pytest.raises(EngineLost, match="cannot answer now: Connection refused"):
        server(Shard).call(answering(SHARD_LOST, SHARD_LOST, SHARD_LOST))
    with pytest.raises(QueryFailed):
        server().call(answering(SHARD_LOST, 7))


def test_a_failed_query_is_not_repeated() -> None:
    with pytest.raises(QueryFailed, match="Unknown identifier"):
        server(Shard).call(answering(DatabaseError("Code: 47. DB::Exception: Unknown identifier", code=47), 7))


class Failing:
    """An engine whose first kill fails, and whose tables cannot be dropped."""

    def __init__(self) -> None:
        self.kills, self.is_closed, self.ended = 0, False, threading.Event()

    def kill(self, query_id: str) -> None:
        self.kills += 1
        if self.kills == 1:
            raise EngineLost("no answer")
        self.ended.set()

    def drop(self, table: str) -> None:
        raise EngineLost("no answer")

    def close(self) -> None:
        self.is_closed = True


async def test_a_kill_that_fails_is_tried_again_and_the_caller_is_cancelled() -> None:
    engine: Any = Failing()
    runner = EngineRunner("chdb:///tables", NO_LIMITS)
    runner._engine = engine
    running = asyncio.create_task(runner.run(lambda: engine.ended.wait(60)))
    await asyncio.sleep(0.05)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert engine.kills >= 2


async def test_the_service_kills_queries_of_gone_clients_after_a_kill_has_failed() -> None:
    engine: Any = Failing()
    watch = Watch(engine)
    watch.start()
    client, other_end = socket.socketpair()
    other_end.close()
    with client, watch.over(client, "q1"):
        assert await asyncio.to_thread(engine.ended.wait, 60)


async def test_an_engine_is_released_although_its_temporary_tables_cannot_be_dropped() -> None:
    engine: Any = Failing()
    store = TableStore("chdb:///tables")
    store._engine, store._temporary = engine, {7: None}
    with pytest.raises(EngineLost):
        await store.close()
    assert engine.is_closed


async def test_the_lease_of_a_program_ends_although_its_tables_cannot_be_closed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ended = []

    async def end(lease: ProgramLease) -> None:
        ended.append(lease)

    async def fail(*_: object) -> None:
        raise EngineLost("no answer")

    monkeypatch.setattr(ProgramLease, "end", end)
    monkeypatch.setattr(objects.DataContext, "__aexit__", fail)
    with pytest.raises(EngineLost):
        await DataContext("chdb:///tables").__aexit__(None, None, None)
    assert len(ended) == 1
