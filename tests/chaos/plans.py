"""A storm planned from a seed: when jobs are submitted and controlled, and which faults occur."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

from shapes import CHAIN, DOOMED, FAN, FLAKY, FORK, NARROW_FAN, Shape
from storm_workflows import (
    ENDLESS,
    HOPELESS,
    ISOLATED_CHAIN,
    NESTED,
    OPTIONAL,
    PATIENT_CHAIN,
    PATIENT_FAN,
    RACE,
    RESUMABLE_CHAIN,
    SLEEPY,
    STUBBORN,
    TOO_SLEEPY,
)

# The lease of every process; a fault that outlasts it takes a second more.
LEASE_SECONDS = 3.0
EVERY_SECONDS = 1.3
FIRST_PART = 0.3  # The share of jobs that exist when the storm starts.
LAST_JOB_AT = 0.9  # Of the storm.
MOST_PRIORITY = 9


@dataclass(frozen=True)
class PlannedJob:
    """Times are seconds since the start of the storm. A pause is always followed by a resume."""

    number: int
    at: float
    shape: Shape
    inputs: Mapping[str, Any]
    priority: int = 0
    cancel_at: float | None = None
    pause_at: float | None = None
    resume_at: float | None = None


@dataclass(frozen=True)
class FaultKind:
    """Its possible targets (none for the server), and its duration."""

    name: str
    role: str | None = None
    seconds: tuple[float, float] = (0.0, 0.0)


BEYOND_THE_LEASE = (LEASE_SECONDS + 1, LEASE_SECONDS + 3)
FAULTS = (
    FaultKind("kill", "orchestrator", (0.1, 2.0)),
    FaultKind("kill", "worker", (0.1, 2.0)),
    FaultKind("stop", "orchestrator", BEYOND_THE_LEASE),
    FaultKind("stop", "worker", BEYOND_THE_LEASE),
    FaultKind("partition", "orchestrator", BEYOND_THE_LEASE),
    FaultKind("partition", "worker", BEYOND_THE_LEASE),
    FaultKind("withhold", "orchestrator", BEYOND_THE_LEASE),
    FaultKind("withhold", "worker", BEYOND_THE_LEASE),
    FaultKind("refuse", "any", (0.5, 2.0)),
    FaultKind("slow", "any", (1.0, 3.0)),
    FaultKind("reset", "any"),
    FaultKind("reset_all"),
    FaultKind("crash"),
    FaultKind("crash_in_recovery"),
)


@dataclass(frozen=True)
class Fault:
    """`place` is the number of the process that it hits; `seconds` is its duration."""

    at: float
    kind: FaultKind
    place: int | None
    seconds: float


@dataclass(frozen=True)
class Plan:
    seed: int
    seconds: float
    jobs: Sequence[PlannedJob]
    faults: Sequence[Fault] = field(repr=False)


def make_plan(seed: int, *, seconds: float, jobs: int, roles: Sequence[str]) -> Plan:
    """The same for the same arguments. `roles` names the role of each place."""
    rng = Random(seed)
    return Plan(seed, seconds, _plan_jobs(rng, seconds, jobs), _plan_faults(rng, seconds, roles))


def _plan_faults(rng: Random, seconds: float, roles: Sequence[str]) -> list[Fault]:
    """Rounds of all kinds, each shuffled, so that every kind occurs at least once."""
    count = max(len(FAULTS), round(seconds / EVERY_SECONDS))
    kinds: list[FaultKind] = []
    while len(kinds) < count:
        kinds += rng.sample(FAULTS, len(FAULTS))
    step = seconds / count
    return [_plan_fault(rng, (number + rng.random()) * step, kind, roles) for number, kind in enumerate(kinds[:count])]


def _plan_fault(rng: Random, at: float, kind: FaultKind, roles: Sequence[str]) -> Fault:
    places = [place for place, role in enumerate(roles) if kind.role in (role, "any")]
    return Fault(at, kind, rng.choice(places) if places else None, rng.uniform(*kind.seconds))


def _plan_jobs(rng: Random, seconds: float, count: int) -> list[PlannedJob]:
    """All kinds in turn, at random times."""
    return [_plan_job(rng, number, seconds) for number in range(count)]


def _plan_job(rng: Random, number: int, seconds: float) -> PlannedJob:
    make = MAKERS[number % len(MAKERS)]
    at = 0.0 if rng.random() < FIRST_PART else rng.uniform(0, LAST_JOB_AT * seconds)
    shape, inputs = make(rng)
    priority = MOST_PRIORITY if rng.random() < 0.1 else 0
    if shape in CANCELLED:
        return PlannedJob(number, at, shape, inputs, priority, cancel_at=at + rng.uniform(0, 4))
    if rng.random() < 0.15:
        pause_at = at + rng.uniform(0, 1)
        return PlannedJob(number, at, shape, inputs, priority, None, pause_at, pause_at + rng.uniform(0.5, 4))
    return PlannedJob(number, at, shape, inputs, priority)


def _seconds(rng: Random) -> float:
    """Most tasks are short; some are as long as a process lives."""
    return round(rng.choice([rng.uniform(0.01, 0.1), rng.uniform(0.1, 1.5)]), 3)


def _items(rng: Random, most: int) -> list[int]:
    return [rng.randrange(100) for _ in range(rng.randrange(most))]


Maker = Callable[[Random], tuple[Shape, dict[str, Any]]]
MAKERS: Sequence[Maker] = (
    lambda rng: (CHAIN, {"n": rng.randrange(100), "seconds": _seconds(rng)}),
    lambda rng: (ENDLESS, {}),
    lambda rng: (FAN, {"items": _items(rng, 20), "seconds": _seconds(rng) / 4}),
    lambda rng: (PATIENT_CHAIN, {"n": rng.randrange(100), "seconds": _seconds(rng)}),
    lambda rng: (FORK, {"weight": rng.randrange(20), "seconds": _seconds(rng)}),
    lambda rng: (SLEEPY, {}),
    lambda rng: (NARROW_FAN, {"items": _items(rng, 16), "seconds": _seconds(rng) / 4}),
    lambda rng: (RACE, {"n": rng.randrange(100), "seconds": _seconds(rng)}),
    lambda rng: (PATIENT_FAN, {"items": _items(rng, 20), "seconds": _seconds(rng)}),
    lambda rng: (OPTIONAL, {"thorough": rng.random() < 0.5}),
    lambda rng: (NESTED, {"items": _items(rng, 9), "kind": rng.choice(["many", "red", "blue", "grey"])}),
    lambda rng: (FLAKY, {}),
    lambda rng: (STUBBORN, {}),
    lambda rng: (DOOMED, {}),
    lambda rng: (HOPELESS, {}),
    lambda rng: (TOO_SLEEPY, {}),
    lambda rng: (ISOLATED_CHAIN, {"n": rng.randrange(100), "seconds": _seconds(rng)}),
    lambda rng: (RESUMABLE_CHAIN, {"n": rng.randrange(100), "seconds": _seconds(rng) / 2}),
)
CANCELLED = (ENDLESS, PATIENT_CHAIN, PATIENT_FAN)
