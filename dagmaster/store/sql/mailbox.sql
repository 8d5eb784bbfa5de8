-- {mail_columns} --
job_id, kind, node_id, task_id, worker_id, output, error, duration_ms, data

-- {mail_record} --
-- A row of `encode`, for `json_to_recordset`.
r(
        job_id bigint, kind text, node_id text, task_id text, worker_id text, output json, error text,
        duration_ms bigint, data jsonb
    )

-- {mail_payload} --
-- A mail `m` as the payload of a notification, so that its owner need not read the row. Any database user may notify,
-- so the owner's batch compares the payload with the row.
json_build_array(
    m.mail_id, (extract(epoch FROM m.created_at) * 1000000)::bigint, m.job_id, m.kind, m.node_id, m.task_id,
    m.worker_id, m.output::text, m.error, m.duration_ms, m.data::text
)::text

-- {new_job_payload} --
-- Likewise for the mail `m` of a new job `j`.
json_build_array(
    m.mail_id, (extract(epoch FROM j.created_at) * 1000000)::bigint, j.job_id, j.owner_id, j.owner_epoch,
    j.workflow_hash, j.status, j.version, j.priority, j.correlation_id, j.trace_parent, j.input_params::text,
    j.input_bytes, j.asset_id IS NOT NULL
)::text

-- {max_payload_bytes} --
-- PostgreSQL rejects payloads of 8,000 bytes.
7900

-- {first_mail} --
-- The oldest mail for the jobs of this owner, with its size. Large values are not read but count, because the owner
-- writes them. A new job comes with its mail.
SELECT m.mail_id, m.job_id, m.kind, m.node_id, m.task_id, m.worker_id, m.output, m.output_bytes, m.error,
    m.duration_ms, m.data, m.created_at, j.workflow_hash, j.status, j.priority, j.correlation_id,
    j.owner_epoch, j.created_at AS job_created_at, j.started_at, j.completed_at, j.idle_seconds, j.version, j.trace_parent,
    j.paused_at, j.paused_by, j.resumed_at, j.input_params, j.input_bytes, j.signals, j.error_message, j.failed_node, j.ended_by,
    j.deadline_at, j.has_version, k.is_new,
    m.data_bytes + coalesce(m.output_bytes, 0)
        + CASE WHEN k.is_new AND j.input_bytes <= :inline_bytes THEN j.input_bytes ELSE 0 END AS bytes
FROM dagapp.dag_mailbox m
CROSS JOIN LATERAL (
    SELECT job_id, owner_id, workflow_hash, status, priority, correlation_id, owner_epoch, created_at, started_at,
        completed_at, idle_seconds, version, trace_parent, paused_at, paused_by, resumed_at, input_params, signals, error_message,
        failed_node, ended_by, deadline_at, asset_id IS NOT NULL AS has_version,
        coalesce(input_bytes, pg_column_size(input_params)) AS input_bytes
    FROM dagapp.dag_jobs WHERE job_id = m.job_id OFFSET 0 -- From the mail to its job, never from all jobs.
) j
CROSS JOIN LATERAL (SELECT m.kind IN ('submitted', 'adopted') AS is_new) k
WHERE j.owner_id = :owner_id
ORDER BY m.mail_id

-- {mail_read} --
-- Added nodes may be large, and are read separately.
mail_id, job_id, kind, node_id, task_id, worker_id,
    CASE WHEN kind <> 'added' AND output_bytes <= :inline_bytes THEN output END AS output, output_bytes, error,
    duration_ms, data, created_at, workflow_hash, status, priority, correlation_id, owner_epoch, job_created_at,
    started_at, completed_at, idle_seconds, version, trace_parent, paused_at, paused_by, resumed_at,
    CASE WHEN is_new AND input_bytes <= :inline_bytes THEN input_params END AS input_params, input_bytes,
    CASE WHEN is_new THEN signals END AS signals, error_message, failed_node, ended_by, deadline_at, has_version,
    is_new

-- read_mail --
-- The mail for the jobs of this owner in order of arrival, if it fits into the size limit; otherwise only the oldest,
-- with a flag. Most mail fits, and this costs half as much as weighing it.
WITH first AS MATERIALIZED (
    {first_mail} LIMIT :limit
), total AS MATERIALIZED (
    SELECT sum(bytes) <= :max_bytes AS fits, min(mail_id) AS oldest FROM first
)
SELECT {mail_read}, (SELECT fits FROM total) AS fits
FROM first -- Not joined to the total: the planner might count it again for each row.
WHERE (SELECT fits FROM total) OR mail_id = (SELECT oldest FROM total)
ORDER BY mail_id;

