"""The engine of processes that share a folder of tables: a client of the local data service."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from dagmaster.data.engine import NO_LIMITS, Limits, folder_of
from dagmaster.data.server_engine import ServerEngine, shared
from dagmaster.data.service import HOST, ServiceHold
from dagmaster.data.statements import KILL_BY_COMMENT
from dagmaster.errors import EngineLost

T = TypeVar("T")


class ServiceEngine(ServerEngine):
    """Starts the service on demand, and restarts it when it has died. Idempotent statements are then retried."""

    kill_statement = KILL_BY_COMMENT
    pauses = (0.0, 0.0, 0.0)  # Reconnecting waits until the service has restarted.

    def __init__(self, folder: Path, limits: Limits) -> None:
        super().__init__(limits, host=HOST, port=0, username="dagmaster", compress=False)
        self._folder = folder
        self._hold: ServiceHold | None = None
        self._holder_pid = 0

    def _ask(self, ask: Callable[[Any], T]) -> T:
        try:
            return super()._ask(ask)
        except EngineLost:
            with self._connecting:
                super().disconnect()
            raise

    def disconnect(self) -> None:
        super().disconnect()
        hold, self._hold = self._hold, None
        if hold is not None and self._holder_pid == os.getpid():
            hold.release()

    def _connect(self) -> Any:
        if self._hold is None or self._holder_pid != os.getpid():
            self._hold, self._holder_pid = ServiceHold(self._folder), os.getpid()
        address = self._hold.address()
        self._address |= {"port": address.port, "password": address.key}
        return super()._connect()


def open_url(url: str, limits: Limits = NO_LIMITS) -> ServiceEngine:
    return shared(url, limits, lambda: ServiceEngine(folder_of(url), limits))
