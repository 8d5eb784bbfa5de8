"""Error messages for users, and the exit codes of the process."""

import re
import shutil
import sys
import textwrap
import traceback

from dagmaster.errors import DagmasterError

DONE = 0
JOB_FAILED = 1
USAGE_ERROR = 2
INTERNAL_ERROR = 3
TIMED_OUT = 124  # as of timeout(1)
INTERRUPTED = 130

HAS_SEVERITY = re.compile(r"^(\S+ )?(error|warning): ")


def fail(error: Exception, *, debug: bool) -> int:
    """Print the error; returns the exit code."""
    if debug:
        traceback.print_exception(error)
    if isinstance(error, DagmasterError):
        tell(*describe(error))
        return USAGE_ERROR
    first_line, *_ = str(error).strip().splitlines() or [""]
    tell(f"error: {type(error).__name__}: {first_line}")
    if not debug:
        tell("this is a bug in dagmaster; run with --debug for the traceback")
    return INTERNAL_ERROR


def describe(error: DagmasterError) -> list[str]:
    """One line for each problem, if the error has collected some."""
    problems = getattr(error, "problems", None) or [error]
    lines = [str(problem) for problem in problems]
    return [line if HAS_SEVERITY.search(line) else f"error: {line}" for line in lines]


def tell(*lines: str) -> None:
    for line in lines:
        sys.stderr.write((_fitted(line) if sys.stderr.isatty() else line).rstrip() + "\n")
    sys.stderr.flush()


def _fitted(text: str) -> str:
    """Wrapped between words; commands and paths stay whole."""
    width = shutil.get_terminal_size().columns
    lines = [textwrap.wrap(line, width, break_long_words=False, break_on_hyphens=False) for line in text.splitlines()]
    return "\n".join("\n".join(parts) for parts in lines)
