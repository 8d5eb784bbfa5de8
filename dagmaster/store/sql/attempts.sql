-- {open_tasks} --
-- Attempts that wait in a queue or run on a worker.
(
    SELECT task_id, job_id, node_id, CASE WHEN held THEN 'held' ELSE 'waiting' END AS state, queue, handler, priority,
        retry_count, NULL AS worker_id, dispatched_at AS since, dispatched_at
    FROM dagapp.dag_tasks_waiting
    UNION ALL
    SELECT task_id, job_id, node_id, 'running', queue, handler, priority, retry_count, worker_id, claimed_at,
        dispatched_at
    FROM dagapp.dag_tasks_running
) t
WHERE (:job_id::bigint IS NULL OR job_id = :job_id)
    AND (:state::text IS NULL OR state = :state)
    AND (:queue::text IS NULL OR queue = :queue)
    AND (:handler::text IS NULL OR handler = :handler)
    AND (:worker_id::text IS NULL OR worker_id = :worker_id)

-- view_tasks --
-- The oldest first.
SELECT * FROM {open_tasks}
ORDER BY since, task_id
LIMIT :limit OFFSET :offset;

-- count_tasks --
-- The number of rows of `view_tasks`.
SELECT count(*)::int AS tasks FROM {open_tasks};

-- view_ended_tasks --
-- Ended attempts, newest first: of one job, or of the newest jobs.
SELECT r.task_id, r.job_id, r.node_id, r.status::text AS state, NULL AS queue, h.handler, NULL::int AS priority,
    substring(r.task_id FROM '[0-9]+$')::int AS retry_count, r.worker_id, r.reported_at AS since,
    NULL::timestamptz AS dispatched_at, r.error_message, r.execution_duration_ms
