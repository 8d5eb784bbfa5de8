"""The list of mutants: bugs that an engine like this has had, each of which patches the engine."""

from collections.abc import Callable

import pytest

Patch = Callable[[pytest.MonkeyPatch], None]
MUTANTS: list[Patch] = []


def mutant(patch: Patch) -> Patch:
    MUTANTS.append(patch)
    return patch
