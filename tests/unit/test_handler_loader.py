"""Handlers are loaded from modules, files and installed packages, and a broken one is explained."""

import importlib
import logging
import runpy
import sys
from importlib.metadata import EntryPoint

import pytest

from dagmaster.errors import Misconfigured
from dagmaster.handlers import Registry, basic, export, load_handlers, loader
from dagmaster.handlers import registry as default_registry

BASIC = {
    "adf_export",
    "echo",
    "hello_world",
    "sleep",
    "fail",
    "flaky_echo",
    "multi_phase",
    "size_check",
    "chunk_processor",
    "collect",
}


@pytest.fixture(autouse=True)
def nothing_stays_behind(monkeypatch, tmp_path):
    """Each test has its own folder and restores modules, path and default registry."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(default_registry, "_handlers", dict(default_registry._handlers))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.setattr(loader, "entry_points", lambda group: [])
    before = set(sys.modules)
    yield
    for name in set(sys.modules) - before:
        del sys.modules[name]


@pytest.fixture
def write(tmp_path):
    def write(path, text):
        file = tmp_path / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        return str(file)

    return write


def defining(name):
    return f"from dagmaster.handlers import handler\n\n@handler({name!r})\ndef load(ctx): ...\n"


def loaded(*specs):
    registry = Registry()
    load_handlers(specs, registry)
    return set(registry.names()) - BASIC


def test_the_basic_handlers_are_always_loaded():
    registry = Registry()
    load_handlers([], registry)
    assert set(registry.names()) == BASIC
    assert {handler.function.__module__ for handler in registry} == {basic.__name__, export.__name__}


def test_the_default_registry_is_used_unless_another_is_given(write):
    load_handlers([write("mine.py", defining("mine"))])
    assert "mine" in default_registry.names()


def test_a_file_is_loaded_by_absolute_path(write):
    assert loaded(write("some/where/mine.py", defining("mine"))) == {"mine"}


def test_a_file_is_loaded_by_a_relative_path(write):
    write("mine.py", defining("mine"))
    assert loaded("mine.py") == loaded("./mine.py") == {"mine"}


def test_a_module_is_found_in_the_working_folder(write):
    write("package/__init__.py", "")
    write("package/mine.py", defining("mine"))
    assert loaded("package.mine") == {"mine"}


def test_a_package_registers_the_handlers_of_its_modules(write):
    write("package/__init__.py", "from package import mine")
    write("package/mine.py", defining("mine"))
    assert loaded("package") == {"mine"}
    assert loaded("package") == {"mine"}, "also when it was imported before"


def test_a_file_can_import_its_neighbours(write):
    write("place/neighbour.py", "NAME = 'mine'")
    text = "import neighbour\nfrom dagmaster.handlers import handler\nhandler(neighbour.NAME)(lambda ctx: None)\n"
    assert loaded(write("place/mine.py", text)) == {"mine"}


def test_a_file_also_imported_by_a_neighbour_runs_once(write, capsys):
    mine = write("mine.py", "print('executed')\n" + defining("mine"))
    flow = write("flow.py", "import mine\n" + defining("flow"))
    assert loaded(mine, flow) == {"mine", "flow"}
    assert capsys.readouterr().out.count("executed") == 1


def test_files_with_the_same_name_in_two_folders_are_both_loaded(write):
    assert loaded(write("a/mine.py", defining("a.mine")), write("b/mine.py", defining("b.mine"))) == {
        "a.mine",
        "b.mine",
    }


def test_a_file_named_like_a_known_module_does_not_shadow_it(write):
    known = importlib.import_module("json")
    assert loaded(write("json.py", defining("mine"))) == {"mine"}
    assert importlib.import_module("json") is known


def test_a_file_name_that_is_not_an_identifier_is_allowed(write):
    assert loaded(write("my-handlers.py", defining("mine"))) == {"mine"}


def test_loading_twice_changes_nothing(write):
    mine = write("mine.py", defining("mine"))
    assert loaded(mine, mine) == loaded(mine) == {"mine"}


def test_a_reloaded_module_replaces_its_handlers(write):
    mine = write("mine.py", defining("mine"))
    load_handlers([mine])
    old = default_registry.get("mine").function
    importlib.reload(sys.modules["mine"])
    assert default_registry.get("mine").function is not old


def test_a_script_can_be_loaded_after_it_ran(write):
    mine = write("mine.py", defining("mine"))
    runpy.run_path(mine, run_name="__main__")
    assert loaded(mine) == {"mine"}


def test_installed_packages_register_their_handlers(write, monkeypatch):
    write("plugin.py", defining("plugged"))
    monkeypatch.setattr(
        loader, "entry_points", lambda group: [EntryPoint(name="plugin", value="plugin", group="dagmaster.handlers")]
    )
    assert loaded() == {"plugged"}


def test_a_broken_installed_package_is_named(monkeypatch):
    monkeypatch.setattr(
        loader, "entry_points", lambda group: [EntryPoint(name="plugin", value="gone", group="dagmaster.handlers")]
    )
    with pytest.raises(
        Misconfigured, match="entry point 'plugin' is broken: cannot load handlers: there is no module 'gone'"
    ):
        load_handlers([])


@pytest.mark.parametrize("spec", ["gone", "gone.deeper", "dagmaster.gone"])
def test_a_missing_module_is_named(spec):
    with pytest.raises(Misconfigured, match=f"there is no module '{spec}'"):
        load_handlers([spec])


@pytest.mark.parametrize("spec", ["gone.py", "./gone.py", "place/", "notes/text.txt"])
def test_a_missing_file_is_named(spec):
    with pytest.raises(Misconfigured, match=f"there is no Python file '{spec}'"):
        load_handlers([spec])


@pytest.mark.parametrize(
    "text, problem",
    [
        ("x = 1\nimport gone_too", r"ModuleNotFoundError: No module named 'gone_too' \(.*broken.py:2\)"),
        ("x = 1\n\ny + 1", r"NameError: name 'y' is not defined \(.*broken.py:3\)"),
        ("def f():\n    return {}['k']\n\nf()", r"KeyError: 'k' \(.*broken.py:2\)"),
        ("def f(:", r"SyntaxError: .*\(broken.py, line 1\)"),
        ("raise SystemExit(2)", r"SystemExit: 2 \(.*broken.py:1\)"),
        (defining("echo"), r"': two handlers are named 'echo': .*basic.echo and .*load \(.*broken.py:3\)"),
    ],
)
@pytest.mark.parametrize("spec", ["broken.py", "broken", "other-folder/broken.py"])
def test_an_error_in_a_module_names_its_line(write, spec, text, problem):
    write(spec if spec.endswith(".py") else f"{spec}.py", text)
    with pytest.raises(Misconfigured, match=f"cannot load handlers from '{spec}") as caught:
        load_handlers([spec])
    assert caught.match(problem)
    assert "Traceback" not in str(caught.value)


def test_an_error_in_an_imported_module_names_both_lines(write):
    write("inner.py", "x = 1\n1 / 0")
    with pytest.raises(Misconfigured, match=r"ZeroDivisionError: .*outer.py:1 -> .*inner.py:2\)"):
        load_handlers([write("outer.py", "import inner")])


def test_a_fixed_file_can_be_loaded_after_it_failed(write):
    with pytest.raises(Misconfigured):
        loaded(write("mine.py", defining("mine") + "oops"))
    assert loaded(write("mine.py", defining("mine"))) == {"mine"}


def test_a_file_that_registers_nothing_causes_a_warning(write, caplog):
    with caplog.at_level(logging.WARNING):
        assert loaded(write("mine.py", "def load(ctx): ...")) == set()
    assert "mine.py registers no handlers" in caplog.text
