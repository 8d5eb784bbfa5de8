"""A handler that counts its calls, and jobs that use it; a cached result adds no call."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from fleet import Fleet, fleet, handlers, single

from dagmaster.handlers import Handler, HandlerContext, Registry
from dagmaster.model.cache_policy import Caching

HOUR = Caching(3600.0)
CACHED = "SELECT * FROM dagapp.dag_task_cache ORDER BY stored_at"


class Counter:
    """A handler that counts its calls."""

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
