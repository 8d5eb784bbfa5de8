"""The first signal stops, the second ends at once; a commanded stop is no signal, and after the end none counts."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

from dagmaster.cli import runtime

# A command that ends by itself, gets a signal after its loop, and one while the interpreter is finalized.
LATE = """
import asyncio, os, signal
from dagmaster.cli import app, runtime

def kill():
    os.kill(os.getpid(), signal.SIGTERM)

class Last:
    def __del__(self, kill=os.kill, me=os.getpid(), number=signal.SIGTERM):
        kill(me, number)

async def run():
    runtime.stop_on_signals()

def command(prog_name):
    asyncio.run(run())
    kill()
    print("closed")

last = Last()
app.app = command
app.main()
"""


@pytest.fixture(autouse=True)
def _own_handlers() -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


async def test_a_signal_after_a_commanded_stop_counts_as_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    ended: list[int] = []
    monkeypatch.setattr(os, "_exit", ended.append)
    stop = runtime.stop_on_signals()
    stop.set()
    signal.raise_signal(signal.SIGTERM)  # Handled in this thread before it returns.
    assert ended == []
    signal.raise_signal(signal.SIGTERM)
    assert ended == [128 + signal.SIGTERM]
    await asyncio.sleep(0)


def test_a_signal_after_the_end_changes_nothing() -> None:
    ended = subprocess.run([sys.executable, "-c", LATE], capture_output=True, text=True)
    assert (ended.returncode, ended.stdout) == (0, "closed\n"), ended.stderr
