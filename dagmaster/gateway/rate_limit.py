"""A rate limit for each key: a token bucket."""

import math
from collections import OrderedDict
from collections.abc import Callable
from time import monotonic
from typing import Final

from dagmaster.errors import RateLimited

MAX_BUCKETS: Final = 10_000


class RateLimiter:
    """Each key has a bucket of `burst` tokens, filled at `rate` tokens a second; a request takes one."""

    def __init__(self, rate: float, burst: int, clock: Callable[[], float] = monotonic) -> None:
        self._rate, self._burst, self._clock = rate, burst, clock
        # Tokens and time of the last use; the bucket used last is at the end.
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def take(self, name: str) -> None:
        """Raises RateLimited if the bucket is empty."""
        now = self._clock()
        tokens, at = self._buckets.pop(name, (float(self._burst), now))
        tokens = min(tokens + (now - at) * self._rate, float(self._burst))
        is_empty = tokens < 1
        self._buckets[name] = (tokens if is_empty else tokens - 1, now)
        if len(self._buckets) > MAX_BUCKETS:
            self._buckets.popitem(last=False)
        if is_empty:
            seconds = math.ceil((1 - tokens) / self._rate)
            raise RateLimited(
                f"this key may send {self._rate:g} requests a second; try again in {seconds} s",
                retry_after_seconds=seconds,
            )
