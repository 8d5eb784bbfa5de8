"""The context that a handler receives and the result that it returns."""

import asyncio
import copy
import logging
import math
import threading
from collections.abc import Callable, Generator, Iterable, Mapping, MutableMapping, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as StillWaiting
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Self, TypeVar

import dagmaster
from dagmaster.errors import DagmasterError, Invalid
from dagmaster.handlers.artifacts import Artifact, describe
from dagmaster.handlers.futures import has_running_loop, in_loop

Applied = TypeVar("Applied")

MESSAGE_LIMIT = 2000
LONGEST_RETRY_DELAY_SECONDS = 604_800
# The handler waits this long for a checkpoint to be stored; then it continues while storing is retried.
STORED_WITHIN_SECONDS = 10.0
NEVER = threading.Event()


class Permanent(DagmasterError):
    """The task cannot succeed; it is not retried."""


class Retry(DagmasterError):
    """The handler requests a retry."""

    def __init__(self, message: str = "", *, after: float | timedelta | None = None) -> None:
        """`after` is the delay in seconds, instead of the delay of the node's policy."""
        super().__init__(message)
        self.after_seconds = after.total_seconds() if isinstance(after, timedelta) else after
        _check_delay(self.after_seconds)


class Interrupted(BaseException):
    """The worker stops: the checkpoint is stored, and another worker continues after it.

    Not an Exception, like asyncio's CancelledError: a handler that catches all exceptions must not catch this.
    """


@dataclass(frozen=True, slots=True)
class HandlerResult:
    """How a run ended. `permanent` and `retry_after_seconds` concern failures only."""

    success: bool
    output: dict[str, Any] | None = None
    error_message: str | None = None
    metrics: dict[str, Any] | None = None
    permanent: bool = False
    retry_after_seconds: float | None = None
    error_types: tuple[str, ...] = field(default=(), compare=False)  # for retry rules

    def __post_init__(self) -> None:
        _check_delay(self.retry_after_seconds)

    @classmethod
    def ok(cls, output: dict[str, Any] | None = None) -> Self:
        return cls(success=True, output={} if output is None else output)

    @classmethod
    def failed(cls, message: str, permanent: bool = False) -> Self:
        return cls(success=False, error_message=message, permanent=permanent)


