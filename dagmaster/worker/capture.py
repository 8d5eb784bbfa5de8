"""Capture the output of a task, printed and logged, in its own log.

Printed text is stored unchanged; only records of `logging` are redacted. In Python 3.11, threads that a handler starts
do not know their task, and subprocesses write to the worker's own descriptors: both print to the worker's stdout.
"""

import logging
import sys
from collections.abc import Iterable, Sequence
from contextvars import Token
from threading import Lock
from typing import Any, Final

from dagmaster.logs import TextFormat, clean, task_output
from dagmaster.model.redact import HIDDEN

TAIL_BYTES: Final = 64 * 1024
LINE: Final = "%(asctime)s %(levelname)-7s %(name)s: %(message)s"


class TaskLog:
    """Buffers output until it is stored: the beginning and, beyond the limit, the end. Any thread may write."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._tail_bytes = max(min(TAIL_BYTES, max_bytes // 2), 1)
        self._room = max(max_bytes - self._tail_bytes, 0)
        self._pending = bytearray()
        self._ends_line = True
        self._tail = bytearray()
        self._beyond = 0  # bytes that came after the limit
        self._is_told = False
        self._lock = Lock()
        self._hidden: tuple[bytes, ...] = ()
        self._held_back = b""  # may be the start of a secret
        self.is_finished = False
        self.total_bytes = 0  # including what was left out

    def hide(self, secrets: Sequence[bytes]) -> None:
        """Mask these secrets from now on, even where they arrive in pieces."""
        self._hidden = tuple(secrets)

    def write(self, data: bytes | bytearray | memoryview | str) -> None:
        """Ignored after `finish`."""
        chunk = data.encode("utf-8", "backslashreplace") if isinstance(data, str) else bytes(data)
        with self._lock:
            if self.is_finished:
                return
            self._keep(self._without_secrets(chunk) if self._hidden else chunk)

    def _keep(self, chunk: bytes) -> None:
        self.total_bytes += len(chunk)
        head, rest = chunk[: self._room], chunk[self._room :]
        self._room -= len(head)
        self._add(head)
        if rest:
            self._spill(rest)

    def _without_secrets(self, chunk: bytes) -> bytes:
        whole = self._held_back + chunk
        for secret in self._hidden:
            whole = whole.replace(secret, HIDDEN.encode())
        longest = max(_overlap(whole, secret) for secret in self._hidden)
        cut = len(whole) - longest
        self._held_back = whole[cut:]
        return whole[:cut]

    def take(self) -> bytes:
        """The output since the last call, to be stored."""
        with self._lock:
            taken, self._pending = self._pending, bytearray()
        return bytes(taken)

    def finish(self) -> None:
        """End the log; the last output can be taken."""
        with self._lock:
            if self.is_finished:
                return
            self.is_finished = True
            self._keep(self._held_back)
            self._held_back = b""
            tail = bytes(self._tail[-self._tail_bytes :])
            left_out = self._beyond - len(tail)
            if left_out:
                cut = tail.find(b"\n") + 1
                if cut < len(tail):  # Begin with a whole line.
                    left_out, tail = left_out + cut, tail[cut:]
                self._note(f"{left_out:,} bytes left out; the log is limited to {self._max_bytes:,} bytes")
            self._add(tail)
            self._tail.clear()

    def _add(self, chunk: bytes) -> None:
        if chunk:
            self._pending += chunk
            self._ends_line = chunk.endswith(b"\n")

    def _spill(self, rest: bytes) -> None:
        self._beyond += len(rest)
        self._tail += rest[-self._tail_bytes :]
        if len(self._tail) > 2 * self._tail_bytes:
            del self._tail[: -self._tail_bytes]
        if self._beyond > self._tail_bytes and not self._is_told:
            self._is_told = True
            self._note(f"the log is limited to {self._max_bytes:,} bytes; only the end of the rest is kept")

    def _note(self, text: str) -> None:
        self._add(f"{'' if self._ends_line else chr(10)}[dagmaster: {text}]\n".encode())


def _overlap(text: bytes, secret: bytes) -> int:
    """How many bytes at the end of the text may be the start of the secret."""
    for length in range(min(len(secret) - 1, len(text)), 0, -1):
        if text.endswith(secret[:length]):
            return length
    return 0


class capturing:  # noqa: N801 - it reads as a statement: `with capturing(log):`
    """Capture everything printed and logged inside, including by the handler's thread."""

    __slots__ = ("_log", "_token")

    def __init__(self, log: TaskLog) -> None:
        self._log = log

    def __enter__(self) -> None:
        install()  # A live view may have replaced our streams.
        self._token: Token[Any] = task_output.set(self._log)

    def __exit__(self, *_: object) -> None:
        task_output.reset(self._token)


def install() -> None:
    """Install the streams for the whole process. A second call restores what was replaced since."""
    for name in ("stdout", "stderr"):
        if not isinstance(stream := getattr(sys, name), _Text):
            setattr(sys, name, _Text(stream))
    if _records not in logging.getLogger().handlers:
        logging.getLogger().addHandler(_records)


def uninstall() -> None:
    for name in ("stdout", "stderr"):
        if isinstance(stream := getattr(sys, name), _Text):
            setattr(sys, name, stream.inner)
    logging.getLogger().removeHandler(_records)


def _current() -> TaskLog | None:
    """The log of the current task; None in an abandoned thread."""
    log: TaskLog | None = task_output.get()
    return None if log is None or log.is_finished else log


class _Stream:
    """Replaces the stream `inner`: writes to the task's log inside a task, and to `inner` elsewhere."""

    kinds: Any = ()

    def __init__(self, inner: Any) -> None:
        self.inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def write(self, data: Any) -> int:
        log = _current()
        if log is None:
            written: int = self.inner.write(data)
            return written
        if not isinstance(data, self.kinds):
            raise TypeError(f"write() takes {self.kinds[0].__name__}, not {type(data).__name__}")
        log.write(data)
        return len(data)

    def writelines(self, lines: Iterable[Any]) -> None:
        for line in lines:
            self.write(line)

    def flush(self) -> None:
        if _current() is None:
            self.inner.flush()

    def isatty(self) -> bool:
        return _current() is None and bool(self.inner.isatty())


class _Binary(_Stream):
    kinds = (bytes, bytearray, memoryview)


class _Text(_Stream):
    kinds = (str,)

    @property
    def buffer(self) -> _Binary:
        return _Binary(self.inner.buffer)


class _Lines(TextFormat):
    """Formats without ids: every line in the log of a task is about that task."""

    def format(self, record: logging.LogRecord) -> str:
        return clean(logging.Formatter.format(self, record))


class _Records(logging.Handler):
    """Writes the records of tasks to their logs. They also go to the worker's stderr."""

    def __init__(self) -> None:
        super().__init__()
        self.setFormatter(_Lines(LINE))

    def emit(self, record: logging.LogRecord) -> None:
        log = _current()
        if log is None:
            return
        try:
            log.write(f"{self.format(record)}\n")
        except Exception:  # noqa: BLE001 - as in every logging handler, a record that cannot be formatted fails no task
            self.handleError(record)


_records = _Records()
