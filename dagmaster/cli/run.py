"""Run one workflow from beginning to end in this process."""

import asyncio
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Annotated, Any

import typer

from dagmaster.authoring.implicit import own_queue
from dagmaster.authoring.preparation import prepare, queues_of
from dagmaster.authoring.yaml import QueueRules
from dagmaster.cli.definitions import find_called, find_workflow, load_registry, with_module_of
from dagmaster.cli.failures import INTERRUPTED, TIMED_OUT, tell
from dagmaster.cli.inputs import gather_inputs
from dagmaster.cli.job_outcome import conclude, showing
from dagmaster.cli.job_watch import follow, steps_of
from dagmaster.cli.options import Concurrency, Form, Handlers, Inputs, InputsJson, JsonOutput, TextForm, begin
from dagmaster.cli.progress import JobView, Show
from dagmaster.cli.runtime import stop_on_signals
from dagmaster.fleet import Fleet, fleet, worker_options
from dagmaster.handlers import Registry
from dagmaster.model.graph import Graph
from dagmaster.python.catalogue import find_function
from dagmaster.settings import Settings
from dagmaster.store.connect import opened
from dagmaster.store.databases import database
from dagmaster.store.submission import NewJob, submit
from dagmaster.tracing import current_trace_parent, span
from dagmaster.worker.options import WorkerOptions

# Who waits at a terminal does not wait for long; what is given back is run again.
STOP_SECONDS = 3.0

app = typer.Typer(add_completion=False)


@app.command()
def run(
    ctx: typer.Context,
    workflow: Annotated[
        str, typer.Argument(metavar="FILE|ID", help="A workflow file, FILE.py:FUNCTION, or an id in the folder.")
    ],
    single_inputs: Inputs = None,
    inputs: InputsJson = None,
    handlers: Handlers = None,
    concurrency: Concurrency = None,
    timeout: Annotated[float | None, typer.Option(metavar="SECONDS", help="Wait no longer than this.", min=0)] = None,
    form: Form = TextForm.TEXT,
    as_json: JsonOutput = False,
) -> None:
    """Run a workflow in this process and show its result.

    The result is the return value of a workflow in Python, or the outputs of
    the nodes. A long result is cut; --output json prints all of it.

    It starts PostgreSQL, an orchestrator and a worker. After Ctrl-C, the job
    continues with the next `dagmaster dev` in the same folder.

    The exit code is 0 if the job completed, 1 if it failed or was cancelled,
    124 if it has not ended in time, and 130 after Ctrl-C.

    \b
    For example:
      dagmaster run workflows/demo.yaml
      dagmaster run hello_world -i name=Ada
      dagmaster run my.yaml --handlers my_handlers.py --json
      dagmaster run my_workflows.py:nightly
    """
    settings = begin(ctx, traced=True)
    is_json = as_json or form is TextForm.JSON
    handlers = with_module_of(workflow, handlers)
    registry = load_registry(settings, handlers)
    queue = own_queue(settings)
    rules = QueueRules(registry.queues(), queue, contracts=registry.own_contracts())
    definition = find_workflow(workflow, settings, rules)
    graph = prepare(definition, settings, registry.contracts(), find_called(workflow, settings, rules))
    job = NewJob(graph, gather_inputs(definition, single_inputs or (), inputs), secret_key=settings.chosen_secret())
    function = find_function(workflow)
    if function is not None:
        function.check(job.inputs)
    queues = sorted({queue}.union(*(queues_of(one.workflow) for one in (graph, *graph.called))))
    options = worker_options(settings, queues, concurrency, handlers=handlers, grace_seconds=STOP_SECONDS)
    with database(settings, writable=True) as dsn:
        outcome = asyncio.run(Runner(dsn, settings, registry, options, is_json, timeout).run(job))
    raise typer.Exit(outcome)


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

    def _hint(self, job_id: int) -> str:
        server = "dagmaster api" if self.settings.database_dsn() else "dagmaster dev"
        return f"in the web UI, while `{server}` runs:\n  {self._page(job_id)}"

    def _page(self, job_id: int) -> str:
        return f"http://{self.settings.api_host}:{self.settings.api_port}/ui/jobs/{job_id}"

    async def _submit(self, job: NewJob, running: Fleet) -> int:
        assert running.orchestrator is not None
        async with opened(self.dsn, application="dagmaster run") as conn:
            submitted = await submit(
                conn,
                job,
                threshold_seconds=self.settings.orphan_threshold_seconds,
                owner_id=running.orchestrator.me.instance_id,
            )
        running.wake()
        return submitted.job_id

    async def _watch(
        self, job_id: int, graph: Graph, show: Show, running: Fleet, stop: asyncio.Event
    ) -> JobView | None:
        """None when the job has not ended: somebody wants to stop, or the time is over."""
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

    def _interrupted(self, job_id: int, *, by_user: bool) -> int:
        reason = "stopping" if by_user else "the time is over"
        heir = "another orchestrator" if self.settings.database_dsn() else "`dagmaster dev` in this folder"
        tell(f"{reason}: job {job_id} has not ended; it continues with {heir}")
        return INTERRUPTED if by_user else TIMED_OUT
