"""The command line in processes of its own, on the PostgreSQL of a data folder."""

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest
from command_line import WORKFLOWS, write_workflow

NAPS = """\
workflow_id: naps
nodes:
  nap: {handler: sleep, params: {seconds: 1.5}, retry: {max_attempts: 3, initial_delay_seconds: 0}}
  end_of_nap: {handler: echo, depends_on: [nap]}
"""
THREAD = """\
import time
from dagmaster import handler

@handler("cli.stubborn")
def stubborn(ctx):
    time.sleep(60)
"""
START_SECONDS = 60.0


class Folder:
    """A folder with an installation of its own."""

    def __init__(self, path: Path) -> None:
        self.path = path
        known = ("DAGMASTER_", "POSTGRES_")
        self.env = {name: value for name, value in os.environ.items() if not name.startswith(known)}
        self.env |= {"DAGMASTER_WORKFLOWS_DIR": str(WORKFLOWS)}
        self.started: list[subprocess.Popen[str]] = []

    def start(self, *args: object, **env: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-m", "dagmaster", *map(str, args)],
            cwd=self.path,
            env=self.env | env,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.started.append(process)
        return process

    def call(self, *args: object, **env: str) -> subprocess.CompletedProcess[str]:
        process = self.start(*args, **env)
        out, err = process.communicate(timeout=START_SECONDS)
        assert "Traceback" not in err
        return subprocess.CompletedProcess(process.args, process.returncode, out, err)

    def ask(self, *args: object) -> Any:
        done = self.call(*args, "--json")
        assert done.returncode == 0, done.stderr
        return orjson.loads(done.stdout)


@pytest.fixture
def folder() -> Iterator[Folder]:
    # Not below pytest's temporary folder, which other users may not pass: as root the server is one.
    made = Folder(Path(tempfile.mkdtemp(prefix="dagmaster-cli-")))
    yield made
    for process in made.started:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
            process.communicate(timeout=START_SECONDS)
    shutil.rmtree(made.path)


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


def test_what_ctrl_c_interrupts_goes_on_with_dev(folder: Folder) -> None:
    running = folder.start("run", write_workflow(folder.path, NAPS), DAGMASTER_SHUTDOWN_GRACE_SECONDS="0")
    read_until(running, "nap: running")
    code, err = stop(running, signal.SIGINT)
    assert code == 130
    found = re.search(r"stopping: job (\d+) has not ended; it goes on with `dagmaster dev`", err)
    assert found
    job_id = found[1]

    dev = folder.start("dev")
    read_until(dev, "ready; stop with Ctrl-C")
    until(lambda: bool(folder.ask("show", job_id)["status"] == "completed"))
    submitted = folder.call("submit", "hello_world", "-i", "name=Ada", "--poll", "--json")
    assert orjson.loads(submitted.stdout)["result"]["greet"] == {"message": "Hello, Ada!"}
    assert (submitted.returncode, submitted.stderr) == (0, "")
    assert stop(dev, signal.SIGINT)[0] == 0
    assert not list((folder.path / ".dagmaster" / "postgres").glob("data/postmaster.pid"))


def test_roles_apart_share_the_folder_and_a_running_job_is_cancelled(folder: Folder) -> None:
    stubborn = folder.path / "cli_stubborn.py"
    stubborn.write_text(THREAD)
    flow = write_workflow(folder.path, "workflow_id: w\nnodes:\n  a: {handler: cli.stubborn}\n")
    orchestrator = folder.start(RUN_MODE="orchestrator")
    worker = folder.start("worker", "--queues", "default, other", "--handlers", stubborn, "--concurrency", "2")
    until(lambda: len(folder.ask("workers")["workers"]) == 1)
    until(lambda: len(folder.ask("workers")["orchestrators"]) == 1)
    assert folder.ask("workers")["workers"][0]["queues"] == ["default", "other"]

    job_id = folder.ask("submit", flow)["job_id"]
    until(lambda: bool(folder.ask("show", job_id)["nodes"][1]["status"] == "running"))
    assert folder.ask("queues")[0]["running"] == 1
    cancelled = folder.call("cancel", job_id, "--reason", "enough")
    assert (cancelled.returncode, cancelled.stdout) == (0, f"job {job_id} is cancelled\n")
    polled = folder.call("submit", flow, "--idempotency-key", "k")
    assert polled.returncode == 0

    # The thread sleeps for a minute; nobody waits for it.
    began = time.monotonic()
    worker.send_signal(signal.SIGTERM)
    time.sleep(0.5)
    worker.send_signal(signal.SIGTERM)
    worker.communicate(timeout=START_SECONDS)
    assert time.monotonic() - began < 30
    code, err = stop(orchestrator, signal.SIGTERM)
    assert code == 0
    assert "the orchestrator is starting" in err
    assert err.rstrip().endswith("data")


def test_python_dash_m_migrates(folder: Folder) -> None:
    done = folder.call("migrate")
    assert done.returncode == 0
    assert re.fullmatch(r"the schema is at revision \d+\n", done.stdout)
