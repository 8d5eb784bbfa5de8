"""The chore that removes jobs after their retention period."""

import logging
from dataclasses import dataclass
from pathlib import Path

import psycopg

from dagmaster.errors import Conflict
from dagmaster.store.archive import Archive
from dagmaster.store.connect import Connection
from dagmaster.store.retention import Forget, note_removal, read_limits, remove_old

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class RetentionOptions:
    """`days=None` keeps jobs forever, unless their workflow says otherwise."""

    days: float | None = None
    archive_dir: Path | None = None
    forget: Forget | None = None


class Retention:
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
