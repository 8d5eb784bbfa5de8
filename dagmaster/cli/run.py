"""Run one workflow in this process."""

from typing import Annotated

import typer

from dagmaster.cli.options import Concurrency, Form, Handlers, Inputs, InputsJson, JsonOutput, TextForm, begin

app = typer.Typer(add_completion=False)


@app.command()
def run(
    ctx: typer.Context,
    workflow: Annotated[
        str, typer.Argument(metavar="FILE|ID", help="Workflow file, FILE.py:FUNCTION, or id in the workflows folder.")
    ],
    single_inputs: Inputs = None,
    inputs: InputsJson = None,
    handlers: Handlers = None,
    concurrency: Concurrency = None,
    timeout: Annotated[float | None, typer.Option(metavar="SECONDS", help="Maximum time to wait.", min=0)] = None,
    form: Form = TextForm.TEXT,
    as_json: JsonOutput = False,
) -> None:
    """Run a workflow in this process and show its result.

    The result is the return value of a workflow in Python, or the outputs of
    the nodes. A long result is cut; --output json prints all of it.

    It starts PostgreSQL, an orchestrator and a worker. After Ctrl-C, the job
    continues with the next `dagmaster dev` in the same folder.

    The exit code is 0 if the job completed, 1 if it failed or was cancelled,
    124 after --timeout, and 130 after Ctrl-C.

    \b
    Examples:
      dagmaster run workflows/demo.yaml
      dagmaster run hello_world -i name=Ada
      dagmaster run my.yaml --handlers my_handlers.py --json
      dagmaster run my_workflows.py:nightly
    """
    from dagmaster.cli.backend import SubmitArguments
    from dagmaster.cli.run_workflow import run_workflow

    settings, as_json = begin(ctx, traced=True), as_json or form is TextForm.JSON
    arguments = SubmitArguments(workflow, single_inputs or (), (inputs,), handlers or ())
    raise typer.Exit(run_workflow(settings, arguments, concurrency, timeout, as_json=as_json))
