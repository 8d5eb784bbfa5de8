"""Keys, callbacks, pausing, and the events of an operator's acts"""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0003"
down_revision = "0002"

EVENT_TYPES = (
    "job_paused",
    "job_resumed",
    "job_reopened",
    "node_reopened",
    "callback_delivered",
    "callback_failed",
)
JOB_STATUS = postgresql.ENUM(name="job_status", schema="dagapp", create_type=False)

# In the transaction that ends the job, whoever ends it: a call is owed exactly if the job has ended.
OWE_CALLBACK = """
CREATE FUNCTION dagapp.owe_callback() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO dagapp.dag_callbacks (job_id, url, job_status) VALUES (NEW.job_id, NEW.callback_url, NEW.status);
    RETURN NULL;
END $$
"""


def _time(name: str, *, nullable: bool = True) -> sa.Column[object]:
    default = None if nullable else sa.text("now()")
    return sa.Column(name, sa.DateTime(timezone=True), server_default=default, nullable=nullable)


def upgrade() -> None:
    for event_type in EVENT_TYPES:
        op.execute(f"ALTER TYPE dagapp.event_type ADD VALUE IF NOT EXISTS '{event_type}'")
    for column in (
        sa.Column("trace_parent", sa.String(length=64), nullable=True),
        _time("paused_at"),
        sa.Column("paused_by", sa.String(length=128), nullable=True),
        _time("resumed_at"),
    ):
        op.add_column("dag_jobs", column, schema="dagapp")
    op.execute("CREATE INDEX ix_dag_jobs_completed_at ON dagapp.dag_jobs (completed_at) WHERE completed_at IS NOT NULL")
    op.add_column(
        "dag_workers",
        sa.Column("stats", postgresql.JSONB(), server_default=sa.text("'{}'::jsonb"), nullable=False),
        schema="dagapp",
    )
    op.add_column(
        "dag_tasks_waiting",
        sa.Column("held", sa.Boolean(), server_default=sa.text("false"), nullable=False),
        schema="dagapp",
    )
    _order_tasks("WHERE NOT held")
    op.create_table(
        "dag_api_keys",
        sa.Column("key_id", sa.String(length=16), primary_key=True),
        sa.Column("name", sa.String(length=128), nullable=False),
        sa.Column("role", sa.String(length=16), nullable=False),
        sa.Column("key_hash", sa.String(length=64), nullable=False),
        _time("created_at", nullable=False),
        sa.Column("created_by", sa.String(length=128), server_default="", nullable=False),
        _time("expires_at"),
        _time("revoked_at"),
        _time("last_used_at"),
        sa.CheckConstraint("role IN ('admin', 'operator', 'worker', 'partner', 'viewer')", name="ck_dag_api_keys_role"),
        schema="dagapp",
    )
    op.execute("CREATE UNIQUE INDEX uq_dag_api_keys_name ON dagapp.dag_api_keys (name) WHERE revoked_at IS NULL")
    op.create_table(
        "dag_callbacks",
        sa.Column("callback_id", sa.BigInteger(), sa.Identity(always=True), primary_key=True),
        sa.Column("job_id", sa.BigInteger(), nullable=False),
        sa.Column("url", sa.Text(), nullable=False),
        sa.Column("job_status", JOB_STATUS, nullable=False),
        sa.Column("status", sa.String(length=16), server_default="waiting", nullable=False),
        sa.Column("attempts", sa.Integer(), server_default=sa.text("0"), nullable=False),
        _time("next_attempt_at", nullable=False),
        _time("last_attempt_at"),
        sa.Column("last_error", sa.String(length=2000), nullable=True),
        sa.Column("response_status", sa.Integer(), nullable=True),
        _time("created_at", nullable=False),
        _time("delivered_at"),
        schema="dagapp",
    )
    op.execute("CREATE INDEX ix_dag_callbacks_due ON dagapp.dag_callbacks (next_attempt_at) WHERE status = 'waiting'")
    op.execute("CREATE INDEX ix_dag_callbacks_failed ON dagapp.dag_callbacks (created_at) WHERE status = 'failed'")
    op.create_index("ix_dag_callbacks_job", "dag_callbacks", ["job_id"], schema="dagapp")
    op.create_table(
        "dag_secrets",
        sa.Column("name", sa.String(length=64), primary_key=True),
        sa.Column("value", sa.Text(), nullable=False),
        _time("created_at", nullable=False),
        schema="dagapp",
    )
    op.execute(OWE_CALLBACK)
    op.execute(
        "CREATE TRIGGER owe_callback AFTER UPDATE ON dagapp.dag_jobs FOR EACH ROW "
        "WHEN (NEW.callback_url IS NOT NULL AND NEW.status <> OLD.status "
        "AND NEW.status IN ('completed', 'failed', 'cancelled')) EXECUTE FUNCTION dagapp.owe_callback()"
    )


def _order_tasks(condition: str) -> None:
    op.execute("DROP INDEX dagapp.ix_dag_tasks_waiting_order")
    op.execute(
        "CREATE INDEX ix_dag_tasks_waiting_order ON dagapp.dag_tasks_waiting "
        f"(queue, priority DESC, job_started_at, seq) {condition}"
    )


def downgrade() -> None:
    # The values of event_type stay: rows may have them.
    op.execute("DROP TRIGGER owe_callback ON dagapp.dag_jobs")
    op.execute("DROP FUNCTION dagapp.owe_callback()")
    for table in ("dag_secrets", "dag_callbacks", "dag_api_keys"):
        op.drop_table(table, schema="dagapp")
    _order_tasks("")
    op.drop_column("dag_tasks_waiting", "held", schema="dagapp")
    op.drop_column("dag_workers", "stats", schema="dagapp")
    op.execute("DROP INDEX dagapp.ix_dag_jobs_completed_at")
    for column in ("resumed_at", "paused_by", "paused_at", "trace_parent"):
        op.drop_column("dag_jobs", column, schema="dagapp")
