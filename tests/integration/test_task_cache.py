"""Results of tasks that stand for other tasks with the same parameters."""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from command_line import call
from fleet import Fleet, WorkerRole, fleet, graph, handlers, retry, rows, single, task
from serving import server
from web import Web, web

from dagmaster import apply, apply_sync, create_task
from dagmaster import task as python_task
from dagmaster import workflow as python_workflow
from dagmaster.errors import TaskOver
from dagmaster.handlers import Handler, HandlerContext, Registry
from dagmaster.model.access import Role
from dagmaster.model.caching import Caching
from dagmaster.orchestrator.retention import RetentionOptions
from dagmaster.python.local import LocalFleet
from dagmaster.queues.contract import Link, Offer, Recalled, TaskMessage, TaskReport
from dagmaster.queues.http import HttpLink, HttpTransport
from dagmaster.queues.httplogs import HttpLogs
from dagmaster.store.connect import opened
from dagmaster.store.retention import Limits, remove_old
from dagmaster.testing import run_workflow
from dagmaster.worker.caching import ResultCache
from dagmaster.worker.options import WorkerOptions
from dagmaster.worker.worker import Worker

HOUR = Caching(3600.0)
CACHED = "SELECT * FROM dagapp.dag_task_cache ORDER BY stored_at"


class Counter:
    """A handler that counts how often it was called."""

    def __init__(self, fails: int = 0) -> None:
        self.calls = 0
        self._fails = fails

    async def __call__(self, ctx: HandlerContext) -> dict[str, Any]:
        self.calls += 1
        if self.calls <= self._fails:
            raise ValueError("not yet")
        return {"call": self.calls, "x": ctx.params.get("x")}


def knowing(function: Callable[..., Any], caching: Caching | None = HOUR, name: str = "count", **more: Any) -> Registry:
    known = handlers()
    known.register(Handler(name, function, caching=caching, **more))
    return known


@asynccontextmanager
async def at_work(dsn: str, known: Registry, **options: Any) -> AsyncIterator[Fleet]:
    async with fleet(dsn) as running:
        await running.orchestrator()
        await running.worker(known=known, **options)
        yield running


def counting(**params: Any) -> Any:
    return single("count", params=params)


async def output(running: Fleet, *steps: Any) -> Any:
    row = await running.run(*steps)
    assert (row["status"], row["error_message"]) == ("completed", None)
    return row["result_data"]["work"]


# What is taken, and what is not.


async def test_a_second_job_takes_the_result_of_the_first(dsn: str) -> None:
    count = Counter()
    async with at_work(dsn, knowing(count)) as running:
        first = await running.run(counting(x=[1.5, {"b": None, "a": "ä"}]))
        second = await running.run(counting(x=[1.5, {"a": "ä", "b": None}]))
        assert first["result_data"]["work"] == second["result_data"]["work"]
        assert count.calls == 1
        [kept] = await rows(dsn, CACHED)
        assert (kept["handler"], kept["job_id"]) == ("count", first["job_id"])
        assert kept["task_id"] == f"{first['job_id']}_work_0"
        assert (kept["expires_at"] - kept["stored_at"]).total_seconds() == 3600
        found = await rows(dsn, "SELECT job_id, metrics FROM dagapp.dag_task_results ORDER BY reported_at")
        assert [one["metrics"] for one in found] == [None, {"cached": True}]


async def test_the_worker_of_the_orchestrator_s_own_process_takes_it_too(dsn: str) -> None:
    count = Counter()
    async with fleet(dsn) as running:
        await running.worker(owner=await running.orchestrator(), known=knowing(count))
        assert await output(running, counting(x=1)) == await output(running, counting(x=1))
    assert count.calls == 1


async def test_other_parameters_and_another_handler_are_done_anew(dsn: str) -> None:
    count = Counter()
    known = knowing(count)
    known.register(Handler("again", count, caching=HOUR))
    async with at_work(dsn, known) as running:
        for params in ({"x": 1}, {"x": 1.0}, {"x": "1"}, {"x": [1]}, {"y": 1}, {}):
            await output(running, counting(**params))
        await output(running, single("again", params={"x": 1}))
        assert count.calls == 7
        assert len(await rows(dsn, CACHED)) == 7


async def test_another_version_is_done_anew_and_the_old_one_still_counts(dsn: str) -> None:
    count = Counter()
    for version, calls in (("", 1), ("2", 2), ("2", 2), ("", 2)):
        async with at_work(dsn, knowing(count, Caching(None, version))) as running:
            await output(running, counting(x=1))
        assert count.calls == calls
    assert [one["expires_at"] for one in await rows(dsn, CACHED)] == [None, None]


