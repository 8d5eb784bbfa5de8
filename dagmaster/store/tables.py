"""All tables. The migrations build exactly this schema; a test compares the two."""

from dagmaster.store import asset_tables, data_tables, fleet_tables, job_tables
from dagmaster.store.columns import Base

__all__ = ["Base", "asset_tables", "data_tables", "fleet_tables", "job_tables"]
