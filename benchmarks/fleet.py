"""The measured processes, and what they have cost so far."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.workflows import QUEUE

TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
CONCURRENCY = 64
STOP_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Role:
    """A running process of the fleet."""

    pid: int
    address: str = ""

    @property
    def cpu_seconds(self) -> float:
        return cpu_seconds(self.pid)

    @property
    def peak_mb(self) -> float:
        """The most memory it ever had."""
        [line] = [line for line in _proc(self.pid, "status").splitlines() if line.startswith("VmHWM")]
        return int(line.split()[1]) / 1024


def cpu_seconds(pid: int) -> float:
    """User and system time of a process, from `/proc`."""
    fields = _proc(pid, "stat").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS_PER_SECOND


def _proc(pid: int, name: str) -> str:
    return Path(f"/proc/{pid}/{name}").read_text()


@contextmanager
def started(role: str, dsn: str, concurrency: int = CONCURRENCY, queue: str = QUEUE) -> Iterator[Role]:
    """A process of its own, stopped in order at the end."""
    command = [sys.executable, "-m", "benchmarks.role", role, dsn, str(concurrency), queue]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        ready, _, address = process.stdout.readline().strip().partition(" ")
        if ready != "ready":
            raise RuntimeError(f"the {role} did not start; its exit code is {process.wait()}")
        yield Role(process.pid, address)
    finally:
        process.terminate()
        try:
            process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


@contextmanager
def separate(dsn: str) -> Iterator[tuple[Role, Role]]:
    """An orchestrator and a worker."""
    with ExitStack() as stack:
        orchestrator = stack.enter_context(started("orchestrator", dsn))
        yield orchestrator, stack.enter_context(started("worker", dsn))
