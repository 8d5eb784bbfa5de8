"""Engines over HTTP when a server does not respond."""

from collections.abc import Iterator
from typing import Any

import pytest
from clickhouse_connect.driver.exceptions import DatabaseError, OperationalError

from dagmaster.data.cluster_engine import ClusterHost
from dagmaster.data.engine import NO_LIMITS
from dagmaster.data.server_engine import ServerEngine
from dagmaster.errors import EngineLost, QueryFailed

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
