"""Cached results of tasks with the same parameters."""

import asyncio
import logging
from typing import Any, cast

import pytest
from counting_handler import CACHED, HOUR, Counter, at_work, counting, knowing, output
from fleet import WorkerRole, fleet, graph, retry, rows, single, task

from dagmaster.handlers import Handler
from dagmaster.ids import TaskId
from dagmaster.model.cache_policy import Caching
from dagmaster.worker.result_cache import ResultCache

# Hits and misses.


async def test_a_second_job_reuses_the_result_of_the_first(dsn: str) -> None:
    count = Counter()
    async with at_work(dsn, knowing(count)) as running:
        first = await running.run(counting(x=[1.5, {"b": None, "a": "ä"}]))
        second = await running.run(counting(x=[1.5, {"a": "ä", "b": None}]))
        assert first["result_data"]["work"] == second["result_data"]["work"]
        assert count.calls == 1
        [entry] = await rows(dsn, CACHED)
        assert (entry["handler"], entry["job_id"]) == ("count", first["job_id"])
        assert entry["task_id"] == f"{first['job_id']}_work_0"
        assert (entry["expires_at"] - entry["stored_at"]).total_seconds() == 3600
        selected = await rows(dsn, "SELECT job_id, metrics FROM dagapp.dag_task_results ORDER BY reported_at")
        assert [row["metrics"] for row in selected] == [None, {"cached": True}]


async def test_a_local_worker_reuses_results_too(dsn: str) -> None:
    count = Counter()
    async with fleet(dsn) as running:
        await running.worker(owner=await running.orchestrator(), known=knowing(count))
        assert await output(running, counting(x=1)) == await output(running, counting(x=1))
    assert count.calls == 1


async def test_other_parameters_and_other_handlers_are_cache_misses(dsn: str) -> None:
    count = Counter()
    known = knowing(count)
    known.register(Handler("again", count, caching=HOUR))
    async with at_work(dsn, known) as running:
        for params in ({"x": 1}, {"x": 1.0}, {"x": "1"}, {"x": [1]}, {"y": 1}, {}):
            await output(running, counting(**params))
        await output(running, single("again", params={"x": 1}))
        assert count.calls == 7
        assert len(await rows(dsn, CACHED)) == 7


async def test_another_version_is_a_cache_miss_and_the_old_result_remains(dsn: str) -> None:
    count = Counter()
    for version, calls in (("", 1), ("2", 2), ("2", 2), ("", 2)):
        async with at_work(dsn, knowing(count, Caching(None, version))) as running:
            await output(running, counting(x=1))
        assert count.calls == calls
    assert [row["expires_at"] for row in await rows(dsn, CACHED)] == [None, None]


async def test_an_expired_result_is_a_cache_miss_and_is_overwritten(dsn: str) -> None:
    count = Counter()
    async with at_work(dsn, knowing(count)) as running:
        await output(running, counting(x=1))
        await rows(dsn, "UPDATE dagapp.dag_task_cache SET expires_at = now()")
        assert (await output(running, counting(x=1)))["call"] == 2
        assert (await output(running, counting(x=1)))["call"] == 2
        [entry] = await rows(dsn, CACHED)
        assert entry["output"] == {"call": 2, "x": 1}
        assert entry["expires_at"] > entry["stored_at"]


async def test_a_handler_without_cache_stores_nothing(dsn: str) -> None:
    count = Counter()
    async with at_work(dsn, knowing(count, None)) as running:
        await output(running, counting(x=1))
        await output(running, counting(x=1))
    assert count.calls == 2
    assert await rows(dsn, CACHED) == []


async def test_failures_are_not_cached_and_a_later_success_is(dsn: str) -> None:
    count = Counter(fails=1)
    async with at_work(dsn, knowing(count)) as running:
        failed = await running.run(counting(x=1))
        assert failed["status"] == "failed"
        assert await rows(dsn, CACHED) == []
        assert (await output(running, counting(x=1)))["call"] == 2
        assert (await output(running, counting(x=1)))["call"] == 2


async def test_a_result_is_not_cached_if_an_earlier_attempt_added_nodes(dsn: str) -> None:
    count = Counter(fails=1)
    async with fleet(dsn) as running:
        await running.orchestrator()
        definition = graph({"work": task("count", "END", retry=retry(1))}, "again", start="work")
        job_id = await running.submit(definition)
        # Its owner has loaded the job, and the node exists before any attempt can end.
        await running.until("SELECT count(*) = 1 AS ok FROM dagapp.dag_tasks_waiting")
        await rows(
            dsn,
            "INSERT INTO dagapp.dag_node_states (job_id, node_id, status, parent_node_id, max_retries, retry_count) "
            "VALUES (%s, 'work.1', 'completed', 'work', 0, 0)",
            job_id,
        )
        await running.worker(known=knowing(count))
        await running.completed(job_id)
    assert count.calls == 2
    assert await rows(dsn, CACHED) == []


# Without the cache.


class Away:
    """A link that cannot be reached."""

    async def recall(self, *_: Any) -> None:
        raise ConnectionError("gone")

    async def remember(self, *_: Any) -> None:
        raise ConnectionError("gone")


async def test_without_a_connection_tasks_run_with_one_warning(
    dsn: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    count = Counter()
    async with at_work(dsn, knowing(count)) as running:
        [worker] = [role for role in running.roles if isinstance(role, WorkerRole)]
        monkeypatch.setattr(worker.instance.task_runner.execution.cache, "_link", Away)
        with caplog.at_level(logging.WARNING, "dagmaster.worker.result_cache"):
            for calls in (1, 2):
                assert (await output(running, counting(x=1)))["call"] == calls
        assert len([record for record in caplog.records if record.name == "dagmaster.worker.result_cache"]) == 1
    assert await rows(dsn, CACHED) == []


async def test_a_cache_that_does_not_respond_delays_tasks_only_briefly(monkeypatch: pytest.MonkeyPatch) -> None:
    class Silent(Away):
        async def recall(self, *_: Any) -> None:
            await asyncio.Event().wait()

    monkeypatch.setattr("dagmaster.worker.result_cache.WAIT_SECONDS", 0.01)
    assert await ResultCache(cast("Any", Silent)).recall(TaskId("1_a_0"), HOUR) is None
    assert await ResultCache(lambda: None).recall(TaskId("1_a_0"), HOUR) is None
