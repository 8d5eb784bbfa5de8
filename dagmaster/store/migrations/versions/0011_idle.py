"""How long jobs stood still by somebody's will; an index of the jobs that failed"""

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0010"


def upgrade() -> None:
    column = sa.Column("idle_seconds", sa.Float(), server_default=sa.text("0"), nullable=False)
    op.add_column("dag_jobs", column, schema="dagapp")
    op.create_index(
        "ix_dag_jobs_failed",
        "dag_jobs",
        ["completed_at"],
        schema="dagapp",
        postgresql_where=sa.text("status = 'failed'"),
    )


def downgrade() -> None:
    op.drop_index("ix_dag_jobs_failed", "dag_jobs", schema="dagapp")
    op.drop_column("dag_jobs", "idle_seconds", schema="dagapp")
