"""How often, and after which pause, a failed node is tried again."""

from datetime import timedelta
from enum import StrEnum
from random import Random

from pydantic import BaseModel, ConfigDict, Field, model_validator


class Backoff(StrEnum):
    FIXED = "fixed"
    LINEAR = "linear"
    EXPONENTIAL = "exponential"


class RetryPolicy(BaseModel):
    """`max_attempts` counts retries: 3 means that a node may run four times (ruling C-20)."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    max_attempts: int = Field(default=3, ge=0, le=1000)
    backoff: Backoff = Backoff.EXPONENTIAL
    initial_delay_seconds: float = Field(default=5, ge=0, le=86_400, allow_inf_nan=False)
    max_delay_seconds: float = Field(default=300, ge=0, le=604_800, allow_inf_nan=False)
    jitter: float = Field(default=0, ge=0, le=1, description="0.2 spreads each delay over 80 to 120 per cent")

    @model_validator(mode="after")
    def _initial_within_max(self) -> "RetryPolicy":
        if self.initial_delay_seconds > self.max_delay_seconds and "max_delay_seconds" in self.model_fields_set:
            raise ValueError("initial_delay_seconds is larger than max_delay_seconds")
        return self


def retry_delay(policy: RetryPolicy, retry: int, rng: Random) -> timedelta:
    """The pause before the `retry`th retry (1 is the first)."""
    first = policy.initial_delay_seconds
    match policy.backoff:
        case Backoff.FIXED:
            seconds = first
        case Backoff.LINEAR:
            seconds = first * retry
        case Backoff.EXPONENTIAL:
            seconds = first * 2.0 ** min(retry - 1, 64)
    seconds = min(seconds, max(policy.max_delay_seconds, first))
    if policy.jitter:
        seconds *= 1 + policy.jitter * (2 * rng.random() - 1)
    return timedelta(seconds=seconds)
