"""Consistency checks of the database, and repairs where they are safe."""

import asyncio
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

import orjson

from dagmaster.store.connect import Connection
from dagmaster.store.statements import fetch, run

MAX_FOUND = 1000
MAX_EXAMPLES = 20
LOOK_AGAIN_SECONDS = 1.0


class Severity(StrEnum):
    """A warning may pass by itself; a problem is something that must never be."""

    PROBLEM = "problem"
    WARNING = "warning"


PROBLEM, WARNING = Severity.PROBLEM, Severity.WARNING


@dataclass(frozen=True, slots=True)
class Check:
    """`repair` is the name of a statement; what cannot be put right safely has none."""

    name: str
    title: str
    meaning: str
    severity: Severity
    repair: str | None = None


@dataclass(frozen=True, slots=True)
class Finding:
    """`count` is at most a thousand; `repaired` is how many of them are gone now."""

    name: str
    title: str
    meaning: str
    severity: Severity
    count: int
    examples: list[dict[str, Any]]
    can_repair: bool
    repaired: int = 0

    @property
    def is_open(self) -> bool:
        return self.repaired < self.count


@dataclass(frozen=True, slots=True)
class Limits:
    """How old something must be to be wrong and not merely on its way; `days` is how far back history is read."""

    settle_seconds: float = 10.0
    late_seconds: float = 60.0
    orphan_seconds: float = 120.0
    worker_lost_seconds: float = 55.0
    days: float = 1.0


CHECKS = (
    Check(
        "tasks_of_ended_jobs",
        "tasks of jobs that have ended",
        "Workers would do what nobody needs. --repair takes the tasks away.",
        PROBLEM,
        "repair_dead_tasks",
    ),
    Check(
        "superseded_tasks",
        "tasks of attempts that are over",
        "The node has another attempt or has ended; a result would be ignored. --repair takes the tasks away.",
        PROBLEM,
        "repair_dead_tasks",
    ),
    Check(
        "lost_tasks",
        "dispatched nodes whose task is nowhere",
        "No worker can ever take it, so the node waits for its timeout. --repair reports it lost, and it is retried.",
        PROBLEM,
        "repair_lost_tasks",
    ),
    Check(
        "lost_runs",
        "running nodes that no worker holds",
        "No result will come, so the node waits for its timeout. --repair reports it lost, and it is retried.",
        PROBLEM,
        "repair_lost_tasks",
    ),
    Check(
        "open_nodes_of_ended_jobs",
        "open nodes of jobs that have ended",
        "The job ended without closing them. Nothing runs any more; the job's timeline says how it ended.",
        PROBLEM,
    ),
    Check(
        "owned_ended_jobs",
        "ended jobs that still have an owner",
        "The owner did not let go. --repair takes the owner from the row.",
        PROBLEM,
        "repair_owned_ended_jobs",
    ),
    Check(
        "jobs_without_owner",
        "live jobs that no orchestrator has taken",
        "Orchestrators beat but do not adopt: look at their logs. --repair gives the jobs to one that is alive.",
        PROBLEM,
        "repair_live_jobs",
    ),
    Check(
        "jobs_of_dead_owners",
        "live jobs whose orchestrator is gone",
        "Start an orchestrator, or look why those that run do not adopt. --repair gives the jobs to one that is alive.",
        PROBLEM,
        "repair_live_jobs",
    ),
    Check(
        "finished_live_jobs",
        "live jobs without an open node",
        "Nothing is left to do, yet the job has not ended. --repair has it read anew and ended.",
        PROBLEM,
        "repair_live_jobs",
    ),
    Check(
        "failed_nodes_of_completed_jobs",
        "completed jobs with a failed node",
        "The job should have failed: do not trust its result, and run it again.",
        PROBLEM,
    ),
    Check(
        "jobs_without_definition",
        "jobs whose pinned workflow is missing",
        "Nobody can read such a job any more. Restore the row of dag_workflows from a backup.",
        PROBLEM,
    ),
    Check(
        "torn_fan_outs",
        "fan-outs with more or fewer children than items",
        "Rows are missing or were added by hand: do not trust the result of the job, and run it again.",
        PROBLEM,
    ),
    Check(
        "too_many_attempts",
        "nodes with more attempts than allowed",
        "The rows were changed by hand, or there is a fault in the engine: report it with the job's timeline.",
        PROBLEM,
    ),
    Check(
        "double_results",
        "attempts with more than one accepted result",
        "Each attempt has exactly one: this is a fault in the engine. Report it with the job's timeline.",
        PROBLEM,
    ),
    Check(
        "jobs_without_last_event",
        "ended jobs whose timeline does not say so",
        "The status was changed by hand, or events were removed.",
        PROBLEM,
    ),
    Check(
        "ended_jobs_without_time",
        "ended jobs without the time of their end",
        "The status was changed by hand; measures leave such jobs out.",
        PROBLEM,
    ),
    Check(
        "unprocessed_results",
        "results that nobody has taken in",
        "They were written while no mail could be sent. --repair mails them to the owners of their jobs.",
        WARNING,
        "repair_unprocessed_results",
    ),
    Check(
        "old_mail",
        "mail that nobody reads",
        "Its job has no living owner, or the owner is overloaded: see `dagmaster workers` and the orchestrators' logs.",
        WARNING,
    ),
    Check(
        "held_tasks",
        "held tasks of jobs that are not paused",
        "Nobody takes them. --repair lets them go.",
        PROBLEM,
        "repair_held_tasks",
    ),
    Check(
        "unheld_tasks",
        "tasks of paused jobs that are not held",
        "A worker would take them although the job is paused. --repair holds them.",
        PROBLEM,
        "repair_held_tasks",
    ),
    Check(
        "overdue_callbacks",
        "callbacks that are overdue",
        "Calls are made by the orchestrators: is one running, and can it reach the addresses?",
        WARNING,
    ),
    Check(
        "schedules_without_next_time",
        "schedules that are not paused and have no next time",
        "They start nothing any more. `dagmaster schedules sync` finds their next time anew.",
        PROBLEM,
    ),
    Check(
        "late_schedules",
        "schedules that are late",
        "Their jobs are started by the orchestrators: is one running? See its log.",
        WARNING,
    ),
    Check(
        "failing_schedules",
        "schedules that could not start a job",
        "Nothing was started at their last time. Mend the workflow and run `dagmaster schedules sync`.",
        PROBLEM,
    ),
    Check(
        "silent_workers",
        "workers that no longer beat",
        "An orchestrator should have given them up and their tasks to others: is one running?",
        WARNING,
    ),
    Check(
        "stalled_orchestrators",
        "orchestrators that make no progress",
        "They have work and get none of it done: see `last_error` and their logs. Their jobs go to others.",
        PROBLEM,
    ),
    Check(
        "misplaced_events",
        "events outside the partitions of their days",
        "They came before their partition was made, and retention cannot drop them. --repair moves those of today on.",
        WARNING,
        "repair_partitions",
    ),
    Check(
        "missing_partitions",
        "days ahead without a partition for their events",
        "Orchestrators make them every hour: is one running? --repair makes them now.",
        WARNING,
        "repair_partitions",
    ),
)

