"""The commands on the database itself."""

import asyncio
from codecs import getincrementaldecoder
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from dagmaster.authoring.contracts import check_params, known_contracts, open_rules
from dagmaster.authoring.implicit import own_queue
from dagmaster.authoring.preparation import prepare, queues_of, tasks_of
from dagmaster.authoring.yaml import QueueRules
from dagmaster.cli import local_schedules
from dagmaster.cli.backend import Decided, Listed, Order, Range, Receipt, Row, Steered, Whole
from dagmaster.cli.definitions import (
    find_called,
    find_workflow,
    load_catalog,
    load_registry,
    problem_record,
    with_module_of,
)
from dagmaster.cli.inputs import gather_inputs
from dagmaster.cli.job_watch import follow, outlook_of, steps_of, with_outcomes
from dagmaster.cli.progress import JobView, Show
from dagmaster.cli.sessions import ask_at, existing_database, session
from dagmaster.errors import NotFound
from dagmaster.explain.facts import Explanation
from dagmaster.model.problems import did_you_mean
from dagmaster.model.states import JOB_TERMINAL, JobStatus, NodeStatus
from dagmaster.model.workflow import Workflow
from dagmaster.settings import Settings
from dagmaster.store import attempts as attempt_store
from dagmaster.store import job_control, signals
from dagmaster.store import nodes as node_store
from dagmaster.store.connect import Connection
from dagmaster.store.databases import database
from dagmaster.store.estimates import Histories, standing_of
from dagmaster.store.events import list_events
from dagmaster.store.explanations import explain_job, explain_node
from dagmaster.store.handlers import list_contracts, view_handlers
from dagmaster.store.jobs import find_job_ids, get_job, list_jobs, returned_by
from dagmaster.store.node_counts import NodeCounts
from dagmaster.store.nodes import list_nodes
from dagmaster.store.orchestrators import is_orchestrated, list_orchestrators
from dagmaster.store.pinned import PinnedGraphs
from dagmaster.store.queues import queue_depths, unserved_tasks
from dagmaster.store.schedules import list_schedules
from dagmaster.store.submission import NewJob, Submitted
from dagmaster.store.submission import submit as store_job
from dagmaster.store.task_cache import clear_results
from dagmaster.store.workers import list_workers
from dagmaster.tasklogs import open_task_logs
from dagmaster.tasklogs.reader import LogSelection, NodeLog, NodeState, why_none
from dagmaster.tracing import current_trace_parent, describe, span
from dagmaster.url_policy import check_url, policy_of

T = TypeVar("T")

PAGE = 1000
POLL_SECONDS = 0.25
STEER_SECONDS = 10.0


@contextmanager
def opened(settings: Settings) -> "Iterator[Local]":
    """Each question has a connection of its own; an embedded server is started once for all of them."""
    with ExitStack() as held:
        yield Local(settings, held)


