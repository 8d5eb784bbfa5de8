"""PostgreSQL crashes and comes back in mid-job; orchestrators and workers live on and nothing is lost."""

import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from processes import BOTH, ORCHESTRATOR, WORKER, Stage
from promise import assert_promise_kept
from shapes import CHAIN, FAN, FORK, NARROW_FAN

from dagmaster.store.embedded import EmbeddedServer
from dagmaster.store.migrate import upgrade

pytestmark = [pytest.mark.acceptance, pytest.mark.timeout(240)]

DONE = "SELECT count(*) >= %s FROM dagapp.dag_job_events WHERE event_type = 'node_completed'"


@pytest.fixture(scope="module")
def server() -> Iterator[EmbeddedServer]:
    """Nobody else's, because it is restarted."""
    folder = Path(tempfile.mkdtemp(prefix="dagmaster-test-"))
    with EmbeddedServer.start(folder) as server:
        yield server
    shutil.rmtree(folder)


@pytest.fixture
def dsn(server: EmbeddedServer, request: pytest.FixtureRequest) -> str:
    name = request.node.name
    with psycopg.connect(server.dsn, autocommit=True) as conn:
        conn.execute(f"CREATE DATABASE {name}")
    upgrade(server.dsn_of(name))
    return server.dsn_of(name)


@pytest.fixture
def stage(dsn: str, tmp_path: Path) -> Iterator[Stage]:
    """Its ledger forgets nothing, whatever becomes of the server."""
    stage = Stage(dsn, tmp_path, forgetful=False)
    yield stage
    sys.stderr.write(stage.close())


def test_postgresql_crashes_while_everybody_is_busy(stage: Stage, server: EmbeddedServer) -> None:
    stage.launch(ORCHESTRATOR, ORCHESTRATOR, WORKER)
    stage.submit_all(
        [
            (FAN, {"items": list(range(200)), "seconds": 0.05}),
            (NARROW_FAN, {"items": list(range(30)), "seconds": 0.05}),
            (FORK, {"weight": 30, "seconds": 1}),
            (CHAIN, {"n": 1, "seconds": 1}),
        ]
    )
    stage.until(DONE, 60)
    server.restart(immediate=True)
    stage.until_ended()
    assert_promise_kept(stage.dsn, may_repeat=True)


def test_postgresql_crashes_twice_in_a_row(stage: Stage, server: EmbeddedServer) -> None:
    stage.launch(BOTH, WORKER)
    stage.submit_all([(NARROW_FAN, {"items": list(range(40)), "seconds": 0.1}) for _ in range(3)])
    stage.until(DONE, 20)
    server.restart(immediate=True)
    server.restart(immediate=True)
    stage.until_ended()
    assert_promise_kept(stage.dsn, may_repeat=True)
