"""Entries of tables: kept for the tasks that may need them, and expired when nobody does."""

import asyncio
import signal
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from dagmaster.errors import TooLarge, UnknownTable
from dagmaster.model.data_object import Scope
from dagmaster.store import data_objects
from dagmaster.store.connect import Connection

JOB = """INSERT INTO dagapp.dag_jobs
(job_id, workflow_id, workflow_version, workflow_hash, status, priority, completed_at)
VALUES ($1, 'w', 1, 'h', $2, 5, $3)"""
RUNNING = """INSERT INTO dagapp.dag_tasks_running
(task_id, job_id, node_id, retry_count, queue, priority, job_started_at, handler, timeout_seconds, dispatched_at)
VALUES ('1_a_0', 1, 'a', 0, 'q', 5, now(), 'h', 60, now())"""


NODE = """INSERT INTO dagapp.dag_node_states (job_id, node_id, status) VALUES ($1, $2, $3)"""


async def store(conn: Connection, object_id: int, scope: Scope, *, ready: bool = True, **options: Any) -> None:
    await data_objects.announce(conn, data_objects.NewObject(object_id, scope, "here", **options))
    if ready:
        await data_objects.complete(conn, object_id, row_count=1, size_bytes=1, columns={"x": "Int64"})


async def test_the_reaper_takes_what_nobody_needs(conn: Connection) -> None:
    now = datetime.now(UTC)
    for job_id, status, ended in (
        (1, "running", None),
        (2, "completed", now - timedelta(days=8)),
        (3, "completed", now - timedelta(days=6)),
        (4, "failed", now - timedelta(days=8)),
    ):
        await conn.execute(JOB, [job_id, status, ended])
    await conn.execute(RUNNING)
    for object_id, scope, job_id, task_id in (
        (11, Scope.JOB, 1, "1_a_0"),
        (12, Scope.JOB, 2, "2_a_0"),
        (13, Scope.JOB, 3, "3_a_0"),
        (14, Scope.JOB, 4, "4_a_0"),
        (15, Scope.JOB, 99, "99_a_0"),
        (16, Scope.TEMP, 1, "1_a_0"),
        (17, Scope.TEMP, 1, "1_b_0"),
        (18, Scope.GLOBAL, 2, "2_a_0"),
    ):
        await store(conn, object_id, scope, job_id=job_id, task_id=task_id)
    # Killed before the table was complete.
    for object_id, task_id in ((19, "1_a_0"), (20, "1_b_0")):
        await store(conn, object_id, Scope.GLOBAL, job_id=1, task_id=task_id, ready=False)
    assert await data_objects.expire_ended(conn, retention_days=7) == 3
    assert await data_objects.expired(conn, "here") == [12, 14, 15]
    assert await data_objects.expire_ended(conn, retention_days=7, grace_seconds=0) == 2
    assert await data_objects.expired(conn, "here") == [12, 14, 15, 17, 20]
    assert await data_objects.expired(conn, "elsewhere") == []
    with pytest.raises(UnknownTable, match="dropped while it ran"):
        await data_objects.keep(conn, [12])
    assert await data_objects.expired(conn, "here") == [12, 14, 15, 17, 20]


