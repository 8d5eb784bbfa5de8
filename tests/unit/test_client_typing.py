"""What type checkers see of the client that blocks: its methods are made from those of the other."""

import inspect
import sys
from pathlib import Path
from subprocess import run

import pytest

from dagmaster.client import AsyncClient, Client
from dagmaster.client.coroutines import complete, iterate

SAMPLE = """
from dagmaster.client import AsyncClient, Client

with Client("http://server", retries=1) as client:
    reveal_type(client.submit("greet", {"name": "Ada"}, priority=3).job_id)
    reveal_type(client.pause(1, reason="lunch"))
    reveal_type([event.event_type for event in client.stream(1)])
    reveal_type(client.close())
    client.pause()
    client.submit("greet", urgent=True)
"""
TYPES = ["str", "dagmaster.schemas.jobs.JobSteered", "list[str]", "None"]


@pytest.mark.slow
def test_the_methods_of_the_blocking_client_have_types(tmp_path: Path) -> None:
    file = tmp_path / "sample.py"
    file.write_text(SAMPLE)
    checked = run(
        [sys.executable, "-m", "mypy", "--strict", "--no-incremental", "--follow-imports=silent", str(file)],
        capture_output=True,
        text=True,
        check=False,
    )
    lines = checked.stdout.splitlines()
    revealed = [line.split('"')[1].removeprefix("builtins.") for line in lines if "Revealed type" in line]
    assert [one.replace("builtins.", "") for one in revealed] == TYPES, checked.stdout
    assert sum("Too few arguments" in line for line in lines) == 1, checked.stdout
    assert sum('Unexpected keyword argument "urgent"' in line for line in lines) == 1, checked.stdout


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


def test_a_generator_that_is_left_early_is_closed() -> None:
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


def test_what_waits_for_a_loop_is_a_fault_and_does_not_hang() -> None:
    class Waiting:
        def __await__(self):
            yield

    async def wait() -> None:
        await Waiting()

    with pytest.raises(RuntimeError, match="event loop"):
        complete(wait())
