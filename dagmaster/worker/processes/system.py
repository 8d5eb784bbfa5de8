"""Operating system calls; where the system lacks one, they return None and do nothing."""

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
    """Receive this signal when the parent dies."""
    if sys.platform == "linux":
        _libc.prctl(PR_SET_PDEATHSIG, number, 0, 0, 0)


def kill_group(pid: int) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)


def flush_c() -> None:
    """Flush the buffers of C libraries, which keep some kilobytes when they write to a pipe."""
    _libc.fflush(None)


def has_children() -> bool:
    """Whether there are child processes, zombies included."""
    try:
        os.waitpid(-1, os.WNOHANG)
    except ChildProcessError:
        return False
    return True


class Meter:
    """Measures memory and CPU time from its creation on."""

    def __init__(self) -> None:
        self._is_peak_ours = _forget_peak()
        self._cpu = _cpu_seconds()
        self._largest_child = peak_memory(resource.RUSAGE_CHILDREN)

    def read(self) -> Usage:
        peak = memory("VmHWM") if self._is_peak_ours else None
        if peak is None:
            peak = peak_memory()
        # Of ended subprocesses only the largest is known: it belongs to this task if it is new.
        if (child := peak_memory(resource.RUSAGE_CHILDREN)) > self._largest_child:
            peak = max(peak, child)
        return Usage(peak, round(_cpu_seconds() - self._cpu, 3))


def peak_memory(whose: int = resource.RUSAGE_SELF) -> int:
    """The peak of this process since its start, or of the largest subprocess that has ended, in bytes."""
    return resource.getrusage(whose).ru_maxrss * RUSAGE_UNIT


def memory(field: str) -> int | None:
    """A field of /proc/self/status, in bytes."""
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


@contextmanager
def limited(memory_mb: int | None) -> Iterator[None]:
    """Limit the memory allocated inside, on top of what the process has; more raises MemoryError."""
    allocated = memory("VmData")
    if memory_mb is None or allocated is None:
        yield
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    limits = [allocated + memory_mb * MIB, soft, hard]
    resource.setrlimit(resource.RLIMIT_DATA, (min(limit for limit in limits if limit != resource.RLIM_INFINITY), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))


def oom_kills(root: Path = Path("/sys/fs/cgroup"), groups: Path = Path("/proc/self/cgroup")) -> int | None:
    """How many processes of this control group the kernel's OOM killer has killed."""
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
    """Version 1 before version 2: where both exist, the memory controller is in version 1."""
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
    yield root / "memory.events"  # in a container that sees the path of the host
