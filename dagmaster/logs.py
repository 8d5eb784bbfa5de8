"""What processes say about themselves: lines on stderr, for people or for machines."""

import logging
import sys
from datetime import UTC, datetime
from typing import Any, TextIO

import orjson

CALLERS = ("dagmaster/handlers/calling.py", "concurrent/futures/thread.py")
TASK_FIELDS = ("job_id", "node_id", "task_id")


class _Stderr(logging.StreamHandler[TextIO]):
    """Looks up stderr for each record: a live view puts its own in place, and shows the lines above itself."""

    def __init__(self) -> None:
        logging.Handler.__init__(self)

    @property
    def stream(self) -> TextIO:  # type: ignore[override]
        return sys.stderr


class _FromTheHandler(logging.Formatter):
    """A traceback begins in the code of the handler that failed, not in what called it."""

    def formatException(self, ei: Any) -> str:  # noqa: N802
        kind, error, whole = ei
        inner = whole
        while inner is not None and inner.tb_frame.f_code.co_filename.endswith(CALLERS):
            inner = inner.tb_next
        return super().formatException((kind, error, inner or whole))


class TextFormat(_FromTheHandler):
    def format(self, record: logging.LogRecord) -> str:
        told = " ".join(f"{name}={value}" for name, value in _task(record).items() if name == "task_id")
        text = super().format(record)
        return f"{text} ({told})" if told and "\n" not in text else text

    def formatTime(self, record: logging.LogRecord, datefmt: str | None = None) -> str:  # noqa: N802
        return _time(record)


class JsonFormat(_FromTheHandler):
    """One object on each line."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": _time(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **_task(record),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return orjson.dumps(line, default=str).decode()


def set_up_logs(level: str, style: str) -> None:
    """For the whole process; a second call replaces the first."""
    stderr = _Stderr()
    stderr.setFormatter(
        JsonFormat() if style == "json" else TextFormat("%(asctime)s %(levelname)-7s %(name)s: %(message)s")
    )
    logging.basicConfig(level=level.upper(), handlers=[stderr], force=True)
    if logging.getLogger().level > logging.DEBUG:
        logging.getLogger("alembic").setLevel(logging.WARNING)


def _task(record: logging.LogRecord) -> dict[str, str]:
    """The ids as texts: a job's id is larger than what JavaScript takes for a number."""
    return {name: str(getattr(record, name)) for name in TASK_FIELDS if hasattr(record, name)}


def _time(record: logging.LogRecord) -> str:
    at = datetime.fromtimestamp(record.created, UTC)
    return at.isoformat(timespec="milliseconds").replace("+00:00", "Z")