Rows = dict[str, dict[str, Any]]


async def examine(
    conn: Connection,
    *,
    repair: bool = False,
    actor: str = "",
    limits: Limits | None = None,
    again_seconds: float = LOOK_AGAIN_SECONDS,
) -> list[Finding]:
    """Every check. Rows that only the first of two looks finds were in transit and are left out."""
    limits = limits or Limits()
    suspects = {check: rows for check in CHECKS if (rows := await _find(conn, check, limits))}
    if suspects:
        await asyncio.sleep(again_seconds)
    findings = []
    for check, first in suspects.items():
        second = await _find(conn, check, limits)
        rows = {key: row for key, row in second.items() if key in first}
        if rows:
            repaired = await _repair(conn, check, rows, limits, actor) if repair and check.repair else 0
            findings.append(_finding(check, rows, repaired))
    return findings


async def _find(conn: Connection, check: Check, limits: Limits) -> Rows:
    rows = await fetch(conn, f"find_{check.name}", {**asdict(limits), "limit": MAX_FOUND})
    return {row.pop("key"): row for row in rows}


async def _repair(conn: Connection, check: Check, rows: Mapping[str, Any], limits: Limits, actor: str) -> int:
    """How many of the rows are no longer found."""
    assert check.repair is not None
    audit = orjson.dumps({"command": "doctor.repair", "check": check.name, "actor": actor or None}).decode()
    await run(conn, check.repair, {"keys": list(rows), "audit": audit, "orphan_seconds": limits.orphan_seconds})
    if check.repair == "repair_partitions":
        await run(conn, "note_repair", {"audit": audit})
    remaining = await _find(conn, check, limits)
    return sum(key not in remaining for key in rows)


def _finding(check: Check, rows: Rows, repaired: int) -> Finding:
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
