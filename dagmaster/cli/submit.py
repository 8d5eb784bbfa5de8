"""Submit a job to the orchestrators."""

from contextlib import ExitStack
from typing import Annotated

import typer

from dagmaster.cli.backend import SubmitArguments, backend_of
from dagmaster.cli.failures import tell
from dagmaster.cli.job_outcome import conclude, showing
from dagmaster.cli.options import Form, Handlers, Inputs, InputsJson, JsonOutput, TextForm, begin
from dagmaster.cli.output import print_json
from dagmaster.cli.progress import Show
from dagmaster.service.contract import SubmitResult

app = typer.Typer(add_completion=False)


@app.command()
def submit(
    ctx: typer.Context,
    workflow: Annotated[str, typer.Argument(metavar="WORKFLOW", help="Workflow id or workflow file.")],
    document: Annotated[str | None, typer.Argument(metavar="JSON", help="Inputs, as for --inputs.")] = None,
    single_inputs: Inputs = None,
    inputs: InputsJson = None,
    poll: Annotated[bool, typer.Option("--poll", help="Wait until the job ends.")] = False,
    idempotency_key: Annotated[
        str | None, typer.Option(metavar="KEY", help="Repeating a key returns the first job.")
    ] = None,
    priority: Annotated[int, typer.Option(help="Tasks with a higher priority run first.", min=-32768, max=32767)] = 0,
    correlation_id: Annotated[str | None, typer.Option(metavar="ID", help="Your own identifier for the job.")] = None,
    submitted_by: Annotated[str, typer.Option(metavar="NAME", help="Submitter, shown with the job.")] = "",
    callback_url: Annotated[
        str | None, typer.Option(metavar="URL", help="URL to send a signed message to when the job ends.")
    ] = None,
    handlers: Handlers = None,
    form: Form = TextForm.TEXT,
    as_json: JsonOutput = False,
) -> None:
    """Submit a job to the running orchestrators.

    With --url the job goes to a server, and the workflow must be an id.

    Prints the job's id. With --poll the exit code is 0 if the job completed
    and 1 if it failed or was cancelled.

    \b
    Examples:
      dagmaster submit hello_world '{"name": "Ada"}' --poll
      dagmaster submit nightly -i day=31 --idempotency-key nightly-31
    """
    settings = begin(ctx, traced=True)
    as_json = as_json or form is TextForm.JSON
    options = {
        "priority": priority,
        "submitted_by": submitted_by,
        "correlation_id": correlation_id,
        "idempotency_key": idempotency_key,
        "callback_url": callback_url,
    }
    arguments = SubmitArguments(workflow, single_inputs or (), (inputs, document), handlers or (), options)
    with ExitStack() as stack:

        def show(result: SubmitResult) -> Show | None:
            _announce(result, as_json=as_json, poll=poll)
            return stack.enter_context(showing(as_json=as_json)) if poll else None

        view = backend_of(ctx, settings).submit(arguments, show)
    if view is not None:
        raise typer.Exit(conclude(view, as_json=as_json))


def _announce(result: SubmitResult, *, as_json: bool, poll: bool) -> None:
    if not as_json:
        typer.echo(result.job_id)
    elif not poll:
        print_json({"job_id": str(result.job_id), "is_new": result.is_new})
    if not result.is_new:
        tell(f"job {result.job_id} was already submitted with this idempotency key")
    for warning in result.warnings:
        tell(f"warning: {warning}")
