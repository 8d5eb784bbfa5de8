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
