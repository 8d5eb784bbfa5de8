"""Whole workers and the data service are killed while tasks write tables; a minute later nothing is left over."""

import asyncio
import logging
import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest
import table_writers
from processes import ORCHESTRATOR, Stage
from shapes import Outcome, Shape

from dagmaster.data import Object
from dagmaster.data.engine import folder_of, folder_url
from dagmaster.data.service import find_address
from dagmaster.data.sql import DATABASE, table_name
from dagmaster.python.data_context import DataContext

logger = logging.getLogger(__name__)

ROUNDS = int(os.environ.get("DAGMASTER_DATA_KILL_ROUNDS", "0"))
JOBS = 3
SEED = int(os.environ.get("DAGMASTER_DATA_KILL_SEED", "16"))
A_MINUTE = 60.0

pytestmark = [
    pytest.mark.acceptance,
    pytest.mark.skipif(not ROUNDS, reason="takes minutes: make data-kills"),
]

WORKER = ("worker", "--handlers", table_writers.__file__)
WRITE = Shape(
    "write",
    """
workflow_id: write
inputs:
  number: {type: integer}
nodes:
  START: {type: start, next: write}
  write:
    handler: table_writers:write
    queue: work
    params: {number: "{{ inputs.number }}"}
    retry: {max_attempts: 50}
    next: END
  END: {type: end}
""",
    lambda inputs: Outcome("completed", {}, {}),
)
STARTED = "SELECT count(*) > 0 FROM dagapp.data_objects WHERE job_id = %s"
COMPLETED = "SELECT count(*) AS jobs FROM dagapp.dag_jobs WHERE status = 'completed'"
RESULT = "SELECT output FROM dagapp.dag_node_states WHERE job_id = %s AND node_id = 'write'"
LEFT = "SELECT count(*) FROM dagapp.data_objects WHERE scope = 'temp' OR state <> 'ready'"
TABLES = "SELECT concat(database, '.', name) AS name FROM system.tables WHERE database = {d:String}"


@pytest.fixture
def url(dsn: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    url = folder_url(tmp_path / "tables", "service")
    monkeypatch.setenv("DAGMASTER_DATABASE_URL", dsn)
    monkeypatch.setenv("DAGMASTER_DATA_URL", url)
    return url


@pytest.fixture
def stage(dsn: str, url: str, tmp_path: Path) -> Iterator[Stage]:
    stage = Stage(dsn, tmp_path, is_real=True)
    yield stage
    sys.stderr.write(stage.close())


async def test_nothing_is_lost_doubled_or_left_over_when_workers_are_killed(stage: Stage, url: str) -> None:
    async with DataContext() as context:
        log = await context.create_object_from_value(
            {"number": [-1], "step": [-1]}, name=table_writers.LOG, scope="global"
        )
        await log.order_by("step").count()  # The service runs.
        jobs = await asyncio.to_thread(run_rounds, stage, url)
        began = time.monotonic()
        appended = sorted((row["number"], row["step"]) for row in await log.records())
        steps = [(number, step) for number in range(len(jobs)) for step in range(table_writers.STEPS)]
        assert appended == [(-1, -1), *steps], "a row was lost or doubled"
        for number, job_id in enumerate(jobs):
            result = Object(stage.database.value(RESULT, job_id)["result"]["table_id"], context)
            assert (await result.data())["x"] == list(range(number, number + table_writers.MANY))
        while stage.database.value(LEFT):
            assert time.monotonic() - began < A_MINUTE, "temporary or unfinished tables are left over"
            await asyncio.sleep(1)
        logger.info("nothing was left over %.0f s after the last job", time.monotonic() - began)
        entries = stage.database.rows("SELECT object_id FROM dagapp.data_objects")
        tables = context.engine.query(TABLES, {"d": DATABASE})["name"].to_pylist()
        assert set(tables) <= {table_name(entry["object_id"]) for entry in entries}, "a table has no entry"


def run_rounds(stage: Stage, url: str) -> list[int]:
    """The jobs, each of which was killed once; they have completed."""
    random = Random(SEED)
    _, worker = stage.launch(ORCHESTRATOR, WORKER, data_url=url)
    jobs: list[int] = []
    for number in range(ROUNDS):
        jobs += [stage.submit(WRITE, number=len(jobs) + job) for job in range(JOBS)]
        stage.until(STARTED, jobs[-1])
        time.sleep(random.uniform(0, 1))  # They are anywhere.
        if number % 2 == 0 and (service := find_address(folder_of(url))) is not None:
            os.kill(service.pid, signal.SIGKILL)
            time.sleep(random.uniform(0, 0.3))
        stage.kill(worker)
        [worker] = stage.launch(WORKER, data_url=url)
        stage.until_ended()
        logger.info("round %d: %d jobs have completed", number + 1, stage.database.value(COMPLETED))
    assert stage.database.value(COMPLETED) == len(jobs)
    return jobs
