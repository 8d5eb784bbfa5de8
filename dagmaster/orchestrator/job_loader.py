"""Load owned jobs and their definitions from the database into memory."""

from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from dagmaster.engine.change_set import Rules
from dagmaster.errors import NotFound
from dagmaster.ids import JobId
from dagmaster.model.compile import compile_graph
from dagmaster.model.graph import Graph
from dagmaster.model.workflow import Workflow
from dagmaster.orchestrator.instance_stats import Stats
from dagmaster.orchestrator.owned_jobs import OwnedJob, OwnedJobs
from dagmaster.orchestrator.strikes import Strikes
from dagmaster.store import job_states
from dagmaster.store.connect import Connection
from dagmaster.store.workflows import load_definitions

Row = Mapping[str, Any]

KEEP = 500
NO_ROWS: Mapping[JobId, Row] = MappingProxyType({})


class Definitions:
    """Compiled graphs by content hash: each definition is read and compiled once."""

    def __init__(self) -> None:
        self._graphs: OrderedDict[str, Graph] = OrderedDict()

    def __contains__(self, workflow_hash: str) -> bool:
        return workflow_hash in self._graphs

    def add(self, graph: Graph) -> None:
        self._graphs[graph.workflow.content_hash] = graph
        self._graphs.move_to_end(graph.workflow.content_hash)
        while len(self._graphs) > KEEP:
            self._graphs.popitem(last=False)

    async def fetch(self, conn: Connection, hashes: Iterable[str]) -> dict[str, Graph | bytes]:
        """The definitions by hash, compiled or not: held by the caller, so that none is evicted before it is used."""
        names = set(hashes)
        known = {name: self._graphs[name] for name in names if name in self._graphs}
        missing = sorted(names - known.keys())
        return {**known, **(await load_definitions(conn, missing) if missing else {})}

    def get(self, workflow_hash: str, fetched: Mapping[str, Graph | bytes]) -> Graph:
        """Raises if the pinned definition is missing or does not compile."""
        if workflow_hash not in fetched:
            raise NotFound(f"the pinned definition {workflow_hash[:12]} is not in dag_workflows")
        definition = self._graphs.get(workflow_hash) or fetched[workflow_hash]
        graph = definition if isinstance(definition, Graph) else compile_graph(Workflow.model_validate_json(definition))
        self.add(graph)
        return graph


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
        self._instance_id, self._rules = instance_id, rules
        self._jobs, self._definitions = jobs, definitions
        self._strikes, self._stats = strikes, stats

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
