"""Make superblocks in several processes, or in this one.

Run as a module, it is one of the processes: the first input line is the job, the others are superblocks.
"""

import os
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from selectors import EVENT_READ, DefaultSelector
from typing import IO, Final, Literal

from pydantic import BaseModel

from dagmaster.geo.errors import UnreadableRaster
from dagmaster.geo.raster.image import Derivation
from dagmaster.geo.raster.pyramid import Superblock
from dagmaster.geo.raster.superblock import SuperblockMaker, WriteJob

STOP_SECONDS: Final = 5

Make = Callable[[Iterable[Superblock]], Iterator[Superblock]]


class Answer(BaseModel, frozen=True):
    superblock: Superblock
    outcome: Literal["made", "unreadable"] = "made"
    message: str = ""


@contextmanager
def open_pool(job: WriteJob, processes: int, derivation: Derivation | None = None) -> Iterator[Make]:
    """A function that makes superblocks and yields each when it is stored. A derivation stays in this process."""
    if processes == 1 or derivation is not None:
        with SuperblockMaker.open(job, derivation) as maker:
            yield lambda superblocks: _made_here(maker, superblocks)
        return
    pool = _Pool(job, processes)
    try:
        yield pool.make
    finally:
        pool.close()


def _made_here(maker: SuperblockMaker, superblocks: Iterable[Superblock]) -> Iterator[Superblock]:
    for superblock in superblocks:
        maker.make(superblock)
        yield superblock


class _Pool:
    def __init__(self, job: WriteJob, processes: int) -> None:
        command = [sys.executable, "-m", "dagmaster.geo.raster.superblock_pool"]
        self._processes = [
            subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            for _ in range(processes)
        ]
        for process in self._processes:
            _send(process, job.model_dump_json())

    def make(self, superblocks: Iterable[Superblock]) -> Iterator[Superblock]:
        """Each process has one superblock at a time, so faster ones get more."""
        waiting = iter(superblocks)
        with DefaultSelector() as selector:
            for process in self._processes:
                self._next(process, waiting, selector)
            while selector.get_map():
                for key, _ in selector.select():
                    process = key.data
                    selector.unregister(key.fileobj)
                    yield _receive(process)
                    self._next(process, waiting, selector)

    def _next(self, process: "subprocess.Popen[str]", waiting: Iterator[Superblock], selector: DefaultSelector) -> None:
        if (superblock := next(waiting, None)) is not None:
            _send(process, superblock.model_dump_json())
            selector.register(_stream(process.stdout), EVENT_READ, process)

    def close(self) -> None:
        for process in self._processes:
            process.kill()
        for process in self._processes:
            process.wait(STOP_SECONDS)
            for stream in (process.stdin, process.stdout):
                _stream(stream).close()


def _send(process: "subprocess.Popen[str]", line: str) -> None:
    stream = _stream(process.stdin)
    stream.write(line + "\n")
    stream.flush()


def _receive(process: "subprocess.Popen[str]") -> Superblock:
    line = _stream(process.stdout).readline()
    if not line:
        code = process.wait(STOP_SECONDS)
        raise RuntimeError(f"a process that makes superblocks ended with exit code {code}; its log says why")
    answer = Answer.model_validate_json(line)
    if answer.outcome == "unreadable":
        raise UnreadableRaster(answer.message)
    return answer.superblock


def _stream(stream: IO[str] | None) -> IO[str]:
    assert stream is not None
    return stream


def main() -> None:
    """Ends with its input, so that it does not outlive its parent."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # Output of libraries must not mix with the answers.
    job = WriteJob.model_validate_json(sys.stdin.readline())
    with SuperblockMaker.open(job) as maker:
        for line in sys.stdin:
            _answer(maker, Superblock.model_validate_json(line), answers)


def _answer(maker: SuperblockMaker, superblock: Superblock, answers: IO[str]) -> None:
    try:
        maker.make(superblock)
    except UnreadableRaster as error:
        answer = Answer(superblock=superblock, outcome="unreadable", message=str(error))
    else:
        answer = Answer(superblock=superblock)
    answers.write(answer.model_dump_json() + "\n")


if __name__ == "__main__":
    main()
