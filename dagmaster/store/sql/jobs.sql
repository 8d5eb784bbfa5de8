-- submit_jobs --
-- Store jobs with their nodes, owned at once by :owner_id or else by an orchestrator that is alive; mail tells it.
-- A job whose idempotency key is taken is not stored and not returned. In order, so that no two submissions wait for
-- each other.
WITH incoming AS MATERIALIZED (
    SELECT * FROM json_to_recordset(:jobs::json) AS r(
        job_id bigint, workflow_id text, workflow_version int, workflow_hash text, priority int, input_params jsonb,
        input_bytes bigint, metadata jsonb, submitted_by text, correlation_id text, idempotency_key text, request_hash text,
        callback_url text, asset_id text, trace_parent text, shown_params jsonb, actor text,
        schedule_id text, scheduled_for timestamptz, parent_job_id bigint, parent_node_id text, parent_task_id text
    )
), alive AS MATERIALIZED (
    SELECT orchestrator_id FROM dagapp.dag_orchestrators
    WHERE status = 'running' AND heartbeat_at > clock_timestamp() - make_interval(secs => :threshold_seconds)
    ORDER BY random() LIMIT 1
), pinned AS (
    INSERT INTO dagapp.dag_workflows (workflow_hash, workflow_id, version, definition)
    SELECT r.workflow_hash, r.workflow_id, r.version, r.definition
    FROM json_to_recordset(:workflows::json) AS r(workflow_hash text, workflow_id text, version int, definition jsonb)
    ORDER BY r.workflow_hash
    ON CONFLICT (workflow_hash) DO NOTHING
), added AS (
    INSERT INTO dagapp.dag_jobs (
        job_id, workflow_id, workflow_version, workflow_hash, status, priority, input_params, input_bytes,
        metadata, submitted_by, correlation_id, idempotency_key, request_hash, callback_url, asset_id, trace_parent, schedule_id, scheduled_for,
        parent_job_id, parent_node_id, parent_task_id,
        owner_id, owner_epoch, owner_heartbeat_at, created_at
    )
    SELECT i.job_id, i.workflow_id, i.workflow_version, i.workflow_hash, 'pending', i.priority, i.input_params,
        i.input_bytes, coalesce(i.metadata, '{}'), coalesce(i.submitted_by, ''), i.correlation_id, i.idempotency_key,
        i.request_hash, i.callback_url, i.asset_id, i.trace_parent, i.schedule_id, i.scheduled_for,
        i.parent_job_id, i.parent_node_id, i.parent_task_id,
        coalesce(:owner_id, (SELECT orchestrator_id FROM alive)), 1, clock_timestamp(), clock_timestamp()
    FROM incoming i
    WHERE i.parent_job_id IS NULL OR EXISTS ( -- An attempt that is over calls nobody any more.
        SELECT FROM dagapp.dag_node_states n
        WHERE n.job_id = i.parent_job_id AND n.node_id = i.parent_node_id AND n.task_id = i.parent_task_id
            AND n.status = 'running'
    )
    ORDER BY i.submitted_by, i.idempotency_key, i.job_id
    ON CONFLICT (submitted_by, idempotency_key) WHERE idempotency_key IS NOT NULL DO NOTHING
    RETURNING *
), nodes AS (
    INSERT INTO dagapp.dag_node_states (job_id, node_id, status, max_retries, created_at)
    SELECT a.job_id, n.node_id, 'pending', n.max_retries, a.created_at
    FROM added a
    JOIN json_to_recordset(:nodes::json) AS n(workflow_hash text, node_id text, max_retries int) USING (workflow_hash)
), events AS (
    INSERT INTO dagapp.dag_job_events (job_id, event_type, event_status, created_at, event_data, source_app)
    SELECT i.job_id, 'job_created', 'info', (SELECT min(created_at) FROM added), jsonb_build_object(
        'workflow_id', i.workflow_id, 'workflow_version', i.workflow_version, 'workflow_hash', i.workflow_hash,
        'input_params', i.shown_params, 'submitted_by', nullif(i.submitted_by, ''), 'actor', i.actor,
        'correlation_id', i.correlation_id, 'priority', i.priority
    ), :source_app
    FROM incoming i WHERE i.job_id IN (SELECT job_id FROM added)
), warnings AS (
    INSERT INTO dagapp.dag_job_events (job_id, event_type, event_status, created_at, event_data, source_app)
    SELECT a.job_id, 'job_warning', 'warning', a.created_at, jsonb_build_object(
        'warning', 'the workflow has other content than an earlier job of the same version',
        'workflow_id', a.workflow_id, 'workflow_version', a.workflow_version
    ), :source_app
    FROM added a
    WHERE EXISTS (
        SELECT FROM dagapp.dag_workflows w
        WHERE w.workflow_id = a.workflow_id AND w.version = a.workflow_version AND w.workflow_hash <> a.workflow_hash
    )
), mail AS (
    INSERT INTO dagapp.dag_mailbox (job_id, kind) SELECT job_id, 'submitted' FROM added ORDER BY job_id
)
SELECT job_id, owner_id, owner_epoch, created_at, (SELECT pg_notify('dagmaster_mail', '') WHERE :notifies::boolean)
FROM added;

