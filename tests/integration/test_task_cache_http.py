"""Remote workers read and write cached results of tasks that they hold."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from counting_handler import CACHED, Counter, counting, knowing, output
from fleet import rows
from web import web

from dagmaster.errors import TaskOver
from dagmaster.handlers import Registry
from dagmaster.ids import JobId
from dagmaster.queues.contract import Link, Recalled, Registration, TaskMessage, TaskReport
from dagmaster.queues.http import HttpLink, HttpTransport
from dagmaster.queues.httplogs import HttpLogs
from dagmaster.worker.options import WorkerOptions
from dagmaster.worker.worker import Worker

OFFER = {"hostname": "far", "pid": 7, "queues": ["q"], "handlers": ["count"]}


@asynccontextmanager
async def linked(url: str, key: str | None = None) -> AsyncIterator[HttpLink]:
    transport = HttpTransport(url, key)
    try:
        async with transport.open(None) as link:
            await link.register(Registration("far", 7, ("q",), ("echo", "count"), 4))
            yield link
    finally:
        await transport.close()


async def claimed(link: Link) -> TaskMessage:
    while True:
        for message in await link.exchange([], 1):
            return message


async def test_a_remote_worker_reuses_cached_results(dsn: str) -> None:
    count = Counter()
    async with web(dsn, counting(x=1)) as api:
        await api.fleet.orchestrator()
        await api.fleet.worker(known=knowing(count))
        first = await api.fleet.run(counting(x=1))
        await api.fleet.roles.pop().stop()
        async with api.real_server() as url, working_far(url, knowing(Counter(fails=9))):
            second = await api.fleet.run(counting(x=1))
            assert second["result_data"]["work"] == first["result_data"]["work"]
            other = await api.fleet.run(counting(x=2))
            assert other["status"] == "failed"
        path = f"/api/v1/jobs/{second['job_id']}/nodes/work"
        [attempt] = (await api.get(path))["attempts"]
        assert attempt["metrics"] == {"cached": True}
        at = (await rows(dsn, CACHED))[0]["stored_at"].isoformat(timespec="seconds")
        log = await api.get(f"{path}/logs")
        assert log == f"[dagmaster: result taken from the cache; stored by job {first['job_id']} at {at}]\n"


async def test_a_remote_worker_caches_its_results(dsn: str) -> None:
    count = Counter()
    async with web(dsn, counting(x=1)) as api:
        await api.fleet.orchestrator()
        async with api.real_server() as url, working_far(url, knowing(count)):
            assert (await output(api.fleet, counting(x=1)))["call"] == 1
            assert (await output(api.fleet, counting(x=1)))["call"] == 1
    assert count.calls == 1


@asynccontextmanager
async def working_far(url: str, known: Registry) -> AsyncIterator[None]:
    transport, stop = HttpTransport(url), asyncio.Event()
    options = WorkerOptions(queues=("q",), concurrency=2, poll_interval_seconds=0.1, heartbeat_interval_seconds=0.3)
    running = asyncio.create_task(Worker(transport, known, options, HttpLogs(transport)).run(stop))
    try:
        yield
    finally:
        stop.set()
        await running
        await transport.close()


async def test_a_worker_reads_and_writes_only_results_of_its_own_tasks(dsn: str) -> None:
    async with web(dsn, counting(x=1)) as api:
        await api.fleet.orchestrator()
        async with api.real_server() as url, linked(url) as holder, linked(url) as other:
            await api.fleet.submit(counting(x=1))
            task_id = (await claimed(holder)).task_id
            await holder.remember(task_id, "", b'{"n":1}', 60)
            with pytest.raises(TaskOver, match="this worker does not hold task"):
                await other.recall(task_id, "")
            with pytest.raises(TaskOver, match="this worker does not hold task"):
                await other.remember(task_id, "", b'{"n":2}', None)
            recalled = await holder.recall(task_id, "")
            assert isinstance(recalled, Recalled)
            assert recalled.output == b'{"n":1}'
            assert await holder.recall(task_id, "2") is None
            await api.fleet.submit(counting(x=2))
            mine = (await claimed(other)).task_id
            assert await other.recall(mine, "") is None
            await other.remember(mine, "", b'{"n":3}', None)
            await other.exchange([TaskReport(mine, JobId(int(mine.partition("_")[0])), "work", "completed", b"{}")], 0)
            with pytest.raises(TaskOver):
                await other.remember(mine, "", b'{"n":4}', None)
    assert [row["output"] for row in await rows(dsn, CACHED)] == [{"n": 1}, {"n": 3}]


async def test_a_malformed_result_is_refused(dsn: str) -> None:
    async with web(dsn, max_output_bytes=1000) as api:
        worker = await api.post("/api/v1/workers", {**OFFER}, 201)
        path = f"/api/v1/workers/{worker['worker_id']}/cache"
        for wrong in (
            {"output": [1]},
            {"output": None},
            {"output": {}, "seconds": 0},
            {"output": {}, "seconds": 1e12},
            {"output": {}, "version": "x" * 200},
            {"output": {}, "version": "\0"},
            {"output": {}, "cache_key": "0"},
        ):
            await api.post(path, {"task_id": "1_a_0", **wrong}, 422)
        await api.post(path, {"task_id": "1_a_0", "output": {}}, 409)
