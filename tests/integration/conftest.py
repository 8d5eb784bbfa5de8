import itertools
from collections.abc import Iterator

import psycopg
import pytest

from dagmaster.store.embedded import EmbeddedServer

try:
    from dagmaster.store.migrate import upgrade
except ModuleNotFoundError as missing:
    if missing.name != "dagmaster.store.migrate":
        raise
    upgrade = None

TEMPLATE = "dagmaster_template"
numbers = itertools.count(1)


def prepare_template(dsn: str) -> None:
    """Build what every test's database begins with."""
    if upgrade is not None:
        upgrade(dsn)


def administer(server: EmbeddedServer, statement: str) -> None:
    # A connection for each: a test may have restarted the server.
    with psycopg.connect(server.dsn_of("postgres"), autocommit=True) as conn:
        conn.execute(statement)


@pytest.fixture(scope="session")
def template(pg_server: EmbeddedServer) -> str:
    administer(pg_server, f"CREATE DATABASE {TEMPLATE}")
    prepare_template(pg_server.dsn_of(TEMPLATE))
    return TEMPLATE


@pytest.fixture
def dsn(pg_server: EmbeddedServer, template: str) -> Iterator[str]:
    """The address of a fresh database with dagmaster's schema, dropped after the test."""
    name = f"test_{next(numbers)}"
    # With fsync on, WAL_LOG took 100 ms where FILE_COPY took 200: it needs no checkpoints.
    administer(pg_server, f"CREATE DATABASE {name} TEMPLATE {template} STRATEGY WAL_LOG")
    yield pg_server.dsn_of(name)
    administer(pg_server, f"DROP DATABASE {name} WITH (FORCE)")