@dataclass(slots=True)
class Local:
    settings: Settings
    held: ExitStack
    dsn: str | None = None

    def _ask(self, question: Callable[[Connection], Awaitable[T]]) -> T:
        if self.dsn is None:
            self.dsn = self.held.enter_context(existing_database(self.settings))
        return ask_at(self.dsn, question)

    def submit(self, order: Order, show: Callable[[Receipt], Show | None]) -> JobView | None:
        with database(self.settings) as dsn:
            job, warnings = self._new_job(order, dsn)
            with span("submit_job", workflow_id=job.graph.workflow.workflow_id) as traced:
                receipt = asyncio.run(self._submit(dsn, replace(job, trace_parent=current_trace_parent()), warnings))
                describe(traced, job_id=receipt.job_id)
            shown = show(receipt)
            if shown is None:
                return None
            return asyncio.run(follow(dsn, receipt.job_id, steps_of(job.graph), shown))

    def _new_job(self, order: Order, dsn: str) -> tuple[NewJob, list[str]]:
        """And what a worker may refuse of it."""
        settings = self.settings
        registry = load_registry(settings, with_module_of(order.workflow, order.handlers))
        contracts = ask_at(dsn, lambda conn: known_contracts(conn, registry))
        rules = open_rules(contracts, settings)
        definition = find_workflow(order.workflow, settings, rules)
        if (url := order.options.get("callback_url")) is not None:
            check_url(url, policy_of(settings.callback_allowed_hosts, allow_http=settings.callback_allow_http))
        graph = prepare(definition, settings, contracts, find_called(order.workflow, settings, rules))
        inputs = gather_inputs(definition, order.pairs, *order.documents)
        refused = ask_at(dsn, lambda conn: check_params(conn, graph, contracts, settings))
        job = NewJob(graph, inputs, secret_key=settings.chosen_secret(), **order.options)
        return job, [problem.message for problem in refused]

    async def _submit(self, dsn: str, job: NewJob, refused: list[str]) -> Receipt:
        threshold = self.settings.orphan_threshold_seconds
        async with session(dsn) as conn:
            submitted: Submitted = await store_job(conn, job, threshold_seconds=threshold)
            warnings = [*refused, *await _warnings(conn, job.graph.workflow, threshold)] if submitted.is_new else []
        return Receipt(submitted.job_id, submitted.is_new, warnings)

    def jobs(self, *, status: str | None, workflow_id: str | None, limit: int) -> Sequence[Row]:
        async def look(conn: Connection) -> Sequence[Row]:
            rows = await list_jobs(conn, status=status, workflow_id=workflow_id, limit=limit)
            tolerated = await NodeCounts().tolerated(conn, rows)
            return [{**row, "tolerated_failures": tolerated.get(row["job_id"], 0)} for row in rows]

        return self._ask(look)

    def job_ids(self, prefix: str, *, limit: int) -> Sequence[int]:
        return self._ask(lambda conn: find_job_ids(conn, prefix, limit=limit))

    def job(self, job_id: int, *, children: bool) -> Whole:
        async def look(conn: Connection) -> Whole:
            job, nodes = await get_job(conn, job_id), await list_nodes(conn, job_id, with_children=children)
            standing = await standing_of(conn, job_id)
            outlook = await outlook_of(conn, standing, Histories())
            graph = await PinnedGraphs().find(conn, job["workflow_hash"])
            order = list(graph.nodes) if graph is not None else []
            shown = with_outcomes(nodes, standing.job)
            return Whole(job, shown, outlook, await unserved_tasks(conn, job_id), order, await returned_by(conn, job))

        return self._ask(look)

    def events(
        self, job_id: int, node: str | None, types: Sequence[str], each: Callable[[Row], None], *, follow: bool
    ) -> None:
        async def read(conn: Connection) -> None:
            after = 0
            while True:
                # Asked before the events are: what the end of the job has added is still read.
                has_ended = (await get_job(conn, job_id))["status"] in JOB_TERMINAL
                while events := await list_events(
                    conn, job_id, node_id=node, event_types=types, after=after, limit=PAGE
                ):
                    for event in events:
                        each(event)
                    after = events[-1]["event_id"]
                if has_ended or not follow:
                    return
                await asyncio.sleep(POLL_SECONDS)

        self._ask(read)

    def logged(self, job_id: int, *, limit: int) -> Sequence[Row]:
        async def look(conn: Connection) -> Sequence[Row]:
            await get_job(conn, job_id)
            return await attempt_store.list_logged_nodes(conn, job_id, limit=limit)

        return self._ask(look)

    def logs(self, job_id: int, node: str, wanted: LogSelection, each: Callable[[str], None]) -> None:
        log = NodeLog(open_task_logs(self.settings), job_id, node)
        decode = getincrementaldecoder("utf-8")("replace").decode

        async def read(conn: Connection) -> None:
            async def look() -> NodeState:
                return NodeState.of(await node_store.node_standing(conn, job_id, node))

            await get_job(conn, job_id)
            state = await look()
            found = await log.find(wanted, state)
            if found is None:
                place = await attempt_store.find_log_place(conn, log.task_id(wanted.attempt or state.newest_begun))
                raise NotFound(why_none(log, wanted, state, place))
            pieces = log.pieces(found.attempt, found.start, found.size)
            if wanted.follow:
                pieces = log.follow(found.attempt, found.start, look, goes_on=wanted.attempt is None)
            async for piece in pieces:
                each(decode(piece))

        self._ask(read)

    def cancel(self, job_id: int, *, actor: str | None, reason: str | None) -> Steered:
        return self._steer(
            job_id,
            lambda conn: job_control.request_cancel(conn, job_id, actor=actor, reason=reason),
            lambda _, now: now["status"] in JOB_TERMINAL,
        )

    def pause(self, job_id: int, *, actor: str | None, reason: str | None) -> Steered:
        return self._steer(
            job_id,
            lambda conn: job_control.request_pause(conn, job_id, actor=actor, reason=reason),
            lambda _, now: now["paused_at"] is not None,
        )

    def resume(self, job_id: int, *, actor: str | None) -> Steered:
        return self._steer(
            job_id,
            lambda conn: job_control.request_resume(conn, job_id, actor=actor),
            lambda _, now: now["paused_at"] is None,
        )

    def signal(self, job_id: int, name: str, data: Any, *, actor: str | None) -> str:
        job = self._ask(lambda conn: signals.send_signal(conn, job_id, name, data=data, actor=actor))
        return str(job["status"])

    def decide(self, job_id: int, node: str, *, approved: bool, comment: str | None, actor: str | None) -> Decided:
        async def do(conn: Connection) -> Decided:
            await signals.request_decision(conn, job_id, node, approved=approved, actor=actor, comment=comment)
            is_there = await is_orchestrated(conn, threshold_seconds=self.settings.orphan_threshold_seconds)
            seconds = STEER_SECONDS if is_there else 0
            status = await signals.until_decided(conn, job_id, node, approved=approved, seconds=seconds)
            return Decided(status, status is not NodeStatus.RUNNING)

        return self._ask(do)

    def explain(self, job_id: int, node: str | None) -> Explanation:
        threshold = self.settings.orphan_threshold_seconds

        async def look(conn: Connection) -> Explanation:
            if node is None:
                return await explain_job(conn, job_id, threshold_seconds=threshold)
            return await explain_node(conn, job_id, node, threshold_seconds=threshold)

        return self._ask(look)

    def retry(self, job_id: int, node: str | None, *, actor: str | None) -> Steered:
        threshold = self.settings.orphan_threshold_seconds

        async def request(conn: Connection) -> dict[str, Any]:
            return await job_control.request_retry(conn, job_id, node, actor=actor, threshold_seconds=threshold)

        def holds(was: Row, now: Row) -> bool:
            """It may have failed again by the time it is looked at."""
            return bool(was["status"] != JobStatus.FAILED or now["version"] > was["version"])

        return self._steer(job_id, request, holds)

    def _steer(
        self,
        job_id: int,
        request: Callable[[Connection], Awaitable[dict[str, Any]]],
        holds: Callable[[Row, Row], bool],
    ) -> Steered:
        """The owner is waited for if there can be one."""

        async def do(conn: Connection) -> Steered:
            was = now = await request(conn)
            if await is_orchestrated(conn, threshold_seconds=self.settings.orphan_threshold_seconds):
                now = await job_control.until(conn, job_id, lambda now: holds(was, now), seconds=STEER_SECONDS)
            return Steered(now["status"], holds(was, now))

        return self._ask(do)

    def instances(self) -> tuple[Sequence[Row], Sequence[Row]]:
        async def look(conn: Connection) -> tuple[Sequence[Row], Sequence[Row]]:
            return await list_orchestrators(conn), await list_workers(conn)

        return self._ask(look)

    def steer_worker(self, worker_id: str, command: str, *, actor: str | None) -> str:
        return self._ask(lambda conn: job_control.steer_worker(conn, worker_id, command, actor=actor))

    def handlers(self) -> Sequence[Row]:
        seconds = self.settings.worker_lost_after_seconds
        return self._ask(lambda conn: view_handlers(conn, lost_after_seconds=seconds))

    def queues(self) -> Sequence[Row]:
        return self._ask(queue_depths)

    def schedules(self) -> Sequence[Row]:
        return self._ask(list_schedules)

    def steer_schedule(self, schedule_id: str, command: str, *, actor: str | None) -> Row:
        return local_schedules.steer(self.settings, schedule_id, command, actor)

    def trigger_schedule(self, schedule_id: str, *, actor: str | None) -> Row:
        return local_schedules.start_now(self.settings, schedule_id, actor)

    def sync_schedules(self, handlers: Sequence[str], *, prune: bool, actor: str | None) -> Row:
        return local_schedules.sync(self.settings, handlers, prune=prune, actor=actor)

    def backfill(self, schedule_id: str, wanted: Range, *, actor: str | None) -> Row:
        return local_schedules.fill(self.settings, schedule_id, wanted, actor)

    def clear_cache(self, handler: str | None, *, actor: str | None) -> int:
        return self._ask(lambda conn: clear_results(conn, handler, actor=actor, source_app="cli"))

    def workflows(self, handlers: Sequence[str]) -> tuple[Sequence[Listed], Sequence[Row]]:
        registry = load_registry(self.settings, handlers)
        known = registry.queues() if handlers or self.settings.handlers else None
        catalog = load_catalog(self.settings, QueueRules(known, own_queue(self.settings)))
        found = [_listed(catalog.workflows[name], catalog.sources[name]) for name in sorted(catalog.workflows)]
        return found, [problem_record(problem) for problems in catalog.problems.values() for problem in problems]


