"""How a process of the command line is stopped: by a signal, or by a role that fails."""

import asyncio
import logging
import os
import signal
from contextlib import suppress
from typing import Any

from dagmaster.fleet import Fleet

log = logging.getLogger(__name__)


def stop_on_signals() -> asyncio.Event:
    """Set by the first SIGINT or SIGTERM; the second one ends the process at once."""
    stop = asyncio.Event()
    was_signalled = False

    def on_signal(number: int) -> None:
        nonlocal was_signalled
        if was_signalled:
            log.warning("stopping at once")
            os._exit(128 + number)
        log.info("stopping; once more to stop at once")
        was_signalled = True  # Not `stop.is_set()`: a worker may have been asked to stop by command before.
        stop.set()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, on_signal, number)
    return stop


async def until_stopped(running: Fleet, stop: asyncio.Event) -> None:
    """Wait for a signal, or for a role that fails."""
    waiter = asyncio.ensure_future(stop.wait())
    both: list[asyncio.Future[Any]] = [waiter, running.ended]
    await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
    waiter.cancel()
    with suppress(asyncio.CancelledError):
        await waiter
    if running.ended.done():
        await running.ended
