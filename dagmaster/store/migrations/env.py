"""Alembic's entry point: runs the migrations on the connection that `dagmaster.store.migrate` passes."""

from typing import Any

from alembic import context

from dagmaster.store.columns import SCHEMA
from dagmaster.store.tables import Base


def include_name(name: str | None, type_: str, parents: Any) -> bool:
    """Only our own schema; partitions are created by the database itself."""
    if type_ == "schema":
        return name == SCHEMA
    return not (type_ == "table" and (name or "").startswith("dag_job_events_"))


connection = context.config.attributes["connection"]
context.configure(
    connection=connection,
    target_metadata=Base.metadata,
    version_table_schema=SCHEMA,
    include_schemas=True,
    include_name=include_name,
    compare_type=True,
    compare_server_default=False,
    transaction_per_migration=True,
)
with context.begin_transaction():
    context.run_migrations()
