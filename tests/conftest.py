import itertools
import os
import shutil
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import psycopg
import pytest
from hypothesis import HealthCheck, settings

from dagmaster.store.connect import Connection, opened
from dagmaster.store.embedded import EmbeddedServer
from dagmaster.store.migrate import upgrade

TEMPLATE = "dagmaster_template"
numbers = itertools.count(1)

# Tests make hundreds of databases and dozens of servers: in memory that takes a third of the time.
MEMORY, ENOUGH_BYTES = Path("/dev/shm"), 4 * 1024**3
if "TMPDIR" not in os.environ and MEMORY.is_dir() and shutil.disk_usage(MEMORY).free > ENOUGH_BYTES:
    os.environ["TMPDIR"] = str(MEMORY)
    tempfile.tempdir = None  # It is looked up once.

# Compiled once, not by each of the many processes that tests start.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# How long an example takes says how busy the machine is.
settings.register_profile("dagmaster", max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("dagmaster")


@pytest.fixture(scope="session", autouse=True)
def log_dir(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """For the logs of tasks, also of child processes: no test writes to the system's folder."""
    folder = tmp_path_factory.mktemp("logs")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DAGMASTER_LOG_DIR", str(folder))
        yield folder


@pytest.fixture(scope="session")
def pg_server() -> Iterator[EmbeddedServer]:
    """One real server per test process, in a folder of its own."""
    # Not below pytest's temporary folder: every run closes that to other users, and as root the server is one.
    folder = Path(tempfile.mkdtemp(prefix="dagmaster-test-"))
    with EmbeddedServer.start(folder) as server:
        yield server
    shutil.rmtree(folder)


def administer(server: EmbeddedServer, statement: str) -> None:
    # A connection for each: a test may have restarted the server.
    with psycopg.connect(server.dsn_of("postgres"), autocommit=True) as conn:
        conn.execute(statement)


@pytest.fixture(scope="session")
def template(pg_server: EmbeddedServer) -> str:
    """What every test's database begins with."""
    # Tests crash the server, never the machine, and making databases is most of their time.
    administer(pg_server, "ALTER SYSTEM SET fsync = off")
    administer(pg_server, "SELECT pg_reload_conf()")
    administer(pg_server, f"CREATE DATABASE {TEMPLATE}")
    upgrade(pg_server.dsn_of(TEMPLATE))
    return TEMPLATE


@pytest.fixture
def dsn(pg_server: EmbeddedServer, template: str) -> Iterator[str]:
    """The address of a fresh database with dagmaster's schema, dropped after the test."""
    yield from _database(pg_server, template)


@pytest.fixture
async def conn(dsn: str) -> AsyncIterator[Connection]:
    """To that database."""
    async with opened(dsn, application="test") as opened_conn:
        yield opened_conn


@pytest.fixture(scope="module")
def shared_dsn(pg_server: EmbeddedServer, template: str) -> Iterator[str]:
    """The same, for all tests of a module."""
    yield from _database(pg_server, template)


def _database(server: EmbeddedServer, template: str) -> Iterator[str]:
    name = f"test_{next(numbers)}"
    # In memory a copy of the files is quickest; on a disk its checkpoints are not.
    strategy = "FILE_COPY" if tempfile.gettempdir() == str(MEMORY) else "WAL_LOG"
    administer(server, f"CREATE DATABASE {name} TEMPLATE {template} STRATEGY {strategy}")
    yield server.dsn_of(name)
    administer(server, f"DROP DATABASE {name} WITH (FORCE)")
