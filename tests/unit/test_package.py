import subprocess
import sys

import dagmaster


def test_every_public_name_is_there_and_listed() -> None:
    assert set(dagmaster.__all__) <= set(dir(dagmaster))
    for name in dagmaster.__all__:
        assert getattr(dagmaster, name) is not None


def test_a_prompt_completes_the_public_names() -> None:
    script = """
import rlcompleter, dagmaster
complete = rlcompleter.Completer({"dagmaster": dagmaster}).complete
print([complete("dagmaster.create_", number) for number in range(2)])
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert "dagmaster.create_job" in done.stdout
    assert "dagmaster.create_task" in done.stdout
