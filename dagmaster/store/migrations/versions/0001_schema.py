"""The schema of the first release"""

from pathlib import Path

from alembic import op

revision = "0001"
down_revision = None

PARTS = ("0001_tables.sql", "0001_functions.sql", "0001_assets.sql", "0001_gateway.sql", "0001_data.sql")

TABLES = (
    "stac_items",
    "asset_events",
    "asset_versions",
    "layer_metadata",
    "layer_catalog",
    "layer_revisions",
    "stac_collections",
    "geospatial_assets",
    "platforms",
    "data_programs",
    "data_object_uses",
    "data_objects",
    "dag_api_requests",
    "dag_api_keys",
    "dag_callbacks",
    "dag_checkpoints",
    "dag_dependencies",
    "dag_groups",
    "dag_handlers",
    "dag_job_events",
    "dag_jobs",
    "dag_mailbox",
    "dag_node_states",
    "dag_orchestrators",
    "dag_schedules",
    "dag_secrets",
    "dag_task_cache",
    "dag_task_results",
    "dag_tasks_running",
    "dag_tasks_waiting",
    "dag_workers",
    "dag_workflows",
)
FUNCTIONS = (
    "as_jsonb(json)",
    "begin_elsewhere(text, text)",
    "check_fence(bigint[], bigint[])",
    "ensure_event_partitions(int)",
    "expect(text, bigint, bigint)",
    "follow_job()",
    "job_outputs(bigint)",
    "is_job_output(text, jsonb)",
    "keep_asset_identity()",
    "mail_result()",
    "owe_callback()",
    "report_to_parent()",
    "seed_platforms()",
    "stac_bounds(jsonb)",
    "stac_during(jsonb)",
    "store_stac_documents(jsonb, text, integer)",
    "task_cache_key(text, text, jsonb)",
    "touch()",
)
TYPES = (
    "job_status",
    "node_status",
    "task_status",
    "ended_by",
    "job_ended_by",
    "event_type",
    "event_status",
    "approval_state",
    "clearance_state",
    "processing_status",
    "asset_event_type",
    "data_scope",
    "data_object_state",
)


def upgrade() -> None:
    # Without parameters the statements are sent verbatim, with their percent signs and colons.
    connection = op.get_bind().execution_options(no_parameters=True)
    for part in PARTS:
        connection.exec_driver_sql(Path(__file__).with_name(part).read_text(encoding="utf-8"))


def downgrade() -> None:
    op.execute("DROP SCHEMA gateway CASCADE")
    # Triggers, indexes and partitions go with their tables.
    for table in TABLES:
        op.execute(f"DROP TABLE dagapp.{table}")
    for function in FUNCTIONS:
        op.execute(f"DROP FUNCTION dagapp.{function}")
    for enum in TYPES:
        op.execute(f"DROP TYPE dagapp.{enum}")
