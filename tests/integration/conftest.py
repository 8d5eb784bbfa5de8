"""The table engines that a test runs on."""

import asyncio
from collections.abc import Iterator, Sequence

import pytest
from clickhouse_server import CLUSTER, run_servers, why_not

from dagmaster.data import DataContext
from dagmaster.data.engine import folder_url


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
