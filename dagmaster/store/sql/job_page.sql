-- page_nodes --
-- A page of a job's own nodes in the order in which they began, or of what has come of one, without what they hold:
-- the children of a fan-out, and all that was added by it, by them, and by what they have added. Those that have not
-- begun come in the order that is given. Workers are looked up for what is shown alone.
SELECT n.*, coalesce(n.error_message, b.error_message) AS last_error, coalesce(t.worker_id, r.worker_id) AS worker_id,
    r.progress_percent, r.progress_message
FROM (
    SELECT job_id, node_id, status, ended_by, task_id, retry_count, max_retries, parent_node_id, fan_out_index, error_message,
        not_before, created_at, dispatched_at, started_at, completed_at, definition ->> 'handler' AS handler,
        definition ->> 'type' AS type, definition IS NOT NULL AS is_added, place
    FROM dagapp.dag_node_states
    LEFT JOIN unnest(:order::text[]) WITH ORDINALITY AS given(name, place) ON name = node_id
    WHERE job_id = :job_id AND CASE
            WHEN :is_everywhere::boolean THEN true
            WHEN :parent::text IS NULL OR definition IS NULL THEN parent_node_id IS NOT DISTINCT FROM :parent
            ELSE node_id ^@ (:parent || '.') OR node_id ^@ (:parent || '__') END
        AND (
            :status::text IS NULL OR node_id = ANY(:fitting::text[])
            OR (CASE WHEN ended_by = 'cancelled' THEN 'cancelled' ELSE status::text END = :status AND node_id <> ALL(:other::text[]))
        )
        AND (
            :pattern::text IS NULL OR node_id ILIKE '%' || :pattern || '%'
            OR error_message ILIKE '%' || :pattern || '%'
        )
    ORDER BY fan_out_index, coalesce(dispatched_at, started_at) NULLS LAST, started_at, completed_at, place,
        node_id
    LIMIT :limit OFFSET :offset
) n
LEFT JOIN dagapp.dag_task_results r ON r.task_id = n.task_id
LEFT JOIN dagapp.dag_tasks_running t ON t.task_id = n.task_id
LEFT JOIN dagapp.dag_task_results b -- Of the attempt before: a retry clears the error of its node.
    ON n.retry_count > 0 AND b.task_id = n.job_id || '_' || n.node_id || '_' || (n.retry_count - 1)
ORDER BY n.fan_out_index, coalesce(n.dispatched_at, n.started_at) NULLS LAST, n.started_at, n.completed_at, n.place,
    n.node_id;

-- page_failed_nodes --
-- Some that have failed, the first that did so first; those that the definition allows to fail are among them.
SELECT node_id, parent_node_id, error_message, completed_at FROM dagapp.dag_node_states
WHERE job_id = :job_id AND status = 'failed' AND (ended_by IS NULL OR ended_by NOT IN ('revoked', 'cancelled'))
ORDER BY CASE WHEN fan_out_index IS NULL THEN completed_at END, parent_node_id, fan_out_index, node_id LIMIT :limit;

-- page_waiting_nodes --
-- Of these nodes, those that wait for somebody outside.
SELECT node_id, input_params, started_at FROM dagapp.dag_node_states
WHERE job_id = :job_id AND node_id = ANY(:node_ids::text[]) AND status = 'running'
ORDER BY started_at, node_id;

-- page_results_of_nodes --
-- How the attempts at some nodes ended, as their workers told it.
SELECT task_id, node_id, status, worker_id, execution_duration_ms, reported_at
FROM dagapp.dag_task_results WHERE job_id = :job_id AND node_id = ANY(:node_ids::text[])
ORDER BY reported_at, task_id LIMIT :limit;

-- page_attempt_times --
-- When the attempts at some nodes were dispatched, began and ended. Events lie in partitions of days: none is older
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

-- page_fan_outs --
-- From when to when the children of some fan-outs ran.
SELECT parent_node_id, min(dispatched_at) AS dispatched_at, min(started_at) AS started_at,
    CASE WHEN bool_and(completed_at IS NOT NULL) THEN max(completed_at) END AS completed_at, count(*) AS children
FROM dagapp.dag_node_states WHERE job_id = :job_id AND parent_node_id = ANY(:node_ids::text[])
GROUP BY parent_node_id;

