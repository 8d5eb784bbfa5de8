"""Workers can be drained, stopped and resumed, on the database and over HTTP."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
from command_line import call
from fleet import rows
from serving import server

from dagmaster.store.connect import opened
from dagmaster.store.remote_workers import leave_remote, register_remote


@pytest.fixture(params=["database", "server"])
def place(
    request: pytest.FixtureRequest, dsn: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[list[str]]:
    """The options that select database or server."""
    monkeypatch.chdir(tmp_path)
    if request.param == "database":
        yield ["--database-url", dsn]
        return
    with server(dsn, tmp_path, works=False) as host:
        yield ["--url", host.url]


def add_worker(dsn: str, *, leaves: bool = False) -> str:
    async def add() -> str:
        async with opened(dsn, application="test") as conn:
            worker_id = await register_remote(
                conn, hostname="far", pid=1, queues=["q"], handlers=["echo"], concurrency=1, key_id=None
            )
            if leaves:
                await leave_remote(conn, worker_id)
            return worker_id

    return asyncio.run(add())


def desired_states(dsn: str) -> dict[str, str]:
    selected = asyncio.run(rows(dsn, "SELECT worker_id, wanted FROM dagapp.dag_workers"))
    return {row["worker_id"]: row["wanted"] for row in selected}


def test_a_worker_can_be_drained_and_resumed(dsn: str, place: list[str]) -> None:
    first, second = add_worker(dsn), add_worker(dsn)
    done = call("workers", "drain", first, *place)
    assert (done.code, done.out) == (0, f"Sent drain to worker {first}\n")
    assert desired_states(dsn) == {first: "drain", second: "run"}
    assert "active, drain requested" in call("workers", *place).out
    assert call("workers", "resume", first, second, "--json", *place).json == [
        {"worker_id": first, "wanted": "run"},
        {"worker_id": second, "wanted": "run"},
    ]


def test_all_workers_can_be_stopped(dsn: str, place: list[str]) -> None:
    assert call("workers", "stop", "--all", *place).err == "no active workers\n"
    first, second, gone = add_worker(dsn), add_worker(dsn), add_worker(dsn, leaves=True)
    assert call("workers", "stop", "--all", *place).code == 0
    assert desired_states(dsn) == {first: "stop", second: "stop", gone: "run"}


def test_all_means_every_active_worker(dsn: str, place: list[str]) -> None:
    """More than one page of the API, and more than a listing shows."""
    add_worker(dsn)
    copies = """INSERT INTO dagapp.dag_workers
        SELECT (jsonb_populate_record(w, jsonb_build_object('worker_id', n, 'host_key', 'copy' || n))).*
        FROM dagapp.dag_workers w, generate_series(1, 1000) n RETURNING worker_id"""
    assert len(asyncio.run(rows(dsn, copies))) == 1000
    assert len(call("workers", "drain", "--all", "--json", *place).json) == 1001
    assert set(desired_states(dsn).values()) == {"drain"}


def test_an_unknown_worker_is_an_error(dsn: str, place: list[str]) -> None:
    assert "there is no worker '17'" in call("workers", "drain", "17", *place).err
    assert "has stopped or was lost" in call("workers", "drain", add_worker(dsn, leaves=True), *place).err


@pytest.mark.parametrize("words", [[], ["17", "--all"]])
def test_worker_commands_take_names_or_all(dsn: str, place: list[str], words: list[str]) -> None:
    refused = call("workers", "drain", *words, *place)
    assert refused.code == 2
    assert "--all" in refused.err


def test_the_actor_and_the_program_are_in_the_audit_log(dsn: str) -> None:
    call("workers", "drain", add_worker(dsn), "--by", "ada", "--database-url", dsn)
    query = "SELECT event_data, source_app FROM dagapp.dag_job_events WHERE event_type = 'command'"
    [noted] = asyncio.run(rows(dsn, query))
    assert (noted["event_data"]["command"], noted["event_data"]["actor"]) == ("workers.drain", "ada")
    assert noted["source_app"] == "cli"