-- find_by_idempotency_key --
-- The job that a submitter has stored under this key.
SELECT job_id, request_hash, status FROM dagapp.dag_jobs
WHERE submitted_by = :submitted_by AND idempotency_key = :idempotency_key;

-- load_jobs --
-- These jobs as their owner needs them in memory.
WITH named AS MATERIALIZED (
    SELECT job_id, owner_id, workflow_hash, status, priority, input_params, input_bytes, correlation_id, owner_epoch,
        created_at, started_at, version, trace_parent, paused_at, paused_by, resumed_at, error_message, failed_node, deadline_at,
        signals
    FROM dagapp.dag_jobs WHERE job_id = ANY(:job_ids)
)
SELECT job_id, workflow_hash, status, priority, correlation_id, owner_epoch, created_at, started_at,
    CASE WHEN coalesce(input_bytes, pg_column_size(input_params)) <= :inline_bytes THEN input_params END AS input_params,
    coalesce(input_bytes, pg_column_size(input_params)) AS input_bytes,
    version, trace_parent, paused_at, paused_by, resumed_at, error_message, failed_node, deadline_at, signals
FROM named WHERE owner_id = :owner_id AND status IN ('pending', 'running', 'failed'); -- A failed one is reopened.

-- load_nodes --
-- All nodes of these jobs, children after their fan-outs and in order. Large outputs are not read.
SELECT job_id, node_id, status, retry_count, max_retries, parent_node_id, fan_out_index,
    CASE WHEN coalesce(output_bytes, pg_column_size(output)) <= CASE
        WHEN parent_node_id IS NULL AND definition IS NULL THEN :inline_bytes::bigint ELSE :child_bytes::bigint
    END THEN output END AS output,
    coalesce(output_bytes, pg_column_size(output)) AS output_bytes, input_params IS NOT NULL AS has_params,
    error_message, dispatched_at, started_at, completed_at, not_before, queue, version, definition, result_of,
    times_lost, ended_by
FROM dagapp.dag_node_states
WHERE job_id = ANY(:job_ids)
ORDER BY job_id, fan_out_index NULLS FIRST, created_at;

-- load_outputs --
-- What these nodes have given.
SELECT node_id, output FROM dagapp.dag_node_states WHERE job_id = :job_id AND node_id = ANY(:node_ids);

-- load_inputs --
SELECT input_params FROM dagapp.dag_jobs WHERE job_id = :job_id;

-- load_definitions --
-- Pinned definitions by hash.
SELECT workflow_hash, definition FROM dagapp.dag_workflows WHERE workflow_hash = ANY(:hashes);

-- workflow_names --
-- The names of pinned definitions, as they were given.
SELECT workflow_hash, definition ->> 'name' AS name FROM dagapp.dag_workflows WHERE workflow_hash = ANY(:hashes);

-- returned_by --
-- What the workflow of this definition returns: data with expressions; null unless it is one in Python.
SELECT definition -> 'returns' AS returns FROM dagapp.dag_workflows WHERE workflow_hash = :workflow_hash;

-- show_job --
-- One job, whole.
SELECT job_id, workflow_id, workflow_version, workflow_hash, status, priority, input_params, input_bytes, result_data,
    error_message, failed_node, deadline_at, metadata, submitted_by, correlation_id, idempotency_key, request_hash,
    callback_url, asset_id, trace_parent, parent_job_id, parent_node_id, parent_task_id, schedule_id, scheduled_for, signals,
    paused_at, paused_by, resumed_at, idle_seconds, owner_id, owner_epoch, owner_heartbeat_at, created_at, started_at,
    completed_at, updated_at, version
FROM dagapp.dag_jobs WHERE job_id = :job_id;

