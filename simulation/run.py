"""Run the real engine in simulated worlds. A seed always gives the same world."""

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from functools import lru_cache
from random import Random, SystemRandom

from dagmaster.engine.change_set import Rules
from dagmaster.errors import DagmasterError
from dagmaster.model.states import JobStatus
from simulation.cases import Case, random_case
from simulation.graphs import Blueprint, random_blueprint
from simulation.ground import PATIENCE_SECONDS, Fault, Violation
from simulation.shrink import Trial, explain, shrink
from simulation.world import Weather


@dataclass(frozen=True, slots=True)
class Outcome:
    """A run in which every invariant held."""

    seed: int
    status: JobStatus
    steps: int
    faults: Counter[Fault]


@dataclass(slots=True)
class Report:
    runs: int = 0
    steps: int = 0
    faults: Counter[Fault] = field(default_factory=Counter)
    jobs: Counter[JobStatus] = field(default_factory=Counter)

    def add(self, outcome: Outcome) -> None:
        self.runs += 1
        self.steps += outcome.steps
        self.faults += outcome.faults
        self.jobs[outcome.status] += 1


class SimulationFailed(DagmasterError):
    """An invariant was violated."""

    def __init__(self, message: str, seed: int, step: int) -> None:
        super().__init__(message)
        self.seed = seed
        self.step = step


def simulate(seed: int) -> Outcome:
    """Run one world from submission to the end; raise SimulationFailed with the smallest trace found."""
    trial = prepare(seed)
    world = trial.build()
    try:
        world.run()
    except Violation as violation:
        smallest, small = shrink(trial, world, violation)
        raise SimulationFailed(explain(seed, violation, smallest, small), seed, world.ground.step) from violation
    return Outcome(seed, world.ground.store.job.status, world.ground.step, world.ground.faults)


def run_many(seeds: Iterable[int], on_progress: Callable[[Report], None] | None = None) -> Report:
    """Run until the first failure; `on_progress` receives the counts after each run."""
    report = Report()
    for seed in seeds:
        report.add(simulate(seed))
        if on_progress is not None:
            on_progress(report)
    return report


def fresh_seeds(count: int) -> range:
    """Seeds that were most likely never used."""
    first = SystemRandom().randrange(10**9, 10**15)
    return range(first, first + count)


def prepare(seed: int) -> Trial:
    """The case, the weather, and the random numbers of a seed."""
    return Trial(_case(seed), _weather(Random(f"weather {seed}")), luck=seed)


def _case(seed: int) -> Case:
    return random_case(_blueprint(seed // 2), Random(f"case {seed}"))


@lru_cache(maxsize=1)
def _blueprint(seed: int) -> Blueprint:
    """Compiling is a large part of a run: each workflow is used twice, with other inputs, plans and weather."""
    return random_blueprint(Random(f"graph {seed}"))


def _weather(rng: Random) -> Weather:
    """No faults, a few faults, or all of them."""
    likely = rng.choice((0.0, 0.3, 0.3, 0.6, 1.0))
    faults = frozenset(fault for fault in Fault if rng.random() < likely)
    steps, steps_after_end = rng.choice((0, 200, 400, 700)), rng.choice((0, 30))
    rules = Rules(
        slice_size=rng.choice((2, 3, 2_000)),
        dispatch_timeout_seconds=rng.choice((None, None, 30.0)),
        zombie_after_seconds=100.0 if rng.random() < 0.1 else PATIENCE_SECONDS,
    )
    local_workers = rng.random() < 0.6  # Drawn here: another order would change the world of each seed.
    rules = replace(
        rules,
        # If nearly every value is too large for memory, a job needs many more steps, and meets fewer faults in them.
        inline_bytes=rng.choice((0, 24, *(65_536,) * 6)),
        max_change_set_bytes=rng.choice((1, 100, *(16_777_216,) * 6)),
        default_job_timeout_seconds=rng.choice((60.0, 600.0, *(None,) * 10)),
    )
    return Weather(faults, steps, steps_after_end, rules, local_workers)
