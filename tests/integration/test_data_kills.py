"""Tables survive SIGKILL of whoever writes them and of the data service: nothing is lost, doubled or left over."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from random import Random

import psycopg
import pytest

from dagmaster.data.engine import folder_of, folder_url
from dagmaster.data.objects import DataContext, Object
from dagmaster.data.service import find_address
from dagmaster.data.sql import DATABASE, table_name
from dagmaster.python.context import session
from dagmaster.python.data_context import context_of_task, release_engines
from dagmaster.store import data_objects

# `make data-kills ROUNDS=100` runs many.
ROUNDS = int(os.environ.get("DAGMASTER_DATA_KILL_ROUNDS", "2"))
SEED = int(os.environ.get("DAGMASTER_DATA_KILL_SEED", "16"))
ROWS = 1000

WRITER = """
import asyncio, sys
from dagmaster.data.objects import Object
from dagmaster.python.data_context import context_of_task

async def write(log_id, first, attempt):
    context = context_of_task(1, f"1_writer_{attempt}")
    log = Object(log_id, context)
    for number in range(first, first + 1000):
        await log.append({"x": [number]}, token=f"append {number}")
        print("appended", number, flush=True)
        await context.create_object_from_value([1, 2, 3])
        kept = await context.create_object_from_value({"x": list(range(1000))}, scope="job")
        print("kept", kept.table_id, flush=True)

asyncio.run(write(*map(int, sys.argv[1:])))
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

    def run_and_kill(self, attempt: int, lines: int, kill_service: bool, service_pid: int) -> None:
        """A writer begins with the append whose end its predecessor did not report."""
        arguments = [str(self.log_id), str(self.appended + 1), str(attempt)]
        with subprocess.Popen([sys.executable, "-c", WRITER, *arguments], stdout=subprocess.PIPE, text=True) as writer:
            assert writer.stdout is not None
            for number, line in enumerate(writer.stdout):
                self._note(line)
                if kill_service and number == lines // 2:
                    os.kill(service_pid, signal.SIGKILL)
                if number == lines:
                    writer.kill()
            assert writer.wait() == -signal.SIGKILL

    def _note(self, line: str) -> None:
        kind, number = line.split()
        if kind == "appended":
            self.appended = int(number)
        else:
            self.kept.append(int(number))


async def test_nothing_is_lost_doubled_or_left_over_when_processes_are_killed() -> None:
    random = Random(SEED)
    context = context_of_task(1, "1_reader_0")
    log = await context.create_object_from_value({"x": [-1]}, scope="job")
    written = Written(log.table_id)
    for attempt in range(ROUNDS):
        await log.count()  # The service runs again.
        address = find_address(folder_of(context.url))
        assert address is not None
        kill_service = attempt % 2 == 0
        await asyncio.to_thread(written.run_and_kill, attempt, random.randrange(2, 12), kill_service, address.pid)
        await check(context, log, written)
    await context.close()


async def check(context: DataContext, log: Object, written: Written) -> None:
    numbers = (await log.data())["x"]
    assert numbers == list(range(-1, len(numbers) - 1)), "a row was lost, doubled or misplaced"
    assert len(numbers) - 2 in (written.appended, written.appended + 1)
    written.appended = len(numbers) - 2
    for table_id in written.kept[-5:]:
        assert (await Object(table_id, context).data())["x"] == list(range(ROWS))
    async with session() as conn:
        await data_objects.expire_ended(conn, retention_days=7, grace_seconds=0)
        await context.sweep()
        entries = {row["object_id"] for row in await data_objects.list_objects(conn, limit=10_000)}
        assert all(row["scope"] == "job" for row in await data_objects.list_objects(conn, limit=10_000))
    sql = "SELECT concat(database, '.', name) AS name FROM system.tables WHERE database = {d:String}"
    tables = set((await context.run(lambda: context.engine.query(sql, {"d": DATABASE})))["name"].to_pylist())
    assert tables <= {table_name(table_id) for table_id in entries}, "a table has no entry"
    assert {table_name(table_id) for table_id in written.kept} <= tables, "a table that was kept is gone"
