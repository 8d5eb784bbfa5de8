"""Run random jobs through the engine with lost messages and killed owners: `python -m simulation --runs 10000`.

Stops at the first violated invariant, with exit code 1 and the seed that reproduces it.
"""

import argparse
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import orjson
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from simulation.run import Report, SimulationFailed, fresh_seeds, run_many

RUNS = 1000


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parse(arguments)
    runs, seed = options.runs, options.seed
    seeds = fresh_seeds(runs or RUNS) if seed is None else range(seed, seed + (runs or 1))
    try:
        with _progress(len(seeds), is_shown=not options.json) as on_progress:
            report = run_many(seeds, on_progress)
    except SimulationFailed as error:
        if options.json:
            _print({"ok": False, "seed": str(error.seed), "step": error.step, "error": str(error)})
        print(f"{error}\nreproduce: python -m simulation --seed {error.seed}", file=sys.stderr)
        return 1
    if options.json:
        _print({"ok": True, "first_seed": str(seeds[0]), **_counts(report)})
    else:
        print(f"runs {report.runs:,}, steps {report.steps:,}, faults {sum(report.faults.values()):,}: no violation")
    return 0


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m simulation", description=(__doc__ or "").partition(":")[0] + ".")
    parser.add_argument("--runs", type=_positive, help=f"number of jobs; default: {RUNS}, or 1 with a seed")
    parser.add_argument("--seed", type=int, help="the first seed; a seed always gives the same run")
    parser.add_argument("--json", action="store_true", help="print JSON")
    return parser.parse_args(arguments)


def _positive(value: str) -> int:
    if (number := int(value)) < 1:
        raise ValueError
    return number


def _print(value: dict[str, object]) -> None:
    print(orjson.dumps(value, option=orjson.OPT_INDENT_2).decode())


def _counts(report: Report) -> dict[str, object]:
    faults = {str(fault): number for fault, number in report.faults.items()}
    jobs = {str(status): number for status, number in report.jobs.items()}
    return {"runs": report.runs, "steps": report.steps, "faults": faults, "jobs": jobs}


@contextmanager
def _progress(runs: int, *, is_shown: bool) -> Iterator[Callable[[Report], None]]:
    screen = Console(stderr=True)
    columns = (TextColumn("simulating"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=screen, transient=True, disable=not is_shown or not screen.is_terminal) as progress:
        bar = progress.add_task("", total=runs)
        yield lambda report: progress.update(bar, completed=report.runs)


if __name__ == "__main__":
    sys.exit(main())
