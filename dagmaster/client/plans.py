"""How a question is asked until it is answered, and a job is waited for: steps for whoever does the I/O. No I/O.

A plan is a generator that yields steps, is sent what became of each, and returns the answer. Both clients run the same
plans.
"""

import random
from collections.abc import Generator, Iterator
from dataclasses import dataclass, field
from time import monotonic
from typing import Any, TypeVar

import httpx
from httpx_sse import ServerSentEvent
from pydantic import ValidationError

from dagmaster.client import calls
from dagmaster.client.calls import Call
from dagmaster.client.errors import ClientError, JobCancelled, JobFailed, TimedOut, error_of, unreachable
from dagmaster.errors import Unavailable
from dagmaster.model.states import JOB_TERMINAL, JobStatus
from dagmaster.schemas.jobs import JobReply
from dagmaster.schemas.timeline import TimelineEntry

T = TypeVar("T")

TRY_AGAIN = frozenset({502, 503, 504})
FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 0.1, 5.0
# A server that was there a moment ago is being restarted.
PATIENCE_SECONDS = 600.0
# The server says something every 15 seconds at least.
SILENCE_SECONDS = 45.0
# With a limit of time the connection is looked after more often: a blocking read does not look at the clock.
LISTEN_SECONDS = 5.0
DROPPED = "dropped"  # what a reader who was too slow is told
SHOWN = 200
ENDINGS = frozenset({"job_completed", "job_failed", "job_cancelled"})


@dataclass(frozen=True, slots=True)
class Send:
    """Sent back is the response, or the TransportError."""

    call: Call[Any]


@dataclass(frozen=True, slots=True)
class Pause:
    seconds: float


@dataclass(frozen=True, slots=True)
class Listen:
    """Read the job's stream until the connection ends."""

    stream: "Stream"


Plan = Generator[Send | Pause | Listen, Any, T]


def pauses() -> Iterator[float]:
    """Longer and longer, and never the same for all clients."""
    longest = FIRST_PAUSE_SECONDS
    while True:
        yield longest * random.uniform(0.5, 1.0)
        longest = min(longest * 2, LONGEST_PAUSE_SECONDS)


def asking(call: Call[T], retries: int) -> Plan[T]:
    """The answer; raises what the server said, or Unavailable."""
    waits = pauses()
    for left in range(retries if call.is_safe else 0, -1, -1):
        answer = yield Send(call)
        if not left or not _may_pass(answer):
            break
        yield Pause(max(next(waits), _retry_after(answer)))
    return _read(call, answer)


def _may_pass(answer: httpx.Response | httpx.TransportError) -> bool:
    return isinstance(answer, httpx.TransportError) or answer.status_code in TRY_AGAIN


def _read(call: Call[T], answer: httpx.Response | httpx.TransportError) -> T:
    if isinstance(answer, httpx.TransportError):
        raise unreachable(answer.request.url, answer) from answer
    if not answer.is_success:
        raise error_of(answer)
    return call.read(answer.content)


def _retry_after(answer: httpx.Response | httpx.TransportError) -> float:
    if isinstance(answer, httpx.TransportError):
        return 0.0
    given = answer.headers.get("Retry-After", "")
    return min(float(given), LONGEST_PAUSE_SECONDS) if given.isdecimal() else 0.0


def waiting(job_id: int | str, retries: int, timeout_seconds: float | None) -> Plan[JobReply]:
    """The job when it has ended: told by its stream, and asked for again and again where there is none."""
    deadline = monotonic() + timeout_seconds if timeout_seconds is not None else None
    job = yield from asking(calls.job(job_id), retries)
    stream = Stream(job_id, retries, deadline=deadline)
    while job.status not in JOB_TERMINAL:
        yield Listen(stream)
        if not stream.has_news:
            yield stream.pause()
        if stream.is_late():
            raise TimedOut(f"job {job_id} is {job.status} after {timeout_seconds:g} s; it goes on")
        job = yield from _asking_patiently(calls.job(job_id), stream)
    return job


