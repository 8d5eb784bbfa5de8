"""A job that is waited for at the terminal, and how it ended."""

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import typer

from dagmaster.cli.failures import JOB_FAILED, tell
from dagmaster.cli.live import live_view, plain_lines
from dagmaster.cli.output import console, dump, print_for_reading, print_json
from dagmaster.cli.progress import JobView, Show
from dagmaster.model.states import JobStatus


def showing(*, as_json: bool) -> AbstractContextManager[Show]:
    """The way in which this stdout shows a job."""
    if as_json:
        return nullcontext(lambda view: None)
    screen = console()
    return live_view(screen) if screen.is_terminal else plain_lines()


def conclude(view: JobView, *, as_json: bool, value: Any = None) -> int:
    """Show how the job ended; the exit code. `value` is what a workflow function has made of the result."""
    if as_json:
        more = {} if value is None else {"value": value}
        record = {"job_id": str(view.job_id), "status": view.status, "result": view.result, "error": view.error}
        print_json(record | more)
    elif view.status is JobStatus.COMPLETED:
        _print_result(view, value)
    else:
        reason = f": {view.error}" if view.error else ""
        tell(f"job {view.job_id} {view.status}{reason}", f"what happened: dagmaster timeline {view.job_id}")
    return 0 if view.status is JobStatus.COMPLETED else JOB_FAILED


def _print_result(view: JobView, value: Any) -> None:
    """On a terminal in the order of the nodes, and without what is too long to be read."""
    screen = console()
    if not screen.is_terminal:
        typer.echo(dump(view.result if value is None else value))
        return
    if value is not None:
        print_for_reading(screen, value)
        return
    outputs = {node.node_id: view.result[node.node_id] for node in view.nodes if node.node_id in view.result}
    print_for_reading(screen, outputs)
