"""Nodes that are added by running tasks, jobs of jobs, signals, schedules, results that are kept"""

from collections.abc import Iterator

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0005"
down_revision = "0004"

EVENT_TYPES = (
    "tasks_added",
    "signal_received",
    "approval_requested",
    "approval_decided",
    "schedule_fired",
    "schedule_missed",
)

# In the transaction that ends the job, whoever ends it: its parent hears of it exactly if it has ended.
REPORT_TO_PARENT = """
CREATE FUNCTION dagapp.report_to_parent() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO dagapp.dag_mailbox (job_id, kind, node_id, task_id, output, error, data)
    VALUES (
        NEW.parent_job_id, CASE WHEN NEW.status = 'completed' THEN 'completed' ELSE 'failed' END,
        NEW.parent_node_id, NEW.parent_task_id,
        CASE WHEN NEW.status = 'completed'
            THEN json_build_object('job_id', NEW.job_id::text, 'result', NEW.result_data) END,
        CASE NEW.status
            WHEN 'completed' THEN NULL
            WHEN 'cancelled' THEN format('job %s was cancelled', NEW.job_id)
            ELSE format('job %s failed: %s', NEW.job_id, NEW.error_message) END,
        CASE WHEN NEW.status <> 'completed'
            THEN jsonb_build_object('error_types', jsonb_build_array('JobFailed', 'Exception')) END
    );
    PERFORM pg_notify('dagmaster_mail', '');
    RETURN NULL;
END $$
"""

# Made here and not by the worker: nobody can name the results of tasks that it does not hold. The text of a jsonb has
# one order of keys.
TASK_CACHE_KEY = """
CREATE FUNCTION dagapp.task_cache_key(handler text, version text, params jsonb) RETURNS text LANGUAGE sql STABLE AS $$
    SELECT encode(sha256(convert_to(
        jsonb_build_array(handler, version, coalesce(params, '{}'::jsonb))::text, 'UTF8'
    )), 'hex')
$$
"""


def _time(name: str, *, nullable: bool = True) -> sa.Column[object]:
    default = None if nullable else sa.text("now()")
    return sa.Column(name, sa.DateTime(timezone=True), server_default=default, nullable=nullable)


def _columns() -> Iterator[tuple[str, sa.Column[object]]]:
    yield "dag_jobs", sa.Column("parent_job_id", sa.BigInteger(), nullable=True)
    yield "dag_jobs", sa.Column("parent_node_id", sa.String(length=64), nullable=True)
    yield "dag_jobs", sa.Column("parent_task_id", sa.String(length=128), nullable=True)
    yield "dag_jobs", sa.Column("schedule_id", sa.String(length=64), nullable=True)
    yield "dag_jobs", _time("scheduled_for")
    yield "dag_jobs", sa.Column("signals", postgresql.JSONB(), nullable=True)
    yield "dag_node_states", sa.Column("definition", postgresql.JSONB(), nullable=True)
    yield "dag_node_states", sa.Column("result_of", sa.String(length=64), nullable=True)


def upgrade() -> None:
    for event_type in EVENT_TYPES:
        op.execute(f"ALTER TYPE dagapp.event_type ADD VALUE IF NOT EXISTS '{event_type}'")
    for table, column in _columns():
        op.add_column(table, column, schema="dagapp")
    op.execute("CREATE INDEX ix_dag_jobs_parent ON dagapp.dag_jobs (parent_job_id) WHERE parent_job_id IS NOT NULL")
    op.execute(
        "CREATE INDEX ix_dag_jobs_schedule ON dagapp.dag_jobs (schedule_id, scheduled_for) "
        "WHERE schedule_id IS NOT NULL"
    )
    op.execute(
        "CREATE INDEX ix_dag_node_states_task ON dagapp.dag_node_states ((definition ->> 'task')) "
        "WHERE definition IS NOT NULL"
    )
    _create_tables()
    op.execute(TASK_CACHE_KEY)
    op.execute(REPORT_TO_PARENT)
    op.execute(
        "CREATE TRIGGER report_to_parent AFTER UPDATE OF status ON dagapp.dag_jobs FOR EACH ROW "
        "WHEN (NEW.parent_job_id IS NOT NULL AND NEW.status IN ('completed', 'failed', 'cancelled') "
        "AND OLD.status NOT IN ('completed', 'failed', 'cancelled')) EXECUTE FUNCTION dagapp.report_to_parent()"
    )


