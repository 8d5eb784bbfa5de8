-- explain_snapshot --
-- All following statements see one snapshot: otherwise a task claimed in between would be in neither table.
SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY;

-- explain_job --
-- A job and the facts about its owner.
SELECT j.job_id, j.status, j.priority, j.created_at, j.started_at, j.completed_at, j.idle_seconds, j.error_message,
    j.failed_node, j.paused_at, j.paused_by, j.resumed_at, j.owner_id, j.workflow_hash, clock_timestamp() AS now,
    coalesce(o.status = 'running', false) AS owner_runs,
    extract(epoch FROM clock_timestamp() - o.heartbeat_at)::float AS beat_seconds_ago,
    (
        SELECT count(*) FROM dagapp.dag_orchestrators
        WHERE status = 'running' AND heartbeat_at > clock_timestamp() - make_interval(secs => :threshold_seconds)
    ) AS orchestrators
FROM dagapp.dag_jobs j
LEFT JOIN dagapp.dag_orchestrators o ON o.orchestrator_id = j.owner_id
WHERE j.job_id = :job_id;

-- explain_nodes --
-- All nodes of a job, with outputs only of conditionals and fan-outs.
SELECT node_id, status, retry_count, max_retries, parent_node_id, fan_out_index, error_message, dispatched_at,
    started_at, completed_at, not_before, queue, definition::text AS definition, result_of, ended_by,
    CASE WHEN node_id = ANY(:deciding::text[]) THEN output::text END AS output
FROM dagapp.dag_node_states
WHERE job_id = :job_id
ORDER BY fan_out_index NULLS FIRST;

-- explain_tasks --
-- The tasks of a job: the number of tasks ahead of each waiting one, and the holder of each other one.
SELECT node_id, ahead, NULL AS worker_id
FROM (
    SELECT job_id, node_id, count(*) FILTER (WHERE NOT held) OVER (
        PARTITION BY queue ORDER BY priority DESC, job_started_at, seq
        ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
    ) AS ahead
    FROM dagapp.dag_tasks_waiting
    WHERE queue = ANY(ARRAY(SELECT DISTINCT queue FROM dagapp.dag_tasks_waiting WHERE job_id = :job_id))
) waiting
WHERE job_id = :job_id
UNION ALL
SELECT node_id, NULL, worker_id FROM dagapp.dag_tasks_running WHERE job_id = :job_id;

-- explain_queues --
-- The depth of these queues, and the owner's last backpressure event for each.
SELECT q.queue, coalesce(said.state = 'closed', false) AS is_closed, said.most,
    (SELECT count(*) FROM dagapp.dag_tasks_waiting t WHERE t.queue = q.queue AND NOT t.held) AS depth
FROM unnest(:queues::text[]) AS q(queue)
LEFT JOIN LATERAL (
    SELECT e.event_data->>'state' AS state, (e.event_data->>'limit')::bigint AS most
    FROM dagapp.dag_job_events e
    WHERE e.job_id = 0 AND e.event_type = 'orchestrator_backpressure' AND e.event_data->>'queue' = q.queue
        AND e.event_data->>'instance_id' = :owner_id::text
    ORDER BY e.event_id DESC LIMIT 1
) said ON true;

-- explain_errors --
-- The error of the last attempt at each of these nodes.
SELECT n.node_id, failed.error_message
FROM unnest(:node_ids::text[]) AS n(node_id)
CROSS JOIN LATERAL (
    SELECT e.error_message FROM dagapp.dag_job_events e
    WHERE e.job_id = :job_id AND e.node_id = n.node_id AND e.event_type = 'node_failed'
    ORDER BY e.event_id DESC LIMIT 1
) failed;

-- explain_progress --
-- The progress that these tasks have reported.
SELECT node_id, progress_percent, progress_message FROM dagapp.dag_task_results
WHERE task_id = ANY(:task_ids::text[]) AND (progress_percent IS NOT NULL OR progress_message IS NOT NULL);

-- explain_children --
-- The child jobs of these attempts.
SELECT job_id, parent_node_id FROM dagapp.dag_jobs
WHERE parent_job_id = :job_id AND parent_task_id = ANY(:task_ids::text[]);
