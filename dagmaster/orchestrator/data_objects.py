"""The chore that marks tables of the data plane which nobody needs any more."""

import logging

from dagmaster.store.connect import Connection
from dagmaster.store.data_objects import expire_ended

log = logging.getLogger(__name__)


class DataReaper:
    """Marks them: a process that has the engine open drops them."""

    def __init__(self, retention_days: float) -> None:
        self._retention_days = retention_days

    async def run_once(self, conn: Connection) -> None:
        if count := await expire_ended(conn, retention_days=self._retention_days):
            log.info("%d tables have expired", count)
