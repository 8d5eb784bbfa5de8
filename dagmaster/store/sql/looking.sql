-- last_event_id --
-- The newest event of all, by which somebody who looks sees that something has happened. From the sequence: no index
-- has the ids of all jobs in order.
SELECT coalesce(pg_sequence_last_value(pg_get_serial_sequence('dagapp.dag_job_events', 'event_id')), 0) AS event_id;

-- is_settled --
-- Whether no transaction is under way: every event whose id was given out before can be seen.
SELECT pg_snapshot_xmin(s) = pg_snapshot_xmax(s) AS is_settled FROM pg_current_snapshot() AS s;

-- find_jobs --
-- The newest jobs that fit, with how far they are. A text is looked for in ids, names and errors.
SELECT j.job_id, j.workflow_id, j.workflow_version, j.status, j.priority, j.error_message, j.submitted_by,
    j.correlation_id, j.owner_id, j.paused_at, j.idle_seconds, j.created_at, j.started_at, j.completed_at, j.schedule_id,
    j.parent_job_id
FROM dagapp.dag_jobs j
WHERE (:statuses::text[] IS NULL OR j.status::text = ANY(:statuses))
    AND (NOT :is_live::boolean OR j.status IN ('pending', 'running')) -- Of these there is an index.
    AND (:workflow_id::text IS NULL OR j.workflow_id = :workflow_id)
    AND (:submitted_by::text IS NULL OR j.submitted_by = :submitted_by)
    AND (:schedule_id::text IS NULL OR j.schedule_id = :schedule_id)
    AND (:since::timestamptz IS NULL OR j.created_at >= :since)
    AND (:until::timestamptz IS NULL OR j.created_at < :until)
    AND (:ended_since::timestamptz IS NULL OR j.completed_at >= :ended_since)
    AND (
        :text::text IS NULL OR j.job_id::text = :text OR j.correlation_id = :text
        OR j.workflow_id ILIKE '%' || :pattern || '%' OR j.error_message ILIKE '%' || :pattern || '%'
        OR j.submitted_by ILIKE '%' || :pattern || '%'
    )
ORDER BY j.created_at DESC, j.job_id DESC
LIMIT :limit OFFSET :offset;

-- has_more_nodes --
-- Whether a job has more nodes than this.
SELECT EXISTS (SELECT FROM dagapp.dag_node_states WHERE job_id = :job_id OFFSET :than) AS has_more;

-- count_nodes_of_jobs --
-- How many nodes of each of these jobs are in each state; what has come of a node apart, with how that node stands.
SELECT c.job_id, c.parent_node_id, c.is_added, c.status, c.nodes, c.last_ended_at,
    CASE WHEN n.ended_by = 'cancelled' THEN 'cancelled' ELSE n.status::text END AS parent_status,
    CASE WHEN c.status = 'failed' AND n.status IS NOT NULL AND NOT c.is_added THEN coalesce((
        SELECT (w.definition #> ARRAY['nodes', c.parent_node_id, 'allow_failure'])::boolean
        FROM dagapp.dag_jobs j JOIN dagapp.dag_workflows w ON w.workflow_hash = j.workflow_hash
        WHERE j.job_id = c.job_id
    ), false) ELSE false END AS may_fail
FROM (
    SELECT job_id, CASE WHEN definition IS NULL OR parent_node_id IS NULL THEN parent_node_id
            ELSE split_part(split_part(node_id, '.', 1), '__', 1) END AS parent_node_id,
        definition IS NOT NULL AND parent_node_id IS NOT NULL AS is_added,
        CASE WHEN ended_by = 'cancelled' THEN 'cancelled' ELSE status::text END AS status, count(*) AS nodes,
        max(completed_at) AS last_ended_at
    FROM dagapp.dag_node_states WHERE job_id = ANY(:job_ids) GROUP BY 1, 2, 3, 4
) c
LEFT JOIN dagapp.dag_node_states n ON n.job_id = c.job_id AND n.node_id = c.parent_node_id;

-- waiting_of_jobs --
-- Of these jobs, those of which a node waits for somebody outside: for what, and whether anything else is under way.
SELECT DISTINCT ON (j.job_id) j.job_id, n.node_id, w.type AS waits_for, w.signal
FROM dagapp.dag_jobs j
CROSS JOIN LATERAL (
    SELECT key AS node_id, CASE WHEN value ->> 'type' = 'approval' THEN 'approval' ELSE 'signal' END AS type,
        value ->> 'signal' AS signal
    FROM dagapp.dag_workflows d CROSS JOIN jsonb_each(d.definition -> 'nodes')
    WHERE d.workflow_hash = j.workflow_hash
        AND (value ->> 'type' = 'approval' OR (value ->> 'type' = 'wait' AND value ->> 'signal' IS NOT NULL))
) w
CROSS JOIN LATERAL (
    SELECT node_id, started_at FROM dagapp.dag_node_states
    WHERE job_id = j.job_id AND node_id = w.node_id AND status = 'running'
    OFFSET 0
) n
WHERE j.job_id = ANY(:job_ids) AND j.status = 'running'
    AND NOT EXISTS (SELECT FROM dagapp.dag_tasks_running t WHERE t.job_id = j.job_id)
    AND NOT EXISTS (SELECT FROM dagapp.dag_tasks_waiting t WHERE t.job_id = j.job_id)
ORDER BY j.job_id, n.started_at;
