"""Run a process until a signal or until one of its roles fails."""

import asyncio
import gc
import logging
import os
import signal
from contextlib import suppress
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # A gateway has no fleet and does not load it.
    from dagmaster.fleet import Fleet

log = logging.getLogger(__name__)

# An orchestrator allocates thousands of objects per batch, nearly all of which die by their reference counts. With
# Python's defaults the collector walks the jobs in memory over and over: a third of the processor time at full load.
COLLECT_THRESHOLDS = (50_000, 20, 100)


def stop_on_signals() -> asyncio.Event:
    """Set by the first SIGINT or SIGTERM; the second one ends the process at once.

    Unlike handlers of the loop, these outlive it, so a late signal does not interrupt the clean-up after it, such as
    stopping an embedded server.
    """
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    was_signalled = False

    def on_signal(number: int, _: object) -> None:
        nonlocal was_signalled
        if was_signalled:
            os.write(2, b"stopping at once\n")  # No logging here: the signal may have interrupted it.
            os._exit(128 + number)
        was_signalled = True  # Not `stop.is_set()`: a worker may have been asked to stop by command before.
        if not loop.is_closed():
            loop.call_soon_threadsafe(begin_to_stop)

    def begin_to_stop() -> None:
        log.info("stopping; press Ctrl-C again to stop immediately")
        stop.set()

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, on_signal)
    return stop


def tune_garbage_collection() -> None:
    """Call it when a long-lived process has started: objects loaded so far are never collected again."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*COLLECT_THRESHOLDS)


async def until_stopped(running: "Fleet", stop: asyncio.Event) -> None:
    """Wait for a signal, or for a role that fails."""
    waiter = asyncio.ensure_future(stop.wait())
    both: list[asyncio.Future[Any]] = [waiter, running.ended]
    await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
    waiter.cancel()
    with suppress(asyncio.CancelledError):
        await waiter
    if running.ended.done():
        await running.ended
