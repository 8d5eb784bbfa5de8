-- last_event_id --
-- The newest event of all, by which somebody who looks sees that something has happened. From the sequence: no index
-- has the ids of all jobs in order.
SELECT coalesce(pg_sequence_last_value(pg_get_serial_sequence('dagapp.dag_job_events', 'event_id')), 0) AS event_id;

-- find_jobs --
-- The newest jobs that fit, with how far they are. A text is looked for in ids, names and errors.
SELECT j.job_id, j.workflow_id, j.workflow_version, j.status, j.priority, j.error_message, j.submitted_by,
    j.correlation_id, j.owner_id, j.paused_at, j.created_at, j.started_at, j.completed_at, j.schedule_id,
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
-- How many nodes of each of these jobs are in each state, the children of fan-outs too.
SELECT job_id, status, count(*) AS nodes FROM dagapp.dag_node_states
WHERE job_id = ANY(:job_ids) GROUP BY job_id, status;
