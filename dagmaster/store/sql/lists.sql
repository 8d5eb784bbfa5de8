-- list_nodes --
-- Nodes of the newest jobs that fit; what is open can only be in a job that is live. Bounded: a rare status or text
-- must not be looked for in all of history.
WITH jobs AS MATERIALIZED (
    SELECT job_id, workflow_id, status AS job_status, created_at, completed_at AS job_completed_at FROM dagapp.dag_jobs
    WHERE (:workflow_id::text IS NULL OR workflow_id = :workflow_id)
        AND (NOT :is_open::boolean OR status IN ('pending', 'running'))
        AND (:since::timestamptz IS NULL OR created_at >= :since)
    ORDER BY created_at DESC, job_id DESC LIMIT :jobs
)
SELECT n.job_id, j.workflow_id, j.job_status, j.job_completed_at, n.node_id, n.status, n.ended_by,
    n.retry_count, n.max_retries, n.parent_node_id, n.error_message, n.not_before, n.created_at, n.dispatched_at, n.started_at, n.completed_at
FROM jobs j
CROSS JOIN LATERAL (
    SELECT * FROM dagapp.dag_node_states
    WHERE job_id = j.job_id AND (
            :statuses::text[] IS NULL OR CASE WHEN ended_by = 'cancelled' THEN 'cancelled' ELSE status::text END = ANY(:statuses)
        )
        AND (
            :text::text IS NULL OR job_id::text = :text OR node_id ILIKE '%' || :pattern || '%'
            OR error_message ILIKE '%' || :pattern || '%'
        )
    OFFSET 0 -- From the jobs to their nodes, never from all nodes.
) n
ORDER BY j.created_at DESC, j.job_id DESC,
    coalesce(n.completed_at, n.started_at, n.dispatched_at) DESC NULLS LAST, n.node_id
LIMIT :limit OFFSET :offset;

-- list_results --
-- The newest attempts that have ended, of the newest jobs of the time and of those that run: results are found by
-- their jobs. Which handler it was is in the pinned definition, or with the node if a task has added it: only the ids
-- of such nodes have a dot. It is looked up before the newest are chosen only if somebody asks for one.
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

-- waiting_handlers --
-- What waits in each queue, by what it takes to run it.
SELECT queue, handler, count(*)::int AS waiting, min(dispatched_at) AS oldest
FROM dagapp.dag_tasks_waiting WHERE NOT held GROUP BY queue, handler ORDER BY queue, handler;

-- list_all_workers --
-- Those at work first, then the newest.
SELECT w.worker_id, w.hostname, w.pid, w.status, w.wanted, w.queues, w.handlers, w.concurrency, w.tasks_completed,
    w.tasks_failed, w.started_at, w.last_heartbeat, w.stats, w.key_id IS NOT NULL AS is_remote,
    w.last_heartbeat < clock_timestamp() - make_interval(secs => :lost_after_seconds) AS is_silent,
    (SELECT count(*)::int FROM dagapp.dag_tasks_running t WHERE t.worker_id = w.worker_id) AS running
FROM dagapp.dag_workers w
WHERE :status::text IS NULL OR w.status = :status
ORDER BY w.status <> 'active', w.started_at DESC, w.worker_id
LIMIT :limit OFFSET :offset;

-- waiting_approvals --
-- Nodes of live jobs that wait for somebody's decision, the oldest first.
WITH live AS MATERIALIZED (
    SELECT job_id, workflow_id, workflow_hash, submitted_by FROM dagapp.dag_jobs WHERE status IN ('pending', 'running')
), asking AS MATERIALIZED (
    SELECT w.workflow_hash, n.key AS node_id
    FROM dagapp.dag_workflows w CROSS JOIN jsonb_each(w.definition -> 'nodes') AS n
    WHERE w.workflow_hash = ANY(ARRAY(SELECT DISTINCT workflow_hash FROM live)) AND n.value ->> 'type' = 'approval'
)
SELECT n.job_id, j.workflow_id, j.submitted_by, n.node_id, n.input_params ->> 'message' AS message,
    coalesce(n.input_params -> 'approvers', '[]') AS approvers, n.started_at, n.not_before AS until
FROM live j
JOIN asking a ON a.workflow_hash = j.workflow_hash
CROSS JOIN LATERAL (
    SELECT * FROM dagapp.dag_node_states
    WHERE job_id = j.job_id AND node_id = a.node_id AND status = 'running' OFFSET 0
) n
ORDER BY n.started_at, n.job_id LIMIT :limit;

-- decided_approvals --
-- What was decided last, of the newest jobs that ask for something.
WITH asking AS MATERIALIZED (
    SELECT DISTINCT workflow_id FROM dagapp.dag_workflows
    WHERE jsonb_path_exists(definition, '$.nodes.* ? (@.type == "approval")')
), jobs AS MATERIALIZED (
    SELECT j.job_id, j.workflow_id, j.created_at
    FROM asking a
    CROSS JOIN LATERAL (
        SELECT job_id, workflow_id, created_at FROM dagapp.dag_jobs
        WHERE workflow_id = a.workflow_id ORDER BY created_at DESC LIMIT :jobs
    ) j
)
SELECT e.job_id, j.workflow_id, e.node_id, e.created_at AS decided_at, e.event_data -> 'approved' AS is_approved,
    e.event_data ->> 'by' AS decided_by, e.event_data ->> 'comment' AS comment, n.input_params ->> 'message' AS message
FROM jobs j
JOIN dagapp.dag_job_events e ON e.job_id = j.job_id AND e.created_at >= j.created_at
    AND e.event_type = 'approval_decided'
LEFT JOIN dagapp.dag_node_states n ON n.job_id = e.job_id AND n.node_id = e.node_id
ORDER BY e.created_at DESC LIMIT :limit;

-- missed_schedules --
-- Times of the last days for which a schedule has started no job, the newest of each schedule.
SELECT DISTINCT ON (event_data ->> 'schedule_id') event_data ->> 'schedule_id' AS schedule_id, created_at,
    event_data ->> 'first' AS first, (event_data ->> 'count')::int AS count, error_message
FROM dagapp.dag_job_events
WHERE job_id = 0 AND event_type = 'schedule_missed'
    AND created_at >= clock_timestamp() - make_interval(days => :days::int)
ORDER BY event_data ->> 'schedule_id', event_id DESC;
