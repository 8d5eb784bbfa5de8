"""The process around an orchestrator: connections, chores and shutdown."""

import asyncio
import logging
from collections.abc import Iterable
from contextlib import suppress

from dagmaster.errors import DatabaseUnavailable
from dagmaster.orchestrator.chores import Intervals, adopt, beat, chores_of
from dagmaster.orchestrator.orchestrator import Orchestrator
from dagmaster.orchestrator.shared_connection import Connections
from dagmaster.store.connect import LOST, connect, connect_hot, keep_json
from dagmaster.store.instances import hand_over_jobs, mark_dead_lost, register_orchestrator, stop_orchestrator
from dagmaster.store.notifications import MAIL, Notifier
from dagmaster.store.schema import ensure_partitions

log = logging.getLogger(__name__)

MAX_RECONNECT_SECONDS = 5.0
HAND_OVER_SECONDS = 5.0
CANCEL_SECONDS = 1.0
CANCEL_ATTEMPTS = 15
ANNOUNCE_AGAIN_SECONDS = 0.5


async def run_orchestrator(
    dsn: str,
    orchestrator: Orchestrator,
    intervals: Intervals,
    notifier: Notifier,
    stop: asyncio.Event,
    *,
    ready: asyncio.Event | None = None,
) -> None:
    """Run until `stop`, then hand the jobs over to other instances at once."""
    await _announce(dsn, orchestrator, intervals, stop)
    if ready is not None:
        ready.set()
    connections = Connections(dsn, intervals.lock_timeout_seconds)
    chores = [asyncio.create_task(chore.run()) for chore in chores_of(orchestrator, intervals, notifier, connections)]
    chores.append(asyncio.create_task(_interrupt_on(stop, orchestrator)))
    loop = asyncio.create_task(_loop(dsn, orchestrator, stop))
    try:
        await asyncio.wait([loop, *chores], return_when=asyncio.FIRST_COMPLETED)
        _raise_first([loop, *chores])
        await loop
    finally:
        try:
            await _end([loop, *chores])
        finally:  # Even if it is cancelled a second time.
            await connections.close()
        await leave(dsn, orchestrator, intervals)


async def _end(tasks: Iterable[asyncio.Task[None]]) -> None:
    """Cancel tasks until they have ended: a connection that is being lost may swallow a cancellation."""
    running = set(tasks)
    for _ in range(CANCEL_ATTEMPTS):
        for task in running:
            task.cancel()
        done, running = await asyncio.wait(running, timeout=CANCEL_SECONDS)
        await asyncio.gather(*done, return_exceptions=True)
        if not running:
            return
    log.warning("%d chores did not stop", len(running))


def _raise_first(tasks: list[asyncio.Task[None]]) -> None:
    for task in tasks:
        if task.done() and not task.cancelled() and (error := task.exception()) is not None:
            raise error


async def _announce(dsn: str, orchestrator: Orchestrator, intervals: Intervals, stop: asyncio.Event) -> None:
    """Register before any job can be assigned to this instance, and adopt jobs without an owner.

    Retried: the database was reachable a moment ago, and jobs may already be assigned to this instance.
    """
    while not stop.is_set():
        try:
            async with await connect(dsn, application="dagmaster orchestrator") as conn:
                await ensure_partitions(conn)
                await register_orchestrator(conn, orchestrator.me)
                await mark_dead_lost(conn, orchestrator.me.host_key)
                await beat(conn, orchestrator, intervals)  # Sets the clock to the database's.
                await adopt(conn, orchestrator, intervals)
            return
        except (*LOST, DatabaseUnavailable) as error:
            log.warning("the orchestrator lost the database while starting, reconnecting: %s", _first_line(error))
        await _sleep(ANNOUNCE_AGAIN_SECONDS, stop)


async def _interrupt_on(stop: asyncio.Event, orchestrator: Orchestrator) -> None:
    await stop.wait()
    orchestrator.interrupt()


async def _loop(dsn: str, orchestrator: Orchestrator, stop: asyncio.Event) -> None:
    """Run the loop, reconnecting whenever the connection is lost."""
    delay = 0.1
    while not stop.is_set():
        try:
            conn = await connect_hot(dsn, application="dagmaster orchestrator")
            async with conn:
                keep_json(conn)
                await conn.listen(MAIL, orchestrator.hear)
                orchestrator.check_mail()
                delay = 0.1
                await orchestrator.run(conn, stop)
        except (*LOST, DatabaseUnavailable) as error:
            log.warning("the orchestrator lost the database, reconnecting: %s", _first_line(error))
            await _sleep(delay, stop)
            delay = min(delay * 2, MAX_RECONNECT_SECONDS)


async def _sleep(seconds: float, stop: asyncio.Event) -> None:
    """Return early on `stop`."""
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await stop.wait()


def _first_line(error: BaseException) -> str:
    return str(error).strip().partition("\n")[0]


async def leave(dsn: str, orchestrator: Orchestrator, intervals: Intervals) -> None:
    """Deregister and hand the jobs over; other instances are notified."""
    orchestrator.forget_all()  # From here on a local worker's reports go by mail.
    with suppress(*LOST, DatabaseUnavailable, TimeoutError):
        async with asyncio.timeout(HAND_OVER_SECONDS), await connect(dsn, application="dagmaster orchestrator") as conn:
            await orchestrator.forward_reports(conn)
            await stop_orchestrator(conn, orchestrator.me, orchestrator.summary())
            count = await hand_over_jobs(conn, orchestrator.me, threshold_seconds=intervals.orphan_threshold_seconds)
            if count:
                log.info("handed over %d jobs", count)
                await conn.execute(f"NOTIFY {MAIL}")
