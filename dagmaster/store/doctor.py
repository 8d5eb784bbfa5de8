"""Consistency checks of the database, and repairs where they are safe."""

import asyncio
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from enum import StrEnum

from dagmaster.store.connect import Connection, Row, encode_json
from dagmaster.store.statements import fetch, run

MAX_FOUND = 1000
MAX_EXAMPLES = 20
RECHECK_SECONDS = 1.0


class Severity(StrEnum):
    """A warning may resolve itself; a problem must never occur."""

    PROBLEM = "problem"
    WARNING = "warning"


@dataclass(frozen=True, slots=True)
class Check:
    """`repair` is the name of a statement; None if there is no safe repair."""

    name: str
    title: str
    meaning: str
    repair: str | None = None
    severity: Severity = Severity.PROBLEM


@dataclass(frozen=True, slots=True)
class Finding:
    """`count` is at most a thousand; `repaired` is how many of them are resolved."""

    name: str
    title: str
    meaning: str
    severity: Severity
    count: int
    examples: list[Row]
    can_repair: bool
    repaired: int = 0

    @property
    def is_open(self) -> bool:
        return self.repaired < self.count


@dataclass(frozen=True, slots=True)
class Limits:
    """The age at which a row is wrong and not just in transit; `days` is how far back history is read."""

    settle_seconds: float = 10.0
    late_seconds: float = 60.0
    orphan_seconds: float = 120.0
    worker_lost_seconds: float = 55.0
    days: float = 1.0


CHECKS = (
    Check(
        "tasks_of_ended_jobs",
        "tasks of jobs that have ended",
        "Workers would do unneeded work. --repair removes the tasks.",
        "repair_dead_tasks",
    ),
    Check(
        "superseded_tasks",
        "tasks of attempts that are over",
        "The node has another attempt or has ended; a result would be ignored. --repair removes the tasks.",
        "repair_dead_tasks",
    ),
    Check(
        "lost_tasks",
        "dispatched nodes without a task",
        "No worker can claim it, so the node waits for its timeout. --repair reports it lost, and it is retried.",
        "repair_lost_tasks",
    ),
    Check(
        "lost_runs",
        "running nodes that no worker holds",
        "No result will arrive, so the node waits for its timeout. --repair reports it lost, and it is retried.",
        "repair_lost_tasks",
    ),
    Check(
        "open_nodes_of_ended_jobs",
        "open nodes of jobs that have ended",
        "The job ended without closing them. Nothing is running; the job's timeline says how it ended.",
    ),
    Check(
        "owned_ended_jobs",
        "ended jobs that still have an owner",
        "The owner did not release it. --repair removes the owner from the row.",
        "repair_owned_ended_jobs",
    ),
    Check(
        "jobs_without_owner",
        "live jobs without an owner",
        "Orchestrators are alive but do not adopt them: check their logs. --repair gives the jobs to a live one.",
        "repair_live_jobs",
    ),
    Check(
        "jobs_of_dead_owners",
        "live jobs whose orchestrator is gone",
        "Start an orchestrator, or find out why the running ones do not adopt. --repair gives the jobs to a live one.",
        "repair_live_jobs",
    ),
    Check(
        "finished_live_jobs",
        "live jobs without an open node",
        "Nothing is left to do, yet the job has not ended. --repair makes its owner reload and end it.",
        "repair_live_jobs",
    ),
    Check(
        "failed_nodes_of_completed_jobs",
        "completed jobs with a failed node",
        "The job should have failed: do not trust its result, and run it again.",
    ),
    Check(
        "jobs_without_definition",
        "jobs whose pinned workflow is missing",
        "Such a job cannot be loaded. Restore the row of dag_workflows from a backup.",
    ),
    Check(
        "torn_fan_outs",
        "fan-outs with more or fewer children than items",
        "Rows are missing or were added by hand: do not trust the result of the job, and run it again.",
    ),
    Check(
        "too_many_attempts",
        "nodes with more attempts than allowed",
        "The rows were changed by hand, or the engine has a bug: report it with the job's timeline.",
    ),
    Check(
        "double_results",
        "attempts with more than one accepted result",
        "Each attempt has exactly one: this is a bug in the engine. Report it with the job's timeline.",
    ),
    Check(
        "jobs_without_last_event",
        "ended jobs whose timeline does not say so",
        "The status was changed by hand, or events were removed.",
    ),
    Check(
        "ended_jobs_without_time",
        "ended jobs without the time of their end",
        "The status was changed by hand; statistics leave such jobs out.",
    ),
    Check(
        "unprocessed_results",
        "results that no owner has processed",
        "Their mail could not be sent. --repair mails them to the owners of their jobs.",
        "repair_unprocessed_results",
        severity=Severity.WARNING,
    ),
    Check(
        "old_mail",
        "unread mail",
        "Its job has no living owner, or the owner is overloaded: see `dagmaster workers` and the orchestrators' logs.",
        severity=Severity.WARNING,
    ),
    Check(
        "held_tasks",
        "held tasks of jobs that are not paused",
        "No worker can claim them. --repair releases them.",
        "repair_held_tasks",
    ),
    Check(
        "unheld_tasks",
        "tasks of paused jobs that are not held",
        "A worker could claim them although the job is paused. --repair holds them.",
        "repair_held_tasks",
    ),
    Check(
        "overdue_callbacks",
        "callbacks that are overdue",
        "Orchestrators deliver callbacks: is one running, and can it reach the URLs?",
        severity=Severity.WARNING,
    ),
    Check(
        "schedules_without_next_time",
        "schedules that are not paused and have no next time",
        "They start no jobs. `dagmaster schedules sync` computes their next time.",
    ),
    Check(
        "late_schedules",
        "schedules that are late",
        "Orchestrators start their jobs: is one running? See its log.",
        severity=Severity.WARNING,
    ),
    Check(
        "failing_schedules",
        "schedules that could not start a job",
        "Nothing was started at their last time. Fix the workflow and run `dagmaster schedules sync`.",
    ),
    Check(
        "silent_workers",
        "workers without heartbeat",
        "An orchestrator should have declared them lost and redispatched their tasks: is one running?",
        severity=Severity.WARNING,
    ),
    Check(
        "stalled_orchestrators",
        "orchestrators that make no progress",
        "They have work but complete none: see `last_error` and their logs. Others adopt their jobs.",
    ),
    Check(
        "misplaced_events",
        "events outside the partitions of their days",
        "Written before their partition existed; retention cannot drop them. --repair moves today's and later ones.",
        "repair_partitions",
        severity=Severity.WARNING,
    ),
    Check(
        "missing_partitions",
        "coming days without an event partition",
        "Orchestrators create them every hour: is one running? --repair creates them now.",
        "repair_partitions",
        severity=Severity.WARNING,
    ),
)


