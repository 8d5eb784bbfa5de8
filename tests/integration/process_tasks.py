"""Runs of handlers in processes."""

import asyncio
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Future
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import orjson
import psutil

from dagmaster.handlers import Checkpoint, Handler, HandlerContext, Registry, registry
from dagmaster.handlers.contract import Progress
from dagmaster.worker.processes.children import Children, Outcome

KILL_AFTER = 0.5
PATIENCE = 30.0  # Generous for a busy machine; handlers that do not stop would run longer.
MB = 1024 * 1024
PARENT = Path(__file__).with_name("process_parent.py")


def make(known: Registry = registry, **options: Any) -> Children:
    return Children(known, [], **{"kill_after_seconds": KILL_AFTER, "max_output_bytes": 1_000_000, **options})


@asynccontextmanager
async def started(**options: Any) -> AsyncIterator[Children]:
    children = make(**options)
    await children.start()
    yield children
    await children.close()


class Task:
    """A run of a handler, with everything that it reports."""

    def __init__(self, children: Children, handler: str | Handler, /, **fields: Any) -> None:
        self.handler = registry.get(handler) if isinstance(handler, str) else handler
        self.updates: asyncio.Queue[Progress] = asyncio.Queue()
        self.saved: list[Checkpoint] = []
        self.log = bytearray()
        sinks = {"progress_sink": self.updates.put_nowait, "checkpoint_sink": self._save}
        ids = {"task_id": "7_work_0", "job_id": 7, "node_id": "work", "handler": self.handler.name}
        self.ctx = HandlerContext(**{**sinks, **ids, **fields})
        self.running = asyncio.create_task(children.run(self.handler, self.ctx, self.log.extend))

    def _save(self, checkpoint: Checkpoint) -> Future[None]:
        self.saved.append(checkpoint)
        stored: Future[None] = Future()
        stored.set_result(None)
        return stored

    async def progress(self) -> float:
        async with asyncio.timeout(60):
            return (await self.updates.get()).current


async def run(children: Children, handler: str | Handler, /, **params: Any) -> Outcome:
    return await Task(children, handler, params=params).running


async def output(children: Children, handler: str | Handler, /, **params: Any) -> Any:
    outcome = await run(children, handler, **params)
    assert outcome.result.success and outcome.output is not None, outcome
    return orjson.loads(outcome.output)


def error(outcome: Outcome) -> str:
    assert not outcome.result.success and outcome.output is None and outcome.result.error_message is not None
    return outcome.result.error_message


def is_alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


async def until(is_so: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not is_so():  # noqa: ASYNC110 - no process but its parent is told of its end
            await asyncio.sleep(0.02)


async def until_gone(*pids: int) -> None:
    await until(lambda: not any(map(is_alive, pids)))
