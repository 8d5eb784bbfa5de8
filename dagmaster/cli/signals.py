"""What the waiting nodes of a job are told: signals, approvals, rejections."""

from typing import Annotated

import typer

from dagmaster.cli.backend import Decided, backend_of
from dagmaster.cli.inputs import read_json
from dagmaster.cli.job_reference import find_job
from dagmaster.cli.options import JobReference, JsonOutput, begin
from dagmaster.cli.output import print_json

Node = Annotated[str, typer.Argument(metavar="NODE", help="The approval.")]
Comment = Annotated[str | None, typer.Option("--comment", metavar="TEXT", help="Kept with the decision.")]
Who = Annotated[str | None, typer.Option("--by", metavar="WHO", help="Who asks for it, for the timeline.")]

app = typer.Typer(add_completion=False)


@app.command()
def signal(
    ctx: typer.Context,
    job: JobReference,
    name: Annotated[str, typer.Argument(metavar="NAME", help="What the node waits for.")],
    data: Annotated[str | None, typer.Option("--data", metavar="JSON", help="For the output of the node.")] = None,
    actor: Who = None,
    as_json: JsonOutput = False,
) -> None:
    """Wake the nodes of a job that wait for a signal.

    If none waits for it yet, it is kept for the first that will.

    \b
    For example:
      dagmaster signal last data_arrived
      dagmaster signal 247845805292758904 data_arrived --data '{"rows": 17}'
    """
    settings = begin(ctx)
    value = read_json(data, "--data") if data is not None else None
    backend = backend_of(ctx, settings)
    job_id = find_job(backend, job)
    status = backend.signal(job_id, name, value, actor=actor)
    if as_json:
        print_json({"job_id": str(job_id), "name": name, "status": status})
    else:
        typer.echo(f"Sent signal {name} to job {job_id}")


@app.command()
def approve(
    ctx: typer.Context,
    job: JobReference,
    node: Node,
    comment: Comment = None,
    actor: Who = None,
    as_json: JsonOutput = False,
) -> None:
    """Approve what a node of a job asks for.

    \b
    For example:
      dagmaster approve 247845805292758904 release --comment "looks good"
    """
    backend = backend_of(ctx, begin(ctx))
    job_id = find_job(backend, job)
    decided = backend.decide(job_id, node, approved=True, comment=comment, actor=actor)
    _tell(job_id, node, decided, "approved", as_json=as_json)


@app.command()
def reject(
    ctx: typer.Context,
    job: JobReference,
    node: Node,
    comment: Comment = None,
    actor: Who = None,
    as_json: JsonOutput = False,
) -> None:
    """Reject what a node of a job asks for; the node fails for good.

    \b
    For example:
      dagmaster reject 247845805292758904 release --comment "not today"
    """
    backend = backend_of(ctx, begin(ctx))
    job_id = find_job(backend, job)
    decided = backend.decide(job_id, node, approved=False, comment=comment, actor=actor)
    _tell(job_id, node, decided, "rejected", as_json=as_json)


def _tell(job_id: int, node: str, decided: Decided, word: str, *, as_json: bool) -> None:
    if as_json:
        said = {"job_id": str(job_id), "node_id": node, "status": decided.status, "is_done": decided.is_done}
        print_json(said)
    elif decided.is_done:
        typer.echo(f"node {node} of job {job_id} is {word}")
    else:
        typer.echo(f"node {node} of job {job_id} is to be {word}, as soon as an orchestrator is there to do it")
