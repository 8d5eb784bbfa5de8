"""The table engines that a test runs on, the installation of tasks that use tables, and patience."""

import asyncio
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from clickhouse_server import CLUSTER, run_servers, why_not
from fleet import SOON

from dagmaster.data import DataContext
from dagmaster.data.engine import folder_url
from dagmaster.python.data_context import release_engines
from dagmaster.python.local import LocalFleet


@pytest.fixture(scope="session", autouse=True)
def patience() -> Iterator[None]:
    """Routes wait for the owner of a job, workers for the cache, checks for the database: seconds on a busy machine."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("dagmaster.web.service_context.WAIT_SECONDS", SOON)
        patch.setattr("dagmaster.web.checks.REACH_SECONDS", SOON)
        patch.setattr("dagmaster.worker.result_cache.WAIT_SECONDS", SOON)
        for name in ("REACH_SECONDS", "PROBE_SECONDS"):
            patch.setattr(f"dagmaster.gateway.health.{name}", SOON)
        yield


@pytest.fixture(scope="session")
def clickhouse_servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sequence[str]]:
    if (reason := why_not()) is not None:
        pytest.skip(reason)
    with run_servers(tmp_path_factory.mktemp("clickhouse"), 2) as addresses:
        yield addresses


@pytest.fixture(scope="module", params=["chdb", "service", "server", "shards"])
def engine_url(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> str:
    if request.param in ("chdb", "service"):
        return folder_url(tmp_path_factory.mktemp("tables"), request.param)
    servers = request.getfixturevalue("clickhouse_servers")
    return f"http://{servers[0]}" if request.param == "server" else f"http://{','.join(servers)}?cluster={CLUSTER}"


@pytest.fixture(scope="module")
def context(engine_url: str) -> Iterator[DataContext]:
    opened = DataContext(engine_url)
    yield opened
    asyncio.run(opened.close())


@pytest.fixture(scope="module")
def table_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """One folder for all tests of the module: an engine takes half a second to open."""
    yield tmp_path_factory.mktemp("tables")
    release_engines()


@pytest.fixture
def table_installation(
    shared_dsn: str, table_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DAGMASTER_DATABASE_URL", shared_dsn)
    monkeypatch.setenv("DAGMASTER_DATA_URL", f"chdb://{table_folder}")
    monkeypatch.setenv("DAGMASTER_POLL_INTERVAL_SECONDS", "0.1")
    monkeypatch.setenv("DAGMASTER_WORKER_QUEUE", "q")
    yield
    LocalFleet.close_shared()
