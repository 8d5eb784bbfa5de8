"""Display a job that a command waits for, and its outcome."""

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import typer
from rich.console import Console
from rich.highlighter import JSONHighlighter

from dagmaster.cli.failures import JOB_FAILED, tell
from dagmaster.cli.live import live_view, plain_lines
from dagmaster.cli.output import by_node, console, dump, duration, for_reading, print_for_reading, print_json
from dagmaster.cli.progress import JobView, Show
from dagmaster.model.problems import shorten
from dagmaster.model.states import JobStatus

SHORT_CHARS = 2000
SHORT_LINES = 20


def showing(*, as_json: bool) -> AbstractContextManager[Show]:
    """How to display the job: live on a terminal, in lines otherwise."""
    if as_json:
        return nullcontext(lambda view: None)
    screen = console()
    return live_view(screen) if screen.is_terminal else plain_lines()


def conclude(view: JobView, *, as_json: bool, hint: str = "") -> int:
    """Print the outcome of the job; returns the exit code. `hint` is printed at the end."""
    outputs = by_node(view.result, [node.node_id for node in view.nodes])
    if as_json:
        more = {} if view.value is None else {"value": view.value}
        record = {"job_id": str(view.job_id), "status": view.status, "result": outputs, "error": view.error}
        print_json(record | more)
    elif view.status is JobStatus.COMPLETED:
        _print_result(view, outputs or {}, hint)
    else:
        reason = f": {view.error}" if view.error else ""
        tell(f"job {view.job_id} {view.status}{reason}", f"details: dagmaster timeline {view.job_id}")
        if hint:
            tell(hint)
    return 0 if view.status is JobStatus.COMPLETED else JOB_FAILED


def _print_result(view: JobView, outputs: Mapping[str, Any], hint: str) -> None:
    """The return value of a workflow function, or the outputs. Long ones are cut; --output json prints all."""
    screen = console()
    if screen.is_terminal:
        node_outputs = {node.node_id: outputs[node.node_id] for node in view.nodes if node.node_id in outputs}
        if view.value is None and for_reading(node_outputs, screen.width).count("\n") >= SHORT_LINES:
            _print_lines(screen, node_outputs)
            screen.print(f"\n[dim]complete result: dagmaster show {view.job_id} --output json[/]")
        else:
            print_for_reading(screen, node_outputs if view.value is None else view.value)
        if hint:
            screen.print(f"\n[dim]{hint}[/]")
    elif view.value is not None:
        typer.echo(dump(view.value))
    elif len(text := dump(outputs)) <= SHORT_CHARS:
        typer.echo(text)
    else:
        _print_summary(view, outputs)
        if hint:
            typer.echo(hint)


def _print_lines(screen: Console, outputs: Mapping[str, Any]) -> None:
    """One line per node, so that the table of nodes above stays visible."""
    names = max(map(len, outputs))
    for node_id, output in outputs.items():
        line = f"{node_id:<{names}}  {dump(output, lines=False)}"
        screen.print(JSONHighlighter()(line), no_wrap=True, overflow="ellipsis", crop=True)


def _print_summary(view: JobView, outputs: Mapping[str, Any]) -> None:
    """One line per node; long outputs are cut."""
    for node in view.nodes:
        if outputs.get(node.node_id):
            text = dump(outputs[node.node_id], lines=False)
            typer.echo(f"{node.node_id} = {shorten(text)}")
    typer.echo(f"job {view.job_id} completed in {duration(view.seconds)}; complete result: --output json")
