"""Problems that need attention: one sentence each, with a link."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlencode

from dagmaster.authoring.catalog import Catalog
from dagmaster.engine.messages import NO_MESSAGE
from dagmaster.model.problems import Problem
from dagmaster.model.redact import redact_text
from dagmaster.store.asset_versions import ReviewRow
from dagmaster.store.dashboard import HOURS, MOST, VARIABLE, Trouble
from dagmaster.web.ui.filters import first_line, plural
from dagmaster.web.ui.list_filters import ENDED

Row = Mapping[str, Any]

STILL: Final = {
    "mail": "Messages are waiting in the mailbox, and no orchestrator reads them.",
    "tasks": "A task has waited too long: all workers are busy, or none accepts this task.",
    "begin": "No orchestrator has started {them}.",
}
STILL_ICON: Final = "pause-circle"
MOST_TEXT: Final = 120
LEAST_TEXT: Final = 3


@dataclass(frozen=True, slots=True)
class Need:
    """`tone` is a status whose colours fit: failed, paused or pending. `retry` is a job that can be retried, `command`
    a command that helps; with `is_quote` the sentence is the error itself.
    """

    key: str
    tone: str
    icon: str
    title: str
    sentence: str
    href: str
    link: str
    at: datetime | None = None
    more: str | None = None
    retry: str | None = None
    command: str | None = None
    is_quote: bool = False


def find_needs(trouble: Trouble, catalog: Catalog, *, is_orchestrated: bool, live_jobs: int) -> list[Need]:
    """Problems that block everything first, past ones last."""
    fresh = [row for row in trouble.failures if not row["has_recovered"]]
    passed = [row for row in trouble.failures if row["has_recovered"]]
    return [
        *_orchestrator(is_orchestrated, live_jobs),
        *_untaken(trouble.unclaimed),
        *(_failure(row) for row in fresh),
        *_still(trouble.stalled),
        *_approvals(trouble.approvals),
        *_reviews(trouble.reviews),
        *(_worker(row) for row in trouble.workers if row["status"] == "active"),
        *(_schedule(row) for row in trouble.schedules),
        *_files(catalog),
        *(_failure(row) for row in passed),
        *(_worker(row) for row in trouble.workers if row["status"] != "active"),
    ]


def _orchestrator(is_orchestrated: bool, live_jobs: int) -> Iterator[Need]:
    if is_orchestrated:
        return
    waiting = f"{plural(live_jobs, 'job waits', 'jobs wait')} for one." if live_jobs else "Jobs cannot start."
    yield Need(
        "orchestrator",
        "failed",
        "alert-octagon",
        "No orchestrator is running",
        f"{waiting} Start one:",
        "/ui/health",
        "Health",
        command="dagmaster orchestrator",
    )


def _untaken(rows: Sequence[Row]) -> Iterator[Need]:
    for row in rows:
        tasks = plural(row["tasks"], "task waits", "tasks wait")
        unknown = f"The workers of this queue don't have the handler {row['handler']}."
        yield Need(
            f"untaken-{row['queue']}-{row['handler']}",
            "failed",
            "inbox",
            f"{tasks} in queue {row['queue']}, and no worker can take {'it' if row['tasks'] == 1 else 'them'}",
            unknown if row["is_consumed"] else "This queue has no workers. Start one:",
            "/ui/queues",
            "Queues",
            at=row["oldest"],
            command=None if row["is_consumed"] else f"dagmaster worker --queues {row['queue']}",
        )


def _failure(row: Row) -> Need:
    workflow, jobs, job_id = row["workflow_id"], row["jobs"], str(row["job_id"])
    has_recovered, is_single = row["has_recovered"], row["jobs"] == 1
    title = f"{workflow} failed" if is_single else f"{workflow}: {jobs} jobs failed with the same error"
    return Need(
        f"failure-{job_id}",
        "pending" if has_recovered else "failed",
        "check-circle" if has_recovered else "x-octagon",
        f"{title}; the latest run completed" if has_recovered else title,
        first_line(redact_text(row["error"]), 300),
        f"/ui/jobs/{job_id}",
        "Details" if is_single else "Latest",
        at=row["completed_at"],
        more=None if is_single else _alike(row),
        retry=job_id if is_single and not has_recovered else None,
        is_quote=True,
    )


def _still(rows: Sequence[Row]) -> Iterator[Need]:
    """One entry per reason, with the job that has waited longest."""
    seen: set[str] = set()
    for row in rows:
        if row["why"] in seen:
            continue
        seen.add(row["why"])
        is_single = row["total"] == 1
        yield Need(
            f"still-{row['why']}",
            "paused",
            STILL_ICON,
            f"{plural(row['total'], 'job is', 'jobs are')} stuck",
            STILL[row["why"]].format(them="it" if is_single else "them"),
            f"/ui/jobs/{row['job_id']}",
            row["workflow_id"] if is_single else "Longest waiting",
            at=row["since"],
        )


def _approvals(rows: Sequence[Row]) -> Iterator[Need]:
    if not rows:
        return
    first, number = rows[0], len(rows)
    title = f"{number}{'+' if number >= MOST else ''} pending {'approval' if number == 1 else 'approvals'}"
    message = first_line(redact_text(first["message"] or "No message."), 200)
    yield Need(
        "approvals",
        "paused",
        "check-square",
        title,
        f"{first['workflow_id']}: {message}",
        "/ui/approvals",
        "Decide",
        at=first["started_at"],
    )


def _reviews(rows: Sequence[ReviewRow]) -> Iterator[Need]:
    if not rows:
        return
    first, number = rows[0], len(rows)
    title = f"{number}{'+' if number >= MOST else ''} {'version waits' if number == 1 else 'versions wait'} for review"
    refs = ", ".join(f"{name} {value}" for name, value in sorted(first["platform_refs"].items()))
    sentence = f"{first['platform_id']}: {first_line(refs, 200)}"
    yield Need("reviews", "paused", "eye", title, sentence, "/ui/review", "Review", at=first["created_at"])


def _worker(row: Row) -> Need:
    name, tasks = f"{row['hostname']}:{row['pid']}", plural(row["running_tasks"], "task", "tasks")
    if row["status"] == "active" and row["stuck_tasks"]:
        title = f"Worker {name} has {plural(len(row['stuck_tasks']), 'stuck slot', 'stuck slots')}"
        sentence = "Some of its tasks did not stop in time. Restart the worker to free the slots."
    elif row["status"] == "active":
        title = f"Worker {name} has stopped sending heartbeats"
        sentence = f"It holds {tasks}. Other workers get them when this worker is declared lost."
    else:
        title = f"Worker {name} was lost"
        sentence = "Its process was killed or its machine is down. Its tasks went to other workers."
    tone = "paused" if row["status"] == "active" else "pending"
    return Need(
        f"worker-{row['worker_id']}", tone, "server", title, sentence, "/ui/workers", "Workers", row["last_heartbeat"]
    )


def _schedule(row: Row) -> Need:
    schedule_id = row["schedule_id"]
    if row["is_paused"]:
        title, sentence = f"Schedule {schedule_id} was stopped", "It has no next time, or its rule is invalid."
    elif row["missed"]:
        title = f"Schedule {schedule_id} missed {plural(row['missed'], 'run', 'runs')}"
        sentence = "No orchestrator was running at that time."
    else:
        title = f"Schedule {schedule_id} is late"
        sentence = "Orchestrators start scheduled jobs. Check that one is running."
    text = first_line(redact_text(row["error"]), 300) if row["error"] else sentence
    tone = "failed" if row["error"] else "paused"
    return Need(f"schedule-{schedule_id}", tone, "calendar", title, text, "/ui/schedules", "Schedules", row["since"])


def broken_files(catalog: Catalog) -> dict[str, Sequence[Problem]]:
    """The files that cannot be loaded, by name."""
    return {
        Path(file).name: problems
        for file, problems in catalog.problems.items()
        if any(problem.is_error for problem in problems)
    }


def _files(catalog: Catalog) -> Iterator[Need]:
    broken = broken_files(catalog)
    if not broken:
        return
    first = next(problem for problem in next(iter(broken.values())) if problem.is_error)
    title = f"{plural(len(broken), 'workflow file', 'workflow files')} cannot be loaded"
    sentence = f"{next(iter(broken))}: {first_line(first.message, 200)}"
    yield Need("files", "paused", "file-text", title, sentence, "/ui/workflows#problems", "Show problems")


def _alike(row: Row) -> str:
    """The list of these jobs, filtered by the longest part of the error that they share."""
    error = row["error"]
    is_searchable = error != NO_MESSAGE and redact_text(error) == error
    lines = error.splitlines() if is_searchable else []
    piece = max((part.strip() for line in lines for part in VARIABLE.split(line)), key=len, default="")[:MOST_TEXT]
    query = {"status": "failed", "workflow": row["workflow_id"], "period": f"{ENDED}{HOURS}h"}
    return jobs_path(**query, text=piece) if len(piece) > LEAST_TEXT else jobs_path(**query)


def jobs_path(**query: str) -> str:
    return f"/ui/jobs?{urlencode(query)}"
