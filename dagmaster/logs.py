"""The logs of processes: lines on stderr, as text or as JSON."""

import logging
import sys
from collections.abc import Callable, Mapping
from contextvars import ContextVar, Token
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Any, TextIO

import orjson

from dagmaster.model.redact import redact_text

CALLERS = (
    "dagmaster/handlers/invocation.py",
    "dagmaster/worker/processes/attempt.py",
    "concurrent/futures/thread.py",
)
IDS = ("request_id", "job_id", "node_id", "task_id")
# The id at the end of a line of text is the first of these: that of a task includes its job and node.
SHOWN = ("task_id", "job_id", "request_id")

# Captures the output of tasks (`dagmaster.worker.capture`), not the log of the process.
task_output: ContextVar[Any] = ContextVar("task_output", default=None)
# Hides the secrets of a task in everything that is logged while it runs, the log of the process included.
task_mask: ContextVar[Callable[[str], str] | None] = ContextVar("task_mask", default=None)
_ids: ContextVar[Mapping[str, object]] = ContextVar("ids", default=MappingProxyType({}))


class about:  # noqa: N801 - it reads as a statement: `with about(job_id=job_id):`
    """Adds these ids to every line logged inside, also by a handler's thread."""

    __slots__ = ("_added", "_token")

    def __init__(self, **ids: object) -> None:
        self._added = ids

    def __enter__(self) -> None:
        self._token: Token[Mapping[str, object]] = _ids.set({**_ids.get(), **self._added})

    def __exit__(self, *_: object) -> None:
        _ids.reset(self._token)


def remember(**ids: object) -> None:
    """The same for the rest of this asyncio task."""
    _ids.set({**_ids.get(), **ids})


def clean(text: str) -> str:
    """The text without anything that looks like a secret, and without the known secrets of the current task."""
    mask = task_mask.get()
    return redact_text(mask(text) if mask is not None else text)


def current_request_id() -> str | None:
    value = _ids.get().get("request_id")
    return None if value is None else str(value)


class _Stderr(logging.StreamHandler[TextIO]):
    """Looks up stderr for each record: a live view puts its own in place, and shows the lines above itself."""

    def __init__(self) -> None:
        logging.Handler.__init__(self)

    @property
    def stream(self) -> TextIO:  # type: ignore[override]
        return sys.stderr

    def emit(self, record: logging.LogRecord) -> None:
        token = task_output.set(None)
        try:
            super().emit(record)
        finally:
            task_output.reset(token)


class _HandlerTracebacks(logging.Formatter):
    """Starts tracebacks in the code of the handler that failed, not in its callers."""

    def formatException(self, ei: Any) -> str:  # noqa: N802
        kind, error, traceback = ei
        inner = traceback
        while inner is not None and inner.tb_frame.f_code.co_filename.endswith(CALLERS):
            inner = inner.tb_next
        return super().formatException((kind, error, inner or traceback))


class TextFormat(_HandlerTracebacks):
    def format(self, record: logging.LogRecord) -> str:
        text = clean(super().format(record))
        first, newline, following = text.partition("\n")
        return f"{first}{_told(_about(record))}{newline}{following}"

    def formatTime(self, record: logging.LogRecord, datefmt: str | None = None) -> str:  # noqa: N802
        return _time(record)


class JsonFormat(_HandlerTracebacks):
    """One object on each line."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": _time(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": clean(record.getMessage()),
            **_about(record),
        }
        if record.exc_info:
            line["exception"] = clean(self.formatException(record.exc_info))
        return orjson.dumps(line, default=str).decode()


def set_up_logs(level: str, style: str) -> None:
    """For the whole process; a second call replaces the first."""
    stderr = _Stderr()
    stderr.setFormatter(
        JsonFormat() if style == "json" else TextFormat("%(asctime)s %(levelname)-7s %(name)s: %(message)s")
    )
    logging.basicConfig(level=level.upper(), handlers=[stderr], force=True)
    if logging.getLogger().level > logging.DEBUG:
        for talkative in ("alembic", "httpx"):  # A line for each migration, a line for each request.
            logging.getLogger(talkative).setLevel(logging.WARNING)


def _about(record: logging.LogRecord) -> dict[str, str]:
    """Ids as strings: a job's id is too large for a JavaScript number."""
    known = {**_ids.get(), **{name: value for name in IDS if (value := getattr(record, name, None)) is not None}}
    return {name: str(known[name]) for name in IDS if name in known}


def _told(ids: Mapping[str, str]) -> str:
    name = next((name for name in SHOWN if name in ids), None)
    return f" ({name}={ids[name]})" if name else ""


def _time(record: logging.LogRecord) -> str:
    at = datetime.fromtimestamp(record.created, UTC)
    return at.isoformat(timespec="milliseconds").replace("+00:00", "Z")
