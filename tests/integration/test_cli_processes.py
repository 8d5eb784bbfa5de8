"""The command line in separate processes, on the embedded PostgreSQL of a data folder."""

import os
import pty
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from command_line import WORKFLOWS, call, write_workflow
from fork_server import IS_REAL, fork_server

NAPS = """\
workflow_id: naps
nodes:
  nap: {handler: cli.nap, retry: {max_attempts: 3, initial_delay_seconds: 0}}
  end_of_nap: {handler: echo, depends_on: [nap]}
"""
NAP = """\
import asyncio
from pathlib import Path
from dagmaster import handler

@handler("cli.nap")
async def nap(ctx):
    while not Path("alarm").exists():
        await asyncio.sleep(0.05)
"""
THREAD = """\
import time
from dagmaster import handler

@handler("cli.stubborn")
def stubborn(ctx):
    time.sleep(120)
"""
START_SECONDS = 60.0


def program(*, is_real: bool) -> list[str]:
    """A fork of a process with everything imported behaves the same and starts at once."""
    return [sys.executable, "-m", "dagmaster"] if is_real or IS_REAL else [str(fork_server().programs / "dagmaster")]


class Folder:
    """A folder with its own installation."""

    def __init__(self, path: Path) -> None:
        self.path = path
        known = ("DAGMASTER_", "POSTGRES_")
        self.env = {name: value for name, value in os.environ.items() if not name.startswith(known)}
        self.env |= {"DAGMASTER_WORKFLOWS_DIR": str(WORKFLOWS)}
        self.started: list[subprocess.Popen[str]] = []

    def start(self, *args: object, is_real: bool = True, **env: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [*program(is_real=is_real), *map(str, args)],
            cwd=self.path,
            env=self.env | env,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.started.append(process)
        return process

    def ask(self, *args: object) -> Any:
        done = call(*args, "--data-dir", self.path / ".dagmaster", "--json")
        assert done.code == 0, done.err
        return done.json


@pytest.fixture
def folder() -> Iterator[Folder]:
    # Not in pytest's temporary folder, which other users cannot enter: as root, the server runs as another user.
    new = Folder(Path(tempfile.mkdtemp(prefix="dagmaster-cli-")))
    yield new
    for process in new.started:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
            process.communicate(timeout=START_SECONDS)
    shutil.rmtree(new.path)


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + START_SECONDS
    while not condition():
        assert time.monotonic() < deadline, "it did not come to pass"
        time.sleep(0.1)


def read_until(process: subprocess.Popen[str], words: str) -> None:
    assert process.stdout is not None
    for line in process.stdout:
        if words in line:
            return
    raise AssertionError(f"it ended without saying {words!r}")


def stop(process: subprocess.Popen[str], number: signal.Signals) -> tuple[int, str]:
    process.send_signal(number)
    _, err = process.communicate(timeout=START_SECONDS)
    assert "Traceback" not in err
    return process.returncode, err


def test_a_job_interrupted_by_ctrl_c_resumes_with_dev(folder: Folder) -> None:
    nap = folder.path / "cli_nap.py"
    nap.write_text(NAP)
    flow = write_workflow(folder.path, NAPS)
    running = folder.start("run", flow, "--handlers", nap, DAGMASTER_SHUTDOWN_GRACE_SECONDS="0")
    read_until(running, "nap: running")
    code, err = stop(running, signal.SIGINT)
    assert code == 130
    match = re.search(r"stopping: job (\d+) has not ended; it continues with `dagmaster dev`", err)
    assert match
    job_id = match[1]

    (folder.path / "alarm").touch()
    dev = folder.start("dev", "--port", "0", "--handlers", nap)
    read_until(dev, "ready; stop with Ctrl-C")
    until(lambda: bool(folder.ask("show", job_id)["status"] == "completed"))
    submitted = folder.start("submit", "hello_world", "-i", "name=Ada", "--poll", is_real=False)
    out, err = submitted.communicate(timeout=START_SECONDS)
    assert (submitted.returncode, err) == (0, "")
    assert re.match(r"\d+\n(greet: running\n)?greet: completed", out)
    assert '"message": "Hello, Ada!"' in out
    assert stop(dev, signal.SIGINT)[0] == 0
    assert not list((folder.path / ".dagmaster" / "postgres").glob("data/postmaster.pid"))


def test_separate_processes_share_the_data_folder_and_a_running_job_can_be_cancelled(folder: Folder) -> None:
    stubborn = folder.path / "cli_stubborn.py"
    stubborn.write_text(THREAD)
    flow = write_workflow(folder.path, "workflow_id: w\nnodes:\n  a: {handler: cli.stubborn}\n")
    orchestrator = folder.start(is_real=False, RUN_MODE="orchestrator")
    quick = {"DAGMASTER_SHUTDOWN_GRACE_SECONDS": "1"}
    worker = folder.start("worker", "--queues", "default, other", "--handlers", stubborn, is_real=False, **quick)
    until((folder.path / ".dagmaster" / "postgres" / "data").exists)
    until(lambda: len(folder.ask("workers")["workers"]) == 1)
    until(lambda: len(folder.ask("workers")["orchestrators"]) == 1)
    assert folder.ask("workers")["workers"][0]["queues"] == ["default", "other"]

    job_id = folder.ask("submit", flow)["job_id"]
    until(lambda: bool(folder.ask("show", job_id)["nodes"][1]["status"] == "running"))
    assert folder.ask("queues")[0]["running"] == 1
    done = folder.ask("cancel", job_id, "--reason", "enough")
    assert done == {"job_id": job_id, "status": "cancelled", "is_done": True}

    began = time.monotonic()
    assert stop(worker, signal.SIGTERM)[0] == 0
    assert time.monotonic() - began < 40, "it waited for a thread that sleeps for two minutes"
    code, err = stop(orchestrator, signal.SIGTERM)
    assert code == 0
    assert "starting orchestrator" in err
    assert err.rstrip().endswith("data")


def test_on_a_terminal_a_job_is_shown_while_it_runs(folder: Folder, dsn: str) -> None:
    leader, follower = pty.openpty()
    script = [*program(is_real=False), "run", "fan_out_fan_in", "--database-url", dsn]
    env = folder.env | {"TERM": "xterm", "COLUMNS": "100", "LINES": "30"}
    running = subprocess.Popen(script, cwd=folder.path, env=env, stdout=follower, stderr=follower)
    os.close(follower)
    screen = b""
    with suppress(OSError):  # The other end was closed.
        while part := os.read(leader, 65536):
            screen += part
    os.close(leader)
    text = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", screen.decode())
    assert running.wait(START_SECONDS) == 0
    assert re.search(r"✓ add_each completed +\d+(\.\d)? m?s ━+ 3/3", text)
    assert '"total": {"result": 136, "processed": 3}' in text


def test_python_m_dagmaster_migrates(folder: Folder, dsn: str) -> None:
    out, _ = folder.start("migrate", DAGMASTER_DATABASE_URL=dsn).communicate(timeout=START_SECONDS)
    assert re.fullmatch(r"schema revision: \d+\n", out)
