"""What the operator's lists show: nodes and results across jobs, workers, approvals, missed times of schedules."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from dagmaster.model.outcome import ENDED
from dagmaster.store.connect import Connection
from dagmaster.store.looking import literal
from dagmaster.store.statements import fetch

Row = dict[str, Any]

# How many jobs are looked into: what is older is found by its job.
NEWEST_JOBS: Final = 1000
NEWEST_RESULTS: Final = 1000
MISSED_DAYS: Final = 7
DECIDED_JOBS: Final = 200


@dataclass(frozen=True, slots=True)
class NodeFilter:
    statuses: Sequence[str] = ()
    workflow_id: str | None = None
    since: datetime | None = None
    text: str | None = None

    @property
    def is_open(self) -> bool:
        """Whether only what has not ended is looked for."""
        return bool(self.statuses) and not ENDED.intersection(self.statuses)


async def list_nodes(conn: Connection, wanted: NodeFilter, *, limit: int, offset: int = 0) -> list[Row]:
    """Of the newest jobs that fit, those of the newest first."""
    values = {
        "statuses": list(wanted.statuses) or None,
        "is_open": wanted.is_open,
        "workflow_id": wanted.workflow_id,
        "since": wanted.since,
        "text": wanted.text,
        "pattern": literal(wanted.text) if wanted.text else None,
        "jobs": NEWEST_JOBS,
        "limit": limit,
        "offset": offset,
    }
    return await fetch(conn, "list_nodes", values)


async def list_results(
    conn: Connection, *, since: datetime, worker_id: str | None = None, handler: str | None = None
) -> list[Row]:
    """The newest attempts that have ended since."""
    values = {
        "since": since,
        "worker_id": worker_id,
        "handler": handler,
        "jobs": NEWEST_JOBS,
        "limit": NEWEST_RESULTS,
    }
    return await fetch(conn, "list_results", values)


async def waiting_handlers(conn: Connection) -> list[Row]:
    return await fetch(conn, "waiting_handlers")


async def list_all_workers(
    conn: Connection, *, lost_after_seconds: float, status: str | None = None, limit: int, offset: int = 0
) -> list[Row]:
    values = {"lost_after_seconds": lost_after_seconds, "status": status, "limit": limit, "offset": offset}
    return await fetch(conn, "list_all_workers", values)


async def waiting_approvals(conn: Connection, *, limit: int) -> list[Row]:
    return await fetch(conn, "waiting_approvals", {"limit": limit})


async def decided_approvals(conn: Connection, *, limit: int) -> list[Row]:
    """The newest first."""
    return await fetch(conn, "decided_approvals", {"jobs": DECIDED_JOBS, "limit": limit})


async def missed_schedules(conn: Connection) -> dict[str, Row]:
    """By schedule, what went wrong last when it was due."""
    rows = await fetch(conn, "missed_schedules", {"days": MISSED_DAYS})
    return {row["schedule_id"]: row for row in rows}