-- show_job_head --
-- One job without what it was given and what it gives, which may be large.
SELECT job_id, workflow_id, workflow_version, workflow_hash, status, priority, error_message, failed_node, metadata,
    submitted_by, correlation_id, idempotency_key, callback_url, asset_id, trace_parent, parent_job_id, parent_node_id,
    parent_task_id, schedule_id, scheduled_for, paused_at, paused_by, resumed_at, idle_seconds, deadline_at, owner_id,
    owner_epoch, created_at, started_at, completed_at, updated_at, version
FROM dagapp.dag_jobs WHERE job_id = :job_id;

-- show_whole_job --
-- One job with a page of its nodes, for those who look often. Outputs are shown as far as they are small, each and all
-- together. What the job was given and gives may be large: it comes as text, to be read elsewhere than in a loop.
SELECT j.job_id, j.workflow_id, j.workflow_version, j.workflow_hash, j.status, j.priority, j.error_message,
    j.submitted_by, j.correlation_id, j.owner_id, j.paused_at, j.paused_by, j.parent_job_id, j.parent_node_id,
    j.created_at, j.started_at, j.completed_at, j.updated_at, j.metadata, j.idempotency_key, j.callback_url, j.asset_id,
    j.failed_node, j.deadline_at, j.idle_seconds, j.input_params::text AS input_params, j.result_data::text AS result_data,
    (
        SELECT json_agg(o) FROM (
            SELECT node_id, status, task_id, retry_count, max_retries, parent_node_id, fan_out_index,
                CASE WHEN output_bytes <= :inline_bytes AND shown_bytes <= :max_bytes THEN output END AS output,
                output_bytes, error_message, last_error, not_before, created_at, dispatched_at, started_at,
                completed_at, ended_by
            FROM (
                SELECT *, sum(output_bytes) FILTER (WHERE output_bytes <= :inline_bytes)
                    OVER (ROWS UNBOUNDED PRECEDING) AS shown_bytes
                FROM (
                    SELECT n.node_id, n.status, n.task_id, n.retry_count, n.max_retries, n.parent_node_id,
                        n.fan_out_index, n.output, coalesce(n.output_bytes, pg_column_size(n.output)) AS output_bytes,
                        n.error_message, coalesce(n.error_message, r.error_message) AS last_error, n.not_before,
                        n.created_at, n.dispatched_at, n.started_at, n.completed_at, n.ended_by
                    FROM dagapp.dag_node_states n
                    LEFT JOIN dagapp.dag_task_results r -- Of the attempt before: a retry clears its node's error.
                        ON n.retry_count > 0 AND r.task_id = n.job_id || '_' || n.node_id || '_' || (n.retry_count - 1)
                    WHERE n.job_id = j.job_id AND (:with_children OR n.parent_node_id IS NULL)
                    ORDER BY coalesce(n.started_at, n.dispatched_at) NULLS LAST, n.created_at,
                        n.fan_out_index NULLS FIRST, n.node_id
                    LIMIT :limit OFFSET :offset
                ) p
            ) w
        ) o
    ) AS nodes
FROM dagapp.dag_jobs j WHERE j.job_id = :job_id;

-- list_jobs --
-- The newest jobs first, filtered.
SELECT job_id, workflow_id, workflow_version, workflow_hash, status, priority, error_message, submitted_by,
    correlation_id, owner_id, paused_at, idle_seconds, parent_job_id, created_at, started_at, completed_at
FROM dagapp.dag_jobs
WHERE (:status::text IS NULL OR status = :status::dagapp.job_status)
    AND (:workflow_id::text IS NULL OR workflow_id = :workflow_id)
    AND (:submitted_by::text IS NULL OR submitted_by = :submitted_by)
    AND (:correlation_id::text IS NULL OR correlation_id = :correlation_id)
    AND (:job_ids::bigint[] IS NULL OR job_id = ANY(:job_ids))
ORDER BY created_at DESC, job_id DESC
LIMIT :limit OFFSET :offset;

-- find_job_ids --
-- The newest jobs whose ids are in one of these ranges.
SELECT j.job_id FROM unnest(:lows::bigint[], :highs::bigint[]) AS r(low, high)
JOIN dagapp.dag_jobs j ON j.job_id BETWEEN r.low AND r.high
ORDER BY j.job_id DESC LIMIT :limit;