async def test_a_table_is_kept_for_the_tasks_that_may_need_it(conn: Connection) -> None:
    long_ago = datetime.now(UTC) - timedelta(days=8)
    for job_id, status, ended in ((1, "running", None), (2, "completed", long_ago), (3, "running", None)):
        await conn.execute(JOB, [job_id, status, ended])
    for node_id in "ab":
        await conn.execute(NODE, [1, node_id, "running"])
    await conn.execute("UPDATE dagapp.dag_jobs SET parent_job_id = 1 WHERE job_id = 2")
    await store(conn, 21, Scope.JOB, job_id=2, task_id="2_a_0")
    for object_id, name in ((22, "prices"), (23, "units")):
        await store(conn, object_id, Scope.GLOBAL, name=name)
    # Table 21 is the result of a child of job 1; job 3 has nothing to do with it.
    assert await data_objects.expire_ended(conn, retention_days=7) == 0
    await data_objects.use(conn, [21, 22], 1, "a")
    await data_objects.use(conn, [23], 1, "b")
    with pytest.raises(UnknownTable, match="job 3 has no table 21"):
        await data_objects.use(conn, [21, 22], 3, "a")
    # Other tables take over the names while tasks of job 1 read the old ones.
    for object_id, name in ((24, "prices"), (25, "units")):
        await store(conn, object_id, Scope.GLOBAL, name=name)
    assert await data_objects.expired(conn, "here") == []
    await data_objects.use(conn, [22], 1, "b")  # As it came from a task of the same job.
    # What a task passed on is kept for the others of its job; the rest goes with the tasks that used it.
    await conn.execute("UPDATE dagapp.data_object_uses SET is_passed_on = true WHERE (object_id, job_id) = (22, 1)")
    await conn.execute("UPDATE dagapp.dag_node_states SET status = 'completed' WHERE job_id = 1")
    assert await data_objects.expired(conn, "here") == [23]
    await conn.execute(
        "UPDATE dagapp.dag_jobs SET status = 'completed', completed_at = $1 WHERE job_id = 1", [long_ago]
    )
    assert await data_objects.expire_ended(conn, retention_days=7) == 1
    assert await data_objects.expired(conn, "here") == [21, 22, 23]
    await data_objects.forget(conn, [21, 22, 23])
    assert await number_of(conn, "data_object_uses") == 0


async def test_what_a_program_leaves_behind_goes_when_its_lease_has_expired(conn: Connection) -> None:
    for program_id in (1, 2):
        await data_objects.beat_program(conn, program_id)
        await store(conn, 30 + program_id, Scope.TEMP, program_id=program_id)
        await store(conn, 40 + program_id, Scope.GLOBAL, program_id=program_id, ready=False)
        await store(conn, 50 + program_id, Scope.GLOBAL, program_id=program_id)
    assert await data_objects.expire_ended(conn, retention_days=7) == 0
    await conn.execute("UPDATE dagapp.data_programs SET heartbeat_at = now() - interval '1 hour' WHERE program_id = 1")
    assert await data_objects.expire_ended(conn, retention_days=7) == 2
    assert await data_objects.expired(conn, "here") == [31, 41]
    await data_objects.forget(conn, [31, 41])
    await conn.execute("DELETE FROM dagapp.data_objects WHERE object_id = 51")
    await data_objects.expire_ended(conn, retention_days=7)
    assert await number_of(conn, "data_programs") == 1
    await data_objects.end_program(conn, 2)
    assert await data_objects.expire_ended(conn, retention_days=7) == 2


async def number_of(conn: Connection, table: str) -> int:
    [row] = await (await conn.execute(f"SELECT count(*) AS n FROM dagapp.{table}")).fetchall()
    number: int = row["n"]
    return number


KILLED = """
import asyncio, os, signal
from dagmaster.data.table_store import TableStore
from dagmaster.python.data_context import DataContext

def die(*_):
    os.kill(os.getpid(), signal.SIGKILL)

TableStore._insert = die

async def main():
    async with DataContext({url!r}) as context:
        await context.create_object_from_value({{"x": [1] * 100_000}}, name="half", scope="global")

asyncio.run(main())
"""


async def test_a_table_that_a_killed_program_left_half_made_expires(
    conn: Connection, dsn: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DAGMASTER_DATABASE_URL", dsn)
    url = f"chdb://{tmp_path}/own"
    ended = await asyncio.to_thread(subprocess.run, [sys.executable, "-c", KILLED.format(url=url)])
    assert ended.returncode == -signal.SIGKILL
    assert await data_objects.expire_ended(conn, retention_days=7) == 0
    assert await data_objects.expire_ended(conn, retention_days=7, lease_seconds=0) == 1
    [row] = await data_objects.list_objects(conn)
    assert (row["state"], row["name"]) == ("expired", "half")


async def test_a_job_has_a_limit_of_tables(conn: Connection) -> None:
    for object_id in (31, 32):
        await store(conn, object_id, Scope.JOB, job_id=1, max_tables=2)
    with pytest.raises(TooLarge, match="job 1 has 2 tables"):
        await store(conn, 33, Scope.JOB, job_id=1, max_tables=2)
