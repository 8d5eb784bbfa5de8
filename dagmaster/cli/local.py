"""The backend of commands on the database."""

import asyncio
from codecs import getincrementaldecoder
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from typing import TypeVar

from dagmaster.authoring.contracts import known_contracts, open_rules
from dagmaster.authoring.implicit import own_queue
from dagmaster.authoring.yaml import QueueRules
from dagmaster.cli.backend import AssetCall, JobDetails, Row, ServiceCall, SubmitArguments, WorkflowLine
from dagmaster.cli.definitions import (
    load_catalog,
    load_registry,
    named_definitions,
    problem_record,
    with_module_of,
    workflow_line,
)
from dagmaster.cli.inputs import input_types, read_inputs
from dagmaster.cli.job_watch import follow, list_shown_nodes, outlook_of, steps_of
from dagmaster.cli.progress import JobView, Show
from dagmaster.cli.sessions import existing_database, run_in_session_at
from dagmaster.errors import NotFound
from dagmaster.explain.facts import Explanation
from dagmaster.handlers import Registry
from dagmaster.ids import JobId, NodeId
from dagmaster.model.states import JOB_TERMINAL
from dagmaster.python.workflows import defined
from dagmaster.service.asset_database import DatabaseAssetService
from dagmaster.service.context import ServiceContext
from dagmaster.service.contract import SubmitRequest, SubmitResult
from dagmaster.service.database import DatabaseService
from dagmaster.service.schedules import sync_schedules
from dagmaster.settings import Settings
from dagmaster.store import attempts as attempt_store
from dagmaster.store import nodes as node_store
from dagmaster.store.connect import Connection
from dagmaster.store.databases import database
from dagmaster.store.estimates import Histories, load_snapshot
from dagmaster.store.events import list_events
from dagmaster.store.explanations import explain_job, explain_node
from dagmaster.store.handlers import view_handlers
from dagmaster.store.jobs import JobFilter, find_job_ids, get_job, list_jobs, returned_by, statuses_of
from dagmaster.store.node_counts import NodeCounts
from dagmaster.store.orchestrators import list_orchestrators
from dagmaster.store.queues import list_queues, unserved_tasks
from dagmaster.store.schedules import list_schedules
from dagmaster.store.workers import list_workers
from dagmaster.store.workflows import PinnedGraphs
from dagmaster.tasklogs import open_task_logs
from dagmaster.tasklogs.reader import LogSelection, NodeLog, NodeState, why_none

T = TypeVar("T")

PAGE = 1000
MOST_ORCHESTRATORS = 100
POLL_SECONDS = 0.25


@contextmanager
def opened(settings: Settings) -> "Iterator[Local]":
    """Each query has its own connection; an embedded server is started once for all of them."""
    with ExitStack() as resources:
        yield Local(settings, resources)


