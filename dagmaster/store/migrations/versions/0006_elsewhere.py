"""Attempts that run elsewhere: nobody's heartbeat keeps them, only their timeout ends them"""

from alembic import op

revision = "0006"
down_revision = "0005"

# The first sign of life of an attempt takes it from its queue. Whoever takes it first has it: a worker that claims it
# at the same moment, or the program that reports from elsewhere.
BEGIN_ELSEWHERE = """
CREATE FUNCTION dagapp.begin_elsewhere(attempt text, reporter text) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
    WITH taken AS (
        DELETE FROM dagapp.dag_tasks_waiting WHERE task_id = attempt RETURNING *
    ), held AS (
        INSERT INTO dagapp.dag_tasks_running (
            task_id, job_id, node_id, retry_count, queue, priority, job_started_at, handler, timeout_seconds,
            correlation_id, trace_parent, dispatched_at, claimed_at
        )
        SELECT task_id, job_id, node_id, retry_count, queue, priority, job_started_at, handler, timeout_seconds,
            correlation_id, trace_parent, dispatched_at, clock_timestamp()
        FROM taken
    )
    INSERT INTO dagapp.dag_mailbox (job_id, kind, node_id, task_id, worker_id)
    SELECT job_id, 'started', node_id, task_id, reporter FROM taken;
    IF FOUND THEN
        PERFORM pg_notify('dagmaster_mail', '');
        RETURN true;
    END IF;
    RETURN false;
END $$
"""

MAIL_RESULT = """
CREATE OR REPLACE FUNCTION dagapp.mail_result() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF NEW.status IN ('received', 'running') THEN
        PERFORM dagapp.begin_elsewhere(NEW.task_id, NEW.worker_id);
        RETURN NULL;
    END IF;
    INSERT INTO dagapp.dag_mailbox (job_id, kind, node_id, task_id, worker_id, output, error, duration_ms)
    VALUES (NEW.job_id, NEW.status::text, NEW.node_id, NEW.task_id, NEW.worker_id, NEW.output,
            NEW.error_message, NEW.execution_duration_ms);
    RETURN NULL;
END $$
"""

MAIL_RESULT_BEFORE = """
CREATE OR REPLACE FUNCTION dagapp.mail_result() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO dagapp.dag_mailbox (job_id, kind, node_id, task_id, worker_id, output, error, duration_ms)
    VALUES (NEW.job_id, NEW.status::text, NEW.node_id, NEW.task_id, NEW.worker_id, NEW.output,
            NEW.error_message, NEW.execution_duration_ms);
    RETURN NULL;
END $$
"""

DROP_TRIGGER = "DROP TRIGGER mail_result ON dagapp.dag_task_results"
CREATE_TRIGGER = (
    "CREATE TRIGGER mail_result AFTER INSERT OR UPDATE ON dagapp.dag_task_results FOR EACH ROW "
    "WHEN (NOT NEW.processed{ended}) EXECUTE FUNCTION dagapp.mail_result()"
)


def upgrade() -> None:
    op.alter_column("dag_tasks_running", "worker_id", nullable=True, schema="dagapp")
    op.execute(BEGIN_ELSEWHERE)
    op.execute(MAIL_RESULT)
    op.execute(DROP_TRIGGER)
    op.execute(CREATE_TRIGGER.format(ended=""))


def downgrade() -> None:
    op.execute(DROP_TRIGGER)
    op.execute(CREATE_TRIGGER.format(ended=" AND NEW.status IN ('completed', 'failed')"))
    op.execute(MAIL_RESULT_BEFORE)
    op.execute("DROP FUNCTION dagapp.begin_elsewhere(text, text)")
    # Nobody holds them then, and their owners are told so.
    op.execute("UPDATE dagapp.dag_tasks_running SET worker_id = '' WHERE worker_id IS NULL")
    op.alter_column("dag_tasks_running", "worker_id", nullable=False, schema="dagapp")
