"""The chore that starts jobs when their schedules are due."""

import logging
from collections.abc import Mapping
from typing import Any

from dagmaster.store.connect import Connection, is_transient
from dagmaster.store.schedule_runs import claim_due, seconds_to_next, skip_due, start_due

log = logging.getLogger(__name__)

POLL_SECONDS = 1.0


class Scheduling:
    """All orchestrators may run it at once: a schedule that one of them has locked is skipped by the others.

    The jobs and the next time are written in one transaction.
    """

    def __init__(self, *, threshold_seconds: float) -> None:
        self._threshold_seconds = threshold_seconds

    async def run_once(self, conn: Connection) -> float | None:
        """Start the due jobs; returns the seconds until the next one, if that is sooner than usual."""
        # Each schedule once, so that one with a long catch-up does not delay the others.
        seen: list[str] = []
        while (schedule_id := await self._start_next(conn, seen)) is not None:
            seen.append(schedule_id)
        wait = await seconds_to_next(conn)
        return wait if wait is not None and 0 < wait < POLL_SECONDS else None

    async def _start_next(self, conn: Connection, seen: list[str]) -> str | None:
        async with conn.transaction():
            row = await claim_due(conn, seen)
            if row is None:
                return None
            await self._start(conn, row)
            schedule_id: str = row["schedule_id"]
            return schedule_id

    async def _start(self, conn: Connection, row: Mapping[str, Any]) -> None:
        try:
            async with conn.transaction():
                due = await start_due(conn, row, threshold_seconds=self._threshold_seconds)
        except Exception as error:  # A definition may be broken in any way; other schedules must continue.
            if is_transient(error):
                raise
            log.exception("cannot start the job of schedule %s", row["schedule_id"])
            await skip_due(conn, row, f"{type(error).__name__}: {error}")
            return
        if due.missed:
            log.warning("schedule %s missed %d runs", row["schedule_id"], len(due.missed))