@dataclass(slots=True)
class Local:
    settings: Settings
    resources: ExitStack
    dsn: str | None = None

    def _run(self, work: Callable[[Connection], Awaitable[T]]) -> T:
        if self.dsn is None:
            self.dsn = self.resources.enter_context(existing_database(self.settings))
        return run_in_session_at(self.dsn, work)

    def call(self, verb: ServiceCall[T], *, actor: str | None = None) -> T:
        return self._run(lambda conn: verb(DatabaseService(ServiceContext(conn, self.settings, actor=actor))))

    def call_assets(self, verb: AssetCall[T], *, actor: str | None = None, runs_workflows: bool = False) -> T:
        async def call(conn: Connection) -> T:
            definitions = None
            if runs_workflows:
                contracts = await known_contracts(conn, load_registry(self.settings, ()))
                definitions = named_definitions("", self.settings, open_rules(contracts, self.settings), contracts)
            context = ServiceContext(conn, self.settings, actor=actor)
            return await verb(DatabaseAssetService(context, definitions))

        return self._run(call)

    def submit(self, arguments: SubmitArguments, show: Callable[[SubmitResult], Show | None]) -> JobView | None:
        registry = load_registry(self.settings, with_module_of(arguments.workflow, arguments.handlers))
        with database(self.settings) as dsn:
            result, steps = run_in_session_at(dsn, lambda conn: self._submit(conn, registry, arguments))
            watcher = show(result)
            return asyncio.run(follow(dsn, result.job_id, steps, watcher)) if watcher is not None else None

    async def _submit(
        self, conn: Connection, registry: Registry, arguments: SubmitArguments
    ) -> tuple[SubmitResult, list[str]]:
        """The result, and the steps of the job in order."""
        contracts = await known_contracts(conn, registry)
        definitions = named_definitions(
            arguments.workflow, self.settings, open_rules(contracts, self.settings), contracts
        )
        workflow = definitions.find(arguments.workflow)
        inputs = read_inputs(input_types(workflow), arguments.pairs, *arguments.documents)
        request = SubmitRequest(arguments.workflow, inputs, **arguments.options)
        service = DatabaseService(ServiceContext(conn, self.settings), definitions)
        return await service.submit(request), steps_of(definitions.graph_of(workflow))

    def jobs(self, *, status: str | None, workflow_id: str | None, limit: int) -> Sequence[Row]:
        async def look(conn: Connection) -> Sequence[Row]:
            rows = await list_jobs(conn, JobFilter(statuses_of(status), workflow_id), limit=limit)
            tolerated = await NodeCounts().tolerated(conn, rows)
            return [{**row, "tolerated_failures": tolerated.get(row["job_id"], 0)} for row in rows]

        return self._run(look)

    def job_ids(self, prefix: str, *, limit: int) -> Sequence[JobId]:
        return self._run(lambda conn: find_job_ids(conn, prefix, limit=limit))

    def job(self, job_id: JobId, *, children: bool) -> JobDetails:
        async def look(conn: Connection) -> JobDetails:
            job, snapshot = await get_job(conn, job_id), await load_snapshot(conn, job_id)
            nodes = await list_shown_nodes(conn, job_id, snapshot.job.now, with_children=children)
            outlook = await outlook_of(conn, snapshot, Histories())
            graph = await PinnedGraphs().find(conn, job["workflow_hash"])
            order = list(graph.nodes) if graph is not None else []
            return JobDetails(
                job, nodes, outlook, await unserved_tasks(conn, job_id), order, await returned_by(conn, job)
            )

        return self._run(look)

    def events(
        self, job_id: JobId, node: str | None, types: Sequence[str], each: Callable[[Row], None], *, follow: bool
    ) -> None:
        node_id = NodeId(node) if node is not None else None

        async def read(conn: Connection) -> None:
            after = 0
            while True:
                # Read before the events, so that the events of the job's end are not missed.
                has_ended = (await get_job(conn, job_id))["status"] in JOB_TERMINAL
                while events := await list_events(
                    conn, job_id, node_id=node_id, event_types=types, after=after, limit=PAGE
                ):
                    for event in events:
                        each(event)
                    after = events[-1]["event_id"]
                if has_ended or not follow:
                    return
                await asyncio.sleep(POLL_SECONDS)

        self._run(read)

    def logged(self, job_id: JobId, *, limit: int) -> Sequence[Row]:
        async def look(conn: Connection) -> Sequence[Row]:
            await get_job(conn, job_id)
            return await attempt_store.list_logged_nodes(conn, job_id, limit=limit)

        return self._run(look)

    def logs(self, job_id: JobId, node: str, selection: LogSelection, each: Callable[[str], None]) -> None:
        log = NodeLog(open_task_logs(self.settings), job_id, NodeId(node))
        decode = getincrementaldecoder("utf-8")("replace").decode

        async def read(conn: Connection) -> None:
            async def look() -> NodeState:
                return NodeState.of(await node_store.get_node_head(conn, job_id, log.node_id))

            await get_job(conn, job_id)
            state = await look()
            part = await log.find(selection, state)
            if part is None:
                place = await attempt_store.find_log_place(conn, log.task_id(selection.attempt or state.newest_begun))
                raise NotFound(why_none(log, selection, state, place))
            pieces = log.pieces(part.attempt, part.start, part.size)
            if selection.follow:
                pieces = log.follow(part.attempt, part.start, look, goes_on=selection.attempt is None)
            async for piece in pieces:
                each(decode(piece))

        self._run(read)

    def explain(self, job_id: JobId, node: str | None) -> Explanation:
        threshold = self.settings.orphan_threshold_seconds

        async def look(conn: Connection) -> Explanation:
            if node is None:
                return await explain_job(conn, job_id, threshold_seconds=threshold)
            return await explain_node(conn, job_id, NodeId(node), threshold_seconds=threshold)

        return self._run(look)

    def orchestrators(self) -> Sequence[Row]:
        return self._run(lambda conn: list_orchestrators(conn, limit=MOST_ORCHESTRATORS))

    def workers(self, *, status: str | None = None, limit: int) -> Sequence[Row]:
        return self._run(lambda conn: list_workers(conn, status=status, limit=limit))

    def handlers(self) -> Sequence[Row]:
        seconds = self.settings.worker_lost_after_seconds
        return self._run(lambda conn: view_handlers(conn, lost_after_seconds=seconds))

    def queues(self) -> Sequence[Row]:
        return self._run(list_queues)

    def schedules(self) -> Sequence[Row]:
        return self._run(list_schedules)

    def sync_schedules(self, handlers: Sequence[str], *, prune: bool, actor: str | None) -> Row:
        registry = load_registry(self.settings, handlers)

        async def sync(conn: Connection) -> Row:
            contracts = await known_contracts(conn, registry)
            catalog = load_catalog(self.settings, open_rules(contracts, self.settings))
            unread = [name for name in defined if name not in catalog.workflows]
            context = ServiceContext(conn, self.settings, actor=actor)
            return asdict(await sync_schedules(context, catalog, contracts, prune=prune, unread=unread))

        return self._run(sync)

    def workflows(self, handlers: Sequence[str]) -> tuple[Sequence[WorkflowLine], Sequence[Row]]:
        registry = load_registry(self.settings, handlers)
        known = registry.queues() if handlers or self.settings.handlers else None
        catalog = load_catalog(self.settings, QueueRules(known, own_queue(self.settings)))
        lines = [workflow_line(catalog.workflows[name], catalog.sources[name]) for name in sorted(catalog.workflows)]
        return lines, [problem_record(problem) for problems in catalog.problems.values() for problem in problems]