async def test_an_expired_result_counts_no_more_and_is_overwritten(dsn: str) -> None:
    count = Counter()
    async with at_work(dsn, knowing(count)) as running:
        await output(running, counting(x=1))
        await rows(dsn, "UPDATE dagapp.dag_task_cache SET expires_at = now()")
        assert (await output(running, counting(x=1)))["call"] == 2
        assert (await output(running, counting(x=1)))["call"] == 2
        [kept] = await rows(dsn, CACHED)
        assert kept["output"] == {"call": 2, "x": 1}
        assert kept["expires_at"] > kept["stored_at"]


async def test_a_handler_without_it_keeps_nothing(dsn: str) -> None:
    count = Counter()
    async with at_work(dsn, knowing(count, None)) as running:
        await output(running, counting(x=1))
        await output(running, counting(x=1))
    assert count.calls == 2
    assert await rows(dsn, CACHED) == []


async def test_a_failure_is_not_kept_and_what_succeeds_behind_it_is(dsn: str) -> None:
    count = Counter(fails=1)
    async with at_work(dsn, knowing(count)) as running:
        failed = await running.run(counting(x=1))
        assert failed["status"] == "failed"
        assert await rows(dsn, CACHED) == []
        assert (await output(running, counting(x=1)))["call"] == 2
        assert (await output(running, counting(x=1)))["call"] == 2


async def test_an_earlier_attempt_s_nodes_keep_the_result_from_being_kept(dsn: str) -> None:
    count = Counter(fails=1)
    async with at_work(dsn, knowing(count)) as running:
        what = graph({"work": task("count", "END", retry=retry(1, 0.3))}, "again", start="work")
        job_id = await running.submit(what)
        await running.until("SELECT count(*) = 1 AS ok FROM dagapp.dag_node_states WHERE retry_count = 1")
        await rows(
            dsn,
            "INSERT INTO dagapp.dag_node_states (job_id, node_id, status, parent_node_id, max_retries, retry_count) "
            "VALUES (%s, 'work.1', 'completed', 'work', 0, 0)",
            job_id,
        )
        await running.completed(job_id)
    assert count.calls == 2
    assert await rows(dsn, CACHED) == []


# In Python.

seen: list[Any] = []


@python_task(cache="1h")
def square(x: int) -> int:
    seen.append(x)
    return x * x


@python_task(cache=True, isolation="process")
def moment() -> int:
    return time.time_ns()


@python_task(cache=True)
async def spreading(x: int) -> Any:
    seen.append(x)
    below = create_task(square, {"x": x})
    await apply([below])
    return x


@python_task(cache=True)
async def giving(x: int) -> Any:
    below = create_task(square, {"x": x})
    await apply([below])
    return below


@python_task(cache=True, isolation="process")
def spreading_apart(x: int) -> int:
    apply_sync([create_task(square, {"x": x})])
    return time.time_ns()


@python_workflow(id="squares")
def squares(xs: list[int]) -> list[int]:
    return square.map(xs)


@python_workflow(id="moments")
def moments() -> int:
    return moment()


@python_workflow(id="spread_cached")
def spread(x: int) -> Any:
    return spreading(x)


@python_workflow(id="give_cached")
def give(x: int) -> Any:
    return giving(x)


@python_workflow(id="apart_cached")
def apart(x: int) -> int:
    return spreading_apart(x)


