"""Run one workflow to its end in this process, for `dagmaster run`."""

import asyncio
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from dagmaster.authoring.implicit import own_queue
from dagmaster.authoring.preparation import queues_of
from dagmaster.authoring.yaml import QueueRules
from dagmaster.cli.backend import SubmitArguments
from dagmaster.cli.definitions import load_registry, named_definitions, with_module_of
from dagmaster.cli.failures import INTERRUPTED, TIMED_OUT, tell
from dagmaster.cli.inputs import input_types, read_inputs
from dagmaster.cli.job_outcome import conclude, showing
from dagmaster.cli.job_watch import follow, steps_of
from dagmaster.cli.progress import JobView, Show
from dagmaster.cli.runtime import stop_on_signals
from dagmaster.fleet import Fleet, fleet, worker_options
from dagmaster.handlers import Registry
from dagmaster.ids import JobId
from dagmaster.model.graph import Graph
from dagmaster.python.catalogue import find_function
from dagmaster.service.context import ServiceContext
from dagmaster.service.submission import new_job, store_job
from dagmaster.settings import Settings
from dagmaster.store.connect import opened
from dagmaster.store.databases import database
from dagmaster.store.submission import NewJob
from dagmaster.tracing import current_trace_parent, span
from dagmaster.worker.options import WorkerOptions

# Users at a terminal should not wait long; tasks that are given back run again.
STOP_SECONDS = 3.0


def run_workflow(
    settings: Settings, arguments: SubmitArguments, concurrency: int | None, timeout: float | None, *, as_json: bool
) -> int:
    """The exit code."""
    handlers = with_module_of(arguments.workflow, arguments.handlers)
    registry = load_registry(settings, handlers)
    job = _new_job(settings, arguments, registry)
    workflows = [job.graph.workflow, *(called.workflow for called in job.graph.called)]
    queues = sorted({own_queue(settings)}.union(*map(queues_of, workflows)))
    options = worker_options(settings, queues, concurrency, handlers=handlers, grace_seconds=STOP_SECONDS)
    with database(settings, writable=True) as dsn:
        runner = Runner(dsn, settings, registry, options, as_json, timeout)
        return asyncio.run(runner.run(job))


def _new_job(settings: Settings, arguments: SubmitArguments, registry: Registry) -> NewJob:
    rules = QueueRules(registry.queues(), own_queue(settings), contracts=registry.own_contracts())
    definitions = named_definitions(arguments.workflow, settings, rules, registry.contracts())
    workflow = definitions.find(arguments.workflow)
    inputs = read_inputs(input_types(workflow), arguments.pairs, *arguments.documents)
    job = new_job(definitions.graph_of(workflow), inputs, settings)
    if (function := find_function(arguments.workflow)) is not None:
        function.check(job.inputs)
    return job


@dataclass(frozen=True, slots=True)
class Runner:
    dsn: str
    settings: Settings
    registry: Registry
    options: WorkerOptions
    as_json: bool
    timeout: float | None

    async def run(self, job: NewJob) -> int:
        stop = stop_on_signals()
        async with fleet(
            self.dsn, self.settings, orchestrate=True, work=self.options, registry=self.registry
        ) as running:
            with span("submit_job", workflow_id=job.graph.workflow.workflow_id):
                job_id = await self._submit(replace(job, trace_parent=current_trace_parent()), running)
            with showing(as_json=self.as_json) as show:
                view = await self._watch(job_id, job.graph, show, running, stop)
            if view is None:
                return self._interrupted(job_id, by_user=stop.is_set())
            return conclude(view, as_json=self.as_json, hint=self._hint(job_id))

    def _hint(self, job_id: JobId) -> str:
        """How to open the job in the web UI; only the path of its URL if the port is not fixed."""
        settings = self.settings
        server = "start `dagmaster api`" if settings.database_dsn() else "start `dagmaster dev` in this folder"
        address = f"http://{settings.api_host}:{settings.api_port}" if settings.api_port else ""
        return f"web UI: {server}, then open\n  {address}/ui/jobs/{job_id}"

    async def _submit(self, job: NewJob, running: Fleet) -> JobId:
        assert running.orchestrator is not None
        async with opened(self.dsn, application="dagmaster run") as conn:
            owner_id = running.orchestrator.me.instance_id
            context = ServiceContext(conn, self.settings, owner_id=owner_id, wake=running.wake)
            return (await store_job(context, job)).job_id

    async def _watch(
        self, job_id: JobId, graph: Graph, show: Show, running: Fleet, stop: asyncio.Event
    ) -> JobView | None:
        """None if the job has not ended: the user stopped it, or the time limit passed."""
        watching = asyncio.create_task(follow(self.dsn, job_id, steps_of(graph), show))
        stopping = asyncio.create_task(stop.wait())
        awaited: list[asyncio.Future[Any]] = [watching, stopping, running.ended]
        await asyncio.wait(awaited, timeout=self.timeout, return_when=asyncio.FIRST_COMPLETED)
        if watching.done():
            stopping.cancel()
            return watching.result()
        for task in (watching, stopping):
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
        if running.ended.done():
            await running.ended
        return None

    def _interrupted(self, job_id: JobId, *, by_user: bool) -> int:
        reason = "stopping" if by_user else "timed out"
        successor = "another orchestrator" if self.settings.database_dsn() else "`dagmaster dev` in this folder"
        tell(f"{reason}: job {job_id} has not ended; it continues with {successor}")
        return INTERRUPTED if by_user else TIMED_OUT
