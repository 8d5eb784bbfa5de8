-- find_task_state --
-- A task by its snowflake id: an added task, or the entry task of a job, whose idempotency key it is.
WITH found AS (
    SELECT job_id, node_id FROM dagapp.dag_node_states
    WHERE definition ->> 'task' = :task_id::text AND (:job_id::bigint IS NULL OR job_id = :job_id)
    UNION ALL
    SELECT job_id, :entry::text FROM dagapp.dag_jobs
    WHERE submitted_by = :submitted_by::text AND idempotency_key = :task_id
        AND (:job_id::bigint IS NULL OR job_id = :job_id)
    LIMIT 1
)
SELECT n.job_id, n.node_id, n.status, n.output, n.error_message, n.ended_by, n.retry_count, n.created_at, n.started_at,
    n.completed_at, n.definition ->> 'group' AS group_id,
    coalesce(n.definition ->> 'handler', w.definition -> 'nodes' -> n.node_id ->> 'handler') AS handler,
    coalesce(n.input_params, n.definition -> 'refs', j.input_params -> 'kwargs') AS kwargs,
    t.claimed_at, coalesce(t.worker_id, r.worker_id) AS worker_id, r.log_path
FROM found f
JOIN dagapp.dag_node_states n ON n.job_id = f.job_id AND n.node_id = f.node_id
JOIN dagapp.dag_jobs j ON j.job_id = n.job_id
JOIN dagapp.dag_workflows w ON w.workflow_hash = j.workflow_hash
LEFT JOIN dagapp.dag_tasks_running t ON t.task_id = n.task_id
LEFT JOIN dagapp.dag_task_results r ON r.task_id = n.task_id;

-- touch_worker --
-- Renew the lease and nothing else; no row if the worker was declared lost.
UPDATE dagapp.dag_workers SET last_heartbeat = clock_timestamp()
WHERE worker_id = :worker_id AND status = 'active'
RETURNING worker_id;

-- retire_worker --
-- An orderly shutdown; its tasks are taken back.
UPDATE dagapp.dag_workers SET status = 'stopped' WHERE worker_id = :worker_id AND status = 'active' RETURNING worker_id;