-- show_nodes --
-- A job's own nodes, and its fan-out children when they are asked for; without large outputs, if a size is given.
SELECT n.node_id, n.status, n.task_id, n.retry_count, n.max_retries, n.parent_node_id, n.fan_out_index,
    CASE WHEN :inline_bytes::bigint IS NULL OR coalesce(n.output_bytes, pg_column_size(n.output)) <= :inline_bytes
        THEN n.output END AS output,
    coalesce(n.output_bytes, pg_column_size(n.output)) AS output_bytes, n.error_message, coalesce(n.error_message, r.error_message) AS last_error, n.not_before, n.created_at,
    n.dispatched_at, n.started_at, n.completed_at, n.ended_by
FROM dagapp.dag_node_states n
LEFT JOIN dagapp.dag_task_results r -- Of the attempt before: a retry clears the error of its node.
    ON n.retry_count > 0 AND r.task_id = n.job_id || '_' || n.node_id || '_' || (n.retry_count - 1)
WHERE n.job_id = :job_id AND (:with_children OR n.parent_node_id IS NULL)
ORDER BY coalesce(n.started_at, n.dispatched_at) NULLS LAST, n.created_at, n.fan_out_index NULLS FIRST, n.node_id;

-- count_nodes --
-- How many nodes of a job are in each state, apart for each fan-out and for each task that has added some.
SELECT parent_node_id, definition IS NOT NULL AS is_added, status, count(*) AS nodes, sum(retry_count)::bigint AS retries, max(completed_at) AS last_ended_at
FROM dagapp.dag_node_states WHERE job_id = :job_id GROUP BY 1, 2, 3;

-- watch_nodes --
-- A job's own nodes for those who look often: without what they hold, with the time at which it was so.
SELECT n.node_id, n.status, n.retry_count, n.max_retries, coalesce(n.error_message, r.error_message) AS last_error,
    n.not_before, n.dispatched_at, n.started_at, n.completed_at, n.ended_by, clock_timestamp() AS now
FROM dagapp.dag_node_states n
LEFT JOIN dagapp.dag_task_results r -- Of the attempt before: a retry clears the error of its node.
    ON n.retry_count > 0 AND r.task_id = n.job_id || '_' || n.node_id || '_' || (n.retry_count - 1)
WHERE n.job_id = :job_id AND n.parent_node_id IS NULL;

-- job_status --
-- How far these jobs are.
SELECT job_id, workflow_id, status, error_message, result_data, idle_seconds, created_at, started_at, completed_at
FROM dagapp.dag_jobs WHERE job_id = ANY(:job_ids);

-- node_status --
SELECT node_id, status, retry_count, not_before, version FROM dagapp.dag_node_states
WHERE job_id = :job_id AND node_id = :node_id;

-- count_live_jobs --
-- What is still to be done.
SELECT count(*) AS jobs FROM dagapp.dag_jobs WHERE status IN ('pending', 'running');

-- reopen_job --
-- Give a failed job to an orchestrator that is alive, and tell it that somebody wants it tried again.
WITH alive AS MATERIALIZED (
    SELECT orchestrator_id FROM dagapp.dag_orchestrators
    WHERE status = 'running' AND heartbeat_at > clock_timestamp() - make_interval(secs => :threshold_seconds)
    ORDER BY random() LIMIT 1
), job AS (
    UPDATE dagapp.dag_jobs j
    SET owner_id = a.orchestrator_id, owner_epoch = j.owner_epoch + 1, owner_heartbeat_at = clock_timestamp()
    FROM alive a WHERE j.job_id = :job_id AND j.status = 'failed' AND j.owner_id IS NULL
        -- Not one of which a part is removed already.
        AND (j.metadata -> 'removal' ->> 'completed_at')::timestamptz IS DISTINCT FROM j.completed_at
    RETURNING j.job_id
), mail AS (
    INSERT INTO dagapp.dag_mailbox (job_id, kind, node_id, data)
    SELECT job_id, 'retry', :node_id::text, :data::jsonb FROM job
)
SELECT job_id, pg_notify('dagmaster_mail', '') FROM job;

-- let_go_ended_job --
-- It was to be reopened, and cannot be: it stays as it is.
WITH job AS (
    UPDATE dagapp.dag_jobs SET owner_id = NULL
    WHERE job_id = :job_id AND owner_id = :owner_id AND status IN ('completed', 'failed', 'cancelled')
    RETURNING job_id
)
INSERT INTO dagapp.dag_job_events (job_id, event_type, event_status, error_message, created_at, source_app)
SELECT job_id, 'orchestrator_error', 'failure', left(:error, 2000), clock_timestamp(), 'orchestrator' FROM job;

