"""Workflows for the job pages: steps that write logs and end when a test releases them."""

import asyncio
import sys
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

from browsing import FOLDER, Site
from serving import server

from dagmaster.handlers.contract import HandlerContext, Permanent

WORKFLOWS = FOLDER / "job_workflows"
POLL_SECONDS = 0.02
MAX_SECONDS = 90.0


class Hold:
    """Steps wait until it is released. Each test starts with its own."""

    def __init__(self) -> None:
        self._go = threading.Event()

    def keep(self) -> None:
        self._go.clear()

    def let_go(self) -> None:
        self._go.set()

    async def wait(self) -> None:
        async with asyncio.timeout(MAX_SECONDS):
            while not self._go.is_set():  # noqa: ASYNC110 - it is let go by another thread
                await asyncio.sleep(POLL_SECONDS)


HOLD = Hold()


async def until_released(ctx: HandlerContext) -> dict[str, Any]:
    await HOLD.wait()
    return {}


async def chatter(ctx: HandlerContext) -> dict[str, Any]:
    lines = [f"{ctx.params['text']} {number}" for number in range(1, int(ctx.params["lines"]) + 1)]
    ctx.logger.warning("%s", "\n".join(lines))
    sys.stdout.write("\r".join(ctx.params.get("bar", ())))
    if ctx.params.get("waits", True):
        await HOLD.wait()
        ctx.logger.warning("\x1b[31mthe last word\x1b[0m")
    return {}


async def tile(ctx: HandlerContext) -> dict[str, Any]:
    """A failing tile waits for the test the first time."""
    if ctx.params["fails"] and ctx.retry_count == 0:
        await HOLD.wait()
        raise Permanent("no image")
    return {}


@contextmanager
def job_site(dsn: str) -> Iterator[Site]:
    with (
        server(dsn, WORKFLOWS, until_released=until_released, chatter=chatter, tile=tile) as running,
        closing(Site(running, dsn)) as site,
    ):
        yield site
        HOLD.let_go()
