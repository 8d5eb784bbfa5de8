import asyncio
import sys
from pathlib import Path

import pytest

from dagmaster.authoring.catalog import Catalog
from dagmaster.cli.autoreload import Reloader, changes, python_files, start_again


def test_changes_are_classified() -> None:
    before, after = {"a": 1, "b": 2, "c": 3}, {"b": 2, "c": 4, "d": 5}
    assert list(changes(before, after)) == ["a (removed)", "c (changed)", "d (new)"]


def test_a_workflow_whose_file_has_errors_is_not_called_removed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "words.yaml"
    file.write_text("workflow_id: words\nnodes: {a: {handler: echo}}\n")
    reloader = Reloader(Catalog(tmp_path), [], [])
    file.write_text("workflow_id: words\nnodes: [\n")
    asyncio.run(reloader._reload_workflows())
    assert capsys.readouterr().out == "reloaded    words (not available: its file has errors)\n"
    file.unlink()
    file.with_name("other.yaml").write_text("workflow_id: other\nnodes: {a: {handler: echo}}\n")
    asyncio.run(reloader._reload_workflows())
    file.with_name("other.yaml").unlink()
    asyncio.run(reloader._reload_workflows())
    assert capsys.readouterr().out == "reloaded    other (new)\nreloaded    other (removed)\n"


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
