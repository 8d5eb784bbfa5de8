"""Crashes of PostgreSQL, also while it still recovers from the last one."""

import os
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

from dagmaster.errors import EmbeddedServerFailed
from dagmaster.store.embedded import EmbeddedServer

POLL_SECONDS = 0.001


def crash(server: EmbeddedServer) -> None:
    server.restart(immediate=True)


def crash_in_recovery(server: EmbeddedServer) -> bool:
    """Whether the second crash came before the server had recovered from the first. It is running when this returns."""
    before = _postmaster(server)
    with ThreadPoolExecutor(1) as thread:
        restart = thread.submit(server.restart, immediate=True)
        now = None
        while (now is None or now == before) and not restart.done():
            time.sleep(POLL_SECONDS)
            now = _postmaster(server)
        was_recovering = now is not None and not _is_ready(server)
        _end_at_once(now)
        with suppress(EmbeddedServerFailed):  # It did not start, as intended.
            restart.result()
    crash(server)
    return was_recovering


def _postmaster(server: EmbeddedServer) -> int | None:
    try:
        return int((server.pgdata / "postmaster.pid").read_text().splitlines()[0])
    except (FileNotFoundError, IndexError):
        return None


def _is_ready(server: EmbeddedServer) -> bool:
    """According to the server, which reports it before it accepts connections."""
    with suppress(FileNotFoundError):
        return "ready" in (server.pgdata / "postmaster.pid").read_text()
    return False


def _end_at_once(pid: int | None) -> None:
    if pid is not None:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGQUIT)
