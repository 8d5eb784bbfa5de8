"""The position of a reader in the event stream of a job, from which it reconnects. No I/O."""

import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from time import monotonic
from typing import Any

import httpx
from httpx_sse import ServerSentEvent
from pydantic import ValidationError

from dagmaster.client.call import job_path
from dagmaster.client.errors import ClientError, error_of, unreachable
from dagmaster.errors import Unavailable
from dagmaster.schemas.timeline import TimelineEntry

FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 0.1, 5.0
# A server that was reachable a moment ago is probably restarting.
PATIENCE_SECONDS = 600.0
# The server sends something every 15 seconds at least.
SILENCE_SECONDS = 45.0
# Reads time out earlier if there is a deadline: a blocking read does not check the clock.
LISTEN_SECONDS = 5.0
DROPPED = "dropped"  # the event for a reader that is too slow
SHOWN = 200
ENDINGS = frozenset({"job_completed", "job_failed", "job_cancelled"})


def pauses() -> Iterator[float]:
    """Exponential delays with jitter."""
    longest = FIRST_PAUSE_SECONDS
    while True:
        yield longest * random.uniform(0.5, 1.0)
        longest = min(longest * 2, LONGEST_PAUSE_SECONDS)


@dataclass(slots=True)
class EventStream:
    job_id: int | str
    retries: int
    after: str | None = None
    deadline: float | None = None
    has_news: bool = False
    lost: Exception | None = None  # the error that ended the last connection
    _failures: int = 0
    _lost_at: float | None = None
    _was_open: bool = False
    _last_type: str = ""
    _waits: Iterator[float] = field(default_factory=pauses)

    # For the reader.

    def request(self, usual: httpx.Timeout) -> dict[str, Any]:
        """The arguments of the request for another connection."""
        self.lost, self.has_news = None, False
        silence = SILENCE_SECONDS
        if self.deadline is not None:
            silence = max(min(LISTEN_SECONDS, self.deadline - monotonic()), 0.01)
        return {
            "method": "GET",
            "url": f"{job_path(self.job_id)}/stream",
            "headers": {"Last-Event-ID": self.after} if self.after is not None else {},
            "timeout": httpx.Timeout(silence, connect=usual.connect),
        }

    def opened(self, response: httpx.Response) -> None:
        """Raises the error that the server returned instead of events. Its body must have been read."""
        if not response.is_success:
            raise error_of(response)
        if not response.headers.get("Content-Type", "").startswith("text/event-stream"):
            raise ClientError(f"the response is not an event stream but {response.headers.get('Content-Type')!r}")
        self._was_open = True

    def take(self, sent: ServerSentEvent) -> TimelineEntry:
        if sent.event == DROPPED:
            raise Unavailable(f"the server has ended the stream: {sent.data[:SHOWN]}")
        try:
            event = TimelineEntry.model_validate_json(sent.data)
        except ValidationError as error:
            raise ClientError(f"the stream of job {self.job_id} has an invalid event: {sent.data[:100]!r}") from error
        # Events of different writers may come a little out of order.
        self.after = max(self.after or "0", event.event_id, key=int)
        self._last_type = event.event_type
        self.has_news = True
        self._lost_at, self._waits = None, pauses()
        return event

    # For callers that wait.

    def is_late(self) -> bool:
        return self.deadline is not None and monotonic() >= self.deadline

    def pause_seconds(self) -> float:
        """The delay before the next attempt."""
        seconds = next(self._waits)
        if self.deadline is not None:
            seconds = max(min(seconds, self.deadline - monotonic()), 0.0)
        return seconds

    def has_ended(self) -> bool:
        """Whether the last connection ended with the job. Raises if the connection has been lost for too long.

        A retried job has several ends; after the last one the server closes the stream.
        """
        if self.lost is not None:
            self._check_limit(self.lost)
            return False
        return self._last_type in ENDINGS

    def _check_limit(self, error: Exception) -> None:
        """Raises if the connection has been lost for too long; sooner if the server never responded."""
        if not isinstance(error, httpx.TransportError | Unavailable):
            raise error
        self._failures += 1
        self._lost_at = self._lost_at or monotonic()
        is_enough = monotonic() - self._lost_at > PATIENCE_SECONDS if self._was_open else self._failures > self.retries
        if is_enough and isinstance(error, httpx.TransportError):
            raise unreachable(error.request.url, error) from error
        if is_enough:
            raise error
