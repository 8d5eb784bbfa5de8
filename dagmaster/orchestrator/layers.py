"""The chore that refreshes published layers that lag behind their assets."""

import logging

from dagmaster.assets.layers import refresh_stale
from dagmaster.store.connect import Connection

log = logging.getLogger(__name__)


class LayerRefresh:
    """Repairs layers that a decision could not refresh. Without an external database, its layers are skipped."""

    def __init__(self, external_dsn: str | None) -> None:
        self._external_dsn = external_dsn

    async def run_once(self, conn: Connection) -> None:
        report = await refresh_stale(conn, external_dsn=self._external_dsn)
        if report.changed:
            log.info("refreshed %d layers", report.changed)
        for failure in report.failures:
            log.warning("the layer of asset %s could not be refreshed: %s", failure["asset_id"], failure["error"])
