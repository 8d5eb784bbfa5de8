"""What only the operating system can tell or do; where it cannot, the answer is None and nothing is done."""

import ctypes
import os
import resource
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from dagmaster.worker.processes.outcome import Usage

KIB, MIB = 1024, 1024 * 1024
PR_SET_PDEATHSIG = 1
FORGET_PEAK = "5"
RUSAGE_UNIT = 1 if sys.platform == "darwin" else KIB

_libc = ctypes.CDLL(None)


def die_with_parent(number: int) -> None:
    """Be sent this signal when the parent is gone."""
    if sys.platform == "linux":
        _libc.prctl(PR_SET_PDEATHSIG, number, 0, 0, 0)


def kill_group(pid: int) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)


def flush_c() -> None:
    """What libraries in C have printed; to a pipe they keep back some kilobytes."""
    _libc.fflush(None)


def has_children() -> bool:
    """Also such as have ended and were not waited for."""
    try:
        os.waitpid(-1, os.WNOHANG)
    except ChildProcessError:
        return False
    return True


class Meter:
    """Memory and time from its beginning on."""

    def __init__(self) -> None:
        self._is_peak_ours = _forget_peak()
        self._cpu = _cpu_seconds()
        self._largest_child = _largest_child()

    def read(self) -> Usage:
        peak = memory("VmHWM") if self._is_peak_ours else None
        if peak is None:
            peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * RUSAGE_UNIT
        # Of ended subprocesses only the largest is known: it is this task's if there was no such before.
        if (child := _largest_child()) > self._largest_child:
            peak = max(peak, child)
        return Usage(peak, round(_cpu_seconds() - self._cpu, 3))


def memory(field: str) -> int | None:
    """A line of /proc/self/status, in bytes."""
    with suppress(OSError):
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith(f"{field}:"):
                return int(line.split()[1]) * KIB
    return None


def _forget_peak() -> bool:
    try:
        Path("/proc/self/clear_refs").write_text(FORGET_PEAK)
    except OSError:
        return False
    return True


def _cpu_seconds() -> float:
    own, others = resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN)
    return own.ru_utime + own.ru_stime + others.ru_utime + others.ru_stime


def _largest_child() -> int:
    return resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * RUSAGE_UNIT


@contextmanager
def limited(memory_mb: int | None) -> Iterator[None]:
    """Let at most so much be allocated inside, on top of what the process has: more is a MemoryError."""
    held = memory("VmData")
    if memory_mb is None or held is None:
        yield
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    limits = [held + memory_mb * MIB, soft, hard]
    resource.setrlimit(resource.RLIMIT_DATA, (min(one for one in limits if one != resource.RLIM_INFINITY), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))


def oom_kills(root: Path = Path("/sys/fs/cgroup"), groups: Path = Path("/proc/self/cgroup")) -> int | None:
    """How many processes of this control group the kernel has killed for want of memory."""
    for counter in _counters(root, groups):
        lines: list[str] = []
        with suppress(OSError):
            lines = counter.read_text().splitlines()
        for line in lines:
            name, _, count = line.partition(" ")
            if name == "oom_kill":
                return int(count)
    return None


def _counters(root: Path, groups: Path) -> Iterator[Path]:
    """Version 1 before version 2: where both are there, memory is with the first."""
    lines: list[str] = []
    with suppress(OSError):
        lines = groups.read_text().splitlines()
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if "memory" in controllers.split(","):
            yield root / "memory" / path.lstrip("/") / "memory.oom_control"
            yield root / "memory" / "memory.oom_control"
    for line in lines:
        if line.startswith("0::"):
            yield root / line[3:].lstrip("/") / "memory.events"
    yield root / "memory.events"  # in a container that sees the path of its host