FROM (
    SELECT job_id, workflow_hash FROM dagapp.dag_jobs
    WHERE :job_id::bigint IS NULL OR job_id = :job_id
    ORDER BY created_at DESC LIMIT :jobs
) j
CROSS JOIN LATERAL (
    SELECT task_id, job_id, node_id, status, worker_id, reported_at, error_message, execution_duration_ms
    FROM dagapp.dag_task_results
    WHERE job_id = j.job_id AND status IN ('completed', 'failed') AND (:state::text IS NULL OR status::text = :state)
        AND (:worker_id::text IS NULL OR worker_id = :worker_id)
    OFFSET 0
) r
LEFT JOIN LATERAL (
    SELECT coalesce(n.definition ->> 'handler', w.definition #>> ARRAY['nodes', split_part(r.node_id, '__', 1), 'handler'],
        w.definition #>> ARRAY['nodes', split_part(r.node_id, '__', 1), 'task', 'handler']) AS handler
    FROM dagapp.dag_node_states n CROSS JOIN dagapp.dag_workflows w
    WHERE n.job_id = r.job_id AND n.node_id = r.node_id AND w.workflow_hash = j.workflow_hash
) h ON true
WHERE :handler::text IS NULL OR h.handler = :handler
ORDER BY r.reported_at DESC, r.task_id
LIMIT :limit OFFSET :offset;

-- list_results --
-- The newest ended attempts, of recent and running jobs: results are found by their jobs. The handler is in the pinned
-- definition, or in the node if a task has added it: only ids of added nodes have a dot. It is looked up for all
-- attempts only if the result is filtered by handler.
WITH jobs AS MATERIALIZED (
    SELECT job_id, workflow_id, workflow_hash FROM (
        (SELECT job_id, workflow_id, workflow_hash FROM dagapp.dag_jobs
         WHERE created_at >= :since ORDER BY created_at DESC LIMIT :jobs)
        UNION
        (SELECT job_id, workflow_id, workflow_hash FROM dagapp.dag_jobs
         WHERE status IN ('pending', 'running') ORDER BY created_at DESC LIMIT :jobs)
    ) j
), known AS MATERIALIZED (
    SELECT w.workflow_hash, n.key AS node_id, coalesce(n.value ->> 'handler', n.value #>> '{task,handler}') AS handler
    FROM dagapp.dag_workflows w CROSS JOIN jsonb_each(w.definition -> 'nodes') AS n
    WHERE w.workflow_hash IN (SELECT workflow_hash FROM jobs)
), ended AS MATERIALIZED (
    SELECT r.*, j.workflow_id, j.workflow_hash
    FROM jobs j
    CROSS JOIN LATERAL (
        SELECT task_id, job_id, node_id, status, worker_id, error_message, error_type,
            execution_duration_ms / 1000.0 AS seconds, peak_memory_bytes, cpu_seconds, reported_at
        FROM dagapp.dag_task_results
        WHERE job_id = j.job_id AND status IN ('completed', 'failed') AND reported_at >= :since
            AND (:worker_id::text IS NULL OR worker_id = :worker_id)
        OFFSET 0
    ) r
    ORDER BY r.reported_at DESC, r.task_id
    LIMIT CASE WHEN :handler::text IS NULL THEN :limit::int END
), named AS (
    SELECT e.task_id, e.job_id, e.workflow_id, e.node_id, e.status, e.worker_id, e.error_message, e.error_type,
        e.seconds, e.peak_memory_bytes, e.cpu_seconds, e.reported_at, coalesce(k.handler, n.handler) AS handler
    FROM ended e
    LEFT JOIN known k ON k.workflow_hash = e.workflow_hash AND k.node_id = split_part(e.node_id, '__', 1)
    LEFT JOIN LATERAL (
        SELECT definition ->> 'handler' AS handler FROM dagapp.dag_node_states
        WHERE strpos(e.node_id, '.') > 0 AND job_id = e.job_id AND node_id = e.node_id OFFSET 0
    ) n ON true
)
SELECT * FROM named WHERE :handler::text IS NULL OR handler = :handler
ORDER BY reported_at DESC, task_id LIMIT :limit;

-- view_attempts --
-- The attempts at a node that were reported or have ended. If the last report of an earlier attempt says running, or if
-- an attempt ended without a report, the timeline tells how; it is read only then.
WITH reported AS MATERIALIZED (
    SELECT r.task_id, CASE WHEN over.is_over THEN 'failed' ELSE r.status::text END AS status,
        CASE WHEN over.is_over THEN over.ended_by ELSE r.ended_by::text END AS ended_by, r.worker_id, r.error_type,
        CASE WHEN over.is_over THEN over.error_message ELSE r.error_message END AS error_message,
        r.execution_duration_ms, r.peak_memory_bytes, r.cpu_seconds, r.metrics, r.log_path, r.progress_current,
        r.progress_total, r.progress_percent, r.progress_message, r.reported_at
    FROM dagapp.dag_task_results r
    LEFT JOIN LATERAL (
        SELECT true AS is_over, e.error_message, e.ended_by
        FROM dagapp.dag_node_states n
        LEFT JOIN LATERAL (
            SELECT error_message, event_data ->> 'ended_by' AS ended_by FROM dagapp.dag_job_events
            WHERE job_id = r.job_id AND task_id = r.task_id AND event_type = 'node_failed'
                AND error_message IS NOT NULL
            ORDER BY event_id DESC LIMIT 1
        ) e ON true
        WHERE r.status NOT IN ('completed', 'failed') AND n.job_id = r.job_id AND n.node_id = r.node_id
            AND (n.task_id IS DISTINCT FROM r.task_id OR n.status NOT IN ('dispatched', 'running'))
    ) over ON true
    WHERE r.job_id = :job_id AND r.node_id = :node_id
    ORDER BY r.reported_at, r.task_id LIMIT 1000
), incomplete AS (
    SELECT job_id, node_id FROM dagapp.dag_node_states
    WHERE job_id = :job_id AND node_id = :node_id
        AND (SELECT count(*) FROM reported) < retry_count + (status = 'failed' AND task_id IS NOT NULL)::int
)
SELECT * FROM reported
UNION ALL
SELECT e.task_id, 'failed', e.ended_by, e.worker_id, e.error_type, e.error_message, e.duration_ms, NULL, NULL, NULL,
    NULL, NULL, NULL, NULL, NULL, e.ended_at
FROM incomplete i
CROSS JOIN LATERAL (
    SELECT task_id, max(event_data ->> 'ended_by') AS ended_by, max(event_data ->> 'worker_id') AS worker_id,
        max(event_data ->> 'error_type') AS error_type, max(error_message) AS error_message,
        max(duration_ms) AS duration_ms, max(created_at) AS ended_at
    FROM dagapp.dag_job_events
    WHERE job_id = i.job_id AND node_id = i.node_id AND task_id IS NOT NULL
        AND event_type IN ('node_dispatched', 'node_started', 'node_failed')
        AND task_id NOT IN (SELECT task_id FROM reported)
    GROUP BY task_id -- Only tasks have a queue.
    HAVING bool_or(event_type = 'node_failed') AND max(event_data ->> 'queue') IS NOT NULL
) e
ORDER BY reported_at, task_id LIMIT 1000;

-- page_results_of_nodes --
-- How the attempts at some nodes ended, as their workers reported it.
SELECT task_id, node_id, status, worker_id, execution_duration_ms, reported_at
FROM dagapp.dag_task_results WHERE job_id = :job_id AND node_id = ANY(:node_ids::text[])
ORDER BY reported_at, task_id LIMIT :limit;

-- page_attempt_times --
-- When the attempts at some nodes were dispatched, started and ended. Events are in daily partitions, and none is older
-- than the job.
SELECT node_id, task_id,
    min(created_at) FILTER (WHERE event_type = 'node_dispatched') AS dispatched_at,
    min(created_at) FILTER (WHERE event_type = 'node_started') AS started_at,
    max(created_at) FILTER (WHERE event_type IN ('node_completed', 'node_failed')) AS ended_at,
    bool_or(event_type = 'node_failed') AS is_failed
FROM dagapp.dag_job_events
WHERE job_id = :job_id AND created_at >= :since AND node_id = ANY(:node_ids::text[]) AND task_id IS NOT NULL
    AND event_type IN ('node_dispatched', 'node_started', 'node_completed', 'node_failed')
GROUP BY node_id, task_id ORDER BY min(event_id) LIMIT :limit;

-- page_worker_of --
-- The worker that holds an attempt now.
SELECT worker_id FROM dagapp.dag_tasks_running WHERE task_id = :task_id;

-- current_tasks --
-- The tasks of a job that are in flight, with their progress.
SELECT n.node_id, n.task_id, n.status, r.progress_current, r.progress_total, r.progress_percent, r.progress_message
FROM dagapp.dag_node_states n LEFT JOIN dagapp.dag_task_results r ON r.task_id = n.task_id
WHERE n.job_id = :job_id AND n.status IN ('dispatched', 'running') AND n.task_id IS NOT NULL
ORDER BY n.status DESC, coalesce(n.started_at, n.dispatched_at), n.node_id
LIMIT :limit;

-- view_logged --
-- Nodes with an attempt on a worker: failed first, then running.
SELECT n.node_id, n.status, n.retry_count + 1 AS attempt, n.ended_by, n.error_message
FROM dagapp.dag_node_states n
WHERE n.job_id = :job_id AND (:node_id::text IS NULL OR n.node_id = :node_id) AND (
    EXISTS (SELECT FROM dagapp.dag_task_results r WHERE r.job_id = n.job_id AND r.node_id = n.node_id)
    OR EXISTS (SELECT FROM dagapp.dag_tasks_running t WHERE t.task_id = n.task_id)
)
ORDER BY n.status <> 'failed', n.status <> 'running', n.started_at, n.node_id
LIMIT :limit OFFSET :offset;

-- log_place --
-- The location of an attempt's log, and the machine that wrote it.
SELECT r.log_path, w.hostname
FROM dagapp.dag_task_results r LEFT JOIN dagapp.dag_workers w ON w.worker_id = r.worker_id
WHERE r.task_id = :task_id AND r.log_path IS NOT NULL;

-- view_checkpoints --
-- The newest first.
SELECT checkpoint_id, job_id, node_id, task_id, phase_name, phase_index, phase_total, progress_current,
    progress_total, progress_message, state_data, artifacts_completed, artifacts_total, memory_bytes, disk_bytes,
    error_count, is_final, is_valid, created_at
FROM dagapp.dag_checkpoints WHERE job_id = :job_id AND node_id = :node_id
ORDER BY checkpoint_id DESC LIMIT :limit OFFSET :offset;
