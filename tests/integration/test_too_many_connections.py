"""A database without free connections (SQLSTATE 53300): processes wait for one and log it."""

import asyncio
import logging
from collections.abc import Iterator
from math import inf

import psycopg
import pytest
from fleet import wait_until

from dagmaster.authoring.catalog import Catalog
from dagmaster.cli.api_server import serving
from dagmaster.errors import DatabaseUnavailable, TooManyConnections
from dagmaster.fleet import fleet, worker_options
from dagmaster.handlers import registry
from dagmaster.settings import load_settings
from dagmaster.store import connect, databases
from dagmaster.store.connect import opened
from dagmaster.web.server import bind


def allow(dsn: str, connections: int) -> None:
    """Limit the role to this many connections; -1 removes the limit."""
    with psycopg.connect(dsn, autocommit=True) as conn:
        conn.execute(f"ALTER ROLE {role_of(conn)} CONNECTION LIMIT {connections}")


def role_of(conn: psycopg.Connection) -> str:
    """A role of its own, because roles belong to the whole server."""
    return f"crowded_{conn.info.dbname}"


@pytest.fixture
def crowded(dsn: str) -> Iterator[str]:
    """The URL of the database for a role without connections."""
    with psycopg.connect(dsn, autocommit=True) as conn:
        role = role_of(conn)
        conn.execute(f"CREATE ROLE {role} LOGIN CONNECTION LIMIT 0")
        for target in ("ALL TABLES IN SCHEMA dagapp", "ALL SEQUENCES IN SCHEMA dagapp", "SCHEMA dagapp"):
            conn.execute(f"GRANT ALL ON {target} TO {role}")
    yield dsn.replace("postgres@", f"{role}@")
    with psycopg.connect(dsn, autocommit=True) as conn:
        conn.execute(f"DROP OWNED BY {role}")
        conn.execute(f"DROP ROLE {role}")


@pytest.fixture(autouse=True)
def quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connect, "_POLL_SECONDS", 0.05)


async def test_a_command_waits_briefly_and_then_reports_the_problem(crowded: str) -> None:
    with pytest.raises(TooManyConnections, match=r"no connection left: .*max_connections"):
        async with opened(crowded, application="test", busy_seconds=0.2):
            pass


async def test_a_waiting_process_connects_when_a_slot_is_free(
    dsn: str, crowded: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def come() -> str:
        async with opened(crowded, application="test", busy_seconds=inf) as conn:
            return conn.info.user

    with caplog.at_level(logging.WARNING):
        coming = asyncio.create_task(come())
        await wait_until(lambda: "no connection left" in caplog.text)
        allow(dsn, -1)
        assert (await coming).startswith("crowded_")


async def test_services_wait_without_limit(
    dsn: str, crowded: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connect, "BUSY_SECONDS", 0.0)
    monkeypatch.setattr(databases, "POLL_SECONDS", 0.05)
    settings = load_settings(database_url=crowded)

    def begin(*, writable: bool) -> str:
        with databases.database(settings, writable=writable) as url:
            return url

    with pytest.raises(TooManyConnections):
        await asyncio.to_thread(begin, writable=False)
    with caplog.at_level(logging.WARNING):
        coming = asyncio.create_task(asyncio.to_thread(begin, writable=True))
        await wait_until(lambda: caplog.text.count("does not accept connections") > 1)
        allow(dsn, -1)
        assert await coming == crowded


async def test_roles_that_start_on_a_full_server_wait(dsn: str, crowded: str, caplog: pytest.LogCaptureFixture) -> None:
    settings = load_settings(database_url=crowded)
    listener = bind("127.0.0.1", 0)

    async def serve() -> bool:
        work = worker_options(settings, ["q"], 1)
        async with (
            fleet(crowded, settings, orchestrate=True, work=work, registry=registry) as running,
            serving(crowded, settings, running, listener, Catalog(), registry),
        ):
            return not running.ended.done()

    with caplog.at_level(logging.WARNING):
        roles = asyncio.create_task(serve())
        await wait_until(lambda: "the orchestrator lost the database while starting" in caplog.text)
        allow(dsn, -1)
        assert await roles


async def test_other_refusals_are_not_waited_for(dsn: str) -> None:
    with pytest.raises(DatabaseUnavailable) as refused:
        async with opened(dsn.replace("postgres@", "nobody@"), application="test"):
            pass
    assert not isinstance(refused.value, TooManyConnections)
