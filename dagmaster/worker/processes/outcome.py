"""The outcome of a handler in a process of its own, even if the process died before it could report one."""

import os
import signal
from dataclasses import dataclass
from typing import Any

from dagmaster.handlers.contract import HandlerResult

GB, MB = 1024**3, 1024**2
OUT_OF_MEMORY = ("MemoryError", "Exception")
DIED = ("ProcessDied", "Exception")


@dataclass(frozen=True, slots=True)
class Usage:
    """The resources of one attempt; None if the system does not report them."""

    peak_memory_bytes: int | None
    cpu_seconds: float | None


@dataclass(frozen=True, slots=True)
class Outcome:
    """`output` is encoded already; that of `result` is None. `interrupted`: stopped after a checkpoint."""

    result: HandlerResult
    output: bytes | None = None
    usage: Usage | None = None
    interrupted: bool = False


@dataclass(frozen=True, slots=True)
class Death:
    """The end of a process. `status` is its wait status; None if the fork server died before it."""

    status: int | None
    peak_memory_bytes: int | None = None
    cpu_seconds: float | None = None


def outcome_reported(head: dict[str, Any], output: bytes) -> Outcome:
    """The outcome as the child reported it."""
    result = HandlerResult(
        head["success"],
        error_message=head["error_message"],
        metrics=head["metrics"],
        permanent=head["permanent"],
        retry_after_seconds=head["retry_after_seconds"],
        error_types=tuple(head["error_types"]),
    )
    usage = Usage(head["peak_memory_bytes"], head["cpu_seconds"])
    return Outcome(result, output if result.success else None, usage, head["ending"] == "interrupted")


def outcome_of(death: Death, spent_before: float, oom_kills: tuple[int | None, int | None]) -> Outcome:
    """The outcome of a child that died before its handler ended. `oom_kills` is the kernel's count before and after."""
    cpu = None if death.cpu_seconds is None else max(death.cpu_seconds - spent_before, 0.0)
    usage = Usage(death.peak_memory_bytes, cpu)
    if death.status is None:
        return failed("the fork server ended, and the handler process with it", usage=usage)
    if (code := os.waitstatus_to_exitcode(death.status)) != -signal.SIGKILL:
        return failed(_describe_exit(code), usage=usage)
    peak = f" (peak {_size(death.peak_memory_bytes)})" if death.peak_memory_bytes else ""
    before, after = oom_kills
    if before is None or after is None:
        message = f"the handler process was killed by the kernel, most likely because it ran out of memory{peak}"
        return failed(message, OUT_OF_MEMORY, usage)
    if after > before:
        return failed(
            f"the handler process was killed by the kernel because it ran out of memory{peak}", OUT_OF_MEMORY, usage
        )
    return failed(f"the handler process was killed with SIGKILL, but not for lack of memory{peak}", usage=usage)


def failed(message: str, error_types: tuple[str, ...] = DIED, usage: Usage | None = None) -> Outcome:
    return Outcome(HandlerResult(False, error_message=message, error_types=error_types), usage=usage)


def _describe_exit(code: int) -> str:
    if code >= 0:
        return f"the handler process ended with exit code {code}"
    try:
        return f"the handler process crashed with {signal.Signals(-code).name}"
    except ValueError:  # real-time signal
        return f"the handler process crashed with signal {-code}"


def _size(count: int) -> str:
    return f"{count / GB:.1f} GB" if count >= GB else f"{count / MB:.0f} MB"
