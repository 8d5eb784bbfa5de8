"""Signals, approvals and rejections for waiting nodes."""

from typing import Annotated

import typer

from dagmaster.cli.job_control import Who, control
from dagmaster.cli.options import JobReference, JsonOutput
from dagmaster.cli.output import print_result
from dagmaster.service.contract import Decide, Signal

Node = Annotated[str, typer.Argument(metavar="NODE", help="Node id of the approval.")]
Comment = Annotated[str | None, typer.Option("--comment", metavar="TEXT", help="Comment stored with the decision.")]

app = typer.Typer(add_completion=False)


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
    job_id, result = control(ctx, job, Signal(name, value), actor)
    record = {"job_id": job_id, "name": name, "status": result.status}
    print_result(record, f"Sent signal {name} to job {job_id}", as_json=as_json)


def _add_decision(name: str, *, is_approved: bool, help: str) -> None:
    @app.command(name, help=help)
    def decide(
        ctx: typer.Context,
        job: JobReference,
        node: Node,
        comment: Comment = None,
        actor: Who = None,
        as_json: JsonOutput = False,
    ) -> None:
        _decide(ctx, job, Decide(node, is_approved, comment), actor, as_json=as_json)


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


def _decide(ctx: typer.Context, job: str, decision: Decide, actor: str | None, *, as_json: bool) -> None:
    job_id, result = control(ctx, job, decision, actor)
    node, word = decision.node_id, "approved" if decision.is_approved else "rejected"
    record = {"job_id": job_id, "node_id": node, "status": result.status, "is_done": result.is_done}
    text = f"node {node} of job {job_id} will be {word} when an orchestrator is available"
    if result.is_done:
        text = f"{word.capitalize()} node {node} of job {job_id}"
    print_result(record, text, as_json=as_json)
