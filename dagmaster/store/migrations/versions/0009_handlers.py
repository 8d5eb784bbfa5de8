"""The contracts of handlers, registered by the workers that run them"""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0009"
down_revision = "0008"


def upgrade() -> None:
    op.create_table(
        "dag_handlers",
        sa.Column("name", sa.String(length=128), primary_key=True),
        sa.Column("queue", sa.String(length=128), nullable=True),
        sa.Column("timeout_seconds", sa.Float(), nullable=True),
        sa.Column("retry", postgresql.JSONB(), nullable=True),
        sa.Column("params", postgresql.JSON(), nullable=True),
        sa.Column("documentation", sa.Text(), server_default="", nullable=False),
        sa.Column("registered_by", sa.String(length=32), nullable=True),
        sa.Column("registered_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        schema="dagapp",
    )


def downgrade() -> None:
    op.drop_table("dag_handlers", schema="dagapp")