-- weigh_mail --
-- The mail for the jobs of this owner up to the size limit: by job in order of arrival, jobs with little mail first,
-- and always the oldest mail.
WITH first AS MATERIALIZED (
    {first_mail} LIMIT :window
), shared AS (
    SELECT *, sum(bytes) OVER (PARTITION BY job_id ORDER BY mail_id ROWS UNBOUNDED PRECEDING) AS bytes_of_job
    FROM first
), ranked AS (
    SELECT *, sum(bytes) OVER (ORDER BY bytes_of_job, mail_id ROWS UNBOUNDED PRECEDING) - bytes AS bytes_before
    FROM shared
)
SELECT {mail_read}, (SELECT count(*) FROM first) AS arrived
FROM ranked
WHERE bytes_before < :max_bytes OR mail_id = (SELECT min(mail_id) FROM first)
ORDER BY mail_id
LIMIT :limit;

-- jobs_with_mail --
-- The jobs among these with other mail than this.
SELECT DISTINCT job_id FROM dagapp.dag_mailbox WHERE job_id = ANY(:job_ids) AND NOT mail_id = ANY(:mail_ids);

-- read_slices --
-- The nodes that this mail adds.
SELECT mail_id, output FROM dagapp.dag_mailbox WHERE mail_id = ANY(:mail_ids);

-- add_mail --
-- Send a message to a job's owner.
INSERT INTO dagapp.dag_mailbox ({mail_columns})
SELECT {mail_columns} FROM json_to_recordset(:mail::json) AS {mail_record};

-- close_late_mail --
-- Reports for jobs that have ended or never existed: store them, note them in the timeline, and remove the mail.
WITH late AS MATERIALIZED (
    SELECT m.mail_id, j.job_id IS NOT NULL AS is_known
    FROM dagapp.dag_mailbox m
    LEFT JOIN LATERAL (
        SELECT * FROM dagapp.dag_jobs WHERE job_id = m.job_id OFFSET 0 -- From the mail to its job, never from all jobs.
    ) j ON true
    WHERE j.job_id IS NULL
        OR (j.status IN ('completed', 'failed', 'cancelled') AND j.owner_id IS NULL) -- With one it is being reopened.
    ORDER BY m.mail_id LIMIT :limit
    FOR UPDATE OF m SKIP LOCKED
), closed AS (
    DELETE FROM dagapp.dag_mailbox m USING late l WHERE m.mail_id = l.mail_id
    RETURNING m.*, l.is_known
), reports AS (
    SELECT DISTINCT ON (task_id) * FROM closed
    WHERE is_known AND kind IN ('completed', 'failed') AND starts_with(task_id, job_id || '_' || node_id || '_')
        AND NOT EXISTS ( -- It has a timeline of its own.
            SELECT FROM dagapp.dag_jobs c
            WHERE c.parent_job_id = closed.job_id AND c.parent_task_id = closed.task_id OFFSET 0
        )
    ORDER BY task_id, mail_id
), kept AS (
    INSERT INTO dagapp.dag_task_results AS t (
        task_id, job_id, node_id, status, output, error_message, worker_id, execution_duration_ms, reported_at,
        processed, error_type, log_path, ended_by
    )
    SELECT task_id, job_id, node_id, kind::dagapp.task_status, dagapp.as_jsonb(output), left(error, 2000), worker_id,
        duration_ms, created_at, true, left(data -> 'error_types' ->> 0, 128), data -> 'details' ->> 'log_path',
        CASE WHEN kind = 'completed' THEN 'result' WHEN (data ->> 'timed_out')::boolean THEN 'timeout' ELSE 'failure'
        END::dagapp.ended_by
    FROM reports
    ON CONFLICT (task_id) DO UPDATE SET {first_end}
), noted AS (
    INSERT INTO dagapp.dag_job_events (
        job_id, node_id, task_id, event_type, event_status, event_data, created_at, source_app
    )
    SELECT r.job_id, r.node_id, r.task_id, 'result_ignored', 'warning',
        jsonb_build_object('reason', 'the job has ended', 'worker_id', r.worker_id), clock_timestamp(), 'orchestrator'
    FROM reports r
    WHERE NOT EXISTS ( -- In the snapshot, without the rows of `kept`.
        SELECT FROM dagapp.dag_task_results t WHERE t.task_id = r.task_id AND t.status IN ('completed', 'failed')
    )
), told AS ( -- Their senders got a success response.
    INSERT INTO dagapp.dag_job_events (job_id, event_type, event_status, event_data, created_at, source_app)
    SELECT job_id, CASE kind WHEN 'signal' THEN 'signal_received' ELSE 'job_warning' END::dagapp.event_type, 'warning',
        CASE kind WHEN 'signal' THEN jsonb_build_object('name', data ->> 'name', 'actor', data ->> 'actor',
            'woke', '[]'::jsonb, 'kept', false, 'reason', 'the job has ended')
        ELSE jsonb_build_object('warning', 'the added nodes were refused: the job has ended', 'refused', 'added',
            'actor', data ->> 'actor')
        END, clock_timestamp(), 'orchestrator'
    FROM closed WHERE is_known AND node_id IS NULL AND kind IN ('signal', 'added')
)
SELECT count(*) AS closed FROM closed;
