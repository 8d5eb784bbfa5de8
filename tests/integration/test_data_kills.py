"""Tables survive SIGKILL of whoever writes them and of the data service: nothing is lost, doubled or left over."""

import asyncio
import logging
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from random import Random
from time import sleep
from types import SimpleNamespace
from typing import Any, NamedTuple

import psycopg
import pytest

from dagmaster.data import col
from dagmaster.data.engine import folder_of, folder_url
from dagmaster.data.objects import DataContext, Object
from dagmaster.data.service import find_address
from dagmaster.data.sql import DATABASE, table_name
from dagmaster.orchestrator.maintenance import DataReaper
from dagmaster.orchestrator.shared_connection import Connections
from dagmaster.python.context import session
from dagmaster.python.data_context import context_of_task, release_engines
from dagmaster.store import data_objects

logger = logging.getLogger(__name__)

# `make data-kills ROUNDS=100` runs many.
ROUNDS = int(os.environ.get("DAGMASTER_DATA_KILL_ROUNDS", "2"))
SEED = int(os.environ.get("DAGMASTER_DATA_KILL_SEED", "16"))
# In the entry of the table, and in a table from the beginning.
ROWS = (1000, 10_000)

# Forks a writer for each line that it reads: most of the time that one takes to start is spent on imports.
WRITERS = """
import asyncio, os, sys
from types import SimpleNamespace
import dagmaster.data.service_engine
from dagmaster.data import col
from dagmaster.data.objects import Object
from dagmaster.python.data_context import context_of_task

async def write(log_id, first, attempt):
    context = context_of_task(SimpleNamespace(job_id=1, node_id="writer", task_id=f"1_writer_{attempt}"))
    log = Object(log_id, context)
    for number in range(first, first + 1000):
        await log.append({"x": [number]}, token=f"append {number}")
        print("appended", number, flush=True)
        await context.create_object_from_value([1, 2, 3])
        await context.create_object_from_value({"x": list(range(10_000))})
        for rows in (1000, 10_000):
            kept = await context.create_object_from_value({"x": list(range(rows))}, scope="job")
            print("kept", kept.table_id, flush=True)
            assert await kept.where(col("x") >= 0).count() == rows

for line in sys.stdin:
    pid = os.fork()
    if pid == 0:
        print("started", os.getpid(), flush=True)
        asyncio.run(write(*map(int, line.split())))
    os.waitpid(pid, 0)
    print("killed", pid, flush=True)
"""


@pytest.fixture(autouse=True)
def installation(dsn: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("DAGMASTER_DATABASE_URL", dsn)
    monkeypatch.setenv("DAGMASTER_DATA_URL", folder_url(tmp_path / "tables", "service"))
    with psycopg.connect(dsn) as conn:
        conn.execute(
            "INSERT INTO dagapp.dag_jobs (job_id, workflow_id, workflow_version, workflow_hash, status, priority) "
            "VALUES (1, 'w', 1, 'h', 'running', 5)"
        )
    yield
    release_engines()


class Written:
    """What the writers have said that they had done."""

    def __init__(self, log_id: int) -> None:
        self.log_id = log_id
        self.appended = -1
        self.kept: list[int] = []

    def run_and_kill(self, writers: "subprocess.Popen[str]", attempt: int, plan: "Kills") -> None:
        """A writer begins with the append whose end its predecessor did not report."""
        assert writers.stdin is not None
        assert writers.stdout is not None
        writers.stdin.write(f"{self.log_id} {self.appended + 1} {attempt}\n")
        writers.stdin.flush()
        pid = 0
        for number, line in enumerate(writers.stdout):
            kind, value = line.split()
            match kind:
                case "started":
                    pid = int(value)
                case "killed":
                    return
                case "appended":
                    self.appended = int(value)
                case _:
                    self.kept.append(int(value))
            if plan.service_pid is not None and number == plan.lines // 2:
                os.kill(plan.service_pid, signal.SIGKILL)
            if number == plan.lines:
                sleep(plan.seconds)  # Between two lines it is anywhere.
                os.kill(pid, signal.SIGKILL)


class Kills(NamedTuple):
    """When the writer of a round is killed, and the service before it, if that is to be killed too."""

    lines: int
    seconds: float
    service_pid: int | None


@pytest.fixture
def writers(installation: None) -> Iterator["subprocess.Popen[str]"]:
    command = [sys.executable, "-c", WRITERS]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as started:
        yield started
        started.communicate()


async def test_nothing_is_lost_doubled_or_left_over_when_processes_are_killed(
    writers: "subprocess.Popen[str]",
) -> None:
    random = Random(SEED)
    task: Any = SimpleNamespace(job_id=1, node_id="reader", task_id="1_reader_0")
    context = context_of_task(task)
    log = await context.create_object_from_value({"x": [-1]}, scope="job")
    written = Written(log.table_id)
    for attempt in range(ROUNDS):
        await log.where(col("x") < 0).count()  # The service runs again.
        address = find_address(folder_of(context.url))
        assert address is not None
        plan = Kills(random.randrange(2, 12), random.uniform(0, 0.05), address.pid if attempt % 2 == 0 else None)
        await asyncio.to_thread(written.run_and_kill, writers, attempt, plan)
        await check(context, log, written)
        logger.info("round %d: %d appends, %d tables kept", attempt + 1, written.appended + 1, len(written.kept))
    await context.close()


async def check(context: DataContext, log: Object, written: Written) -> None:
    numbers = (await log.data())["x"]
    assert numbers == list(range(-1, len(numbers) - 1)), "a row was lost, doubled or misplaced"
    assert len(numbers) - 2 in (written.appended, written.appended + 1)
    written.appended = len(numbers) - 2
    for table_id in written.kept[-5:]:
        rows = (await Object(table_id, context).data())["x"]
        assert len(rows) in ROWS
        assert rows == list(range(len(rows)))
    connections = Connections(os.environ["DAGMASTER_DATABASE_URL"], lock_timeout_seconds=2)
    await DataReaper(connections, 7, context.url, grace_seconds=0).run_once()
    await connections.close()
    async with session() as conn:
        entries = {row["object_id"] for row in await data_objects.list_objects(conn, limit=10_000)}
        assert all(row["scope"] == "job" for row in await data_objects.list_objects(conn, limit=10_000))
    sql = "SELECT concat(database, '.', name) AS name FROM system.tables WHERE database = {d:String}"
    tables = set((await context.run(lambda: context.engine.query(sql, {"d": DATABASE})))["name"].to_pylist())
    assert tables <= {table_name(table_id) for table_id in entries}, "a table has no entry"
    assert set(written.kept) <= entries, "a table that was kept is gone"
