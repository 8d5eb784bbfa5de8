"""When a job is failed if it has not ended; jobs that run already have no such time"""

import sqlalchemy as sa
from alembic import op

revision = "0012"
down_revision = "0011"


def upgrade() -> None:
    column = sa.Column("deadline_at", sa.DateTime(timezone=True), nullable=True)
    op.add_column("dag_jobs", column, schema="dagapp")


def downgrade() -> None:
    op.drop_column("dag_jobs", "deadline_at", schema="dagapp")
