"""Handlers that decide on assets, in the name of whoever has submitted the job, and that copy the catalogue.

Load them with `DAGMASTER_HANDLERS=dagmaster.asset_handlers`: whoever may submit workflows that use them decides then.
They need a worker with a database.
"""

from dagmaster.asset_handlers import decisions, pgstac, unpublish

__all__ = ["decisions", "pgstac", "unpublish"]
