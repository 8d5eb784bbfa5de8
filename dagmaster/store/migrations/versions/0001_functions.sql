-- The functions, triggers, storage settings and partitions of the first release.

-- The fence of every batch: fails with the list of the jobs that the owner could not lock.
CREATE FUNCTION dagapp.check_fence(job_ids bigint[], held bigint[]) RETURNS void LANGUAGE plpgsql AS $$
DECLARE lost text;
BEGIN
    IF cardinality(job_ids) = coalesce(cardinality(held), 0) THEN
        RETURN;
    END IF;
    SELECT string_agg(job_id::text, ',') INTO lost FROM unnest(job_ids) AS job_id
    WHERE job_id <> ALL (coalesce(held, '{}'));
    RAISE EXCEPTION 'jobs are owned by another orchestrator' USING ERRCODE = 'DM001', DETAIL = lost;
END $$;

-- A write that applies to fewer rows than expected must not commit.
CREATE FUNCTION dagapp.expect(what text, wanted bigint, counted bigint) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    IF wanted IS DISTINCT FROM counted THEN
        RAISE EXCEPTION '% of % % were as expected', counted, wanted, what USING ERRCODE = 'DM002';
    END IF;
END $$;

-- JSON may contain \u0000 or half a surrogate pair, jsonb may not; one bad value must not block the others.
CREATE FUNCTION dagapp.as_jsonb(value json) RETURNS jsonb LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
    RETURN value::jsonb;
EXCEPTION WHEN data_exception THEN
    RETURN NULL;
END $$;

-- Computed here and not by the worker, so that a worker cannot address the results of tasks that it does not hold. The
-- text of a jsonb value has a canonical order of keys.
CREATE FUNCTION dagapp.task_cache_key(handler text, version text, params jsonb) RETURNS text LANGUAGE sql STABLE AS $$
    SELECT encode(sha256(convert_to(
        jsonb_build_array(handler, version, coalesce(params, '{}'::jsonb))::text, 'UTF8'
    )), 'hex')
$$;

-- Rows that arrived before their partition existed are in the default one.
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
END $$;

-- The first sign of life of an attempt removes it from its queue: the claim of a worker, or a report from elsewhere,
-- whichever comes first.
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
END $$;

-- A row that another program inserts into dag_task_results is mailed to the owner of the job like any report.
CREATE FUNCTION dagapp.mail_result() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF NEW.status IN ('received', 'running') THEN
        PERFORM dagapp.begin_elsewhere(NEW.task_id, NEW.worker_id);
        RETURN NULL;
    END IF;
    INSERT INTO dagapp.dag_mailbox (job_id, kind, node_id, task_id, worker_id, output, error, duration_ms)
    VALUES (NEW.job_id, NEW.status::text, NEW.node_id, NEW.task_id, NEW.worker_id, NEW.output,
            NEW.error_message, NEW.execution_duration_ms);
    RETURN NULL;
END $$;

CREATE TRIGGER mail_result AFTER INSERT OR UPDATE ON dagapp.dag_task_results FOR EACH ROW
    WHEN (NOT NEW.processed) EXECUTE FUNCTION dagapp.mail_result();

-- In the transaction that ends the job: there is a callback exactly if the job has ended.
CREATE FUNCTION dagapp.owe_callback() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO dagapp.dag_callbacks (job_id, url, job_status) VALUES (NEW.job_id, NEW.callback_url, NEW.status);
    RETURN NULL;
END $$;

CREATE TRIGGER owe_callback AFTER UPDATE ON dagapp.dag_jobs FOR EACH ROW
    WHEN (NEW.callback_url IS NOT NULL AND NEW.status <> OLD.status
          AND NEW.status IN ('completed', 'failed', 'cancelled'))
    EXECUTE FUNCTION dagapp.owe_callback();

-- In the transaction that ends the job: the parent gets a report exactly if the job has ended.
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
END $$;

CREATE TRIGGER report_to_parent AFTER UPDATE OF status ON dagapp.dag_jobs FOR EACH ROW
    WHEN (NEW.parent_job_id IS NOT NULL AND NEW.status IN ('completed', 'failed', 'cancelled')
          AND OLD.status NOT IN ('completed', 'failed', 'cancelled'))
    EXECUTE FUNCTION dagapp.report_to_parent();

CREATE FUNCTION dagapp.touch() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    NEW.updated_at = now();
    RETURN NEW;
END $$;

-- Not for statements that set the time themselves: each trigger call costs as much as a row update.
CREATE TRIGGER touch BEFORE UPDATE ON dagapp.dag_jobs FOR EACH ROW
    WHEN (NEW.updated_at = OLD.updated_at) EXECUTE FUNCTION dagapp.touch();
CREATE TRIGGER touch BEFORE UPDATE ON dagapp.dag_node_states FOR EACH ROW
    WHEN (NEW.updated_at = OLD.updated_at) EXECUTE FUNCTION dagapp.touch();

-- Frequently updated rows leave room for their next version on the same page.
ALTER TABLE dagapp.dag_jobs SET (fillfactor = 80);
ALTER TABLE dagapp.dag_node_states SET (fillfactor = 70);
ALTER TABLE dagapp.dag_orchestrators SET (fillfactor = 50);
ALTER TABLE dagapp.dag_workers SET (fillfactor = 50);

-- Short-lived rows: vacuumed by count, however large the table, and without pauses.
ALTER TABLE dagapp.dag_tasks_waiting SET (
    autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000, autovacuum_vacuum_cost_delay = 0
);
ALTER TABLE dagapp.dag_tasks_running SET (
    autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000, autovacuum_vacuum_cost_delay = 0
);
ALTER TABLE dagapp.dag_mailbox SET (
    autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000, autovacuum_vacuum_cost_delay = 0
);

-- Mail is read once, soon, and then deleted: compressing it would cost more than it saves.
ALTER TABLE dagapp.dag_mailbox ALTER COLUMN output SET STORAGE EXTERNAL;

CREATE TABLE dagapp.dag_job_events_default PARTITION OF dagapp.dag_job_events DEFAULT;
SELECT dagapp.ensure_event_partitions(7);
