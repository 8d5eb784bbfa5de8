"""Any exception of a handler ends its own attempt; a worker that dies fails none of its tasks."""

import asyncio
import signal
from collections.abc import AsyncIterator, Callable, Iterator
from functools import partial
from typing import Any

import pytest
from fleet import NEVER, fleet, retry, single, wait_until

from dagmaster import Context
from dagmaster.engine.change_set import Rules

KINDS = (KeyboardInterrupt, SystemExit, GeneratorExit, asyncio.CancelledError)


class Panic(BaseException):
    """Raised by libraries written in Rust."""


@pytest.fixture(autouse=True)
def _ctrl_c_is_taken() -> Iterator[None]:
    """SIGINT is handled, as in every command."""
    before = signal.signal(signal.SIGINT, lambda *_: None)
    yield
    signal.signal(signal.SIGINT, before)


def raising(kind: type[BaseException]) -> dict[str, Callable[..., Any]]:
    async def in_loop(ctx: Context) -> None:
        await asyncio.sleep(0)
        raise kind

    def in_thread(ctx: Context) -> None:
        raise kind

    async def in_generator(ctx: Context) -> AsyncIterator[dict[str, Any]]:
        yield {"type": "progress", "current": 1}
        raise kind

    async def in_inner_task(ctx: Context) -> None:
        await asyncio.create_task(in_loop(ctx))

    functions = (in_loop, in_thread, in_generator, in_inner_task)
    return {f"{kind.__name__}_{function.__name__}": function for function in functions}


async def test_any_exception_of_a_handler_ends_only_its_own_attempt(dsn: str) -> None:
    bad = {name: function for kind in (*KINDS, Panic) for name, function in raising(kind).items()}
    goes_on = asyncio.Event()

    async def innocent(ctx: Context) -> dict[str, bool]:
        await goes_on.wait()
        return {"done": True}

    async with fleet(dsn, innocent=innocent, **bad) as running:
        await running.orchestrator()
        worker = await running.worker(concurrency=30)
        good = await running.submit(single("innocent"))
        failing = {name: await running.submit(single(name, retry=retry(0))) for name in bad}
        ended = dict(zip(failing, await running.ended(*failing.values()), strict=True))
        goes_on.set()
        await running.completed(good)
        assert {row["status"] for row in ended.values()} == {"failed"}
        assert [name for name, row in ended.items() if name.split("_")[0] not in row["error_message"]] == []
        assert not worker.has_ended
        assert worker.instance.failed == len(bad)


async def test_the_tasks_of_a_dead_worker_are_lost_not_failed(dsn: str) -> None:
    began, goes_on = asyncio.Event(), asyncio.Event()

    async def innocent(ctx: Context) -> dict[str, int]:
        began.set()
        await goes_on.wait()
        return {"attempt": ctx.retry_count}

    async with fleet(dsn, innocent=innocent) as running:
        await running.orchestrator(worker_lost_after_seconds=NEVER)
        dying = await running.worker()
        job_id = await running.submit(single("innocent", retry=retry(3)))
        await began.wait()
        runners = [task.runner for task in dying.instance.slots.running.values()]
        # As `asyncio.run` cancels what still runs after an exception left the loop.
        for task in (dying._main, *runners):
            task.cancel()
        await asyncio.gather(dying._main, *runners, return_exceptions=True)
        running.roles.remove(dying)
        await running.rows("UPDATE dagapp.dag_workers SET status = 'lost' WHERE worker_id = %s", dying.id)
        goes_on.set()
        await running.worker()
        await running.completed(job_id)
        node = (await running.nodes(job_id))["work"]
        assert (node["output"], node["max_retries"]) == ({"attempt": 1}, 3)
        [lost] = await running.events(job_id, "node_failed")
        assert lost["error_message"] == f"worker {dying.id} was lost"
        await wait_until(lambda: not dying.instance.slots.running)
        dying._main = None
        await dying._end()


async def test_worker_deaths_are_counted_across_owners_within_the_retry_limit(dsn: str) -> None:
    async def forever(ctx: Context) -> None:
        await asyncio.Event().wait()

    async with fleet(dsn, forever=forever) as running:
        owner = await running.orchestrator(rules=Rules(max_worker_deaths=3))
        job_id = await running.submit(single("forever", retry=retry(50)))
        await running.worker()
        begun = "SELECT count(*) = 1 AS ok FROM dagapp.dag_node_states WHERE task_id = %s AND status = 'running'"
        for attempt in range(3):
            await running.until(begun, partial(list, [f"{job_id}_work_{attempt}"]))
            owner.instance.forget_all()
            await running.rows("UPDATE dagapp.dag_workers SET status = 'lost' WHERE status = 'active'")
        [job] = await running.ended(job_id)
        assert "3 workers in a row died while they ran this task" in job["error_message"]
        node = (await running.nodes(job_id))["work"]
        assert (node["times_lost"], node["retry_count"], node["max_retries"]) == (3, 2, 50)
