"""The chore that expires and drops unneeded tables of the data plane."""

import logging
from importlib import import_module
from typing import Any, Final

from dagmaster.data.engine import FOLDERS, folder_of, location_of
from dagmaster.errors import DagmasterError
from dagmaster.orchestrator.shared_connection import Connections
from dagmaster.store.connect import Connection
from dagmaster.store.data_objects import GRACE_SECONDS, expire_ended, expired

log = logging.getLogger(__name__)

# Loaded by name: it needs the extra `data`, and memory that an orchestrator without expired tables saves.
SWEEP: Final = "dagmaster.service.data_sweep"


class DataReaper:
    """`url` is the engine whose tables it drops. Tables in a folder that only one process opens are left to it."""

    def __init__(
        self, connections: Connections, retention_days: float, url: str, grace_seconds: float = GRACE_SECONDS
    ) -> None:
        self._connections, self._url = connections, url
        self._retention_days, self._grace_seconds = retention_days, grace_seconds

    async def run_once(self) -> None:
        async with self._connections.maintenance.turn() as conn:
            count = await expire_ended(conn, retention_days=self._retention_days, grace_seconds=self._grace_seconds)
            is_needed = self._can_sweep() and bool(await expired(conn, location_of(self._url)))
        if count:
            log.info("%d tables have expired", count)
        if is_needed:
            await self._connections.opens(self._sweep)()

    def _can_sweep(self) -> bool:
        """A folder is on this machine: if it is missing, the tables are on another."""
        scheme = self._url.partition(":")[0]
        return scheme not in FOLDERS or (scheme == "service" and folder_of(self._url).exists())

    async def _sweep(self, conn: Connection) -> None:
        try:
            module: Any = import_module(SWEEP)
            await module.sweep(conn, self._url)
        except ModuleNotFoundError as error:
            log.debug("expired tables are left to another process: %s", error)
        except DagmasterError as error:
            log.warning("expired tables could not be dropped; retrying later: %s", error)
