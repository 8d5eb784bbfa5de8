import subprocess
import sys

import dagmaster


def test_the_public_names_are_exactly_these() -> None:
    assert dir(dagmaster) == sorted(dagmaster.__all__)


def test_every_public_name_can_be_imported() -> None:
    for name in dagmaster.__all__:
        assert getattr(dagmaster, name) is not None


def test_dir_lists_the_public_names() -> None:
    script = """
import rlcompleter, dagmaster
complete = rlcompleter.Completer({"dagmaster": dagmaster}).complete
print([complete("dagmaster.create_", number) for number in range(2)])
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert "dagmaster.create_job" in done.stdout
    assert "dagmaster.create_task" in done.stdout