def _asking_patiently(call: Call[T], stream: "Stream") -> Plan[T]:
    began = monotonic()
    while True:
        try:
            return (yield from asking(call, stream.retries))
        except Unavailable as error:
            if stream.is_late():
                raise TimedOut(f"job {stream.job_id} has not ended in time, as far as is known: {error}") from error
            if monotonic() - began > PATIENCE_SECONDS:
                raise
        yield stream.pause()


def outcome(job: JobReply) -> dict[str, Any]:
    match job.status:
        case JobStatus.FAILED:
            raise JobFailed(job)
        case JobStatus.CANCELLED:
            raise JobCancelled(job)
        case _:
            return job.result_data or {}


@dataclass(slots=True)
class Stream:
    """Where one is in a job's stream of events. It is opened again behind the last one whenever it was lost."""

    job_id: int | str
    retries: int
    after: str | None = None
    deadline: float | None = None
    has_ended: bool = False
    has_news: bool = False
    _lost: Exception | None = None
    _failures: int = 0
    _lost_at: float | None = None
    _was_open: bool = False
    _is_over: bool = False
    _last_type: str = ""
    _waits: Iterator[float] = field(default_factory=pauses)

    # For whoever reads it.

    def request(self, usual: httpx.Timeout) -> dict[str, Any]:
        """The arguments of the request for another connection."""
        self._lost, self.has_news = None, False
        silence = SILENCE_SECONDS
        if self.deadline is not None:
            silence = max(min(LISTEN_SECONDS, self.deadline - monotonic()), 0.01)
        return {
            "method": "GET",
            "url": calls.stream_path(self.job_id),
            "headers": {"Last-Event-ID": self.after} if self.after is not None else {},
            "timeout": httpx.Timeout(silence, connect=usual.connect),
        }

    def opened(self, response: httpx.Response) -> None:
        """Raises what the server says instead of events; its body was read."""
        if not response.is_success:
            raise error_of(response)
        if not response.headers.get("Content-Type", "").startswith("text/event-stream"):
            raise ClientError(f"the answer is no stream of events but {response.headers.get('Content-Type')!r}")
        self._was_open = True

    def take(self, said: ServerSentEvent) -> TimelineEntry:
        if said.event == DROPPED:
            raise Unavailable(f"the server has ended the stream: {said.data[:SHOWN]}")
        try:
            event = TimelineEntry.model_validate_json(said.data)
        except ValidationError as error:
            raise ClientError(f"the stream of job {self.job_id} holds what is no event: {said.data[:100]!r}") from error
        # Events of different writers may come a little out of order.
        self.after = max(self.after or "0", event.event_id, key=int)
        self._last_type = event.event_type
        self.has_news = True
        self._lost_at, self._waits = None, pauses()
        return event

    def lose(self, error: Exception) -> None:
        self._lost = error

    # For plans.

    def is_late(self) -> bool:
        return self.deadline is not None and monotonic() >= self.deadline

    def pause(self) -> Pause:
        seconds = next(self._waits)
        if self.deadline is not None:
            seconds = max(min(seconds, self.deadline - monotonic()), 0.0)
        return Pause(seconds)

    def gone(self) -> Plan[None]:
        """A connection has ended: so has the stream, or it must be opened again."""
        if self._lost is not None:
            self._check_patience(self._lost)
        elif self._last_type in ENDINGS or self._is_over:
            # A job that was tried again has several endings; at the last one the server hangs up.
            self.has_ended = True
            return
        else:
            # What ended the job while we asked is still to be read.
            self._is_over = (yield from asking(calls.job(self.job_id), self.retries)).status in JOB_TERMINAL
        if not self.has_news:
            yield self.pause()

    def _check_patience(self, error: Exception) -> None:
        """Raises when there is no more of it: little for a server that never answered."""
        if not isinstance(error, httpx.TransportError | Unavailable):
            raise error
        self._failures += 1
        self._lost_at = self._lost_at or monotonic()
        is_enough = monotonic() - self._lost_at > PATIENCE_SECONDS if self._was_open else self._failures > self.retries
        if is_enough and isinstance(error, httpx.TransportError):
            raise unreachable(error.request.url, error) from error
        if is_enough:
            raise error
