"""How nodes and attempts ended, as a value; the node with which a job failed"""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0008"
down_revision = "0007"

ENDED_BY = postgresql.ENUM(
    "result",
    "failure",
    "timeout",
    "lost",
    "given_back",
    "revoked",
    "cancelled",
    "skipped",
    name="ended_by",
    schema="dagapp",
    create_type=False,
)

# What a node said that was under way when its job ended, before there was a value for it. Of the others the status
# tells enough: they are left alone, because there may be very many.
WITHDRAWN = """
UPDATE dagapp.dag_node_states SET ended_by = '{ended_by}'
WHERE status = 'failed' AND ended_by IS NULL AND error_message = '{text}'
"""


def upgrade() -> None:
    ENDED_BY.create(op.get_bind(), checkfirst=True)
    for table in ("dag_node_states", "dag_task_results"):
        op.add_column(table, sa.Column("ended_by", ENDED_BY, nullable=True), schema="dagapp")
    op.add_column("dag_jobs", sa.Column("failed_node", sa.String(length=64), nullable=True), schema="dagapp")
    op.execute(WITHDRAWN.format(ended_by="revoked", text="withdrawn: job_failed"))
    op.execute(WITHDRAWN.format(ended_by="cancelled", text="withdrawn: job_cancelled"))


def downgrade() -> None:
    op.drop_column("dag_jobs", "failed_node", schema="dagapp")
    for table in ("dag_task_results", "dag_node_states"):
        op.drop_column(table, "ended_by", schema="dagapp")
    ENDED_BY.drop(op.get_bind())
