"""The engine in simulated worlds, from the command line."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Annotated

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from dagmaster.cli.failures import JOB_FAILED, tell
from dagmaster.cli.options import JsonOutput, begin
from dagmaster.cli.output import console, count_of, print_json
from dagmaster.simulation.run import Report, SimulationFailed, fresh_seeds, run_many

RUNS = 1000

app = typer.Typer(add_completion=False)


@app.command()
def simulate(
    ctx: typer.Context,
    runs: Annotated[int | None, typer.Option(help=f"How many jobs; {RUNS} unless a seed is given.", min=1)] = None,
    seed: Annotated[int | None, typer.Option(help="The first seed; the same seed is the same run.")] = None,
    as_json: JsonOutput = False,
) -> None:
    """Run random jobs through the engine with lost messages and killed owners.

    Ends at the first violation of what dagmaster promises, with exit code 1 and
    the seed that shows it again.

    \b
    For example:
      dagmaster simulate --runs 10000
      dagmaster simulate --seed 42
    """
    begin(ctx)
    seeds = fresh_seeds(runs or RUNS) if seed is None else range(seed, seed + (runs or 1))
    try:
        with _progress(len(seeds), shown=not as_json) as on_progress:
            report = run_many(seeds, on_progress)
    except SimulationFailed as error:
        if as_json:
            print_json({"ok": False, "seed": str(error.seed), "step": error.step, "error": str(error)})
        tell(str(error), f"again: dagmaster simulate --seed {error.seed}")
        raise typer.Exit(JOB_FAILED) from None
    if as_json:
        print_json({"ok": True, "first_seed": str(seeds[0]), **_counts(report)})
        return
    faults = sum(report.faults.values())
    typer.echo(
        f"{count_of(report.runs, 'run')}, {count_of(report.steps, 'step')}, {count_of(faults, 'fault')}: all is well"
    )


def _counts(report: Report) -> dict[str, object]:
    faults = {str(fault): number for fault, number in report.faults.items()}
    jobs = {str(status): number for status, number in report.jobs.items()}
    return {"runs": report.runs, "steps": report.steps, "faults": faults, "jobs": jobs}


@contextmanager
def _progress(runs: int, *, shown: bool) -> Iterator[Callable[[Report], None]]:
    screen = console(stderr=True)
    columns = (TextColumn("simulating"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=screen, transient=True, disable=not shown or not screen.is_terminal) as progress:
        bar = progress.add_task("", total=runs)
        yield lambda report: progress.update(bar, completed=report.runs)
