"""Task logs."""

from collections.abc import Sequence
from typing import Annotated

import typer

from dagmaster.cli.backend import Backend, Row, backend_of, find_job
from dagmaster.cli.failures import tell
from dagmaster.cli.options import JobReference, begin
from dagmaster.errors import NotFound
from dagmaster.ids import JobId
from dagmaster.model.states import ENDED_WITH_JOB, NodeStatus

SHOWN_NODES = 20
MANY = 1000

app = typer.Typer(add_completion=False)


@app.command()
def logs(
    ctx: typer.Context,
    job: JobReference,
    node_id: Annotated[
        str | None, typer.Argument(metavar="NODE", help="Node id; default: the node that failed or is running.")
    ] = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Follow until the node ends.")] = False,
    attempt: Annotated[int | None, typer.Option(help="Attempt number; default: the latest.", min=1)] = None,
    tail: Annotated[int | None, typer.Option(metavar="LINES", help="Only the last lines.", min=0)] = None,
) -> None:
    """Show the log of a task.

    --follow also shows later attempts, unless --attempt is set.

    \b
    Examples:
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


def _choose(backend: Backend, job_id: JobId) -> str:
    """The only node that has run, the only failed node, or the only running one; otherwise the user must choose."""
    nodes = backend.logged(job_id, limit=MANY)
    if not nodes:
        raise NotFound(f"no task of job {job_id} has started")
    for some in (nodes, _of(nodes, NodeStatus.FAILED), _of(nodes, NodeStatus.RUNNING)):
        if len(some) == 1:
            chosen: str = some[0]["node_id"]
            tell(f"log of node {chosen}")
            return chosen
    listed = ", ".join(f"{node['node_id']} ({node['status']})" for node in nodes[:SHOWN_NODES])
    more = ", ..." if len(nodes) > SHOWN_NODES else ""
    raise NotFound(f"name a node of job {job_id}: {listed}{more}")


def _of(nodes: Sequence[Row], status: NodeStatus) -> list[Row]:
    """Without nodes that failed only because of another node."""
    alike = [node for node in nodes if node["status"] == status]
    return [node for node in alike if node["ended_by"] not in ENDED_WITH_JOB]
