"""All tables. The schema's only source: the migrations build exactly this, and a test proves it."""

from dagmaster.store import asset_tables, data_tables, fleet_tables, job_tables, queue_tables
from dagmaster.store.columns import Base

__all__ = ["Base", "asset_tables", "data_tables", "fleet_tables", "job_tables", "queue_tables"]