-- page_density --
-- How many children of a fan-out began and ended in each of equal parts of a time, in one pass over them.
WITH children AS (
    SELECT CASE WHEN ended_by = 'cancelled' THEN 'cancelled' ELSE status::text END AS status,
        width_bucket(date_part('epoch', started_at), :since::float, :until::float, :parts::int) AS first,
        width_bucket(date_part('epoch', completed_at), :since::float, :until::float, :parts::int) AS last
    FROM dagapp.dag_node_states
    WHERE job_id = :job_id AND parent_node_id = :node_id::text AND started_at IS NOT NULL
), counted AS (
    SELECT first, last, status = 'failed' AS is_failed, count(*) AS nodes FROM children GROUP BY 1, 2, 3
)
SELECT part, sum(begun)::int AS begun, sum(ended)::int AS ended, sum(failed)::int AS failed
FROM (
    SELECT first AS part, nodes AS begun, 0 AS ended, 0 AS failed FROM counted
    UNION ALL
    SELECT last, 0, nodes, CASE WHEN is_failed THEN nodes ELSE 0 END FROM counted WHERE last IS NOT NULL
) c
GROUP BY part ORDER BY part;

-- page_events_up --
-- A page of a job's timeline, the oldest first.
SELECT event_id, created_at, event_type, event_status, node_id, task_id, event_data, error_message, duration_ms,
    source_app
FROM dagapp.dag_job_events
WHERE job_id = :job_id AND created_at >= :since AND event_id > :after
    AND (:node_id::text IS NULL OR node_id = :node_id)
    AND (:event_type::text IS NULL OR event_type::text = :event_type)
ORDER BY event_id LIMIT :limit;

-- page_events_down --
-- A page of a job's timeline, the newest first.
SELECT event_id, created_at, event_type, event_status, node_id, task_id, event_data, error_message, duration_ms,
    source_app
FROM dagapp.dag_job_events
WHERE job_id = :job_id AND created_at >= :since AND event_id < :before
    AND (:node_id::text IS NULL OR node_id = :node_id)
    AND (:event_type::text IS NULL OR event_type::text = :event_type)
ORDER BY event_id DESC LIMIT :limit;

-- page_children --
-- The jobs that the nodes of a job have called, the newest first.
SELECT job_id, workflow_id, status, error_message, submitted_by, correlation_id, paused_at, idle_seconds, created_at, started_at,
    completed_at, schedule_id, parent_node_id
FROM dagapp.dag_jobs WHERE parent_job_id = :job_id
ORDER BY created_at DESC, job_id DESC LIMIT :limit;

-- page_neighbours --
-- The runs of the same workflow just before and just after a job.
(
    SELECT job_id, workflow_id, status, error_message, submitted_by, correlation_id, paused_at, idle_seconds, created_at,
        started_at, completed_at, schedule_id
    FROM dagapp.dag_jobs
    WHERE workflow_id = :workflow_id AND created_at <= :created_at AND job_id <> :job_id
        AND (:submitted_by::text IS NULL OR submitted_by = :submitted_by)
    ORDER BY created_at DESC LIMIT :limit
)
UNION
(
    SELECT job_id, workflow_id, status, error_message, submitted_by, correlation_id, paused_at, idle_seconds, created_at,
        started_at, completed_at, schedule_id
    FROM dagapp.dag_jobs
    WHERE workflow_id = :workflow_id AND created_at > :created_at
        AND (:submitted_by::text IS NULL OR submitted_by = :submitted_by)
    ORDER BY created_at LIMIT :limit
)
ORDER BY created_at DESC, job_id DESC;

-- page_count_children --
-- How many of what has come of a node, as `page_nodes` lists it, are in each state.
SELECT definition IS NOT NULL AS is_added, CASE WHEN ended_by = 'cancelled' THEN 'cancelled' ELSE status::text END AS status,
    count(*) AS nodes, max(completed_at) AS last_ended_at
FROM dagapp.dag_node_states
WHERE job_id = :job_id AND CASE WHEN definition IS NULL THEN parent_node_id = :node_id
    ELSE node_id ^@ (:node_id || '.') OR node_id ^@ (:node_id || '__') END
GROUP BY 1, 2;

-- page_count_outside --
-- What has come of the nodes that no task has added: the first two parts of its id are theirs.
SELECT split_part(node_id, '.', 1) || '.' || split_part(node_id, '.', 2) AS node_id,
    CASE WHEN ended_by = 'cancelled' THEN 'cancelled' ELSE status::text END AS status, count(*) AS nodes
FROM dagapp.dag_node_states
WHERE job_id = :job_id AND parent_node_id IS NOT NULL AND definition IS NOT NULL AND node_id ^@ :prefix
GROUP BY 1, 2;

-- page_worker_of --
-- Who has an attempt at this moment.
SELECT worker_id FROM dagapp.dag_tasks_running WHERE task_id = :task_id;
