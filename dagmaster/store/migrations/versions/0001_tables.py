"""The tables of the engine"""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0001"
down_revision = None


def upgrade() -> None:
    op.create_table(
        "dag_checkpoints",
        sa.Column("checkpoint_id", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("job_id", sa.BigInteger(), nullable=False),
        sa.Column("node_id", sa.String(length=64), nullable=False),
        sa.Column("task_id", sa.String(length=128), nullable=False),
        sa.Column("phase_name", sa.String(length=128), nullable=False),
        sa.Column("phase_index", sa.Integer(), nullable=True),
        sa.Column("phase_total", sa.Integer(), nullable=True),
        sa.Column("progress_current", sa.Float(), nullable=True),
        sa.Column("progress_total", sa.Float(), nullable=True),
        sa.Column("progress_message", sa.String(length=2000), nullable=True),
        sa.Column("state_data", postgresql.JSONB(astext_type=sa.Text()), nullable=True),
        sa.Column("artifacts_completed", postgresql.JSONB(astext_type=sa.Text()), nullable=True),
        sa.Column("artifacts_total", sa.Integer(), nullable=True),
        sa.Column("memory_bytes", sa.BigInteger(), nullable=True),
        sa.Column("disk_bytes", sa.BigInteger(), nullable=True),
        sa.Column("error_count", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("is_final", sa.Boolean(), server_default=sa.text("false"), nullable=False),
        sa.Column("is_valid", sa.Boolean(), server_default=sa.text("true"), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.PrimaryKeyConstraint("checkpoint_id"),
        schema="dagapp",
    )
    op.create_index(
        "ix_dag_checkpoints_node",
        "dag_checkpoints",
        ["job_id", "node_id", "checkpoint_id"],
        unique=False,
        schema="dagapp",
    )
    op.create_table(
        "dag_job_events",
        sa.Column("job_id", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("event_id", sa.BigInteger(), sa.Identity(always=True), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.Column("node_id", sa.String(length=64), nullable=True),
        sa.Column("task_id", sa.String(length=128), nullable=True),
        sa.Column(
            "event_type",
            sa.Enum(
                "job_created",
                "job_started",
                "job_completed",
                "job_failed",
                "job_cancelled",
                "job_warning",
                "node_ready",
                "node_dispatched",
                "node_started",
                "node_completed",
                "node_failed",
                "node_retrying",
                "node_skipped",
                "node_checkpoint",
                "node_timeout",
                "node_warning",
                "task_received",
                "task_completed",
                "task_failed",
                "result_ignored",
                "orchestrator_cycle",
                "orchestrator_error",
                "orchestrator_stall",
                "orchestrator_backpressure",
                "job_taken_over",
                "command",
                name="event_type",
                schema="dagapp",
            ),
            nullable=False,
        ),
        sa.Column(
            "event_status",
            sa.Enum("success", "failure", "warning", "info", name="event_status", schema="dagapp"),
            nullable=False,
        ),
        sa.Column("checkpoint_name", sa.String(length=128), nullable=True),
        sa.Column("event_data", postgresql.JSONB(astext_type=sa.Text()), nullable=True),
        sa.Column("error_message", sa.String(length=2000), nullable=True),
        sa.Column("duration_ms", sa.BigInteger(), nullable=True),
        sa.Column("source_app", sa.String(length=64), nullable=False),
        sa.PrimaryKeyConstraint("job_id", "event_id", "created_at"),
        schema="dagapp",
        postgresql_partition_by="RANGE (created_at)",
    )
    op.create_table(
        "dag_jobs",
        sa.Column("job_id", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("workflow_id", sa.String(length=64), nullable=False),
        sa.Column("workflow_version", sa.Integer(), nullable=False),
        sa.Column("workflow_hash", sa.String(length=64), nullable=False),
        sa.Column(
            "status",
            sa.Enum("pending", "running", "completed", "failed", "cancelled", name="job_status", schema="dagapp"),
            nullable=False,
        ),
        sa.Column("priority", sa.Integer(), nullable=False),
        sa.Column(
            "input_params",
            postgresql.JSONB(astext_type=sa.Text()),
            server_default=sa.text("'{}'::jsonb"),
            nullable=False,
        ),
        sa.Column("result_data", postgresql.JSONB(astext_type=sa.Text()), nullable=True),
        sa.Column("error_message", sa.String(length=2000), nullable=True),
        sa.Column(
            "metadata", postgresql.JSONB(astext_type=sa.Text()), server_default=sa.text("'{}'::jsonb"), nullable=False
        ),
        sa.Column("submitted_by", sa.String(length=128), server_default="", nullable=False),
        sa.Column("correlation_id", sa.String(length=128), nullable=True),
        sa.Column("idempotency_key", sa.String(length=128), nullable=True),
        sa.Column("request_hash", sa.String(length=64), nullable=True),
        sa.Column("callback_url", sa.Text(), nullable=True),
        sa.Column("asset_id", sa.String(length=64), nullable=True),
        sa.Column("owner_id", sa.String(length=32), nullable=True),
        sa.Column("owner_epoch", sa.BigInteger(), server_default=sa.text("0"), nullable=False),
        sa.Column("owner_heartbeat_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.Column("started_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("completed_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("updated_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.Column("version", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.PrimaryKeyConstraint("job_id"),
        schema="dagapp",
    )
    op.create_index(
        "ix_dag_jobs_asset_id",
        "dag_jobs",
        ["asset_id"],
        unique=False,
        schema="dagapp",
        postgresql_where=sa.text("asset_id IS NOT NULL"),
    )
    op.create_index(
        "ix_dag_jobs_correlation_id",
        "dag_jobs",
        ["correlation_id"],
        unique=False,
        schema="dagapp",
        postgresql_where=sa.text("correlation_id IS NOT NULL"),
    )
    op.create_index("ix_dag_jobs_created_at", "dag_jobs", ["created_at"], unique=False, schema="dagapp")
    op.create_index(
        "ix_dag_jobs_live",
        "dag_jobs",
        ["status"],
        unique=False,
        schema="dagapp",
        postgresql_where=sa.text("status IN ('pending', 'running')"),
    )
    op.create_index(
        "ix_dag_jobs_owner",
        "dag_jobs",
        ["owner_id", "owner_heartbeat_at"],
        unique=False,
        schema="dagapp",
        postgresql_where=sa.text("owner_id IS NOT NULL"),
    )
    op.create_index("ix_dag_jobs_workflow_id", "dag_jobs", ["workflow_id", "created_at"], unique=False, schema="dagapp")
    op.create_index(
        "uq_dag_jobs_idempotency_key",
        "dag_jobs",
        ["submitted_by", "idempotency_key"],
        unique=True,
        schema="dagapp",
        postgresql_where=sa.text("idempotency_key IS NOT NULL"),
    )
    op.create_table(
        "dag_mailbox",
        sa.Column("mail_id", sa.BigInteger(), sa.Identity(always=True), nullable=False),
        sa.Column("job_id", sa.BigInteger(), nullable=False),
        sa.Column("kind", sa.String(length=32), nullable=False),
        sa.Column("node_id", sa.String(length=64), nullable=True),
        sa.Column("task_id", sa.String(length=128), nullable=True),
        sa.Column("worker_id", sa.String(length=128), nullable=True),
        sa.Column("output", postgresql.JSON(astext_type=sa.Text()), nullable=True),
        sa.Column("error", sa.Text(), nullable=True),
        sa.Column("duration_ms", sa.BigInteger(), nullable=True),
        sa.Column("data", postgresql.JSONB(astext_type=sa.Text()), nullable=True),
        sa.Column(
            "created_at", sa.DateTime(timezone=True), server_default=sa.text("clock_timestamp()"), nullable=False
        ),
        sa.PrimaryKeyConstraint("mail_id"),
        schema="dagapp",
    )
    op.create_table(
        "dag_node_states",
        sa.Column("job_id", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("node_id", sa.String(length=64), nullable=False),
        sa.Column(
            "status",
            sa.Enum(
                "pending",
                "ready",
                "dispatched",
                "running",
                "completed",
                "failed",
                "skipped",
                name="node_status",
                schema="dagapp",
            ),
            nullable=False,
        ),
        sa.Column("task_id", sa.String(length=128), nullable=True),
        sa.Column("retry_count", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("max_retries", sa.Integer(), server_default=sa.text("3"), nullable=False),
        sa.Column("parent_node_id", sa.String(length=64), nullable=True),
        sa.Column("fan_out_index", sa.Integer(), nullable=True),
        sa.Column("fan_out_item_key", sa.String(length=128), nullable=True),
        sa.Column("input_params", postgresql.JSONB(astext_type=sa.Text()), nullable=True),
        sa.Column("output", postgresql.JSONB(astext_type=sa.Text()), nullable=True),
        sa.Column("error_message", sa.String(length=2000), nullable=True),
        sa.Column("checkpoint_phase", sa.String(length=128), nullable=True),
        sa.Column("checkpoint_data", postgresql.JSONB(astext_type=sa.Text()), nullable=True),
        sa.Column("checkpoint_saved_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("not_before", sa.DateTime(timezone=True), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.Column("dispatched_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("started_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("completed_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("updated_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.Column("version", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.PrimaryKeyConstraint("job_id", "node_id"),
        schema="dagapp",
    )
    op.create_table(
        "dag_orchestrators",
        sa.Column("orchestrator_id", sa.String(length=32), nullable=False),
        sa.Column("hostname", sa.String(length=255), nullable=False),
        sa.Column("pid", sa.Integer(), nullable=False),
        sa.Column("host_key", sa.String(length=128), nullable=False),
        sa.Column("status", sa.String(length=16), nullable=False),
        sa.Column("started_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.Column("heartbeat_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.Column("jobs_owned", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column(
            "stats", postgresql.JSONB(astext_type=sa.Text()), server_default=sa.text("'{}'::jsonb"), nullable=False
        ),
        sa.PrimaryKeyConstraint("orchestrator_id"),
        schema="dagapp",
    )
    op.create_table(
        "dag_task_results",
        sa.Column("task_id", sa.String(length=128), nullable=False),
        sa.Column("job_id", sa.BigInteger(), nullable=False),
        sa.Column("node_id", sa.String(length=64), nullable=False),
        sa.Column(
            "status",
            sa.Enum("received", "running", "completed", "failed", name="task_status", schema="dagapp"),
            nullable=False,
        ),
        sa.Column("output", postgresql.JSONB(astext_type=sa.Text()), nullable=True),
        sa.Column("error_message", sa.String(length=2000), nullable=True),
        sa.Column("worker_id", sa.String(length=128), nullable=True),
        sa.Column("execution_duration_ms", sa.BigInteger(), nullable=True),
        sa.Column("progress_current", sa.Float(), nullable=True),
        sa.Column("progress_total", sa.Float(), nullable=True),
        sa.Column("progress_percent", sa.Float(), nullable=True),
        sa.Column("progress_message", sa.String(length=2000), nullable=True),
        sa.Column("reported_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.Column("processed", sa.Boolean(), server_default=sa.text("false"), nullable=False),
        sa.PrimaryKeyConstraint("task_id"),
        schema="dagapp",
    )
    op.create_index("ix_dag_task_results_job", "dag_task_results", ["job_id", "node_id"], unique=False, schema="dagapp")
    op.create_index(
        "ix_dag_task_results_unprocessed",
        "dag_task_results",
        ["reported_at"],
        unique=False,
        schema="dagapp",
        postgresql_where=sa.text("NOT processed"),
    )
    op.create_table(
        "dag_tasks_running",
        sa.Column("task_id", sa.String(length=128), nullable=False),
        sa.Column("job_id", sa.BigInteger(), nullable=False),
        sa.Column("node_id", sa.String(length=64), nullable=False),
        sa.Column("retry_count", sa.Integer(), nullable=False),
        sa.Column("queue", sa.String(length=128), nullable=False),
        sa.Column("priority", sa.Integer(), nullable=False),
        sa.Column("job_started_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("handler", sa.String(length=128), nullable=False),
        sa.Column("timeout_seconds", sa.Float(), nullable=False),
        sa.Column("correlation_id", sa.String(length=128), nullable=True),
        sa.Column("trace_parent", sa.String(length=64), nullable=True),
        sa.Column("dispatched_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("worker_id", sa.String(length=32), nullable=False),
        sa.Column("claimed_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.PrimaryKeyConstraint("task_id"),
        schema="dagapp",
    )
    op.create_index("ix_dag_tasks_running_job", "dag_tasks_running", ["job_id"], unique=False, schema="dagapp")
    op.create_index("ix_dag_tasks_running_worker", "dag_tasks_running", ["worker_id"], unique=False, schema="dagapp")
    op.create_table(
        "dag_tasks_waiting",
        sa.Column("task_id", sa.String(length=128), nullable=False),
        sa.Column("seq", sa.BigInteger(), sa.Identity(always=True), nullable=False),
        sa.Column("job_id", sa.BigInteger(), nullable=False),
        sa.Column("node_id", sa.String(length=64), nullable=False),
        sa.Column("retry_count", sa.Integer(), nullable=False),
        sa.Column("queue", sa.String(length=128), nullable=False),
        sa.Column("priority", sa.Integer(), nullable=False),
        sa.Column("job_started_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("handler", sa.String(length=128), nullable=False),
        sa.Column("timeout_seconds", sa.Float(), nullable=False),
        sa.Column("correlation_id", sa.String(length=128), nullable=True),
        sa.Column("trace_parent", sa.String(length=64), nullable=True),
        sa.Column("dispatched_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("task_id"),
        schema="dagapp",
    )
    op.create_index("ix_dag_tasks_waiting_job", "dag_tasks_waiting", ["job_id"], unique=False, schema="dagapp")
    op.create_index(
        "ix_dag_tasks_waiting_order",
        "dag_tasks_waiting",
        ["queue", sa.literal_column("priority DESC"), "job_started_at", "seq"],
        unique=False,
        schema="dagapp",
    )
    op.create_table(
        "dag_workers",
        sa.Column("worker_id", sa.String(length=32), nullable=False),
        sa.Column("hostname", sa.String(length=255), nullable=False),
        sa.Column("pid", sa.Integer(), nullable=False),
        sa.Column("host_key", sa.String(length=128), nullable=False),
        sa.Column("status", sa.String(length=16), nullable=False),
        sa.Column("queues", postgresql.ARRAY(sa.Text()), nullable=False),
        sa.Column("handlers", postgresql.ARRAY(sa.Text()), nullable=True),
        sa.Column("concurrency", sa.Integer(), nullable=False),
        sa.Column("last_heartbeat", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.Column("started_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.Column("tasks_completed", sa.BigInteger(), server_default=sa.text("0"), nullable=False),
        sa.Column("tasks_failed", sa.BigInteger(), server_default=sa.text("0"), nullable=False),
        sa.PrimaryKeyConstraint("worker_id"),
        schema="dagapp",
    )
    op.create_table(
        "dag_workflows",
        sa.Column("workflow_hash", sa.String(length=64), nullable=False),
        sa.Column("workflow_id", sa.String(length=64), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column(
            "definition", postgresql.JSONB(astext_type=sa.Text()), server_default=sa.text("'{}'::jsonb"), nullable=False
        ),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.PrimaryKeyConstraint("workflow_hash"),
        schema="dagapp",
    )
    op.create_index(
        op.f("ix_dagapp_dag_workflows_workflow_id"), "dag_workflows", ["workflow_id"], unique=False, schema="dagapp"
    )


def downgrade() -> None:
    op.drop_index(op.f("ix_dagapp_dag_workflows_workflow_id"), table_name="dag_workflows", schema="dagapp")
    op.drop_table("dag_workflows", schema="dagapp")
    op.drop_table("dag_workers", schema="dagapp")
    op.drop_index("ix_dag_tasks_waiting_order", table_name="dag_tasks_waiting", schema="dagapp")
    op.drop_index("ix_dag_tasks_waiting_job", table_name="dag_tasks_waiting", schema="dagapp")
    op.drop_table("dag_tasks_waiting", schema="dagapp")
    op.drop_index("ix_dag_tasks_running_worker", table_name="dag_tasks_running", schema="dagapp")
    op.drop_index("ix_dag_tasks_running_job", table_name="dag_tasks_running", schema="dagapp")
    op.drop_table("dag_tasks_running", schema="dagapp")
    op.drop_index(
        "ix_dag_task_results_unprocessed",
        table_name="dag_task_results",
        schema="dagapp",
        postgresql_where=sa.text("NOT processed"),
    )
    op.drop_index("ix_dag_task_results_job", table_name="dag_task_results", schema="dagapp")
    op.drop_table("dag_task_results", schema="dagapp")
    op.drop_table("dag_orchestrators", schema="dagapp")
    op.drop_table("dag_node_states", schema="dagapp")
    op.drop_table("dag_mailbox", schema="dagapp")
    op.drop_index(
        "uq_dag_jobs_idempotency_key",
        table_name="dag_jobs",
        schema="dagapp",
        postgresql_where=sa.text("idempotency_key IS NOT NULL"),
    )
    op.drop_index("ix_dag_jobs_workflow_id", table_name="dag_jobs", schema="dagapp")
    op.drop_index(
        "ix_dag_jobs_owner", table_name="dag_jobs", schema="dagapp", postgresql_where=sa.text("owner_id IS NOT NULL")
    )
    op.drop_index(
        "ix_dag_jobs_live",
        table_name="dag_jobs",
        schema="dagapp",
        postgresql_where=sa.text("status IN ('pending', 'running')"),
    )
    op.drop_index("ix_dag_jobs_created_at", table_name="dag_jobs", schema="dagapp")
    op.drop_index(
        "ix_dag_jobs_correlation_id",
        table_name="dag_jobs",
        schema="dagapp",
        postgresql_where=sa.text("correlation_id IS NOT NULL"),
    )
    op.drop_index(
        "ix_dag_jobs_asset_id", table_name="dag_jobs", schema="dagapp", postgresql_where=sa.text("asset_id IS NOT NULL")
    )
    op.drop_table("dag_jobs", schema="dagapp")
    op.drop_table("dag_job_events", schema="dagapp")
    op.drop_index("ix_dag_checkpoints_node", table_name="dag_checkpoints", schema="dagapp")
    op.drop_table("dag_checkpoints", schema="dagapp")
    for name in ("event_type", "event_status", "task_status", "node_status", "job_status"):
        op.execute(f"DROP TYPE dagapp.{name}")
