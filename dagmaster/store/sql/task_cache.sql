-- recall_result --
-- The result of a task with the same handler, version and parameters, for the worker that holds this task.
SELECT c.output, c.job_id, c.stored_at
FROM dagapp.dag_tasks_running t
JOIN dagapp.dag_node_states n ON n.job_id = t.job_id AND n.node_id = t.node_id
JOIN dagapp.dag_task_cache c ON c.cache_key = dagapp.task_cache_key(t.handler, :version, n.input_params)
WHERE t.task_id = :task_id AND t.worker_id || '' = :worker_id AND (c.expires_at IS NULL OR c.expires_at > now());

-- remember_result --
-- Cache the task's result, from the worker that holds it, for :seconds or forever. Not if an earlier attempt has added
-- nodes: they would be missing in the job that reuses the result.
INSERT INTO dagapp.dag_task_cache (cache_key, handler, output, job_id, task_id, expires_at)
SELECT dagapp.task_cache_key(t.handler, :version, n.input_params), t.handler, :output::jsonb, t.job_id, t.task_id,
    now() + make_interval(secs => :seconds::float8)
FROM dagapp.dag_tasks_running t
JOIN dagapp.dag_node_states n ON n.job_id = t.job_id AND n.node_id = t.node_id
WHERE t.task_id = :task_id AND t.worker_id || '' = :worker_id AND (t.retry_count = 0 OR NOT EXISTS (
    SELECT FROM dagapp.dag_node_states a WHERE a.job_id = t.job_id AND a.parent_node_id = t.node_id
))
ON CONFLICT (cache_key) DO UPDATE
SET output = excluded.output, job_id = excluded.job_id, task_id = excluded.task_id, stored_at = now(),
    expires_at = excluded.expires_at;

-- clear_results --
-- Clear all results, or those of one handler, with a dot or a colon; and write an audit event.
WITH gone AS (
    DELETE FROM dagapp.dag_task_cache
    WHERE :handler::text IS NULL OR translate(handler, ':', '.') = translate(:handler, ':', '.')
    RETURNING 1
), counted AS (
    SELECT count(*) AS removed FROM gone
), noted AS (
    INSERT INTO dagapp.dag_job_events (job_id, event_type, event_status, event_data, created_at, source_app)
    SELECT 0, 'command', 'info', jsonb_build_object(
        'command', 'cache.clear', 'actor', :actor::text, 'handler', :handler, 'removed', removed
    ), clock_timestamp(), :source_app
    FROM counted
)
SELECT removed FROM counted;
