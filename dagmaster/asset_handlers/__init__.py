"""Handlers that decide on assets on behalf of the job's submitter, and that copy the catalogue.

Load them with `DAGMASTER_HANDLERS=dagmaster.asset_handlers`. Then everybody who may submit workflows that use them can
decide on assets. They need a worker with database access.
"""

from dagmaster.asset_handlers import decisions, pgstac, unpublish

__all__ = ["decisions", "pgstac", "unpublish"]