-- note_error --
-- An orchestrator stumbled over this job.
INSERT INTO dagapp.dag_job_events (job_id, event_type, event_status, error_message, event_data, created_at, source_app)
VALUES (:job_id, 'orchestrator_error', 'failure', left(:error, 2000), :data::jsonb, clock_timestamp(), 'orchestrator');

-- fail_poisoned_job --
-- A job that its owner cannot process ends here, without the engine: one bad job never stops another.
WITH was AS MATERIALIZED (
    SELECT job_id, status FROM dagapp.dag_jobs
    WHERE job_id = :job_id AND owner_id = :owner_id AND status IN ('pending', 'running')
    FOR UPDATE
), job AS (
    UPDATE dagapp.dag_jobs j
    SET status = 'failed', started_at = coalesce(j.started_at, clock_timestamp()), completed_at = clock_timestamp(),
        error_message = left(:error, 2000), owner_id = NULL, version = j.version + 1
    FROM was WHERE j.job_id = was.job_id
    RETURNING j.job_id, was.status AS former_status
), nodes AS (
    UPDATE dagapp.dag_node_states n
    SET status = CASE WHEN n.status IN ('pending', 'ready') THEN 'skipped' ELSE 'failed' END::dagapp.node_status,
        error_message = CASE WHEN n.status IN ('dispatched', 'running') THEN 'stopped because the job failed' END,
        ended_by = CASE WHEN n.status IN ('pending', 'ready') THEN 'skipped' ELSE 'revoked' END::dagapp.ended_by,
        completed_at = clock_timestamp(), version = n.version + 1
    FROM job WHERE n.job_id = job.job_id AND n.status IN ('pending', 'ready', 'dispatched', 'running')
    RETURNING n.job_id, n.node_id, n.task_id, n.status, n.error_message
), waiting AS (
    DELETE FROM dagapp.dag_tasks_waiting t USING job WHERE t.job_id = job.job_id
), running AS (
    DELETE FROM dagapp.dag_tasks_running t USING job WHERE t.job_id = job.job_id
)
INSERT INTO dagapp.dag_job_events (
    job_id, node_id, task_id, event_type, event_status, error_message, event_data, created_at, source_app
)
SELECT job_id, node_id, task_id, event_type::dagapp.event_type, event_status::dagapp.event_status, error_message,
    event_data, clock_timestamp(), 'orchestrator'
FROM (
    SELECT 1 AS place, job_id, NULL AS node_id, NULL AS task_id, 'orchestrator_error' AS event_type,
        'failure' AS event_status, left(:error, 2000) AS error_message, NULL::jsonb AS event_data
    FROM job
    UNION ALL
    SELECT 2, job_id, NULL, NULL, 'job_started', 'info', NULL, '{"first_node": null}'
    FROM job WHERE former_status = 'pending' -- Only running jobs fail (ruling C-09).
    UNION ALL
    SELECT 3, job_id, node_id, task_id, 'node_skipped', 'info', NULL, '{"reason": "job_failed", "ended_by": "skipped"}'
    FROM nodes WHERE status = 'skipped'
    UNION ALL
    SELECT 3, job_id, node_id, task_id, 'node_failed', 'warning', error_message,
        '{"will_retry": false, "ended_by": "revoked"}'
    FROM nodes WHERE status = 'failed'
    UNION ALL
    SELECT 4, job_id, NULL, NULL, 'job_failed', 'failure', left(:error, 2000), NULL
    FROM job
) events
ORDER BY place
RETURNING job_id;

-- call_off_orphans --
-- Jobs whose caller is over and could not tell them: they are cancelled. Not those that somebody has tried again since.
INSERT INTO dagapp.dag_mailbox (job_id, kind, data)
SELECT c.job_id, 'cancel', '{"actor": "dagmaster", "reason": "the node that called it is over"}'
FROM dagapp.dag_jobs c
WHERE c.parent_job_id IS NOT NULL AND c.status IN ('pending', 'running')
    AND c.created_at < clock_timestamp() - make_interval(secs => :age_seconds)
    AND NOT EXISTS (
        SELECT FROM dagapp.dag_node_states n
        WHERE n.job_id = c.parent_job_id AND n.node_id = c.parent_node_id AND n.task_id = c.parent_task_id
            AND n.status = 'running'
    )
    AND NOT EXISTS (SELECT FROM dagapp.dag_mailbox m WHERE m.job_id = c.job_id AND m.kind = 'cancel')
    AND NOT EXISTS (
        SELECT FROM dagapp.dag_job_events e WHERE e.job_id = c.job_id AND e.event_type = 'job_reopened'
    )
RETURNING job_id;