async def examine(
    conn: Connection,
    *,
    repair: bool = False,
    actor: str = "",
    limits: Limits | None = None,
    recheck_seconds: float = RECHECK_SECONDS,
) -> list[Finding]:
    """Run every check twice. Rows that only the first run finds were in transit and are left out."""
    limits = limits or Limits()
    suspects = {check: rows for check in CHECKS if (rows := await _find(conn, check, limits))}
    if suspects:
        await asyncio.sleep(recheck_seconds)
    findings = []
    for check, first in suspects.items():
        second = await _find(conn, check, limits)
        rows = {key: row for key, row in second.items() if key in first}
        if rows:
            repaired = await _repair(conn, check, rows, limits, actor) if repair and check.repair else 0
            findings.append(_finding(check, rows, repaired))
    return findings


async def _find(conn: Connection, check: Check, limits: Limits) -> dict[str, Row]:
    rows = await fetch(conn, f"find_{check.name}", {**asdict(limits), "limit": MAX_FOUND})
    return {row.pop("key"): row for row in rows}


async def _repair(conn: Connection, check: Check, rows: Mapping[str, Row], limits: Limits, actor: str) -> int:
    """Repair the rows; returns how many are no longer found."""
    assert check.repair is not None
    audit = encode_json({"command": "doctor.repair", "check": check.name, "actor": actor or None})
    await run(conn, check.repair, {"keys": list(rows), "audit": audit, "orphan_seconds": limits.orphan_seconds})
    if check.repair == "repair_partitions":
        await run(conn, "note_repair", {"audit": audit})
    remaining = await _find(conn, check, limits)
    return sum(key not in remaining for key in rows)


def _finding(check: Check, rows: Mapping[str, Row], repaired: int) -> Finding:
    return Finding(
        check.name,
        check.title,
        check.meaning,
        check.severity,
        len(rows),
        list(rows.values())[:MAX_EXAMPLES],
        check.repair is not None,
        repaired,
    )
