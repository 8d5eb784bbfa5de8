"""The sizes of values, so that they are known before the values are read"""

from collections.abc import Iterator

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"

DATA_BYTES = "coalesce(octet_length(data::text), 0) + coalesce(octet_length(error), 0)"


def _columns() -> Iterator[tuple[str, sa.Column[object]]]:
    yield "dag_jobs", sa.Column("input_bytes", sa.BigInteger(), nullable=True)
    yield "dag_node_states", sa.Column("output_bytes", sa.BigInteger(), nullable=True)
    size = sa.Computed("octet_length(output::text)", persisted=True)
    yield "dag_mailbox", sa.Column("output_bytes", sa.BigInteger(), size, nullable=True)
    size = sa.Computed(DATA_BYTES, persisted=True)
    yield "dag_mailbox", sa.Column("data_bytes", sa.BigInteger(), size, nullable=True)


def upgrade() -> None:
    for table, column in _columns():
        op.add_column(table, column, schema="dagapp")


def downgrade() -> None:
    for table, column in _columns():
        op.drop_column(table, column.name, schema="dagapp")
