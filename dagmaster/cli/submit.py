"""Submit a job to whoever runs jobs on the database."""

import asyncio
from collections.abc import Mapping
from typing import Annotated, Any

import typer

from dagmaster.authoring.preparing import prepare, queues_of, tasks_of
from dagmaster.authoring.yaml import QueueRules
from dagmaster.cli.definitions import default_queue, find_workflow, load_registry
from dagmaster.cli.failures import tell
from dagmaster.cli.inputs import gather_inputs
from dagmaster.cli.options import Handlers, Inputs, InputsJson, JsonOutput, begin
from dagmaster.cli.output import print_json
from dagmaster.cli.progress import follow
from dagmaster.cli.run import conclude, showing, steps_of
from dagmaster.cli.runtime import database
from dagmaster.cli.sessions import session
from dagmaster.model.workflow import Workflow
from dagmaster.settings import Settings
from dagmaster.store.connect import Connection
from dagmaster.store.instances import is_orchestrated, list_workers
from dagmaster.store.jobs import NewJob, Submitted
from dagmaster.store.jobs import submit as store_job
from dagmaster.store.signals import MAIL

app = typer.Typer(add_completion=False)


@app.command()
def submit(
    ctx: typer.Context,
    workflow: Annotated[str, typer.Argument(metavar="WORKFLOW", help="An id in the folder, or a workflow file.")],
    document: Annotated[str | None, typer.Argument(metavar="JSON", help="The inputs, as with --inputs.")] = None,
    single_inputs: Inputs = None,
    inputs: InputsJson = None,
    poll: Annotated[bool, typer.Option("--poll", help="Wait until the job has ended.")] = False,
    idempotency_key: Annotated[
        str | None, typer.Option(metavar="KEY", help="The same key again gives the first job.")
    ] = None,
    priority: Annotated[int, typer.Option(help="Tasks of a higher priority go first.", min=-32768, max=32767)] = 0,
    correlation_id: Annotated[str | None, typer.Option(metavar="ID", help="Your own name for it.")] = None,
    submitted_by: Annotated[str, typer.Option(metavar="WHO", help="Who submits it.")] = "",
    handlers: Handlers = None,
    as_json: JsonOutput = False,
) -> None:
    """Submit a job to the orchestrators of the database.

    Prints the job's id. With --poll the exit code is 0 if the job completed
    and 1 if it failed or was cancelled.

    \b
    For example:
      dagmaster submit hello_world '{"name": "Ada"}' --poll
      dagmaster submit nightly -i day=31 --idempotency-key nightly-31
    """
    settings = begin(ctx)
    registry = load_registry(settings, handlers)
    # Which handlers there are is the workers' business, unless it is said here too.
    known = registry.queues() if handlers or settings.handlers else None
    rules = QueueRules(known, default_queue(settings))
    definition = find_workflow(workflow, settings, rules)
    job = NewJob(
        prepare(definition, settings, registry),
        gather_inputs(definition, single_inputs or (), inputs, document),
        priority=priority,
        submitted_by=submitted_by,
        correlation_id=correlation_id,
        idempotency_key=idempotency_key,
    )
    with database(settings) as dsn:
        submitted = asyncio.run(_submit(dsn, job, settings))
        _announce(submitted, quiet=as_json)
        if poll:
            raise typer.Exit(asyncio.run(_poll(dsn, submitted.job_id, job, as_json=as_json)))
    if as_json:
        print_json({"job_id": str(submitted.job_id), "is_new": submitted.is_new})


def _announce(submitted: Submitted, *, quiet: bool) -> None:
    if not quiet:
        typer.echo(submitted.job_id)
    if not submitted.is_new:
        tell(f"job {submitted.job_id} was submitted under this idempotency key before")


async def _submit(dsn: str, job: NewJob, settings: Settings) -> Submitted:
    async with session(dsn) as conn:
        submitted = await store_job(conn, job, threshold_seconds=settings.orphan_threshold_seconds)
        await conn.execute(f"NOTIFY {MAIL}")
        if submitted.is_new:
            await _warn(conn, job.graph.workflow, settings)
    return submitted


async def _warn(conn: Connection, workflow: Workflow, settings: Settings) -> None:
    """The job is safe, but nobody may be there to run it."""
    if not await is_orchestrated(conn, threshold_seconds=settings.orphan_threshold_seconds):
        tell("warning: no orchestrator is running; the job waits for `dagmaster dev` or `dagmaster orchestrator`")
        return
    workers = [worker for worker in await list_workers(conn) if worker["status"] == "active"]
    consumed = {queue for worker in workers for queue in worker["queues"]}
    for queue in sorted(queues_of(workflow) - consumed):
        tell(f"warning: no worker takes tasks from queue {queue!r}; start one with `dagmaster worker --queues {queue}`")
    for queue, handler in sorted(tasks_of(workflow)):
        if queue in consumed and not any(_takes(worker, queue, handler) for worker in workers):
            tell(
                f"warning: no worker of queue {queue!r} has the handler {handler!r}; its tasks wait for one that has it"
            )


def _takes(worker: Mapping[str, Any], queue: str, handler: str) -> bool:
    return queue in worker["queues"] and (worker["handlers"] is None or handler in worker["handlers"])


async def _poll(dsn: str, job_id: int, job: NewJob, *, as_json: bool) -> int:
    with showing(as_json=as_json) as show:
        view = await follow(dsn, job_id, steps_of(job.graph), show)
    return conclude(view, as_json=as_json)
