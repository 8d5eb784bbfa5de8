"""The blocking client: its methods are made from the asynchronous one's."""

import inspect

import pytest

from dagmaster.client import AsyncClient, Client
from dagmaster.client.coroutines import complete, iterate


def public(kind: type) -> dict[str, inspect.Signature]:
    return {
        name: inspect.signature(method)
        for name, method in inspect.getmembers(kind, inspect.isfunction)
        if not name.startswith("_") and name != "ask"
    }


def test_both_clients_have_the_same_methods_with_the_same_arguments() -> None:
    blocking, awaited = public(Client), public(AsyncClient)
    assert blocking == awaited
    assert not any(inspect.iscoroutinefunction(getattr(Client, name)) for name in blocking)


def test_an_abandoned_generator_is_closed() -> None:
    closed = []

    async def numbers():
        try:
            yield 1
            yield 2
        finally:
            closed.append(True)

    several = iterate(numbers())
    assert next(several) == 1
    several.close()  # type: ignore[attr-defined]
    assert closed == [True]
    assert list(iterate(numbers())) == [1, 2]


def test_awaiting_an_event_loop_is_an_error_and_does_not_hang() -> None:
    class Waiting:
        def __await__(self):
            yield

    async def wait() -> None:
        await Waiting()

    with pytest.raises(RuntimeError, match="event loop"):
        complete(wait())
