"""What can be asked of a job that is there: cancel, pause, resume, try again."""

from typing import Annotated

import typer

from dagmaster.cli.backend import backend_of
from dagmaster.cli.job_reference import find_job
from dagmaster.cli.options import JobReference, JsonOutput, begin
from dagmaster.cli.output import print_json
from dagmaster.errors import JobEnded
from dagmaster.model.states import JOB_TERMINAL, JobStatus
from dagmaster.service.contract import Cancel, ControlResult, JobCommand, Pause, Resume, Retry

Why = Annotated[str | None, typer.Option("--reason", metavar="TEXT", help="For the timeline.")]
Who = Annotated[str | None, typer.Option("--by", metavar="WHO", help="Who asks for it, for the timeline.")]

app = typer.Typer(add_completion=False)


@app.command()
def cancel(
    ctx: typer.Context, job: JobReference, reason: Why = None, actor: Who = None, as_json: JsonOutput = False
) -> None:
    """Cancel a job.

    What has not begun is skipped, what runs is stopped.

    \b
    For example:
      dagmaster cancel last --reason "wrong inputs"
    """
    job_id, result = control(ctx, job, Cancel(reason), actor)
    if result.status in JOB_TERMINAL - {JobStatus.CANCELLED}:
        raise JobEnded(f"job {job_id} was {result.status} before it could be cancelled")
    _tell(job_id, result, "cancelled", "cancel it", as_json=as_json)


@app.command()
def pause(
    ctx: typer.Context, job: JobReference, reason: Why = None, actor: Who = None, as_json: JsonOutput = False
) -> None:
    """Start nothing more of a job; what runs may end.

    \b
    For example:
      dagmaster pause 247845805292758904 --by ada
    """
    job_id, result = control(ctx, job, Pause(reason), actor)
    _tell(job_id, result, "paused", "pause it", as_json=as_json)


@app.command()
def resume(ctx: typer.Context, job: JobReference, actor: Who = None, as_json: JsonOutput = False) -> None:
    """Go on with a job that was paused.

    \b
    For example:
      dagmaster resume 247845805292758904
    """
    job_id, result = control(ctx, job, Resume(), actor)
    _tell(job_id, result, "going on", "go on with it", as_json=as_json)


@app.command()
def retry(
    ctx: typer.Context,
    job: JobReference,
    node: Annotated[str | None, typer.Argument(metavar="NODE", help="Only this node; else all that failed.")] = None,
    actor: Who = None,
    as_json: JsonOutput = False,
) -> None:
    """Try again what has failed in a job.

    What has completed is not run again. A node that waits for its next attempt
    is tried at once.

    \b
    For example:
      dagmaster retry 247845805292758904
      dagmaster retry 247845805292758904 crunch__17
    """
    job_id, result = control(ctx, job, Retry(node), actor)
    _tell(job_id, result, "tried again", "try it again", as_json=as_json)


def control(ctx: typer.Context, job: str, command: JobCommand, actor: str | None) -> tuple[int, ControlResult]:
    """The job that is meant, and what became of the command."""
    backend = backend_of(ctx, begin(ctx))
    job_id = find_job(backend, job)
    return job_id, backend.call(lambda service: service.control_job(job_id, command), actor=actor)


def _tell(job_id: int, result: ControlResult, done: str, wish: str, *, as_json: bool) -> None:
    if as_json:
        print_json({"job_id": str(job_id), "status": result.status, "is_done": result.is_done})
    elif result.is_done:
        typer.echo(f"job {job_id} is {done}")
    else:
        typer.echo(f"job {job_id} is {result.status}; an orchestrator will {wish} as soon as one is there to do it")
