"""The dashboard's data: open jobs, recent results, and problems that need attention."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

from dagmaster.engine.messages import NO_MESSAGE
from dagmaster.store.asset_versions import ReviewRow, list_review_queue
from dagmaster.store.connect import Connection, Row
from dagmaster.store.signals import waiting_approvals
from dagmaster.store.statements import fetch
from dagmaster.store.workers import WorkerRow, list_troubled_workers

HOURS: Final = 24
SCAN_ENDED: Final = 10_000
SCAN_FAILED: Final = 500
MOST: Final = 20
LATE_SECONDS: Final = 60.0
SETTLE_SECONDS: Final = 10.0
# The parts of an error that differ between jobs with the same cause.
VARIABLE: Final = re.compile(r"\b[0-9a-f]{8}(?:-?[0-9a-f]{4}){3}-?[0-9a-f]{12}\b|\d+(?:\.\d+)?", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Thresholds:
    """After how many seconds a worker counts as lost, and an unclaimed task as stuck."""

    lost_after_seconds: float = 55.0
    stuck_after_seconds: float = 1800.0


@dataclass(frozen=True, slots=True)
class Trouble:
    """Problems that need attention, by kind, the most important first."""

    failures: Sequence[Row] = ()
    approvals: Sequence[Row] = ()
    reviews: Sequence[ReviewRow] = ()
    unclaimed: Sequence[Row] = ()
    stalled: Sequence[Row] = ()
    workers: Sequence[WorkerRow] = ()
    schedules: Sequence[Row] = ()


async def job_counts(conn: Connection) -> Row:
    """`failed` counts the last hours, `completed` the jobs that ended after `since`, which is later if very many end.

    `has_jobs` is false before the first job.
    """
    [row] = await fetch(conn, "overview_counts", {"hours": HOURS, "scan": SCAN_ENDED})
    return row


async def find_trouble(conn: Connection, thresholds: Thresholds) -> Trouble:
    values = {
        **asdict(thresholds),
        "hours": HOURS,
        "scan": SCAN_ENDED,
        "failed": SCAN_FAILED,
        "limit": MOST,
        "late_seconds": LATE_SECONDS,
        "settle_seconds": SETTLE_SECONDS,
    }
    return Trouble(
        failures=await _failures(conn, values),
        approvals=await waiting_approvals(conn, limit=MOST),
        reviews=await list_review_queue(conn, is_reviewable=True, limit=MOST),
        unclaimed=await fetch(conn, "overview_unclaimed", values),
        stalled=await fetch(conn, "overview_stalled", values),
        workers=await list_troubled_workers(conn, lost_after_seconds=thresholds.lost_after_seconds, limit=MOST),
        schedules=await fetch(conn, "overview_schedules", values),
    )


async def _failures(conn: Connection, values: Mapping[str, Any]) -> list[Row]:
    """Failures by workflow and cause; workflows that have completed since come last."""
    causes: dict[tuple[str, str], Row] = {}
    for row in await fetch(conn, "overview_failures", values):
        error = row["error"] or NO_MESSAGE
        cause = causes.setdefault((row["workflow_id"], VARIABLE.sub("#", error)), {**row, "error": error, "jobs": 0})
        cause["jobs"] += 1
        cause["created_at"] = max(cause["created_at"], row["created_at"])
    newest = list(causes.values())[:MOST]
    since = {
        "workflow_ids": [failure["workflow_id"] for failure in newest],
        "times": [failure["created_at"] for failure in newest],
    }
    recovered = {row["place"] for row in await fetch(conn, "overview_recovered", since)} if newest else set()
    failures = [{**failure, "has_recovered": position in recovered} for position, failure in enumerate(newest, 1)]
    return sorted(failures, key=lambda failure: failure["has_recovered"])
