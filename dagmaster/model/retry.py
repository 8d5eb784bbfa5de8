"""How often, after which errors, and after which delay a failed node is retried."""

from collections.abc import Sequence
from datetime import timedelta
from enum import StrEnum
from random import Random
from typing import Annotated, Any

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    SerializerFunctionWrapHandler,
    ValidationInfo,
    field_validator,
    model_serializer,
    model_validator,
)

OUT_OF_MEMORY = "MemoryError"
TIMED_OUT = ("TimeoutError", "OSError", "Exception")
# A call that does not match the handler's signature: a `TypeError` of the call, not from inside the handler.
WRONG_CALL = "dagmaster.handlers.WrongCall"
# A later attempt cannot succeed: the definition or the code must change first.
NOT_RETRIED = ("dagmaster.errors.ExpressionFailed", "NameError", WRONG_CALL)
# Raised by a handler to request a retry.
RETRY_REQUESTED = "dagmaster.handlers.contract.Retry"


class Backoff(StrEnum):
    FIXED = "fixed"
    LINEAR = "linear"
    EXPONENTIAL = "exponential"


def _checked_name(name: str) -> str:
    if not all(part.isidentifier() for part in name.split(".")):
        raise ValueError("it must be the name of an exception, such as ConnectionError or httpx.HTTPStatusError")
    return name


def _as_list(value: Any) -> Any:
    return (value,) if isinstance(value, str) else value


ErrorName = Annotated[str, AfterValidator(_checked_name)]
ErrorNames = Annotated[tuple[ErrorName, ...], BeforeValidator(_as_list)]


class OnOom(BaseModel):
    """The queue of the next attempt after one ran out of memory: its workers have more."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    queue: str = Field(min_length=1, max_length=128)


class RetryPolicy(BaseModel):
    """`max_attempts` counts retries: 3 means that a node may run four times. `retries` is the preferred name.

    With `on`, only these errors are retried; errors in `never` are not, even if `on` includes them. A name includes the
    subclasses of the exception. Expression errors and wrong calls are only retried if `on` names them.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    max_attempts: int = Field(default=3, ge=0, le=1000)
    backoff: Backoff = Backoff.EXPONENTIAL
    initial_delay_seconds: float = Field(default=5, ge=0, le=86_400, allow_inf_nan=False)
    max_delay_seconds: float = Field(default=300, ge=0, le=604_800, allow_inf_nan=False)
    jitter: float = Field(default=0, ge=0, le=1, description="0.2 spreads each delay over 80 to 120 per cent")
    on: ErrorNames = ()
    never: ErrorNames = ()
    on_oom: OnOom | None = None

    @field_validator("never")
    @classmethod
    def _not_in_both(cls, never: tuple[str, ...], info: ValidationInfo) -> tuple[str, ...]:
        if both := [name for name in never if name in info.data.get("on", ())]:
            raise ValueError(f"it names {both[0]}, which is also in 'on'; remove it from one of them")
        return never

    @field_validator("on_oom", mode="before")
    @classmethod
    def _queue_alone(cls, value: Any) -> Any:
        """`on_oom: heavy` is short for `on_oom: {queue: heavy}`."""
        if isinstance(value, str):
            return {"queue": value}
        if value is not None and not isinstance(value, dict | OnOom):
            raise ValueError("it must be the name of a queue")
        return value

    @model_serializer(mode="wrap")
    def _without_unset_rules(self, serialize: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Definitions pinned before these rules existed keep their hash."""
        written: dict[str, Any] = serialize(self)
        return {key: value for key, value in written.items() if value or key not in ("on", "never", "on_oom")}

    @model_validator(mode="before")
    @classmethod
    def _spelt_out(cls, data: Any) -> Any:
        """`retries` is `max_attempts`, and an initial delay above the default limit raises the limit."""
        if not isinstance(data, dict):
            return data
        if "retries" in data and "max_attempts" in data:
            raise ValueError("'retries' and 'max_attempts' mean the same: use only one of them")
        fields = {"max_attempts" if key == "retries" else key: value for key, value in data.items()}
        first, limit = data.get("initial_delay_seconds"), cls.model_fields["max_delay_seconds"].default
        if isinstance(first, int | float) and first > limit:
            fields.setdefault("max_delay_seconds", first)
        return fields

    @model_validator(mode="after")
    def _initial_within_max(self) -> "RetryPolicy":
        if self.initial_delay_seconds > self.max_delay_seconds and "max_delay_seconds" in self.model_fields_set:
            raise ValueError("initial_delay_seconds is larger than max_delay_seconds")
        return self


def retry_delay(policy: RetryPolicy, retry: int, rng: Random) -> timedelta:
    """The delay before the `retry`th retry (1 is the first)."""
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


def find_rule_against(policy: RetryPolicy, error_types: Sequence[str]) -> str | None:
    """The rule that forbids a retry, as it is written: `never: ValueError`, or `by default: NameError`."""
    refused = next((name for name in error_types if name in policy.never), None)
    if refused is not None:
        return f"never: {refused}"
    is_allowed = any(name in policy.on for name in error_types) or RETRY_REQUESTED in error_types
    if not is_allowed and any(name in NOT_RETRIED for name in error_types):
        return f"by default: {error_types[0]}"
    if not policy.on or is_allowed or find_queue_after(policy, error_types) is not None:
        return None
    return f"on: {', '.join(policy.on)}"


def find_queue_after(policy: RetryPolicy, error_types: Sequence[str]) -> str | None:
    """The queue for attempts after one ran out of memory, if the policy has one."""
    return policy.on_oom.queue if policy.on_oom and OUT_OF_MEMORY in error_types else None
