-- {cause} --
-- An error without ids and numbers.
left(regexp_replace(regexp_replace(
        error, '\m[0-9a-f]{8}(-?[0-9a-f]{4}){3}-?[0-9a-f]{12}\M', '<id>', 'gi'
    ), '(\m|(?<=__))\d+(\.\d+)?\M', '<n>', 'g'), 200)

-- workflow_measures --
-- The results of recent jobs by workflow, with the most frequent errors.
WITH jobs AS MATERIALIZED (
    SELECT workflow_id, status, greatest(extract(epoch FROM completed_at - started_at) - idle_seconds, 0)::float AS seconds,
        CASE WHEN status = 'failed' THEN error_message END AS error
    FROM dagapp.dag_jobs
    WHERE created_at >= now() - make_interval(days => :days::int)
        AND (:workflow_id::text IS NULL OR workflow_id = :workflow_id)
), causes AS (
    SELECT workflow_id, cause, count(*)::int AS occurrences,
        row_number() OVER (PARTITION BY workflow_id ORDER BY count(*) DESC, cause) AS place
    FROM (
        SELECT workflow_id, {cause} AS cause FROM jobs WHERE error IS NOT NULL
    ) normalised
    GROUP BY workflow_id, cause
)
SELECT workflow_id, count(*)::int AS total,
    count(*) FILTER (WHERE status = 'completed')::int AS completed,
    count(*) FILTER (WHERE status = 'failed')::int AS failed,
    count(*) FILTER (WHERE status = 'cancelled')::int AS cancelled,
    avg((status = 'completed')::int) FILTER (WHERE status IN ('completed', 'failed'))::float AS success_rate,
    avg(seconds) FILTER (WHERE status = 'completed') AS avg_duration_seconds,
    percentile_cont(0.5) WITHIN GROUP (ORDER BY seconds) FILTER (WHERE status = 'completed') AS p50_duration_seconds,
    percentile_cont(0.95) WITHIN GROUP (ORDER BY seconds) FILTER (WHERE status = 'completed') AS p95_duration_seconds,
    coalesce((
        SELECT jsonb_agg(jsonb_build_object('error_message', c.cause, 'occurrences', c.occurrences) ORDER BY c.place)
        FROM causes c WHERE c.workflow_id = jobs.workflow_id AND c.place <= 5
    ), '[]') AS common_failures
FROM jobs GROUP BY workflow_id ORDER BY total DESC, workflow_id;

-- node_measures --
-- The results of a workflow's nodes; a fan-out stands for its children.
WITH nodes AS MATERIALIZED (
    SELECT coalesce(n.parent_node_id, n.node_id) AS node_id, n.parent_node_id IS NOT NULL AS is_child,
        {shown_status} AS status,
        n.retry_count, n.dispatched_at IS NOT NULL OR n.retry_count > 0 AS was_tried,
        extract(epoch FROM n.completed_at - n.started_at)::float AS seconds
    FROM dagapp.dag_jobs j JOIN dagapp.dag_node_states n ON n.job_id = j.job_id
    WHERE j.workflow_id = :workflow_id AND j.created_at >= now() - make_interval(days => :days::int)
        AND n.definition IS NULL -- Added nodes differ from job to job.
)
SELECT DISTINCT ON (node_id) node_id, is_child AS is_fan_out,
    count(*) FILTER (WHERE was_tried)::int AS executions,
    count(*) FILTER (WHERE status = 'completed')::int AS completed,
    count(*) FILTER (WHERE status = 'failed')::int AS failed,
    count(*) FILTER (WHERE status = 'skipped')::int AS skipped,
    avg((status = 'completed')::int) FILTER (WHERE status IN ('completed', 'failed'))::float AS success_rate,
    avg(seconds) FILTER (WHERE status = 'completed') AS avg_duration_seconds,
    sum(retry_count)::int AS total_retries
FROM nodes GROUP BY node_id, is_child ORDER BY node_id, is_child DESC;

-- failure_measures --
-- Causes of failures; errors that differ only in ids and numbers are one cause.
SELECT cause AS error_message, count(*)::int AS occurrences, array_agg(DISTINCT workflow_id) AS workflow_ids,
    max(job_id) AS example_job_id, min(completed_at) AS first_at, max(completed_at) AS last_at
FROM (
    SELECT job_id, workflow_id, completed_at, {cause} AS cause
    FROM dagapp.dag_jobs CROSS JOIN LATERAL (SELECT coalesce(error_message, 'failed without a message') AS error) e
    WHERE status = 'failed' AND created_at >= now() - make_interval(days => :days::int)
        AND (:workflow_id::text IS NULL OR workflow_id = :workflow_id)
) failures
GROUP BY cause ORDER BY occurrences DESC, last_at DESC LIMIT :limit;

-- count_failures --
-- The number of failed jobs.
SELECT count(*)::int AS total FROM dagapp.dag_jobs
WHERE status = 'failed' AND created_at >= now() - make_interval(days => :days::int)
    AND (:workflow_id::text IS NULL OR workflow_id = :workflow_id);

-- throughput --
-- Jobs by the time of their end, oldest first; empty buckets are included.
WITH width AS (
    SELECT make_interval(mins => :bucket_minutes::int) AS width, timestamptz '2000-01-01 00:00+00' AS origin
), buckets AS (
    SELECT generate_series(
        date_bin(width, now() - make_interval(hours => :hours::int), origin),
        date_bin(width, now(), origin), width
    ) AS bucket_start
    FROM width
), ended AS (
    SELECT date_bin(w.width, j.completed_at, w.origin) AS bucket_start,
        count(*) FILTER (WHERE j.status = 'completed')::int AS completed,
        count(*) FILTER (WHERE j.status = 'failed')::int AS failed,
        avg(greatest(extract(epoch FROM j.completed_at - j.started_at) - j.idle_seconds, 0)) FILTER (WHERE j.status = 'completed')::float
            AS avg_duration_seconds
    FROM dagapp.dag_jobs j CROSS JOIN width w
    WHERE j.completed_at >= (SELECT min(bucket_start) FROM buckets)
    GROUP BY 1
)
SELECT b.bucket_start, coalesce(e.completed, 0) AS jobs_completed, coalesce(e.failed, 0) AS jobs_failed,
    e.avg_duration_seconds
FROM buckets b LEFT JOIN ended e USING (bucket_start) ORDER BY b.bucket_start;

-- callback_counts --
-- Pending and failed callbacks.
SELECT (SELECT count(*)::int FROM dagapp.dag_callbacks WHERE status = 'waiting') AS waiting,
    (SELECT count(*)::int FROM dagapp.dag_callbacks WHERE status = 'failed') AS failed;
