from collections.abc import Callable
from datetime import timedelta
from decimal import Decimal
from typing import Any

import pytest

from dagmaster import handler, task
from dagmaster.handlers import registry
from dagmaster.model.cache_policy import Caching, read_caching


@pytest.mark.parametrize(
    ("cache", "seconds"),
    [(90, 90.0), (0.5, 0.5), (timedelta(minutes=2), 120.0), ("15m", 900.0), ("1d", 86_400.0), (True, None)],
)
def test_an_expiry_can_be_given_in_several_forms(cache: Any, seconds: float | None) -> None:
    assert read_caching(cache, "2") == Caching(seconds, "2")


@pytest.mark.parametrize("cache", [None, False])
def test_without_a_policy_nothing_is_cached(cache: Any) -> None:
    assert read_caching(cache, "2") is None


@pytest.mark.parametrize(
    ("cache", "error", "message"),
    [
        ("soon", ValueError, "'soon' is not a duration"),
        ("", ValueError, "is not a duration"),
        ("0s", ValueError, "more than 0 s"),
        (0, ValueError, "more than 0 s"),
        (-1, ValueError, "more than 0 s"),
        (float("nan"), ValueError, "use True for no limit"),
        (float("inf"), ValueError, "use True for no limit"),
        (10**400, ValueError, "use True for no limit"),
        (timedelta(seconds=-1), ValueError, "more than 0 s"),
        (timedelta.max, ValueError, "100 years"),
        ([1], TypeError, "a timedelta"),
        (Decimal(1), TypeError, "a timedelta"),
        (b"15m", TypeError, "a timedelta"),
    ],
)
@pytest.mark.parametrize("decorate", [task, handler])
def test_an_invalid_duration_is_refused_at_the_declaration(
    decorate: Callable[..., Any], cache: Any, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        decorate(cache=cache)


@pytest.mark.parametrize(
    ("version", "error"), [(2, TypeError), (None, TypeError), ("x" * 129, ValueError), ("a\0", ValueError)]
)
def test_a_version_is_a_short_string(version: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match="cache_version must"):
        task(cache=True, cache_version=version)


def test_tasks_and_handlers_are_registered_with_their_policy() -> None:
    @task(cache="1h", cache_version="3")
    def kept(x: int) -> int:
        return x

    @handler("test_caching.kept", cache=True)
    def also_kept(ctx: Any) -> None: ...

    assert registry.get(kept.handler).caching == Caching(3600.0, "3")
    assert registry.get("test_caching.kept").caching == Caching(None, "")
