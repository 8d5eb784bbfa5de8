"""The list of mutants: bugs that such an engine has had, as patches of the engine."""

from collections.abc import Callable

import pytest

Patch = Callable[[pytest.MonkeyPatch], None]
MUTANTS: list[Patch] = []


def mutant(patch: Patch) -> Patch:
    MUTANTS.append(patch)
    return patch
