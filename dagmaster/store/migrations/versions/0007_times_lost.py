"""Tasks whose workers die again and again: how often that has happened"""

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"


def upgrade() -> None:
    column = sa.Column("times_lost", sa.Integer(), server_default=sa.text("0"), nullable=False)
    op.add_column("dag_node_states", column, schema="dagapp")


def downgrade() -> None:
    op.drop_column("dag_node_states", "times_lost", schema="dagapp")