@pytest.fixture
def installation(dsn: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DAGMASTER_DATABASE_URL", dsn)
    monkeypatch.setenv("DAGMASTER_POLL_INTERVAL_SECONDS", "0.1")
    monkeypatch.setenv("DAGMASTER_WORKER_QUEUE", "q")
    seen.clear()
    yield
    LocalFleet.close_shared()


async def handlers_kept(dsn: str) -> set[str]:
    return {one["handler"].rpartition(":")[2] for one in await rows(dsn, CACHED)}


async def test_tasks_in_python_take_each_other_s_results(dsn: str, installation: None) -> None:
    assert await squares.run_async([1, 2]) == [1, 4]
    assert await squares.run_async([3, 2, 1]) == [9, 4, 1]
    assert sorted(seen) == [1, 2, 3]


async def test_a_process_of_its_own_is_spared_as_well(dsn: str, installation: None) -> None:
    assert await moments.run_async() == await moments.run_async()
    assert await handlers_kept(dsn) == {"moment"}


async def test_a_task_that_adds_tasks_is_never_kept(dsn: str, installation: None) -> None:
    assert await spread.run_async(5) == await spread.run_async(5) == 5
    assert sorted(seen) == [5, 5, 5]  # Twice by what adds, and once by what is added.
    assert await give.run_async(6) == await give.run_async(6) == 36
    assert await apart.run_async(7) != await apart.run_async(7)
    assert await handlers_kept(dsn) == {"square"}


def test_a_job_under_test_begins_with_nothing() -> None:
    seen.clear()
    for _ in range(2):
        assert run_workflow(squares, {"xs": [4]}).status == "completed"
    assert seen == [4, 4]


# When the cache is away.


class Away:
    """A link that cannot be asked."""

    async def recall(self, *_: Any) -> None:
        raise ConnectionError("gone")

    async def remember(self, *_: Any) -> None:
        raise ConnectionError("gone")


async def test_without_a_connection_tasks_are_done_and_a_warning_is_given_once(
    dsn: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    count = Counter()
    async with at_work(dsn, knowing(count)) as running:
        [worker] = [one for one in running.roles if isinstance(one, WorkerRole)]
        monkeypatch.setattr(worker.it._bench.cache, "_link", Away)
        with caplog.at_level(logging.WARNING, "dagmaster.worker.caching"):
            for calls in (1, 2):
                assert (await output(running, counting(x=1)))["call"] == calls
        assert len(caplog.records) == 1
    assert await rows(dsn, CACHED) == []


async def test_a_link_that_does_not_answer_holds_up_nobody_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    class Silent(Away):
        async def recall(self, *_: Any) -> None:
            await asyncio.Event().wait()

    monkeypatch.setattr("dagmaster.worker.caching.WAIT_SECONDS", 0.01)
    assert await ResultCache(Silent).recall("1_a_0", HOUR) is None
    assert await ResultCache(lambda: None).recall("1_a_0", HOUR) is None


# Over HTTP.


@asynccontextmanager
async def linked(url: str, key: str | None = None) -> AsyncIterator[HttpLink]:
    transport = HttpTransport(url, key)
    try:
        async with transport.open(None) as link:
            await link.register(Offer("far", 7, ("q",), ("echo", "count"), 4))
            yield link
    finally:
        await transport.close()


async def claimed(link: Link) -> TaskMessage:
    while True:
        for message in await link.exchange([], 1):
            return message


async def test_a_remote_worker_takes_what_another_has_done(dsn: str) -> None:
    count = Counter()
    async with web(dsn, counting(x=1)) as it:
        await it.fleet.orchestrator()
        await it.fleet.worker(known=knowing(count))
        first = await it.fleet.run(counting(x=1))
        await it.fleet.roles.pop().stop()
        async with it.real_server() as url, working_far(url, knowing(Counter(fails=9))):
            second = await it.fleet.run(counting(x=1))
            assert second["result_data"]["work"] == first["result_data"]["work"]
            other = await it.fleet.run(counting(x=2))
            assert other["status"] == "failed"
        path = f"/api/v1/jobs/{second['job_id']}/nodes/work"
        [attempt] = (await it.get(path))["attempts"]
        assert attempt["metrics"] == {"cached": True}
        at = (await rows(dsn, CACHED))[0]["stored_at"].isoformat(timespec="seconds")
        said = await it.get(f"{path}/logs")
        assert said == f"[dagmaster: result taken from the cache; stored by job {first['job_id']} at {at}]\n"


async def test_a_remote_worker_keeps_what_it_has_done(dsn: str) -> None:
    count = Counter()
    async with web(dsn, counting(x=1)) as it:
        await it.fleet.orchestrator()
        async with it.real_server() as url, working_far(url, knowing(count)):
            assert (await output(it.fleet, counting(x=1)))["call"] == 1
            assert (await output(it.fleet, counting(x=1)))["call"] == 1
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


async def test_a_worker_reads_and_writes_results_only_of_tasks_that_it_holds(dsn: str) -> None:
    async with web(dsn, counting(x=1)) as it:
        await it.fleet.orchestrator()
        async with it.real_server() as url, linked(url) as holder, linked(url) as other:
            await it.fleet.submit(counting(x=1))
            held = (await claimed(holder)).task_id
            await holder.remember(held, "", b'{"n":1}', 60)
            with pytest.raises(TaskOver, match="not this worker's"):
                await other.recall(held, "")
            with pytest.raises(TaskOver, match="not this worker's"):
                await other.remember(held, "", b'{"n":2}', None)
            found = await holder.recall(held, "")
            assert isinstance(found, Recalled)
            assert found.output == b'{"n":1}'
            assert await holder.recall(held, "2") is None
            await it.fleet.submit(counting(x=2))
            mine = (await claimed(other)).task_id
            assert await other.recall(mine, "") is None
            await other.remember(mine, "", b'{"n":3}', None)
            await other.exchange([TaskReport(mine, int(mine.partition("_")[0]), "work", "completed", b"{}")], 0)
            with pytest.raises(TaskOver):
                await other.remember(mine, "", b'{"n":4}', None)
    assert [one["output"] for one in await rows(dsn, CACHED)] == [{"n": 1}, {"n": 3}]


async def test_a_result_that_makes_no_sense_is_refused(dsn: str) -> None:
    async with web(dsn, max_output_bytes=1000) as it:
        made = await it.post("/api/v1/workers", {**OFFER}, 201)
        path = f"/api/v1/workers/{made['worker_id']}/cache"
        for wrong in (
            {"output": [1]},
            {"output": None},
            {"output": {}, "seconds": 0},
            {"output": {}, "seconds": 1e12},
            {"output": {}, "version": "x" * 200},
            {"output": {}, "version": "\0"},
            {"output": {}, "cache_key": "0"},
        ):
            await it.post(path, {"task_id": "1_a_0", **wrong}, 422)
        await it.post(path, {"task_id": "1_a_0", "output": {}}, 409)


OFFER = {"hostname": "far", "pid": 7, "queues": ["q"], "handlers": ["count"]}


# Forgetting.


async def keep(dsn: str, *names: str, expires: str = "NULL") -> None:
    for name in names:
        await rows(
            dsn,
            "INSERT INTO dagapp.dag_task_cache (cache_key, handler, output, job_id, task_id, expires_at) "
            f"VALUES (gen_random_uuid()::text, %s, '{{}}', 1, '1_a_0', {expires})",
            name,
        )


@pytest.fixture(params=["database", "server"])
def place(request: pytest.FixtureRequest, dsn: str, tmp_path: Path) -> Iterator[list[str]]:
    """The options that name it."""
    if request.param == "database":
        yield ["--database-url", dsn, "--by", "ada"]
        return
    with server(dsn, tmp_path, works=False) as one:
        yield ["--url", one.url]


def test_results_are_forgotten_on_the_command_line(dsn: str, place: list[str]) -> None:
    asyncio.run(keep(dsn, "a", "a", "tasks:clean", "tasks.clean", "b"))
    assert call("cache", "clear", "--handler", "a", *place).out == "2 results removed\n"
    assert call("cache", "clear", "--handler", "tasks.clean", "--json", *place).json == {
        "handler": "tasks.clean",
        "removed": 2,
    }
    assert call("cache", "clear", "--handler", "nobody", *place).out == "0 results removed\n"
    assert call("cache", "clear", *place).out == "1 result removed\n"
    said = asyncio.run(rows(dsn, "SELECT event_data FROM dagapp.dag_job_events WHERE job_id = 0 ORDER BY event_id"))
    assert [(one["event_data"]["command"], one["event_data"]["removed"]) for one in said][-4:] == [
        ("cache.clear", 2),
        ("cache.clear", 2),
        ("cache.clear", 0),
        ("cache.clear", 1),
    ]
    assert said[-1]["event_data"]["actor"] == ("ada" if "ada" in place else None)


async def test_a_result_that_is_forgotten_is_done_anew(dsn: str) -> None:
    count = Counter()
    async with web(dsn, counting(x=1)) as it:
        await it.fleet.orchestrator()
        await it.fleet.worker(known=knowing(count))
        await output(it.fleet, counting(x=1))
        assert await cleared(it, "other") == 0
        assert await cleared(it, "count") == 1
        assert (await output(it.fleet, counting(x=1)))["call"] == 2
        [entry] = (await it.get("/api/v1/audit?limit=1"))["items"]
        assert (entry["command"], entry["data"]["handler"], entry["data"]["removed"]) == ("cache.clear", "count", 1)


async def cleared(it: Web, handler: str) -> int:
    said = await it.ask("DELETE", "/api/v1/cache", 200, params={"handler": handler})
    return int(said["removed"])


async def test_who_may_only_read_may_not_forget(dsn: str) -> None:
    async with web(dsn) as it:
        await keep(dsn, "a")
        viewer, operator = await it.key("viewer", Role.VIEWER), await it.key("operator", Role.OPERATOR)
        await it.ask("DELETE", "/api/v1/cache", 403, headers=viewer)
        assert await it.ask("DELETE", "/api/v1/cache", 200, headers=operator) == {"handler": None, "removed": 1}


async def test_expired_results_are_removed_in_batches(dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dagmaster.store.retention.ROWS_AT_ONCE", 2)
    await keep(dsn, "old", "old", "old", "old", "old", expires="now() - interval '1 s'")
    await keep(dsn, "new", expires="now() + interval '1 h'")
    await keep(dsn, "ever")
    async with opened(dsn, application="test") as conn:
        assert (await remove_old(conn, Limits(None))).cached_results == 5
    assert {one["handler"] for one in await rows(dsn, CACHED)} == {"new", "ever"}


async def test_the_retention_of_an_orchestrator_removes_them(dsn: str) -> None:
    await keep(dsn, "old", expires="now() - interval '1 s'")
    async with fleet(dsn) as running:
        await running.orchestrator(retention_seconds=0.1, retention=RetentionOptions())
        await running.until("SELECT count(*) = 0 AS ok FROM dagapp.dag_task_cache")
