-- commit_batch --
-- Everything that one batch changed, in one statement and so in one transaction; nothing of it unless every job in
-- it is still owned by :owner_id and every row is as its owner knew it.
WITH fenced AS MATERIALIZED (
    SELECT dagapp.fence(:owner_id, :fences::json)
), job_rows AS (
    UPDATE dagapp.dag_jobs j
    SET status = r.status, started_at = r.started_at, completed_at = r.completed_at, error_message = r.error_message,
        result_data = r.result_data, version = j.version + 1,
        owner_id = CASE WHEN r.status IN ('pending', 'running') THEN j.owner_id END
    FROM json_to_recordset(:jobs::json) AS r(
        job_id bigint, version int, status dagapp.job_status, started_at timestamptz, completed_at timestamptz,
        error_message text, result_data jsonb
    )
    WHERE j.job_id = r.job_id AND j.version = r.version AND j.status IN ('pending', 'running')
    RETURNING 1
), new_nodes AS (
    INSERT INTO dagapp.dag_node_states (
        job_id, node_id, status, task_id, retry_count, max_retries, parent_node_id, fan_out_index, input_params, output,
        error_message, not_before, created_at, dispatched_at, started_at, completed_at
    )
    SELECT job_id, node_id, status, task_id, retry_count, max_retries, parent_node_id, fan_out_index, input_params,
        output, error_message, not_before, created_at, dispatched_at, started_at, completed_at
    FROM json_to_recordset(:new_nodes::json) AS r(
        job_id bigint, node_id text, status dagapp.node_status, task_id text, retry_count int, max_retries int,
        parent_node_id text, fan_out_index int, input_params jsonb, output jsonb, error_message text,
        not_before timestamptz, created_at timestamptz, dispatched_at timestamptz, started_at timestamptz,
        completed_at timestamptz
    )
), node_rows AS (
    UPDATE dagapp.dag_node_states n
    SET status = r.status, task_id = r.task_id, retry_count = r.retry_count, max_retries = r.max_retries,
        input_params = coalesce(r.input_params, n.input_params), output = r.output, error_message = r.error_message,
        not_before = r.not_before, dispatched_at = r.dispatched_at, started_at = r.started_at,
        completed_at = r.completed_at, version = n.version + 1
    FROM json_to_recordset(:nodes::json) AS r(
        job_id bigint, node_id text, version int, status dagapp.node_status, task_id text, retry_count int,
        max_retries int, input_params jsonb, output jsonb, error_message text, not_before timestamptz,
        dispatched_at timestamptz, started_at timestamptz, completed_at timestamptz
    )
    WHERE n.job_id = r.job_id AND n.node_id = r.node_id AND n.version = r.version
    RETURNING 1
), result_rows AS (
    INSERT INTO dagapp.dag_task_results AS t (
        task_id, job_id, node_id, status, output, error_message, worker_id, execution_duration_ms, reported_at, processed
    )
    SELECT task_id, job_id, node_id, status, output, left(error_message, 2000), worker_id, execution_duration_ms,
        reported_at, true
    FROM json_to_recordset(:results::json) AS r(
        task_id text, job_id bigint, node_id text, status dagapp.task_status, output jsonb, error_message text,
        worker_id text, execution_duration_ms bigint, reported_at timestamptz
    )
    ON CONFLICT (task_id) DO UPDATE
    SET status = CASE WHEN t.status IN ('completed', 'failed') THEN t.status ELSE excluded.status END,
        output = CASE WHEN t.status IN ('completed', 'failed') THEN t.output ELSE excluded.output END,
        error_message = CASE WHEN t.status IN ('completed', 'failed') THEN t.error_message ELSE excluded.error_message END,
        worker_id = coalesce(t.worker_id, excluded.worker_id),
        execution_duration_ms = coalesce(t.execution_duration_ms, excluded.execution_duration_ms),
        processed = true
), closed_waiting AS (
    DELETE FROM dagapp.dag_tasks_waiting t USING json_array_elements_text(:closed_tasks::json) AS c(task_id)
    WHERE t.task_id = c.task_id
), closed_running AS (
    DELETE FROM dagapp.dag_tasks_running t USING json_array_elements_text(:closed_tasks::json) AS c(task_id)
    WHERE t.task_id = c.task_id
), waiting AS (
    INSERT INTO dagapp.dag_tasks_waiting (
        task_id, job_id, node_id, retry_count, queue, priority, job_started_at, handler, timeout_seconds,
        correlation_id, trace_parent, dispatched_at
    )
    SELECT task_id, job_id, node_id, retry_count, queue, priority, job_started_at, handler, timeout_seconds,
        correlation_id, trace_parent, dispatched_at
    FROM json_to_recordset(:waiting::json) AS r(
        task_id text, job_id bigint, node_id text, retry_count int, queue text, priority int,
        job_started_at timestamptz, handler text, timeout_seconds float, correlation_id text, trace_parent text,
        dispatched_at timestamptz
    )
), running AS (
    INSERT INTO dagapp.dag_tasks_running (
        task_id, job_id, node_id, retry_count, queue, priority, job_started_at, handler, timeout_seconds,
        correlation_id, trace_parent, dispatched_at, worker_id, claimed_at
    )
    SELECT task_id, job_id, node_id, retry_count, queue, priority, job_started_at, handler, timeout_seconds,
        correlation_id, trace_parent, dispatched_at, :worker_id, dispatched_at
    FROM json_to_recordset(:running::json) AS r(
        task_id text, job_id bigint, node_id text, retry_count int, queue text, priority int,
        job_started_at timestamptz, handler text, timeout_seconds float, correlation_id text, trace_parent text,
        dispatched_at timestamptz
    )
), event_rows AS (
    INSERT INTO dagapp.dag_job_events (
        job_id, node_id, task_id, event_type, event_status, event_data, error_message, duration_ms, created_at, source_app
    )
    SELECT job_id, node_id, task_id, event_type, event_status, event_data, error_message, duration_ms, created_at,
        source_app
    FROM json_to_recordset(:events::json) AS r(
        job_id bigint, node_id text, task_id text, event_type dagapp.event_type, event_status dagapp.event_status,
        event_data jsonb, error_message text, duration_ms bigint, created_at timestamptz, source_app text
    )
), mail AS (
    DELETE FROM dagapp.dag_mailbox m USING json_array_elements_text(:mail::json) AS c(mail_id)
    WHERE m.mail_id = c.mail_id::bigint
)
SELECT dagapp.expect('jobs', :job_count, (SELECT count(*) FROM job_rows)),
    dagapp.expect('nodes', :node_count, (SELECT count(*) FROM node_rows))
FROM fenced;
