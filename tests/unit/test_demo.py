"""`make demo`, in a terminal and in a script."""

import io
import runpy
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MISSING = "No maps: the geospatial libraries could not be installed"
# Ready at once, and reports that it is stopped.
SERVER = """
import signal, sys
signal.signal(signal.SIGTERM, lambda *_: sys.exit("stopped"))
print("api http://127.0.0.1:1\\nready", flush=True)
signal.pause()
"""


@pytest.fixture
def make_demo(tmp_path: Path) -> Callable[[int], "subprocess.CompletedProcess[str]"]:
    """`make demo` in a prepared environment, whose programs only print their arguments."""
    programs = tmp_path / "bin"
    programs.mkdir()
    (tmp_path / ".installed").touch()

    def run(pip_code: int) -> "subprocess.CompletedProcess[str]":
        for name, code in {"dagmaster": 0, "python": 3, "pip": pip_code}.items():
            (programs / name).write_text(f'#!/bin/sh\necho {name} "$@"\nexit {code}\n')
            (programs / name).chmod(0o755)
        command = ["make", "-C", str(ROOT), "demo", f"VENV={tmp_path}"]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    return run


def test_the_map_demo_runs_after_the_workflow_and_its_failure_fails_the_demo(
    make_demo: Callable[[int], "subprocess.CompletedProcess[str]"],
) -> None:
    demo = make_demo(0)
    steps = ["dagmaster run", "Installing the geospatial libraries", "pip install", "python examples/map/demo.py"]
    places = [demo.stdout.find(step) for step in steps]
    assert -1 not in places
    assert places == sorted(places)
    assert demo.returncode != 0
    assert MISSING not in demo.stdout


def test_without_geospatial_libraries_the_demo_names_what_is_missing(
    make_demo: Callable[[int], "subprocess.CompletedProcess[str]"],
) -> None:
    demo = make_demo(1)
    assert demo.returncode == 0
    assert "dagmaster run workflows/demo.yaml" in demo.stdout
    assert MISSING in demo.stdout
    assert "examples/map/demo.py" not in demo.stdout


@pytest.fixture
def run_map_demo() -> Iterator[Callable[[], None]]:
    """The map demo, without a real server and without jobs."""
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    main = runpy.run_path(str(ROOT / "examples" / "map" / "demo.py"))["main"]
    main.__globals__["COMMAND"] = [sys.executable, "-S", "-c", SERVER]
    main.__globals__["show_maps"] = lambda url: sys.stdout.write(f"maps at {url}\n")
    yield main
    for number, handler in handlers.items():
        signal.signal(number, handler)


class Terminal(io.StringIO):
    """A terminal that sends Ctrl-C on request."""

    def isatty(self) -> bool:
        return True

    def write(self, text: str) -> int:
        length = super().write(text)
        if "Ctrl-C" in text:
            signal.raise_signal(signal.SIGINT)
        return length


def test_in_a_script_the_map_demo_exits(run_map_demo: Callable[[], None], capfd: pytest.CaptureFixture[str]) -> None:
    run_map_demo()
    out, err = capfd.readouterr()
    assert "maps at http://127.0.0.1:1\n" in out
    assert "Serve these addresses again: make demo-map" in out
    assert err == "stopped\n"


def test_in_a_terminal_the_map_demo_serves_until_ctrl_c(
    run_map_demo: Callable[[], None], monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stdout", terminal)
    run_map_demo()
    assert "maps at http://127.0.0.1:1\n" in terminal.getvalue()
    assert terminal.getvalue().endswith("Stopping ...\n")
    assert capfd.readouterr().err == "stopped\n"
