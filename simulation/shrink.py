"""Find a smaller failing world: fewer faults, fewer planned failures, fewer steps."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from random import Random

from simulation.cases import Case, Plan
from simulation.ground import Violation
from simulation.world import Weather, World

LUCKS = 4
ROUNDS = 30


@dataclass(frozen=True, slots=True)
class Trial:
    """Everything that determines a world."""

    case: Case
    weather: Weather
    luck: int

    def build(self) -> World:
        return World(self.case, self.weather, Random(f"world {self.luck}"))


def shrink(trial: Trial, world: World, violation: Violation) -> tuple[World, Violation]:
    """The smallest failing world found, after its failure, and the violation."""
    smallest = trial, world, violation
    for _ in range(ROUNDS):
        smaller = next(_failing(smallest[0], smallest[1].ground.step), None)
        if smaller is None:
            break
        smallest = smaller
    return smallest[1], smallest[2]


def _failing(trial: Trial, steps: int) -> Iterator[tuple[Trial, World, Violation]]:
    """Trials that are simpler than this one, or equally simple and fail sooner."""
    for simpler in _simpler(trial):
        for luck in range(LUCKS):
            tried = replace(simpler, luck=luck)
            world = tried.build()
            violation = _fails(world)
            if violation is not None and (simpler is not trial or world.ground.step < steps):
                yield tried, world, violation


def _simpler(trial: Trial) -> Iterator[Trial]:
    plain = {node_id: Plan(plan.value, plan.shape) for node_id, plan in trial.case.plans.items()}
    if plain != trial.case.plans:
        yield replace(trial, case=replace(trial.case, plans=plain))
    if trial.case.additions:
        yield replace(trial, case=replace(trial.case, additions={}, added={}))
    for fault in sorted(trial.weather.faults):
        yield replace(trial, weather=replace(trial.weather, faults=trial.weather.faults - {fault}))
    if trial.weather.local_workers:
        yield replace(trial, weather=replace(trial.weather, local_workers=False))
    if trial.weather.steps:
        yield replace(trial, weather=replace(trial.weather, steps=trial.weather.steps // 2))
    yield trial


def _fails(world: World) -> Violation | None:
    try:
        world.run()
    except Violation as violation:
        return violation
    return None
