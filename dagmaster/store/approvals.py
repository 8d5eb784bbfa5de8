"""Read approvals, and the nodes that wait for an approval or a signal."""

from collections.abc import Sequence
from typing import Any, Final

from dagmaster.ids import JobId
from dagmaster.store.connect import Connection
from dagmaster.store.statements import fetch

Row = dict[str, Any]

DECIDED_JOBS: Final = 200


async def waiting_approvals(conn: Connection, *, limit: int) -> list[Row]:
    return await fetch(conn, "waiting_approvals", {"limit": limit})


async def decided_approvals(conn: Connection, *, limit: int) -> list[Row]:
    """The newest first."""
    return await fetch(conn, "decided_approvals", {"jobs": DECIDED_JOBS, "limit": limit})


async def external_waits(conn: Connection, job_ids: Sequence[JobId]) -> dict[JobId, Row]:
    """The jobs that wait only for a decision or a signal, with `waits_for`, `node_id`, `signal`."""
    rows = await fetch(conn, "waiting_of_jobs", {"job_ids": list(job_ids)}) if job_ids else []
    return {row["job_id"]: row for row in rows}
