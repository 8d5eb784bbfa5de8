"""Control a job: cancel, pause, resume, retry."""

from typing import Annotated

import typer

from dagmaster.cli.backend import backend_of
from dagmaster.cli.job_reference import find_job
from dagmaster.cli.options import JobReference, JsonOutput, begin
from dagmaster.cli.output import print_json
from dagmaster.errors import JobEnded
from dagmaster.ids import JobId
from dagmaster.model.shapes import read_box
from dagmaster.model.states import JOB_TERMINAL, JobStatus
from dagmaster.service.contract import Cancel, ControlResult, JobCommand, Pause, Resume, Retry

Why = Annotated[str | None, typer.Option("--reason", metavar="TEXT", help="Reason recorded in the timeline.")]
Who = Annotated[str | None, typer.Option("--by", metavar="NAME", help="Name recorded in the timeline.")]

app = typer.Typer(add_completion=False)


@app.command()
def cancel(
    ctx: typer.Context, job: JobReference, reason: Why = None, actor: Who = None, as_json: JsonOutput = False
) -> None:
    """Cancel a job.

    Pending nodes are skipped and running tasks are stopped.

    \b
    Examples:
      dagmaster cancel last --reason "wrong inputs"
    """
    job_id, result = control(ctx, job, Cancel(reason), actor)
    if result.status in JOB_TERMINAL - {JobStatus.CANCELLED}:
        raise JobEnded(f"job {job_id} {result.status} before it could be cancelled")
    _tell(job_id, result, "Cancelled", "cancel", as_json=as_json)


@app.command()
def pause(
    ctx: typer.Context, job: JobReference, reason: Why = None, actor: Who = None, as_json: JsonOutput = False
) -> None:
    """Pause a job; running tasks may finish.

    \b
    Examples:
      dagmaster pause 247845805292758904 --by ada
    """
    job_id, result = control(ctx, job, Pause(reason), actor)
    _tell(job_id, result, "Paused", "pause", as_json=as_json)


@app.command()
def resume(ctx: typer.Context, job: JobReference, actor: Who = None, as_json: JsonOutput = False) -> None:
    """Resume a paused job.

    \b
    Examples:
      dagmaster resume 247845805292758904
    """
    job_id, result = control(ctx, job, Resume(), actor)
    _tell(job_id, result, "Resumed", "resume", as_json=as_json)


@app.command()
def retry(
    ctx: typer.Context,
    job: JobReference,
    node: Annotated[
        str | None, typer.Argument(metavar="NODE", help="Only this node; default: all failed nodes.")
    ] = None,
    bbox: Annotated[
        str | None, typer.Option("--bbox", metavar="W,S,E,N", help="Only nodes that intersect this box, in degrees.")
    ] = None,
    actor: Who = None,
    as_json: JsonOutput = False,
) -> None:
    """Retry the failed nodes of a job.

    Completed nodes do not run again. A node that waits for its next attempt is
    retried immediately.

    With --bbox, only nodes whose item, parameters, output or checkpoint
    intersects the box are retried, and the nodes after them. If others are still
    unfinished then, the job fails again.

    \b
    Examples:
      dagmaster retry 247845805292758904
      dagmaster retry 247845805292758904 crunch__17
      dagmaster retry last --bbox=-106.0,40.1,-105.4,40.6
    """
    box = read_box(bbox) if bbox is not None else None
    job_id, result = control(ctx, job, Retry(node, box), actor)
    if result.selected_nodes is not None and result.is_done and not as_json:
        typer.echo(f"Retrying {result.selected_nodes} of {result.unfinished_nodes} unfinished nodes of job {job_id}")
    else:
        _tell(job_id, result, "Retrying", "retry", as_json=as_json)


def control(ctx: typer.Context, job: str, command: JobCommand, actor: str | None) -> tuple[JobId, ControlResult]:
    """The job's id and the result of the command."""
    backend = backend_of(ctx, begin(ctx))
    job_id = find_job(backend, job)
    return job_id, backend.call(lambda service: service.control_job(job_id, command), actor=actor)


def _tell(job_id: JobId, result: ControlResult, done: str, verb: str, *, as_json: bool) -> None:
    if as_json:
        counts = {"selected_nodes": result.selected_nodes, "unfinished_nodes": result.unfinished_nodes}
        counts = counts if result.selected_nodes is not None else {}
        print_json({"job_id": str(job_id), "status": result.status, "is_done": result.is_done, **counts})
    elif result.is_done:
        typer.echo(f"{done} job {job_id}")
    else:
        typer.echo(f"job {job_id} is {result.status}; an orchestrator will {verb} it when one is available")
