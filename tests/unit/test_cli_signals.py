"""The first signal asks, the second ends; a stop by command is no signal."""

import asyncio
import os
import signal

import pytest

from dagmaster.cli import runtime


async def test_a_signal_behind_a_stop_by_command_is_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    ended: list[int] = []
    monkeypatch.setattr(runtime.os, "_exit", ended.append)
    stop = runtime.stop_on_signals()
    stop.set()
    os.kill(os.getpid(), signal.SIGTERM)
    await asyncio.sleep(0.05)
    assert ended == []
    os.kill(os.getpid(), signal.SIGTERM)
    await asyncio.sleep(0.05)
    assert ended == [128 + signal.SIGTERM]
