"""Chores that keep the database small: they remove old jobs, expired tables, dead rows, late mail and old instances."""

import logging
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, Final

import psycopg

from dagmaster.assets.layers import refresh_stale
from dagmaster.data.engine import FOLDERS, folder_of, location_of
from dagmaster.errors import Conflict, DagmasterError
from dagmaster.orchestrator.shared_connection import Connections
from dagmaster.store.archive import Archive
from dagmaster.store.connect import Connection
from dagmaster.store.data_objects import GRACE_SECONDS, expire_ended, expired
from dagmaster.store.instances import forget_instances
from dagmaster.store.mailbox import close_late_mail
from dagmaster.store.retention import Forget, note_removal, read_limits, remove_old
from dagmaster.store.schema import bloated_tables, ensure_partitions, vacuum_tables

log = logging.getLogger(__name__)

DEAD_ROWS = 5000
FORGET_AFTER_DAYS = 7
# Loaded by name: it needs the extra `data`, and memory that an orchestrator without expired tables saves.
SWEEP: Final = "dagmaster.service.data_sweep"


@dataclass(frozen=True, slots=True)
class RetentionOptions:
    """`days=None` keeps jobs forever, unless their workflow says otherwise."""

    days: float | None = None
    archive_dir: Path | None = None
    forget: Forget | None = None


class Retention:
    """Removes jobs after their retention period."""

    def __init__(self, options: RetentionOptions) -> None:
        self._options = options

    async def run_once(self, conn: Connection) -> None:
        try:
            await self._remove(conn)
        except Conflict:
            log.debug("another process is removing old jobs")
        except psycopg.Error:
            raise
        except Exception:  # A full disk or a missing library must not stop the jobs.
            log.exception("cannot remove old jobs; retrying later")

    async def _remove(self, conn: Connection) -> None:
        limits = await read_limits(conn, self._options.days)
        archive = Archive(self._options.archive_dir) if self._options.archive_dir else None
        export = archive.export if archive else None
        removed = await remove_old(conn, limits, export=export, forget=self._options.forget)
        if removed.jobs or removed.event_days:
            await note_removal(conn, removed, actor="retention", source_app="orchestrator")
            log.info("removed %d jobs after their retention period", removed.jobs)


class DataReaper:
    """Expires unneeded tables, and drops those of the engine `url`. Tables in a folder that only one process opens are
    left to it.
    """

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


async def close_late(conn: Connection) -> None:
    await close_late_mail(conn)


class Vacuum:
    """Checks often and rarely has work: only then it opens a connection."""

    def __init__(self, connections: Connections) -> None:
        self._connections = connections

    async def run_once(self) -> None:
        async with self._connections.maintenance.turn() as conn:
            tables = await bloated_tables(conn, dead_rows=DEAD_ROWS)
        if tables:
            await self._connections.opens(lambda conn: vacuum_tables(conn, tables))()


async def clean_up(conn: Connection) -> None:
    await ensure_partitions(conn)
    await forget_instances(conn, days=FORGET_AFTER_DAYS)


async def refresh_layers(conn: Connection, external_dsn: str | None) -> None:
    """Repair layers that a decision could not refresh. Without an external database, its layers are skipped."""
    report = await refresh_stale(conn, external_dsn=external_dsn)
    if report.changed:
        log.info("refreshed %d layers", report.changed)
    for failure in report.failures:
        log.warning("the layer of asset %s could not be refreshed: %s", failure["asset_id"], failure["error"])
