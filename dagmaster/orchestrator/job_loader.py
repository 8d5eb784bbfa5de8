"""Load owned jobs from the database into memory."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from dagmaster.engine.change_set import Rules
from dagmaster.ids import JobId
from dagmaster.orchestrator.definitions import Definitions
from dagmaster.orchestrator.instance_stats import Stats
from dagmaster.orchestrator.owned_jobs import OwnedJob, OwnedJobs
from dagmaster.orchestrator.strikes import Strikes
from dagmaster.store import job_states
from dagmaster.store.connect import Connection

Row = Mapping[str, Any]

NO_ROWS: Mapping[JobId, Row] = MappingProxyType({})


class JobLoader:
    def __init__(
        self,
        instance_id: str,
        rules: Rules,
        jobs: OwnedJobs,
        definitions: Definitions,
        strikes: Strikes,
        stats: Stats,
    ) -> None:
        self._instance_id = instance_id
        self._rules = rules
        self._jobs = jobs
        self._definitions = definitions
        self._strikes = strikes
        self._stats = stats

    async def load(
        self, conn: Connection, job_ids: Sequence[JobId], known: Mapping[JobId, Row] = NO_ROWS
    ) -> set[JobId]:
        """Load jobs, reading only the rows that are not `known`. Jobs that cannot be read are failed."""
        if not job_ids:
            return set()
        rows = [known[job_id] for job_id in job_ids if job_id in known]
        if unknown := [job_id for job_id in job_ids if job_id not in known]:
            rows += await job_states.job_rows(conn, self._instance_id, unknown, self._rules.inline_bytes)
        fetched = await self._definitions.fetch(conn, (row["workflow_hash"] for row in rows))
        graphs, readable = {}, []
        for row in rows:
            try:
                graphs[row["workflow_hash"]] = self._definitions.get(row["workflow_hash"], fetched)
                readable.append(row)
            except Exception as error:  # noqa: BLE001 - a definition may be broken in any way; other jobs must continue
                await self._strikes.fail(conn, row["job_id"], f"its definition cannot be read: {error}")
        loaded, unreadable = await job_states.restore_rows(conn, readable, graphs, self._rules.inline_bytes)
        for bad in unreadable:
            reason = f"{type(bad.error).__name__}: {bad.error}"
            await self._strikes.fail(conn, bad.job_id, f"the job cannot be read: {reason}")
        for job in loaded:
            self._jobs.add(OwnedJob(job.state, job.owner_epoch))
        self._stats.jobs_claimed += len(loaded)
        return {job.state.job_id for job in loaded}
