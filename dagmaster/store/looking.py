"""What the pages look for: jobs by what is known of them, and signs that something has happened."""

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from dagmaster.model.states import JOB_TERMINAL
from dagmaster.store.connect import Connection
from dagmaster.store.statements import fetch, run

Row = dict[str, Any]
Counts = Mapping[str, int]

KEEP_COUNTS: Final = 10_000


@dataclass(frozen=True, slots=True)
class JobFilter:
    """Of each thing that is given, only what fits. `since` and `until` are of when a job was created."""

    statuses: Sequence[str] = ()
    workflow_id: str | None = None
    submitted_by: str | None = None
    schedule_id: str | None = None
    since: datetime | None = None
    until: datetime | None = None
    ended_since: datetime | None = None
    text: str | None = None

    @property
    def is_live(self) -> bool:
        """Whether only what has not ended is looked for."""
        return bool(self.statuses) and not JOB_TERMINAL.intersection(self.statuses)


async def last_event_id(conn: Connection) -> int:
    row = await (await run(conn, "last_event_id")).fetchone()
    return int(row["event_id"]) if row else 0


async def find_jobs(conn: Connection, wanted: JobFilter, *, limit: int, offset: int = 0) -> list[Row]:
    """The newest first."""
    values = {
        "statuses": list(wanted.statuses) or None,
        "is_live": wanted.is_live,
        "workflow_id": wanted.workflow_id,
        "submitted_by": wanted.submitted_by,
        "schedule_id": wanted.schedule_id,
        "since": wanted.since,
        "until": wanted.until,
        "ended_since": wanted.ended_since,
        "text": wanted.text,
        "pattern": literal(wanted.text) if wanted.text else None,
        "limit": limit,
        "offset": offset,
    }
    return await fetch(conn, "find_jobs", values)


async def has_more_nodes(conn: Connection, job_id: int, than: int) -> bool:
    row = await (await run(conn, "has_more_nodes", {"job_id": job_id, "than": than})).fetchone()
    return row is not None and bool(row["has_more"])


class NodeCounts:
    """How many nodes of jobs are in each state. Of jobs that have ended it is kept: nothing changes there any more.

    A list of jobs is looked at again and again, and each may have a hundred thousand nodes.
    """

    def __init__(self, keep: int = KEEP_COUNTS) -> None:
        self._ended: OrderedDict[tuple[int, datetime], Counts] = OrderedDict()
        self._keep = keep

    async def of(self, conn: Connection, jobs: Sequence[Row]) -> dict[int, Counts]:
        """By job and status; `jobs` are rows with `job_id` and `completed_at`."""
        found = {job["job_id"]: self._ended.get((job["job_id"], job["completed_at"])) for job in jobs}
        unknown = [job_id for job_id, counts in found.items() if counts is None]
        counted = await _count_nodes(conn, unknown) if unknown else {}
        for job in jobs:
            if job["job_id"] in counted and job["completed_at"] is not None:
                self._remember((job["job_id"], job["completed_at"]), counted[job["job_id"]])
        return {job_id: counted[job_id] if counts is None else counts for job_id, counts in found.items()}

    def _remember(self, ended: tuple[int, datetime], counts: Counts) -> None:
        self._ended[ended] = counts
        if len(self._ended) > self._keep:
            self._ended.popitem(last=False)


async def _count_nodes(conn: Connection, job_ids: Sequence[int]) -> dict[int, Counts]:
    counted: dict[int, dict[str, int]] = {job_id: {} for job_id in job_ids}
    for row in await fetch(conn, "count_nodes_of_jobs", {"job_ids": list(job_ids)}):
        counted[row["job_id"]][row["status"]] = row["nodes"]
    return dict(counted)


def literal(text: str) -> str:
    """What people type is meant as it stands."""
    return text.replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_")
