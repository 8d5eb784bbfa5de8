"""The simulator detects bugs: each mutant is a bug that such an engine has had."""

from collections.abc import Iterable

import mutants_attempts
import mutants_flow
import mutants_jobs
import mutants_shown
import pytest
from mutant_seeds import KILLING
from mutants import MUTANTS, Patch

from simulation.ground import Violation
from simulation.run import prepare

SEEDS = range(3000)
SUBJECTS = (mutants_flow, mutants_attempts, mutants_jobs, mutants_shown)


def find(seeds: Iterable[int]) -> int | None:
    """The first seed whose world violates an invariant."""
    for seed in seeds:
        try:
            prepare(seed).build().run()
        except Violation:
            return seed
    return None


@pytest.mark.parametrize("patch", MUTANTS, ids=lambda patch: patch.__name__)
def test_the_simulator_finds_an_engine_that_would(patch: Patch, monkeypatch: pytest.MonkeyPatch) -> None:
    patch(monkeypatch)
    known = KILLING.get(patch.__name__)
    if known is not None and find([known]) is not None:
        return
    seed = find(SEEDS)
    assert seed is not None, f"{patch.__name__} went unnoticed in {len(SEEDS)} worlds"
    print(f'"{patch.__name__}": {seed},')  # noqa: T201 - for mutant_seeds.py


def test_the_known_seeds_belong_to_mutants() -> None:
    assert set(KILLING) <= {patch.__name__ for patch in MUTANTS}


def test_every_subject_has_mutants() -> None:
    assert {patch.__module__ for patch in MUTANTS} == {subject.__name__ for subject in SUBJECTS}
