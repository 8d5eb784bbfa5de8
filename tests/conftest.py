import gc
import os
import shutil
import sys
import tempfile
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import closing
from pathlib import Path
from types import ModuleType
from typing import Any

import psycopg
import pytest
from databases import Databases
from hypothesis import HealthCheck, settings

from dagmaster.handlers import registry
from dagmaster.store.connect import Connection, opened
from dagmaster.store.embedded import EmbeddedServer

# Tests create dozens of servers and databases, which takes a third of the time in memory.
MEMORY, ENOUGH_BYTES = Path("/dev/shm"), 4 * 1024**3
if "TMPDIR" not in os.environ and MEMORY.is_dir() and shutil.disk_usage(MEMORY).free > ENOUGH_BYTES:
    os.environ["TMPDIR"] = str(MEMORY)
    tempfile.tempdir = None  # It is read once.

# Compiled once, not by each of the many processes that tests start.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# The modules loaded to collect thousands of tests stay in memory: each garbage collection takes half a second.
gc.disable()
COLLECT_THRESHOLDS = (20_000, 20, 50)

# The duration of an example depends on how busy the machine is. Every run repeats the same examples: a new one that
# fails would stop a change that has nothing to do with it. `--hypothesis-profile=search` searches new ones.
settings.register_profile(
    "dagmaster", max_examples=60, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile("search", settings.get_profile("dagmaster"), derandomize=False)
settings.load_profile("dagmaster")


@pytest.hookimpl(trylast=True)
def pytest_collection_finish() -> None:
    gc.collect()
    gc.freeze()
    gc.set_threshold(*COLLECT_THRESHOLDS)
    gc.enable()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """The time of each folder, summed over all processes, because the suite must stay under ten minutes."""
    seconds: dict[str, float] = defaultdict(float)
    for report in (report for reports in terminalreporter.stats.values() for report in reports):
        if isinstance(report, pytest.TestReport):
            seconds[report.nodeid.partition("/")[2].partition("/")[0]] += round(report.duration, 3)
    if len(seconds) > 1:
        costs = ", ".join(f"{folder} {cost:.0f}" for folder, cost in sorted(seconds.items(), key=lambda item: -item[1]))
        terminalreporter.write_line(f"worker seconds: {costs}; {sum(seconds.values()):.0f} in all")


@pytest.fixture(scope="session", autouse=True)
def log_dir(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """For the logs of tasks, also of child processes: no test writes to the system's folder."""
    folder = tmp_path_factory.mktemp("logs")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DAGMASTER_LOG_DIR", str(folder))
        yield folder


@pytest.fixture(scope="module", autouse=True)
def registered(request: pytest.FixtureRequest) -> Iterator[None]:
    """Hide handlers of other test modules that need processes: each worker would start a fork server for them."""
    own = {request.module.__name__, *filter(None, map(_module_of, vars(request.module).values()))}
    hidden = [
        handler_definition
        for handler_definition in registry
        if handler_definition.isolation == "process" and own.isdisjoint(_places(handler_definition.function))
    ]
    for handler_definition in hidden:
        for names in (registry._handlers, registry._dotted):
            for name in [name for name, handler in names.items() if handler is handler_definition]:
                del names[name]
    yield
    for handler_definition in hidden:
        registry.register(handler_definition)


def _places(function: Callable[..., Any]) -> set[str]:
    """Its module and that module's package."""
    return {function.__module__, function.__module__.rpartition(".")[0]}


def _module_of(value: object) -> str | None:
    return value.__name__ if isinstance(value, ModuleType) else getattr(value, "__module__", None)


@pytest.fixture(scope="session")
def pg_server() -> Iterator[EmbeddedServer]:
    """One real server per test process, in its own folder."""
    # Not in pytest's temporary folder, which each run closes to other users: as root, the server runs as one.
    folder = Path(tempfile.mkdtemp(prefix="dagmaster-test-"))
    with EmbeddedServer.start(folder) as server:
        yield server
    shutil.rmtree(folder)


# Tests crash the server, never the machine. Databases are too short-lived for autovacuum.
CARELESS = {"fsync": "off", "full_page_writes": "off", "jit": "off", "autovacuum_naptime": "'1h'"}


@pytest.fixture(scope="session")
def databases(pg_server: EmbeddedServer) -> Iterator[Databases]:
    """Empty databases with dagmaster's schema."""
    with psycopg.connect(pg_server.dsn_of("postgres"), autocommit=True) as conn:
        for name, value in CARELESS.items():
            conn.execute(f"ALTER SYSTEM SET {name} = {value}")
        conn.execute("SELECT pg_reload_conf()")
    # In memory, copying files is quickest; on a disk, its checkpoints are not.
    with closing(
        Databases(pg_server, strategy="FILE_COPY" if tempfile.gettempdir() == str(MEMORY) else "WAL_LOG")
    ) as them:
        yield them


@pytest.fixture
def dsn(databases: Databases) -> Iterator[str]:
    """The URL of a database with only dagmaster's schema, for this test alone."""
    with databases.lent() as address:
        yield address


@pytest.fixture
async def conn(dsn: str) -> AsyncIterator[Connection]:
    """A connection to that database."""
    async with opened(dsn, application="test") as opened_conn:
        yield opened_conn


@pytest.fixture(scope="module")
def shared_dsn(databases: Databases) -> Iterator[str]:
    """The same, for all tests of a module."""
    with databases.lent() as address:
        yield address
