"""A project from `dagmaster init` runs, its tests pass, and `dev` reloads edited files."""

import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from command_line import call

WAIT_SECONDS = 90.0
NEW = "workflow_id: newcomer\nnodes: {a: {handler: hello_world}}\n"


@pytest.fixture
def project(dsn: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("DAGMASTER_DATABASE_URL", dsn)
    monkeypatch.chdir(tmp_path)
    written = call("init", "shop")
    assert written.code == 0
    assert "wrote shop/dagmaster.toml" in written.out
    monkeypatch.chdir(tmp_path / "shop")
    return tmp_path / "shop"


def test_init_creates_a_valid_project_and_overwrites_nothing(project: Path) -> None:
    (project / "handlers.py").write_text("mine")
    again = call("init")
    assert again.code == 2
    assert "dagmaster.toml already exists; nothing was written" in again.err
    assert (project / "handlers.py").read_text() == "mine"


def test_the_tests_of_a_project_pass(project: Path) -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:schemathesis", "-p", "no:cacheprovider"]
    done = subprocess.run(command, cwd=project, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "3 passed" in done.stdout


class Dev:
    """`dagmaster dev` and its output."""

    def __init__(self, folder: Path) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "dagmaster", "dev", "--port", "0"],
            cwd=folder,
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self._lines: queue.Queue[str] = queue.Queue()
        self.said: list[str] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        with self.process.stdout as output:
            for line in output:
                self._lines.put(line.rstrip())

    def end(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self._reader.join(WAIT_SECONDS)

    def until(self, words: str) -> str:
        while not self.said or words not in self.said[-1]:
            try:
                self.said.append(self._lines.get(timeout=WAIT_SECONDS))
            except queue.Empty:
                raise AssertionError(f"it never said {words!r}:\n" + "\n".join(self.said)) from None
        return self.said[-1]


@pytest.fixture
def dev(project: Path) -> Iterator[Dev]:
    dev_server = Dev(project)
    yield dev_server
    dev_server.end()


def edit(path: Path, text: str) -> None:
    """Replace the file, as editors do: `dev` must not read it while it is empty."""
    edited = path.parents[1] / "edited"
    edited.write_text(text)
    edited.replace(path)


def test_dev_reloads_edited_files(project: Path, dev: Dev) -> None:
    api = dev.until("api  ")
    dev.until("ready")
    edit(project / "workflows" / "newcomer.yaml", NEW)
    dev.until("reloaded    newcomer (new)")
    edit(project / "workflows" / "newcomer.yaml", NEW.replace("hello_world", "echo"))
    dev.until("reloaded    newcomer (changed)")
    handlers = (project / "handlers.py").read_text()
    edit(project / "handlers.py", handlers + "\nthis is no Python\n")
    dev.until("not loaded  handlers.py changed; still using the previous version")
    edit(project / "handlers.py", handlers + "\n\nANSWER = 42\n")
    dev.until("restarting  handlers.py changed")
    assert dev.until("api  ") == api
    dev.until("ready")
    dev.process.send_signal(signal.SIGTERM)
    assert dev.process.wait(WAIT_SECONDS) == 0
