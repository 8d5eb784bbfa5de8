"""What is known of an attempt, where a task goes after it ran out of memory, and what is wanted of a worker"""

from collections.abc import Iterator

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0004"
down_revision = "0003"


def _columns() -> Iterator[tuple[str, sa.Column[object]]]:
    yield "dag_task_results", sa.Column("error_type", sa.String(length=128), nullable=True)
    yield "dag_task_results", sa.Column("log_path", sa.Text(), nullable=True)
    yield "dag_task_results", sa.Column("peak_memory_bytes", sa.BigInteger(), nullable=True)
    yield "dag_task_results", sa.Column("cpu_seconds", sa.Float(), nullable=True)
    yield "dag_task_results", sa.Column("metrics", postgresql.JSONB(), nullable=True)
    yield "dag_node_states", sa.Column("queue", sa.String(length=128), nullable=True)
    yield "dag_workers", sa.Column("wanted", sa.String(length=16), server_default="run", nullable=False)
    yield "dag_workers", sa.Column("key_id", sa.String(length=16), nullable=True)


def upgrade() -> None:
    for table, column in _columns():
        op.add_column(table, column, schema="dagapp")


def downgrade() -> None:
    for table, column in _columns():
        op.drop_column(table, column.name, schema="dagapp")
