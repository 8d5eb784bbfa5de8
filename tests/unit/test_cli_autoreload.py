import sys
from pathlib import Path

import pytest

from dagmaster.cli.autoreload import changes, python_files, start_again


def test_changes_are_classified() -> None:
    before, after = {"a": 1, "b": 2, "c": 3}, {"b": 2, "c": 4, "d": 5}
    assert list(changes(before, after)) == ["a (removed)", "c (changed)", "d (new)"]


def test_local_handlers_and_modules_are_watched_and_installed_ones_are_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("mine.py", "site-packages/theirs.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
        module = type(sys)(f"watched_{Path(name).stem}")
        module.__file__ = str(tmp_path / name)
        monkeypatch.setitem(sys.modules, module.__name__, module)
    assert python_files(["steps.py", "package.module"]) == [tmp_path / "mine.py", tmp_path / "steps.py"]


@pytest.mark.parametrize("arguments", [["dev", "--port", "0"], ["dev", "--port", "0", "--port", "8123"]])
def test_a_restart_keeps_the_arguments_and_the_port(arguments: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["dagmaster", *arguments])
    executed: list[list[str]] = []
    start_again(8123, lambda _, words: executed.append(words))
    assert executed == [[sys.executable, "-m", "dagmaster", "dev", "--port", "0", "--port", "8123"]]
