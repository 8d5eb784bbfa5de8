"""A worker process that has only a URL and a key."""

import asyncio
import time
from pathlib import Path
from typing import Any

import ledger
import pytest
from processes import ORCHESTRATOR, PATIENCE_SECONDS, POLL_SECONDS, Process, Stage
from shapes import CHAIN
from test_api_process import first_line

from dagmaster.model.access import Role
from dagmaster.store.connect import opened
from dagmaster.store.keys import new_key

pytestmark = pytest.mark.acceptance

FAR = ("worker", "--handlers", ledger.__file__, "--url")
AT_WORK = "SELECT count(*) = %s FROM dagapp.dag_workers WHERE status = 'active' AND host_key LIKE 'http-%%'"
ENDED = "SELECT count(*) = %s FROM acceptance_ledger WHERE node_id = %s AND event = 'end'"


def serve(stage: Stage, port: str = "0") -> tuple[Process, str]:
    process = stage.start("api", "--port", port)
    return process, first_line(process, "serving").split()[-1]


def far_worker(stage: Stage, url: str, number: int = 1, **settings: Any) -> Process:
    process = stage.start(*FAR, url, **settings)
    stage.until(AT_WORK, number)
    return process


def spooled(folder: Path) -> int:
    return len(list(folder.glob("data/spool/*/*/*.json")))


def until_spooled(stage: Stage, folder: Path, number: int) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while spooled(folder) < number:
        stage._assert_alive()
        assert time.monotonic() < deadline
        time.sleep(POLL_SECONDS)


def executions(stage: Stage) -> dict[str, int]:
    rows = stage.database.rows(
        "SELECT node_id, count(DISTINCT execution_id) AS number FROM acceptance_ledger GROUP BY node_id"
    )
    return {row["node_id"]: row["number"] for row in rows}


def key_of(stage: Stage, role: Role) -> str:
    async def make() -> str:
        async with opened(stage.dsn, application="acceptance") as conn:
            return (await new_key(conn, name=role.value, role=role, created_by="test")).text

    return asyncio.run(make())


def test_results_are_spooled_while_the_server_is_away(stage: Stage, tmp_path: Path, port: str) -> None:
    stage.launch(ORCHESTRATOR)
    server, url = serve(stage, port)
    worker = far_worker(stage, url, data_dir=tmp_path / "data")
    stage.hold("a")  # It does not end before the server is away.
    job_id = stage.submit(CHAIN, n=1, seconds=1)
    stage.until("SELECT count(*) = 1 FROM acceptance_ledger WHERE node_id = 'a'")
    stage.kill(server)
    stage.release()
    stage.until(ENDED, 1, "a")
    until_spooled(stage, tmp_path, 1)
    assert stage.database.value("SELECT status FROM dagapp.dag_jobs WHERE job_id = %s", job_id) == "running"
    serve(stage, port)
    stage.until_ended(job_id)
    row = stage.database.row("SELECT status, result_data FROM dagapp.dag_jobs WHERE job_id = %s", job_id)
    assert (row["status"], row["result_data"]["c"]) == ("completed", {"value": 3})
    assert executions(stage) == {"a": 1, "b": 1, "c": 1}
    worker.terminate()
    assert worker.wait() == 0
    assert spooled(tmp_path) == 0
    stage.until(AT_WORK, 0)


def test_a_spooled_result_outlives_its_worker(stage: Stage, tmp_path: Path, port: str) -> None:
    stage.launch(ORCHESTRATOR)
    server, url = serve(stage, port)
    worker = far_worker(stage, url, data_dir=tmp_path / "data")
    stage.hold("a")  # It does not end before the server is away.
    job_id = stage.submit(CHAIN, n=1, seconds=1)
    stage.until("SELECT count(*) = 1 FROM acceptance_ledger WHERE node_id = 'a'")
    stage.kill(server)
    stage.release()
    until_spooled(stage, tmp_path, 1)
    stage.kill(worker)
    serve(stage, port)
    far_worker(stage, url, 2, data_dir=tmp_path / "data")
    stage.until_ended(job_id)
    assert stage.database.value("SELECT status FROM dagapp.dag_jobs WHERE job_id = %s", job_id) == "completed"
    assert executions(stage) == {"a": 1, "b": 1, "c": 1}


def test_a_worker_stops_on_an_operators_command(stage: Stage, tmp_path: Path) -> None:
    stage.is_real = True
    stage.launch(ORCHESTRATOR)
    _, url = serve(stage)
    worker = far_worker(stage, url, data_dir=tmp_path / "data")
    worker.should_live = False
    assert stage.start("workers", "stop", "--all", "--url", url).wait() == 0
    assert worker.wait() == 0
    stage.until(AT_WORK, 0)


def test_a_worker_needs_a_key_of_its_role(stage: Stage, tmp_path: Path) -> None:
    stage.launch(ORCHESTRATOR)
    viewer, right = key_of(stage, Role.VIEWER), key_of(stage, Role.WORKER)
    _, url = serve(stage)
    for options, reason in (((), "An API key is needed"), (("--key", viewer), "role viewer may not")):
        refused = stage.start(*FAR, url, *options, data_dir=tmp_path / "data")
        assert refused.wait() == 2, refused.last_words()
        assert reason in refused.log.read_text()
        assert "--role worker" in refused.log.read_text()
    far_worker(stage, url, data_dir=tmp_path / "data", api_key=right)
    job_id = stage.submit(CHAIN, n=1)
    stage.until_ended(job_id)
    path = stage.database.value("SELECT key_id FROM dagapp.dag_workers WHERE status = 'active'")
    assert path in right
