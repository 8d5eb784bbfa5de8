"""What one look should tell: what is open, how it went lately, and what needs somebody."""

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from dagmaster.store.connect import Connection
from dagmaster.store.lists import waiting_approvals
from dagmaster.store.statements import fetch

HOURS: Final = 24
SCAN_ENDED: Final = 10_000
SCAN_FAILED: Final = 500
SCAN_RUNS: Final = 5000
MOST: Final = 20
MOST_VERSIONS: Final = 50
LATE_SECONDS: Final = 60.0
SETTLE_SECONDS: Final = 10.0
LOST_SHOWN_SECONDS: Final = 3600.0

# What differs from job to job of the same cause.
VARIABLE: Final = re.compile(r"\b[0-9a-f]{8}(?:-?[0-9a-f]{4}){3}-?[0-9a-f]{12}\b|\d+(?:\.\d+)?", re.IGNORECASE)
NO_MESSAGE: Final = "failed without a message"

Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Patience:
    """After how many seconds a worker counts as lost and a task that nobody takes as stuck."""

    lost_after_seconds: float = 55.0
    stuck_after_seconds: float = 1800.0


@dataclass(frozen=True, slots=True)
class Trouble:
    """What somebody should look at, each kind as rows, what matters most first."""

    failures: Sequence[Row] = ()
    approvals: Sequence[Row] = ()
    untaken: Sequence[Row] = ()
    still: Sequence[Row] = ()
    workers: Sequence[Row] = ()
    schedules: Sequence[Row] = ()


async def overview_counts(conn: Connection, *, hours: int = HOURS) -> Row:
    """`failed` is of the last hours, `completed` of jobs that ended after `since`: where very many end, that is later.

    `has_jobs` is false before the first of all.
    """
    [row] = await fetch(conn, "overview_counts", {"hours": hours, "scan": SCAN_ENDED})
    return row


async def find_trouble(conn: Connection, patience: Patience, *, hours: int = HOURS) -> Trouble:
    values = {
        "hours": hours,
        "scan": SCAN_ENDED,
        "failed": SCAN_FAILED,
        "limit": MOST,
        "late_seconds": LATE_SECONDS,
        "settle_seconds": SETTLE_SECONDS,
        "lost_shown_seconds": LOST_SHOWN_SECONDS,
        "lost_after_seconds": patience.lost_after_seconds,
        "stuck_after_seconds": patience.stuck_after_seconds,
    }
    return Trouble(
        failures=await _failures(conn, values),
        approvals=await waiting_approvals(conn, limit=MOST),
        untaken=await fetch(conn, "overview_untaken", values),
        still=await fetch(conn, "overview_still", values),
        workers=await fetch(conn, "overview_workers", values),
        schedules=await fetch(conn, "overview_schedules", values),
    )


async def _failures(conn: Connection, values: Mapping[str, Any]) -> list[Row]:
    """By workflow and cause; those whose workflow has completed since come last."""
    causes: dict[tuple[str, str], Row] = {}
    for row in await fetch(conn, "overview_failures", values):
        error = row["error"] or NO_MESSAGE
        cause = causes.setdefault((row["workflow_id"], VARIABLE.sub("#", error)), {**row, "error": error, "jobs": 0})
        cause["jobs"] += 1
        cause["created_at"] = max(cause["created_at"], row["created_at"])
    newest = list(causes.values())[:MOST]
    since = {"workflow_ids": [one["workflow_id"] for one in newest], "times": [one["created_at"] for one in newest]}
    recovered = {row["place"] for row in await fetch(conn, "overview_recovered", since)} if newest else set()
    found = [{**one, "has_recovered": place in recovered} for place, one in enumerate(newest, 1)]
    return sorted(found, key=lambda one: one["has_recovered"])


async def runs_by_workflow(conn: Connection, *, workflows: int, runs: int) -> dict[str, list[Row]]:
    """The newest runs of each of the workflows that ran last, both the newest first."""
    values = {"workflow_id": None, "workflows": workflows, "runs": runs}
    found: dict[str, list[Row]] = {}
    for row in await fetch(conn, "workflow_runs", values):
        found.setdefault(row["workflow_id"], []).append(row)
    return found


async def runs_of_workflow(conn: Connection, workflow_id: str, *, runs: int) -> list[Row]:
    """The newest first."""
    return await fetch(conn, "workflow_runs", {"workflow_id": workflow_id, "workflows": 1, "runs": runs})


async def find_newest_definition(conn: Connection, workflow_id: str) -> str | None:
    """As JSON; None when no job and no schedule ever had one."""
    rows = await fetch(conn, "newest_definition", {"workflow_id": workflow_id})
    return rows[0]["definition"] if rows else None


async def newest_versions(conn: Connection, workflow_ids: Collection[str]) -> dict[str, Row]:
    rows = await fetch(conn, "newest_versions", {"workflow_ids": list(workflow_ids)})
    return {row["workflow_id"]: row for row in rows}


async def workflow_versions(conn: Connection, workflow_id: str) -> list[Row]:
    """`runs` are counted among the newest jobs of the workflow."""
    values = {"workflow_id": workflow_id, "scan": SCAN_RUNS, "limit": MOST_VERSIONS}
    return await fetch(conn, "workflow_versions", values)


async def nodes_of_definitions(conn: Connection, hashes: Iterable[str]) -> set[str]:
    return {row["node_id"] for row in await fetch(conn, "nodes_of_definitions", {"hashes": list(hashes)})}


async def grid_nodes(conn: Connection, job_ids: Sequence[int], node_ids: Sequence[str]) -> dict[tuple[int, str], Row]:
    """By job and node."""
    rows = await fetch(conn, "grid_nodes", {"job_ids": list(job_ids), "node_ids": list(node_ids)})
    return {(row["job_id"], row["node_id"]): row for row in rows}
