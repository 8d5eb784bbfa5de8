"""Functions, triggers, partitions and storage settings"""

from alembic import op

revision = "0002"
down_revision = "0001"

# The fence of every batch: fails with the list of those jobs that the owner could not lock.
FENCE = """
CREATE FUNCTION dagapp.check_fence(fences json, held bigint[]) RETURNS void LANGUAGE plpgsql AS $$
DECLARE lost text;
BEGIN
    IF json_array_length(fences) = coalesce(cardinality(held), 0) THEN
        RETURN;
    END IF;
    SELECT string_agg(w.job_id::text, ',') INTO lost
    FROM json_to_recordset(fences) AS w(job_id bigint) WHERE w.job_id <> ALL (coalesce(held, '{}'));
    RAISE EXCEPTION 'jobs are owned by another orchestrator' USING ERRCODE = 'DM001', DETAIL = lost;
END $$
"""

# A write that applies to fewer rows than meant must not commit.
EXPECT = """
CREATE FUNCTION dagapp.expect(what text, wanted bigint, counted bigint) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    IF wanted IS DISTINCT FROM counted THEN
        RAISE EXCEPTION '% of % % were as expected', counted, wanted, what USING ERRCODE = 'DM002';
    END IF;
END $$
"""

TOUCH = """
CREATE FUNCTION dagapp.touch() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    NEW.updated_at = now();
    RETURN NEW;
END $$
"""

# Rows that some other program writes into dag_task_results reach the job's owner like any report.
MAIL_RESULT = """
CREATE FUNCTION dagapp.mail_result() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO dagapp.dag_mailbox (job_id, kind, node_id, task_id, worker_id, output, error, duration_ms)
    VALUES (NEW.job_id, NEW.status::text, NEW.node_id, NEW.task_id, NEW.worker_id, NEW.output,
            NEW.error_message, NEW.execution_duration_ms);
    RETURN NULL;
END $$
"""

# JSON may say \u0000 or half a character; jsonb may not, and one bad letter must not hold up the others.
AS_JSONB = """
CREATE FUNCTION dagapp.as_jsonb(value json) RETURNS jsonb LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
    RETURN value::jsonb;
EXCEPTION WHEN data_exception THEN
    RETURN NULL;
END $$
"""

PARTITIONS = """
CREATE FUNCTION dagapp.ensure_event_partitions(days_ahead int) RETURNS int LANGUAGE plpgsql AS $$
DECLARE
    first date := (now() AT TIME ZONE 'UTC')::date;
    made int := 0;
    name text;
    low timestamptz;
    high timestamptz;
BEGIN
    FOR n IN 0 .. days_ahead LOOP
        name := 'dag_job_events_' || to_char(first + n, 'YYYYMMDD');
        CONTINUE WHEN to_regclass('dagapp.' || name) IS NOT NULL;
        -- One at a time, and while nobody is about to write a row of that day into the default partition.
        LOCK TABLE ONLY dagapp.dag_job_events IN SHARE ROW EXCLUSIVE MODE;
        CONTINUE WHEN to_regclass('dagapp.' || name) IS NOT NULL;
        low := (first + n)::timestamp AT TIME ZONE 'UTC';
        high := (first + n + 1)::timestamp AT TIME ZONE 'UTC';
        EXECUTE format('CREATE TABLE dagapp.%I (LIKE dagapp.dag_job_events INCLUDING DEFAULTS)', name);
        -- Rows that came before their partition wait in the default one.
        EXECUTE format('WITH moved AS (DELETE FROM dagapp.dag_job_events_default
                        WHERE created_at >= %L AND created_at < %L RETURNING *)
                        INSERT INTO dagapp.%I OVERRIDING SYSTEM VALUE SELECT * FROM moved', low, high, name);
        EXECUTE format('ALTER TABLE dagapp.dag_job_events ATTACH PARTITION dagapp.%I FOR VALUES FROM (%L) TO (%L)',
                       name, low, high);
        made := made + 1;
    END LOOP;
    RETURN made;
END $$
"""

HOT = "autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000, autovacuum_vacuum_cost_delay = 0"
STORAGE = {
    "dag_jobs": "fillfactor = 80",
    "dag_node_states": "fillfactor = 70",
    "dag_orchestrators": "fillfactor = 50",
    "dag_workers": "fillfactor = 50",
    "dag_tasks_waiting": HOT,
    "dag_tasks_running": HOT,
    "dag_mailbox": HOT,
}


def upgrade() -> None:
    for function in (FENCE, EXPECT, TOUCH, MAIL_RESULT, AS_JSONB, PARTITIONS):
        op.execute(function)
    for table in ("dag_jobs", "dag_node_states"):
        op.execute(f"CREATE TRIGGER touch BEFORE UPDATE ON dagapp.{table} FOR EACH ROW EXECUTE FUNCTION dagapp.touch()")
    op.execute(
        "CREATE TRIGGER mail_result AFTER INSERT OR UPDATE ON dagapp.dag_task_results FOR EACH ROW "
        "WHEN (NOT NEW.processed AND NEW.status IN ('completed', 'failed')) EXECUTE FUNCTION dagapp.mail_result()"
    )
    for table, settings in STORAGE.items():
        op.execute(f"ALTER TABLE dagapp.{table} SET ({settings})")
    op.execute("CREATE TABLE IF NOT EXISTS dagapp.dag_job_events_default PARTITION OF dagapp.dag_job_events DEFAULT")
    op.execute("SELECT dagapp.ensure_event_partitions(7)")


def downgrade() -> None:
    # The partitions stay: they hold rows.
    op.execute("DROP TRIGGER mail_result ON dagapp.dag_task_results")
    for table in ("dag_jobs", "dag_node_states"):
        op.execute(f"DROP TRIGGER touch ON dagapp.{table}")
    for function in (
        "ensure_event_partitions(int)",
        "as_jsonb(json)",
        "mail_result()",
        "touch()",
        "expect(text, bigint, bigint)",
        "check_fence(json, bigint[])",
    ):
        op.execute(f"DROP FUNCTION dagapp.{function}")