def _create_tables() -> None:
    op.create_table(
        "dag_groups",
        sa.Column("group_id", sa.BigInteger(), primary_key=True, autoincrement=False),
        sa.Column("job_id", sa.BigInteger(), nullable=False),
        sa.Column("parent_group_id", sa.BigInteger(), nullable=True),
        sa.Column("name", sa.String(length=128), nullable=False),
        _time("created_at", nullable=False),
        schema="dagapp",
    )
    op.create_index("ix_dag_groups_job", "dag_groups", ["job_id"], schema="dagapp")
    op.create_table(
        "dag_dependencies",
        sa.Column("job_id", sa.BigInteger(), primary_key=True, autoincrement=False),
        sa.Column("previous_id", sa.BigInteger(), primary_key=True, autoincrement=False),
        sa.Column("previous_type", sa.String(length=8), primary_key=True),
        sa.Column("next_id", sa.BigInteger(), primary_key=True, autoincrement=False),
        sa.Column("next_type", sa.String(length=8), primary_key=True),
        schema="dagapp",
    )
    op.create_table(
        "dag_schedules",
        sa.Column("schedule_id", sa.String(length=64), primary_key=True),
        sa.Column("workflow_id", sa.String(length=64), nullable=False),
        sa.Column("workflow_hash", sa.String(length=64), nullable=False),
        sa.Column("cron", sa.String(length=128), nullable=True),
        sa.Column("interval_seconds", sa.Float(), nullable=True),
        sa.Column("timezone", sa.String(length=64), server_default="UTC", nullable=False),
        sa.Column("catchup", sa.String(length=8), server_default="last", nullable=False),
        sa.Column("input_params", postgresql.JSONB(), server_default=sa.text("'{}'::jsonb"), nullable=False),
        _time("paused_at"),
        sa.Column("paused_by", sa.String(length=128), nullable=True),
        _time("next_at"),
        _time("last_at"),
        _time("created_at", nullable=False),
        _time("updated_at", nullable=False),
        schema="dagapp",
    )
    op.execute("CREATE INDEX ix_dag_schedules_next_at ON dagapp.dag_schedules (next_at) WHERE paused_at IS NULL")
    op.create_table(
        "dag_task_cache",
        sa.Column("cache_key", sa.Text(), primary_key=True),
        sa.Column("handler", sa.Text(), nullable=False),
        sa.Column("output", postgresql.JSONB(), nullable=False),
        sa.Column("job_id", sa.BigInteger(), nullable=False),
        sa.Column("task_id", sa.Text(), nullable=False),
        _time("stored_at", nullable=False),
        _time("expires_at"),
        schema="dagapp",
    )
    op.create_index("ix_dag_task_cache_expires_at", "dag_task_cache", ["expires_at"], schema="dagapp")
    op.execute("CREATE INDEX ix_dag_task_cache_handler ON dagapp.dag_task_cache (translate(handler, ':', '.'))")


def downgrade() -> None:
    op.execute("DROP TRIGGER report_to_parent ON dagapp.dag_jobs")
    op.execute("DROP FUNCTION dagapp.report_to_parent()")
    op.execute("DROP FUNCTION dagapp.task_cache_key(text, text, jsonb)")
    for table in ("dag_task_cache", "dag_schedules", "dag_dependencies", "dag_groups"):
        op.drop_table(table, schema="dagapp")
    for index in ("ix_dag_node_states_task", "ix_dag_jobs_schedule"):
        op.execute(f"DROP INDEX dagapp.{index}")
    op.execute("DROP INDEX dagapp.ix_dag_jobs_parent")
    for table, column in _columns():
        op.drop_column(table, column.name, schema="dagapp")
