-- load_jobs --
-- Load these jobs for their owner's memory.
WITH named AS MATERIALIZED (
    SELECT job_id, owner_id, workflow_hash, status, priority, input_params, input_bytes, correlation_id, owner_epoch,
        created_at, started_at, completed_at, idle_seconds, version, trace_parent, paused_at, paused_by, resumed_at,
        error_message, failed_node, ended_by, deadline_at, signals, asset_id IS NOT NULL AS has_version
    FROM dagapp.dag_jobs WHERE job_id = ANY(:job_ids)
)
SELECT job_id, workflow_hash, status, priority, correlation_id, owner_epoch, created_at, started_at, completed_at, idle_seconds,
    CASE WHEN coalesce(input_bytes, pg_column_size(input_params)) <= :inline_bytes THEN input_params END AS input_params,
    coalesce(input_bytes, pg_column_size(input_params)) AS input_bytes,
    version, trace_parent, paused_at, paused_by, resumed_at, error_message, failed_node, ended_by, deadline_at, signals,
    has_version
FROM named WHERE owner_id = :owner_id AND status IN ('pending', 'running', 'failed'); -- A failed one is reopened.

-- load_nodes --
-- All nodes of these jobs, children after their fan-outs and in order. Large outputs are not read.
SELECT job_id, node_id, status, retry_count, max_retries, parent_node_id, fan_out_index,
    CASE WHEN coalesce(output_bytes, pg_column_size(output)) <= CASE
        WHEN parent_node_id IS NULL AND definition IS NULL THEN :inline_bytes::bigint ELSE :child_bytes::bigint
    END THEN output END AS output,
    coalesce(output_bytes, pg_column_size(output)) AS output_bytes, input_params IS NOT NULL AS has_params,
    error_message, dispatched_at, started_at, completed_at, not_before, queue, version, definition, result_of,
    times_lost, ended_by
FROM dagapp.dag_node_states
WHERE job_id = ANY(:job_ids)
ORDER BY job_id, fan_out_index NULLS FIRST, created_at;

-- load_outputs --
-- The outputs of these nodes.
SELECT node_id, output FROM dagapp.dag_node_states WHERE job_id = :job_id AND node_id = ANY(:node_ids);

-- load_inputs --
SELECT input_params FROM dagapp.dag_jobs WHERE job_id = :job_id;

-- release_ended_job --
-- Release a job that was to be reopened and cannot be: it stays failed.
WITH job AS (
    UPDATE dagapp.dag_jobs SET owner_id = NULL
    WHERE job_id = :job_id AND owner_id = :owner_id AND status IN ('completed', 'failed', 'cancelled')
    RETURNING job_id
)
INSERT INTO dagapp.dag_job_events (job_id, event_type, event_status, error_message, created_at, source_app)
SELECT job_id, 'orchestrator_error', 'failure', left(:error, 2000), clock_timestamp(), 'orchestrator' FROM job;

-- note_error --
-- Record that an orchestrator failed to process this job.
INSERT INTO dagapp.dag_job_events (job_id, event_type, event_status, error_message, event_data, created_at, source_app)
VALUES (:job_id, 'orchestrator_error', 'failure', left(:error, 2000), :data::jsonb, clock_timestamp(), 'orchestrator');

-- fail_poisoned_job --
-- Fail a job that its owner cannot process, without the engine: a bad job never stops another.
WITH was AS MATERIALIZED (
    SELECT job_id, status FROM dagapp.dag_jobs
    WHERE job_id = :job_id AND owner_id = :owner_id AND status IN ('pending', 'running')
    FOR UPDATE
), job AS (
    UPDATE dagapp.dag_jobs j
    SET status = 'failed', started_at = coalesce(j.started_at, clock_timestamp()), completed_at = clock_timestamp(),
        error_message = left(:error, 2000), ended_by = 'unprocessable', owner_id = NULL, version = j.version + 1
    FROM was WHERE j.job_id = was.job_id
    RETURNING j.job_id, was.status AS former_status
), nodes AS (
    UPDATE dagapp.dag_node_states n
    SET status = CASE WHEN n.status IN ('pending', 'ready') THEN 'skipped' ELSE 'failed' END::dagapp.node_status,
        error_message = CASE WHEN n.status IN ('dispatched', 'running') THEN 'stopped because the job failed' END,
        ended_by = CASE WHEN n.status IN ('pending', 'ready') THEN 'skipped' ELSE 'revoked' END::dagapp.ended_by,
        completed_at = clock_timestamp(), version = n.version + 1
    FROM job WHERE n.job_id = job.job_id AND n.status IN ('pending', 'ready', 'dispatched', 'running')
    RETURNING n.job_id, n.node_id, n.task_id, n.status, n.error_message
), waiting AS (
    DELETE FROM dagapp.dag_tasks_waiting t USING job WHERE t.job_id = job.job_id
), running AS (
    DELETE FROM dagapp.dag_tasks_running t USING job WHERE t.job_id = job.job_id
)
INSERT INTO dagapp.dag_job_events (
    job_id, node_id, task_id, event_type, event_status, error_message, event_data, created_at, source_app
)
SELECT job_id, node_id, task_id, event_type::dagapp.event_type, event_status::dagapp.event_status, error_message,
    event_data, clock_timestamp(), 'orchestrator'
FROM (
    SELECT 1 AS place, job_id, NULL AS node_id, NULL AS task_id, 'orchestrator_error' AS event_type,
        'failure' AS event_status, left(:error, 2000) AS error_message, NULL::jsonb AS event_data
    FROM job
    UNION ALL
    SELECT 2, job_id, NULL, NULL, 'job_started', 'info', NULL, '{"first_node": null}'
    FROM job WHERE former_status = 'pending' -- Only running jobs fail.
    UNION ALL
    SELECT 3, job_id, node_id, task_id, 'node_skipped', 'info', NULL, '{"reason": "job_failed", "ended_by": "skipped"}'
    FROM nodes WHERE status = 'skipped'
    UNION ALL
    SELECT 3, job_id, node_id, task_id, 'node_failed', 'warning', error_message,
        '{"will_retry": false, "ended_by": "revoked"}'
    FROM nodes WHERE status = 'failed'
    UNION ALL
    SELECT 4, job_id, NULL, NULL, 'job_failed', 'failure', left(:error, 2000), '{"ended_by": "unprocessable"}'
    FROM job
) events
ORDER BY place
RETURNING job_id;
