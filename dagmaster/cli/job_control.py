"""Commands to a job: cancel, pause, resume, retry, signal, approve, reject."""

from typing import Annotated

import typer

from dagmaster.cli.backend import backend_of, find_job
from dagmaster.cli.options import JobReference, JsonOutput, begin
from dagmaster.cli.output import print_result
from dagmaster.errors import JobEnded
from dagmaster.ids import JobId
from dagmaster.model.shapes import read_box
from dagmaster.model.states import JOB_TERMINAL, JobStatus
from dagmaster.service.contract import (
    Cancel,
    ControlResult,
    Decide,
    JobChange,
    JobCommand,
    Pause,
    Resume,
    Retry,
    Signal,
)

Why = Annotated[str | None, typer.Option("--reason", metavar="TEXT", help="Reason recorded in the timeline.")]
Who = Annotated[str | None, typer.Option("--by", metavar="NAME", help="Name recorded in the timeline.")]
Node = Annotated[str, typer.Argument(metavar="NODE", help="Node id of the approval.")]
Comment = Annotated[str | None, typer.Option("--comment", metavar="TEXT", help="Comment stored with the decision.")]

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
    _change(ctx, job, Cancel(reason), actor, "Cancelled", as_json=as_json)


@app.command()
def pause(
    ctx: typer.Context, job: JobReference, reason: Why = None, actor: Who = None, as_json: JsonOutput = False
) -> None:
    """Pause a job; running tasks may finish.

    \b
    Examples:
      dagmaster pause 247845805292758904 --by ada
    """
    _change(ctx, job, Pause(reason), actor, "Paused", as_json=as_json)


@app.command()
def resume(ctx: typer.Context, job: JobReference, actor: Who = None, as_json: JsonOutput = False) -> None:
    """Resume a paused job.

    \b
    Examples:
      dagmaster resume 247845805292758904
    """
    _change(ctx, job, Resume(), actor, "Resumed", as_json=as_json)


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
    _change(ctx, job, Retry(node, box), actor, "Retrying", as_json=as_json)


@app.command()
def signal(
    ctx: typer.Context,
    job: JobReference,
    name: Annotated[str, typer.Argument(metavar="NAME", help="Signal name.")],
    data: Annotated[
        str | None, typer.Option("--data", metavar="JSON", help="Data for the output of the waiting node.")
    ] = None,
    actor: Who = None,
    as_json: JsonOutput = False,
) -> None:
    """Send a signal to the waiting nodes of a job.

    If no node waits for the signal yet, it is kept for the first one that does.

    \b
    Examples:
      dagmaster signal last data_arrived
      dagmaster signal 247845805292758904 data_arrived --data '{"rows": 17}'
    """
    from dagmaster.cli.inputs import read_json

    value = read_json(data, "--data") if data is not None else None
    job_id, result = _control(ctx, job, Signal(name, value), actor)
    record = {"job_id": job_id, "name": name, "status": result.status}
    print_result(record, f"Sent signal {name} to job {job_id}", as_json=as_json)


def _add_decision(name: str, *, is_approved: bool, help: str) -> None:
    word = "approved" if is_approved else "rejected"

    @app.command(name, help=help)
    def decide(
        ctx: typer.Context,
        job: JobReference,
        node: Node,
        comment: Comment = None,
        actor: Who = None,
        as_json: JsonOutput = False,
    ) -> None:
        job_id, result = _control(ctx, job, Decide(node, is_approved, comment), actor)
        record = {"job_id": job_id, "node_id": node, "status": result.status, "is_done": result.is_done}
        text = f"node {node} of job {job_id} will be {word} when an orchestrator is available"
        if result.is_done:
            text = f"{word.capitalize()} node {node} of job {job_id}"
        print_result(record, text, as_json=as_json)


_add_decision(
    "approve",
    is_approved=True,
    help="""Approve a node that waits for approval.

    \b
    Examples:
      dagmaster approve 247845805292758904 release --comment "looks good"
    """,
)
_add_decision(
    "reject",
    is_approved=False,
    help="""Reject a node that waits for approval; the node fails.

    \b
    Examples:
      dagmaster reject 247845805292758904 release --comment "not today"
    """,
)


def _control(ctx: typer.Context, job: str, command: JobCommand, actor: str | None) -> tuple[JobId, ControlResult]:
    """The job's id and the result of the command."""
    backend = backend_of(ctx, begin(ctx))
    job_id = find_job(backend, job)
    return job_id, backend.call(lambda service: service.control_job(job_id, command), actor=actor)


def _change(ctx: typer.Context, job: str, command: JobChange, actor: str | None, done: str, *, as_json: bool) -> None:
    """`done` starts the message, such as Paused."""
    job_id, result = _control(ctx, job, command, actor)
    if isinstance(command, Cancel) and result.status in JOB_TERMINAL - {JobStatus.CANCELLED}:
        raise JobEnded(f"job {job_id} {result.status} before it could be cancelled")
    record = {"job_id": job_id, "status": result.status, "is_done": result.is_done}
    text = f"{done} job {job_id}"
    if result.selected_nodes is not None:
        record |= {"selected_nodes": result.selected_nodes, "unfinished_nodes": result.unfinished_nodes}
        text = f"{done} {result.selected_nodes} of {result.unfinished_nodes} unfinished nodes of job {job_id}"
    if not result.is_done:
        text = f"job {job_id} is {result.status}; an orchestrator will {command.verb} it when one is available"
    print_result(record, text, as_json=as_json)
