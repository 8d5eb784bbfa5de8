-- show_job --
-- One job with all columns.
SELECT job_id, workflow_id, workflow_version, workflow_hash, status, priority, input_params, input_bytes, result_data,
    error_message, failed_node, ended_by, deadline_at, metadata, submitted_by, correlation_id, idempotency_key,
    request_hash, callback_url, asset_id, version_ordinal, trace_parent, parent_job_id, parent_node_id, parent_task_id, schedule_id, scheduled_for, signals,
    paused_at, paused_by, resumed_at, idle_seconds, owner_id, owner_epoch, owner_heartbeat_at, created_at, started_at,
    completed_at, updated_at, version
FROM dagapp.dag_jobs WHERE job_id = :job_id;

-- show_job_head --
-- One job without its inputs and result, which may be large.
SELECT job_id, workflow_id, workflow_version, workflow_hash, status, priority, error_message, failed_node,
    ended_by, metadata, submitted_by, correlation_id, idempotency_key, callback_url, asset_id, version_ordinal, trace_parent, parent_job_id, parent_node_id,
    parent_task_id, schedule_id, scheduled_for, paused_at, paused_by, resumed_at, idle_seconds, deadline_at, owner_id,
    owner_epoch, created_at, started_at, completed_at, updated_at, version
FROM dagapp.dag_jobs WHERE job_id = :job_id;

-- show_whole_job --
-- One job with a page of its nodes, for polling. Outputs are shown if they are small, up to a total size. Inputs and
-- result may be large: they are returned as text, to be decoded outside the event loop.
SELECT j.job_id, j.workflow_id, j.workflow_version, j.workflow_hash, j.status, j.priority, j.error_message,
    j.submitted_by, j.correlation_id, j.owner_id, j.paused_at, j.paused_by, j.parent_job_id, j.parent_node_id,
    j.created_at, j.started_at, j.completed_at, j.updated_at, j.metadata, j.idempotency_key, j.callback_url, j.asset_id,
    j.version_ordinal,
    j.failed_node, j.ended_by, j.deadline_at, j.idle_seconds, j.input_params::text AS input_params,
    j.result_data::text AS result_data,
    (SELECT json_agg(n) FROM ({job_nodes}) n) AS nodes
FROM dagapp.dag_jobs j WHERE j.job_id = :job_id;

-- returned_by --
-- The return value of the workflow: data with expressions; null unless the workflow is in Python.
SELECT definition -> 'returns' AS returns FROM dagapp.dag_workflows WHERE workflow_hash = :workflow_hash;

-- list_jobs --
-- The newest matching jobs. :text is searched in ids, names and errors.
SELECT j.job_id, j.workflow_id, j.workflow_version, j.workflow_hash, j.status, j.priority, j.error_message, j.submitted_by,
    j.correlation_id, j.owner_id, j.paused_at, j.idle_seconds, j.schedule_id, j.parent_job_id, j.created_at, j.started_at,
    j.completed_at
FROM dagapp.dag_jobs j
WHERE (:statuses::text[] IS NULL OR j.status::text = ANY(:statuses))
    AND (NOT :is_live::boolean OR j.status IN ('pending', 'running')) -- Has an index.
    AND (:workflow_id::text IS NULL OR j.workflow_id = :workflow_id)
    AND (:submitted_by::text IS NULL OR j.submitted_by = :submitted_by)
    AND (:correlation_id::text IS NULL OR j.correlation_id = :correlation_id)
    AND (:schedule_id::text IS NULL OR j.schedule_id = :schedule_id)
    AND (:job_ids::bigint[] IS NULL OR j.job_id = ANY(:job_ids))
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

-- find_job_ids --
-- The newest jobs whose ids are in one of these ranges.
SELECT j.job_id FROM unnest(:lows::bigint[], :highs::bigint[]) AS r(low, high)
JOIN dagapp.dag_jobs j ON j.job_id BETWEEN r.low AND r.high
ORDER BY j.job_id DESC LIMIT :limit;

-- job_status --
-- The status of these jobs.
SELECT job_id, workflow_id, status, error_message, result_data, paused_at, idle_seconds, created_at, started_at,
    completed_at
FROM dagapp.dag_jobs WHERE job_id = ANY(:job_ids);

-- {run} --
-- A job in a list of related ones.
job_id, workflow_id, status, error_message, submitted_by, correlation_id, paused_at, idle_seconds, created_at,
    started_at, completed_at, schedule_id

-- page_children --
-- The child jobs of a job's nodes, newest first.
SELECT {run}, parent_node_id FROM dagapp.dag_jobs WHERE parent_job_id = :job_id
ORDER BY created_at DESC, job_id DESC LIMIT :limit;

-- page_neighbours --
-- The runs of the same workflow just before and after a job.
(
    SELECT {run} FROM dagapp.dag_jobs
    WHERE workflow_id = :workflow_id AND created_at <= :created_at AND job_id <> :job_id
        AND (:submitted_by::text IS NULL OR submitted_by = :submitted_by)
    ORDER BY created_at DESC LIMIT :limit
)
UNION
(
    SELECT {run} FROM dagapp.dag_jobs
    WHERE workflow_id = :workflow_id AND created_at > :created_at
        AND (:submitted_by::text IS NULL OR submitted_by = :submitted_by)
    ORDER BY created_at LIMIT :limit
)
ORDER BY created_at DESC, job_id DESC;
