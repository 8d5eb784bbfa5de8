"""What tasks have printed and logged."""

from collections.abc import Sequence
from typing import Annotated

import typer

from dagmaster.cli.backend import Backend, Row, backend_of
from dagmaster.cli.failures import tell
from dagmaster.cli.job_reference import find_job
from dagmaster.cli.options import JobReference, begin
from dagmaster.errors import NotFound
from dagmaster.model.states import ENDED_WITH_JOB, NodeStatus

SHOWN_NODES = 20
MANY = 1000

app = typer.Typer(add_completion=False)


@app.command()
def logs(
    ctx: typer.Context,
    job: JobReference,
    node_id: Annotated[
        str | None, typer.Argument(metavar="NODE", help="A node of the job; else the one that failed or runs.")
    ] = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on until the node has ended.")] = False,
    attempt: Annotated[int | None, typer.Option(help="Of this attempt; else of the newest.", min=1)] = None,
    tail: Annotated[int | None, typer.Option(metavar="LINES", help="Only the last lines.", min=0)] = None,
) -> None:
    """Show what a task has printed and logged.

    With --follow and without --attempt, the attempts that follow are shown too.

    \b
    For example:
      dagmaster logs last --follow
      dagmaster logs 247845805292758904 crunch__17 --attempt 1 --tail 100
    """
    from dagmaster.tasklogs.reader import LogSelection

    backend = backend_of(ctx, begin(ctx))
    job_id = find_job(backend, job)
    node = node_id or _choose(backend, job_id)
    backend.logs(
        job_id, node, LogSelection(attempt, tail=tail, follow=follow), lambda piece: typer.echo(piece, nl=False)
    )


def _choose(backend: Backend, job_id: int) -> str:
    """The only node that has run, or the only one that failed, or that runs; else people must say which."""
    nodes = backend.logged(job_id, limit=MANY)
    if not nodes:
        raise NotFound(f"no task of job {job_id} has begun")
    for some in (nodes, _of(nodes, NodeStatus.FAILED), _of(nodes, NodeStatus.RUNNING)):
        if len(some) == 1:
            chosen: str = some[0]["node_id"]
            tell(f"the log of node {chosen}")
            return chosen
    listed = ", ".join(f"{node['node_id']} ({node['status']})" for node in nodes[:SHOWN_NODES])
    more = ", ..." if len(nodes) > SHOWN_NODES else ""
    raise NotFound(f"which node of job {job_id}? There are {listed}{more}")


def _of(nodes: Sequence[Row], status: NodeStatus) -> list[Row]:
    """What failed only because another node did is not what is looked for."""
    alike = [node for node in nodes if node["status"] == status]
    return [node for node in alike if node["ended_by"] not in ENDED_WITH_JOB]
