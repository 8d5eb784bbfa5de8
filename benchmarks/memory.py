"""The most memory that some processes had at once, with what they share counted once."""

import os
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

import psutil

POLL_SECONDS = 0.2
MB = 1024 * 1024


def own_family() -> list[psutil.Process]:
    """This process and its children."""
    return family(os.getpid())


def family(pid: int) -> list[psutil.Process]:
    """None once the process is gone."""
    with suppress(psutil.NoSuchProcess):
        parent = psutil.Process(pid)
        return [parent, *parent.children(recursive=True)]
    return []


class PeakMemory:
    """Looks five times a second. `bytes` counts the files that a process has mapped, `anonymous_bytes` does not."""

    def __init__(self, processes: Callable[[], Iterable[psutil.Process]] = own_family) -> None:
        self.bytes = self.anonymous_bytes = 0
        self._processes = processes
        self._ended = threading.Event()
        self._watch = threading.Thread(target=self._look)

    def __enter__(self) -> "PeakMemory":
        self._watch.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._watch.join()

    def _look(self) -> None:
        while not self._ended.wait(POLL_SECONDS):
            held = [_memory(process) for process in self._processes()]
            self.bytes = max(self.bytes, sum(whole for whole, _ in held))
            self.anonymous_bytes = max(self.anonymous_bytes, sum(anonymous for _, anonymous in held))


def _memory(process: psutil.Process) -> tuple[int, int]:
    """As the kernel divides shared pages among the processes that have them."""
    whole = anonymous = 0
    with suppress(OSError), Path(f"/proc/{process.pid}/smaps_rollup").open() as lines:
        for line in lines:
            name, _, value = line.partition(":")
            if name == "Pss":
                whole = int(value.split()[0]) * 1024
            elif name == "Pss_Anon":
                anonymous = int(value.split()[0]) * 1024
    return whole, anonymous