async def _warnings(conn: Connection, workflow: Workflow, threshold_seconds: float) -> list[str]:
    """The job is safe, but nobody may be there to run it."""
    if not await is_orchestrated(conn, threshold_seconds=threshold_seconds):
        return ["no orchestrator is running; the job waits for `dagmaster dev` or `dagmaster orchestrator`"]
    workers = [worker for worker in await list_workers(conn) if worker["status"] == "active"]
    consumed = {queue for worker in workers for queue in worker["queues"]}
    unconsumed = [
        f"no worker takes tasks from queue {queue!r}; start one with `dagmaster worker --queues {queue}`"
        for queue in sorted(queues_of(workflow) - consumed)
    ]
    contracts = await list_contracts(conn)
    return unconsumed + [
        f"no worker has registered the handler {handler!r}{did_you_mean(handler, contracts)}"
        if handler not in contracts
        else f"no worker of queue {queue!r} has the handler {handler!r}; its tasks wait for one that has it"
        for queue, handler in sorted(tasks_of(workflow))
        if (queue in consumed or handler not in contracts)
        and not any(_takes(worker, queue, handler) for worker in workers)
    ]


def _takes(worker: Mapping[str, Any], queue: str, handler: str) -> bool:
    return queue in worker["queues"] and (worker["handlers"] is None or handler in worker["handlers"])


def _listed(workflow: Workflow, source: str) -> Listed:
    record = {
        "workflow_id": workflow.workflow_id,
        "name": workflow.name,
        "version": workflow.version,
        "description": workflow.description,
        "is_active": workflow.is_active,
        "nodes": len(workflow.nodes),
        "inputs": {name: spec.model_dump(mode="json") for name, spec in workflow.inputs.items()},
        "file": source,
    }
    inputs = [name if spec.required else f"{name}?" for name, spec in workflow.inputs.items()]
    return Listed(
        workflow.workflow_id, workflow.version, len(workflow.nodes), inputs, source, workflow.is_active, record
    )