@dataclass(frozen=True, slots=True)
class Progress:
    current: float
    total: float | None = None
    message: str = ""

    @property
    def percent(self) -> float | None:
        """None if the total is unknown."""
        if not self.total or self.total < 0:
            return None
        return round(min(max(100 * self.current / self.total, 0.0), 100.0), 1)


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A completed phase, with the data that the next one needs."""

    phase: str
    data: dict[str, Any]
    artifacts: tuple[Artifact, ...] = ()


class Saving:
    """A checkpoint or added nodes being stored. In a coroutine, `await` it to continue only when that is done."""

    def __init__(self, stored: Future[None] | None, stopping: threading.Event) -> None:
        self._stored, self._stopping = stored, stopping

    def __await__(self) -> Generator[Any, None, None]:
        if self._stored is not None:
            # Shielded and limited: a cancelled handler must not cancel the storing, and an outage must not block it.
            waiting = asyncio.wait([in_loop(self._stored)], timeout=STORED_WITHIN_SECONDS)
            yield from waiting.__await__()
        self._settle()

    def wait_in_thread(self) -> Self:
        """Wait, unless the caller is a coroutine."""
        if not has_running_loop():
            if self._stored is not None:
                with suppress(StillWaiting):
                    self._stored.result(STORED_WITHIN_SECONDS)
            self._settle()
        return self

    def _settle(self) -> None:
        if self._stored is not None and self._stored.done():
            self._stored.result()
        if self._stopping.is_set():
            raise Interrupted


@dataclass(kw_only=True, eq=False)
class HandlerContext:
    """A task as its handler sees it.

    `resumed_from` is the last checkpoint of an earlier attempt. `cancelled` is set when the task must end at once,
    `stopping` when its worker stops: the next checkpoint is the last, and another worker continues after it. `pool`
    lends connections to the worker's database; None on a worker without one and with isolation="process". The sinks
    are called in the thread of the handler, one call at a time, and must return at once.
    """

    task_id: str
    job_id: int
    node_id: str
    handler: str
    # No repr: it may hold secrets, and a repr is soon logged.
    params: dict[str, Any] = field(default_factory=dict, repr=False)
    retry_count: int = 0
    timeout_seconds: float | None = None
    worker_id: str = ""
    queue: str = ""
    correlation_id: str | None = None
    resumed_from: Checkpoint | None = field(default=None, repr=False)
    pool: Any | None = field(default=None, repr=False)
    blob_repository: Any | None = field(default=None, repr=False)
    progress_sink: Callable[[Progress], None] | None = field(default=None, repr=False)
    checkpoint_sink: Callable[[Checkpoint], Future[None] | None] | None = field(default=None, repr=False)
    add_sink: Callable[[Sequence[bytes]], Future[None] | None] | None = field(default=None, repr=False)
    cancelled: threading.Event = field(default_factory=threading.Event, repr=False)
    stopping: threading.Event = field(default_factory=threading.Event, repr=False)
    logger: "TaskLogger" = field(init=False, repr=False)
    last_progress: Progress | None = field(default=None, init=False, repr=False)
    last_checkpoint: Checkpoint | None = field(default=None, init=False, repr=False)

    def __post_init__(self) -> None:
        ids = {"job_id": self.job_id, "node_id": self.node_id, "task_id": self.task_id}
        self.logger = TaskLogger(logging.getLogger(f"dagmaster.handler.{self.handler}"), ids)
        self._sinks = threading.RLock()

    def progress(self, current: float, total: float | None = None, message: str = "") -> None:
        """Report progress. Never blocks; call it from any thread."""
        current = float(current)
        total = None if total is None else float(total)
        if not math.isfinite(current) or not math.isfinite(total or 0):
            return  # A handler's 0/0 is no reason to fail hours of work.
        progress = Progress(current, total, clean_text(message))
        with self._sinks:
            self.last_progress = progress
            if self.progress_sink:
                self.progress_sink(progress)

    def checkpoint(
        self,
        phase: str | int,
        data: Mapping[str, Any] | None = None,
        *,
        artifacts: Iterable[str | Mapping[str, Any]] = (),
    ) -> Saving:
        """Record that this phase is done, so that a later attempt continues after it.

        In a thread or a process it returns when the checkpoint is stored; in a coroutine, `await` the result.
        `artifacts` are files that the next phases need. A missing one is an error at once.
        """
        files = tuple(describe(artifact) for artifact in artifacts)
        # A copy: the handler may change its data while the checkpoint is being stored.
        checkpoint = Checkpoint(clean_text(str(phase)), copy.deepcopy(dict(data or {})), files)
        with self._sinks:
            self.last_checkpoint = checkpoint
            stored = self.checkpoint_sink(checkpoint) if self.checkpoint_sink else None
        return Saving(stored, self.stopping).wait_in_thread()

    def add(self, slices: Sequence[bytes]) -> Saving:
        """Add nodes to this task's own job, as `dagmaster.model.dynamic_nodes.encode_slices` writes them.

        In a thread or a process it returns when they are stored; in a coroutine, `await` the result. They are stored
        before the result of the task, and a repeated attempt adds the same nodes once.
        """
        if self.add_sink is None:
            raise Invalid("tasks cannot be added here: this handler does not run in a job")
        with self._sinks:
            stored = self.add_sink(slices)
        # Unlike a checkpoint, it is no point to resume from.
        return Saving(stored, NEVER).wait_in_thread()

    async def apply(self, items: Applied, job_id: int | None = None) -> Applied:
        """Add tasks and groups of the Python API to this task's job, or to the job `job_id`."""
        tasks: Any = items  # Untyped: the types belong to the Python API, a layer above.
        applied: Applied = await dagmaster.apply(tasks, job_id or self.job_id)
        return applied

    def remaining(self, phases: Sequence[str]) -> Sequence[str]:
        """The phases after the last checkpoint of an earlier attempt; all of them if there is none."""
        if self.resumed_from is None or self.resumed_from.phase not in phases:
            return phases
        return phases[phases.index(self.resumed_from.phase) + 1 :]


Context = HandlerContext


def pool_of(ctx: HandlerContext) -> Any:
    """Raises Permanent on a worker without a database."""
    if ctx.pool is None:
        raise Permanent("this worker has no connection to the database; run the task on a worker with one")
    return ctx.pool


class TaskLogger(logging.LoggerAdapter[logging.Logger]):
    """Adds the task's ids to each record and, unlike its base class in Python 3.11, keeps the caller's `extra`."""

    def process(self, msg: Any, kwargs: MutableMapping[str, Any]) -> tuple[Any, MutableMapping[str, Any]]:
        return msg, {**kwargs, "extra": {**(kwargs.get("extra") or {}), **(self.extra or {})}}


def clean_text(text: str, limit: int = MESSAGE_LIMIT) -> str:
    """Text that PostgreSQL can store: without NUL and lone surrogates, cut to the limit."""
    if len(text) > limit:
        text = text[: limit - 1] + "…"
    return well_formed(text).replace("\0", "\ufffd")


def well_formed(text: str) -> str:
    """Join surrogate pairs and replace lone surrogates."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _check_delay(seconds: float | None) -> None:
    if seconds is not None and not 0 <= seconds <= LONGEST_RETRY_DELAY_SECONDS:
        raise Invalid(
            f"the delay of a retry must be between 0 and {LONGEST_RETRY_DELAY_SECONDS} seconds, not {seconds}"
        )
