"""PostgreSQL crashes and restarts during jobs; orchestrators and workers survive and nothing is lost."""

import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from processes import BOTH, ORCHESTRATOR, WORKER, Stage
from promise import assert_promise_kept
from shapes import CHAIN, FAN, FORK, LONG, NARROW_FAN

from dagmaster.store.embedded import EmbeddedServer
from dagmaster.store.migrate import upgrade

pytestmark = [pytest.mark.acceptance, pytest.mark.timeout(240)]

LEASE_SECONDS = 15.0  # Longer than a slow worker takes to notice that the server is back; it looks every 5 seconds.
OUTAGE_SECONDS = 16.0
DONE = "SELECT count(*) >= %s FROM dagapp.dag_job_events WHERE event_type = 'node_completed'"


@pytest.fixture(scope="module")
def server() -> Iterator[EmbeddedServer]:
    """A separate server, because it is restarted."""
    folder = Path(tempfile.mkdtemp(prefix="dagmaster-test-"))
    with EmbeddedServer.start(folder) as server:
        yield server
    shutil.rmtree(folder)


@pytest.fixture
def dsn(server: EmbeddedServer, request: pytest.FixtureRequest) -> str:
    name = request.node.name[:60]  # PostgreSQL truncates longer names.
    with psycopg.connect(server.dsn, autocommit=True) as conn:
        conn.execute(f"CREATE DATABASE {name}")
    upgrade(server.dsn_of(name))
    return server.dsn_of(name)


@pytest.fixture
def stage(dsn: str, tmp_path: Path) -> Iterator[Stage]:
    """Its ledger is durable across crashes of the server."""
    stage = Stage(dsn, tmp_path, forgetful=False)
    yield stage
    sys.stderr.write(stage.close())


def test_jobs_survive_a_postgresql_crash_under_load(stage: Stage, server: EmbeddedServer) -> None:
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


def test_jobs_survive_two_postgresql_crashes_in_a_row(stage: Stage, server: EmbeddedServer) -> None:
    stage.launch(BOTH, WORKER)
    stage.submit_all([(NARROW_FAN, {"items": list(range(40)), "seconds": 0.1}) for _ in range(3)])
    stage.until(DONE, 20)
    server.restart(immediate=True)
    server.restart(immediate=True)
    stage.until_ended()
    assert_promise_kept(stage.dsn, may_repeat=True)


def test_workers_are_not_declared_lost_for_heartbeats_missed_in_an_outage(stage: Stage, server: EmbeddedServer) -> None:
    """PostgreSQL is away for longer than a worker's lease; a task that runs throughout counts."""
    stage.launch(ORCHESTRATOR, ORCHESTRATOR, WORKER, worker_lost_after_seconds=LEASE_SECONDS)
    stage.submit_all([(LONG, {"first_seconds": OUTAGE_SECONDS + 2}), (CHAIN, {"n": 1, "seconds": 1})])
    stage.until("SELECT count(DISTINCT job_id) = 2 FROM acceptance_ledger")
    os.kill(int((server.pgdata / "postmaster.pid").read_text().split()[0]), signal.SIGQUIT)
    time.sleep(OUTAGE_SECONDS)
    server.restart(immediate=True)
    stage.until_ended()
    assert_promise_kept(stage.dsn, may_repeat=True)
