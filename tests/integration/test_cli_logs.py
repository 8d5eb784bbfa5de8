import asyncio
import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from command_line import Called, call
from fleet import graph, retry, rows, single, task
from job_owner import Owner, owner
from serving import server

from dagmaster.engine.messages import Load, TaskCompleted, TaskFailed, TaskStarted
from dagmaster.model.graph import Graph
from dagmaster.settings import load_settings
from dagmaster.tasklogs import TaskLogs, open_task_logs
from dagmaster.tasklogs.files import FileLogs


@pytest.fixture(params=["directly", "over http"])
def where(request: pytest.FixtureRequest, dsn: str, tmp_path: Path) -> Iterator[list[str]]:
    """The options that select database or server."""
    if request.param == "directly":
        yield ["--database-url", dsn]
        return
    with server(dsn, tmp_path, works=False) as host:
        yield ["--url", host.url]


@pytest.fixture
def logs() -> TaskLogs:
    return open_task_logs(load_settings())


def two(handler: str = "echo") -> Graph:
    return graph({"a": task(handler, "b"), "b": task(handler, "END")}, "two", start="a")


async def run(job_owner: Owner, node: str, logs: TaskLogs, text: str, *, fails: bool = False, attempt: int = 0) -> None:
    """One attempt from start to end."""
    task_id, now = f"{job_owner.job_id}_{node}_{attempt}", datetime.now(UTC)
    await job_owner.advance(TaskStarted(node, task_id, "w", now))
    await logs.append(task_id, text.encode())
    ended = TaskFailed(node, task_id, "w", now, "no luck") if fails else TaskCompleted(node, task_id, "w", now, b"{}")
    await job_owner.advance(ended)


async def age(dsn: str, job_id: int) -> None:
    past = "now() - interval '9 days'"
    await rows(dsn, f"UPDATE dagapp.dag_jobs SET created_at = {past}, completed_at = {past} WHERE job_id = %s", job_id)


async def ask(*args: object) -> Called:
    return await asyncio.to_thread(call, *args)


async def test_the_only_log_is_shown_without_naming_its_node(dsn: str, where: list[str], logs: TaskLogs) -> None:
    async with owner(dsn) as job_owner:
        await job_owner.submit(single())
        await job_owner.advance(Load())
        await run(job_owner, "work", logs, "one\ntwo: ä\nthree")
        job_id = job_owner.job_id
    done = await ask(*where, "logs", job_id)
    assert (done.code, done.out, done.err) == (0, "one\ntwo: ä\nthree", "log of node work\n")
    assert (await ask(*where, "logs", job_id, "work", "--tail", 2)).out == "two: ä\nthree"
    assert (await ask(*where, "logs", job_id, "work", "-f")).out == "one\ntwo: ä\nthree"


async def test_the_log_of_the_failed_node_is_shown_by_default_otherwise_the_nodes_are_listed(
    dsn: str, where: list[str], logs: TaskLogs
) -> None:
    async with owner(dsn) as job_owner:
        await job_owner.submit(two())
        await job_owner.advance(Load())
        await run(job_owner, "a", logs, "fine")
        await run(job_owner, "b", logs, "broken", fails=True)
        assert (await ask(*where, "logs", job_owner.job_id)).out == "broken"
        assert (await ask(*where, "logs", job_owner.job_id, "a")).out == "fine"
        await job_owner.submit(two())
        await job_owner.advance(Load())
        await run(job_owner, "a", logs, "fine")
        await run(job_owner, "b", logs, "fine too")
        done = await ask(*where, "logs", job_owner.job_id)
    assert done.code == 2
    assert done.err == f"error: name a node of job {job_owner.job_id}: a (completed), b (completed)\n"


async def test_following_continues_across_attempts_until_the_node_ends(
    dsn: str, where: list[str], logs: TaskLogs, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_read, read = threading.Event(), FileLogs._read

    def notice(*args: Any) -> bytes:
        piece = read(*args)
        is_read.set()
        return piece

    monkeypatch.setattr(FileLogs, "_read", notice)
    async with owner(dsn) as job_owner:
        await job_owner.submit(single(retry=retry(1)))
        await job_owner.advance(Load())
        await run(job_owner, "work", logs, "first ", fails=True)
        following = asyncio.create_task(ask(*where, "logs", job_owner.job_id, "work", "--follow"))
        await asyncio.to_thread(is_read.wait, 30)
        await run(job_owner, "work", logs, "second", attempt=1)
        done = await following
        assert (done.out, done.err) == ("first second", "")
        assert (await ask(*where, "logs", job_owner.job_id, "work", "--attempt", 1)).out == "first "


async def test_a_missing_log_is_explained(dsn: str, where: list[str]) -> None:
    async with owner(dsn) as job_owner:
        await job_owner.submit(single())
        job_id = job_owner.job_id
        assert (await ask(*where, "logs", job_id)).err == f"error: no task of job {job_id} has started\n"
        await job_owner.advance(Load())
    done = await ask(*where, "logs", job_id, "work")
    assert (done.code, done.err) == (2, "error: attempt 1 of node 'work' has not started\n")
    assert (await ask(*where, "logs", job_id, "none")).err == f"error: job {job_id} has no node 'none'\n"
    assert (await ask(*where, "logs", 12345, "work")).err.startswith("error: there is no job 12345")


async def test_logs_are_removed_with_their_jobs(dsn: str, logs: TaskLogs) -> None:
    async with owner(dsn) as job_owner:
        task_ids: list[str] = []
        for _ in range(2):
            await job_owner.submit(single())
            await job_owner.advance(Load())
            await run(job_owner, "work", logs, "something")
            task_ids.append(f"{job_owner.job_id}_work_0")
        await age(dsn, job_owner.job_id)
    done = await ask("--database-url", dsn, "prune", "--days", 7)
    assert done.out.startswith("removed 1 job,"), done.err
    assert [await logs.size(task_id) for task_id in task_ids] == [9, None]


async def test_jobs_are_removed_even_if_their_logs_are_unreachable(dsn: str, logs: TaskLogs) -> None:
    async with owner(dsn) as job_owner:
        await job_owner.submit(single())
        await job_owner.advance(Load())
        await run(job_owner, "work", logs, "something")
    await age(dsn, job_owner.job_id)
    env = {"DAGMASTER_LOG_URL": "foo://bar"}
    done = await asyncio.to_thread(lambda: call("--database-url", dsn, "prune", "--days", 7, env=env))
    assert done.out.startswith("removed 1 job,")
    assert "the logs of 1 old jobs were not removed: DAGMASTER_LOG_URL" in done.err
