-- A batch is one statement, composed of the parts below that it needs, each as a CTE of its name: one round trip, one
-- transaction, all or nothing. `held` fences it; the checks make it fail if a row differs from the owner's memory.
--
-- Rows are found by key in ways that leave the planner no choice (an array, a scalar subquery): a plan that was made
-- while a table was empty, and scans all of it, would stay for minutes.

-- held --
-- Lock the jobs of the batch that :owner_id still owns.
SELECT j.job_id, j.asset_id, j.version_ordinal
FROM unnest(:job_ids::bigint[], :owner_epochs::bigint[]) AS w(job_id, owner_epoch)
CROSS JOIN LATERAL (
    SELECT job_id, owner_id, owner_epoch, asset_id, version_ordinal FROM dagapp.dag_jobs WHERE job_id = w.job_id
    OFFSET 0 -- By key: the owner may have thousands of jobs.
    FOR NO KEY UPDATE
) j
WHERE j.owner_id = :owner_id AND j.owner_epoch = w.owner_epoch;

-- versions_held --
-- Lock the asset versions that move with their jobs, always in the same order: otherwise two owners whose jobs process
-- and export the same versions could deadlock.
SELECT v.version_ordinal
FROM (
    SELECT DISTINCT asset_id, version_ordinal FROM held
    WHERE asset_id IS NOT NULL AND job_id = ANY(:moved_ids::bigint[])
    ORDER BY asset_id, version_ordinal
) h
CROSS JOIN LATERAL (
    SELECT version_ordinal FROM dagapp.asset_versions
    WHERE asset_id = h.asset_id AND version_ordinal = h.version_ordinal
    OFFSET 0
    FOR NO KEY UPDATE
) v;

-- no_versions_held --
-- For batches without versions: looking for them costs as much as the fence.
SELECT WHERE false;

-- check_held --
-- Like the other checks it calls its function only to raise the error: each call costs as much as a row.
SELECT CASE WHEN count(*) <> :fence_count THEN dagapp.check_fence(:job_ids::bigint[], array_agg(job_id)) END FROM held;

-- check_job_rows --
SELECT CASE WHEN count(*) <> :job_count THEN dagapp.expect('jobs', :job_count, count(*)) END FROM job_rows;

-- check_node_rows --
SELECT CASE WHEN count(*) <> :node_count THEN dagapp.expect('nodes', :node_count, count(*)) END FROM node_rows;

-- check_delivered_mail --
SELECT CASE WHEN count(*) <> :delivered_count THEN dagapp.expect('mail', :delivered_count, count(*)) END
FROM delivered_mail;

-- check_delivered_jobs --
SELECT CASE WHEN count(*) <> :delivered_job_count THEN dagapp.expect('new jobs', :delivered_job_count, count(*)) END
FROM delivered_jobs;

-- call_workers --
SELECT pg_notify('dagmaster_tasks', '');

-- {job_changes} --
-- The state of a job. An ended job is released. Setting `updated_at` here avoids the trigger's call.
status = r.status, started_at = r.started_at, completed_at = r.completed_at, error_message = r.error_message,
    paused_at = r.paused_at, paused_by = r.paused_by, resumed_at = r.resumed_at, idle_seconds = r.idle_seconds,
    signals = r.signals, failed_node = r.failed_node, ended_by = r.ended_by, deadline_at = r.deadline_at,
    version = j.version + 1, updated_at = now(),
    owner_id = CASE WHEN r.status IN ('pending', 'running') THEN j.owner_id END

-- {job_record} --
json_to_recordset(:jobs::json) AS r(
    job_id bigint, version int, status dagapp.job_status, started_at timestamptz, completed_at timestamptz,
    error_message text, result_data jsonb, paused_at timestamptz, paused_by text, resumed_at timestamptz,
    idle_seconds float, reopened boolean, signals jsonb, failed_node text, ended_by dagapp.job_ended_by,
    deadline_at timestamptz, result_parts jsonb
)

-- {same_job} --
j.ctid = (
        SELECT k.ctid FROM dagapp.dag_jobs k
        WHERE k.job_id = r.job_id AND k.version = r.version
            AND (k.status::text IN ('pending', 'running') OR (r.reopened AND k.status = 'failed'))
    )
    AND (SELECT count(*) FROM held) > 0 -- Lock first, then change.
    AND (SELECT count(*) FROM versions_held) >= 0

-- job_rows --
UPDATE dagapp.dag_jobs j SET result_data = r.result_data, {job_changes}
FROM {job_record}
WHERE {same_job}
RETURNING 1;

-- job_rows_of_stored --
-- As job_rows, but large parts of results are copied in the database.
UPDATE dagapp.dag_jobs j
SET result_data = CASE WHEN r.result_parts IS NULL THEN r.result_data ELSE r.result_data || (
        SELECT jsonb_object_agg(p.name, coalesce(
            (SELECT m.output::jsonb FROM dagapp.dag_mailbox m WHERE m.mail_id = p.mail_id),
            (SELECT w.output FROM node_rows w WHERE w.job_id = r.job_id AND w.node_id = p.node_id),
            (SELECT n.output FROM dagapp.dag_node_states n WHERE n.job_id = r.job_id AND n.node_id = p.node_id)
        ))
        FROM jsonb_to_recordset(r.result_parts) AS p(name text, mail_id bigint, node_id text)
    ) END,
    {job_changes}
FROM {job_record}
WHERE {same_job}
RETURNING 1;

-- new_nodes --
-- Children of fan-outs, and nodes that running tasks have added.
INSERT INTO dagapp.dag_node_states (
    job_id, node_id, status, task_id, retry_count, max_retries, parent_node_id, fan_out_index, fan_out_item_key,
    fan_out_item_box, input_params, output, output_bytes, error_message, not_before, created_at, dispatched_at,
    started_at, completed_at, queue, definition, result_of, ended_by
)
SELECT job_id, node_id, status, task_id, retry_count, max_retries, parent_node_id, fan_out_index, fan_out_item_key,
    fan_out_item_box, input_params, output, output_bytes, error_message, not_before, created_at, dispatched_at,
    started_at, completed_at, queue, definition, result_of, ended_by
FROM json_to_recordset(:new_nodes::json) AS r(
    job_id bigint, node_id text, status dagapp.node_status, task_id text, retry_count int, max_retries int,
    parent_node_id text, fan_out_index int, fan_out_item_key text, fan_out_item_box double precision[],
    input_params jsonb, output jsonb, output_bytes bigint, error_message text, not_before timestamptz,
    created_at timestamptz, dispatched_at timestamptz, started_at timestamptz, completed_at timestamptz, queue text,
    definition jsonb, result_of text, ended_by dagapp.ended_by
);

-- {node_changes} --
-- The state of a node.
status = r.status, task_id = r.task_id, retry_count = r.retry_count, max_retries = r.max_retries,
    input_params = coalesce(r.input_params, n.input_params), error_message = r.error_message,
    output_bytes = r.output_bytes, not_before = r.not_before, dispatched_at = r.dispatched_at,
    started_at = r.started_at, completed_at = r.completed_at, times_lost = coalesce(r.times_lost, 0),
    version = n.version + 1, updated_at = now(), queue = coalesce(r.queue, n.queue),
    definition = coalesce(r.definition, n.definition), result_of = r.result_of, ended_by = r.ended_by

-- {node_record} --
job_id bigint, node_id text, version int, status dagapp.node_status, task_id text, retry_count int,
    max_retries int, input_params jsonb, output jsonb, error_message text, not_before timestamptz,
    dispatched_at timestamptz, started_at timestamptz, completed_at timestamptz, queue text, definition jsonb,
    result_of text, times_lost int, ended_by dagapp.ended_by, output_bytes bigint

-- {same_node} --
n.ctid = (
    SELECT k.ctid FROM dagapp.dag_node_states k
    WHERE k.job_id = r.job_id AND k.node_id = r.node_id AND k.version = r.version
)

-- node_rows --
UPDATE dagapp.dag_node_states n SET output = r.output, {node_changes}
FROM json_to_recordset(:nodes::json) AS r({node_record})
WHERE {same_node}
RETURNING 1;

-- node_rows_of_stored --
-- As node_rows, but a large output is copied from its mail or from another node, or stays as it is; also for
-- checkpoints, which may be large too.
UPDATE dagapp.dag_node_states n
SET output = CASE
        WHEN r.output_mail IS NOT NULL
            THEN (SELECT m.output::jsonb FROM dagapp.dag_mailbox m WHERE m.mail_id = r.output_mail)
        WHEN r.output_node = r.node_id THEN n.output
        WHEN r.output_node IS NOT NULL THEN (
            SELECT o.output FROM dagapp.dag_node_states o WHERE o.job_id = r.job_id AND o.node_id = r.output_node
        )
        ELSE r.output
    END,
    checkpoint_phase = coalesce(r.checkpoint_phase, n.checkpoint_phase),
    checkpoint_data = CASE
        WHEN r.checkpoint_mail IS NOT NULL
            THEN (SELECT m.output::jsonb FROM dagapp.dag_mailbox m WHERE m.mail_id = r.checkpoint_mail)
        ELSE coalesce(r.checkpoint_data, n.checkpoint_data)
    END,
    checkpoint_saved_at = coalesce(r.checkpoint_saved_at, n.checkpoint_saved_at),
    {node_changes}
FROM json_to_recordset(:nodes::json) AS r(
    {node_record}, output_mail bigint, output_node text, checkpoint_phase text, checkpoint_data jsonb,
    checkpoint_saved_at timestamptz, checkpoint_mail bigint, is_part boolean
)
WHERE {same_node}
RETURNING n.job_id, n.node_id, CASE WHEN r.is_part THEN n.output END AS output;

-- {first_end} --
-- Of the reports on an attempt, the first that ends it is kept.
status = CASE WHEN t.status IN ('completed', 'failed') THEN t.status ELSE excluded.status END,
    output = CASE WHEN t.status IN ('completed', 'failed') THEN t.output ELSE excluded.output END,
    error_message = CASE WHEN t.status IN ('completed', 'failed') THEN t.error_message ELSE excluded.error_message END,
    worker_id = coalesce(t.worker_id, excluded.worker_id),
    execution_duration_ms = coalesce(t.execution_duration_ms, excluded.execution_duration_ms),
    reported_at = CASE WHEN t.status IN ('completed', 'failed') THEN t.reported_at ELSE excluded.reported_at END,
    ended_by = CASE WHEN t.status IN ('completed', 'failed') THEN t.ended_by ELSE excluded.ended_by END,
    error_type = coalesce(t.error_type, excluded.error_type), log_path = coalesce(t.log_path, excluded.log_path),
    peak_memory_bytes = coalesce(t.peak_memory_bytes, excluded.peak_memory_bytes),
    cpu_seconds = coalesce(t.cpu_seconds, excluded.cpu_seconds), metrics = coalesce(t.metrics, excluded.metrics),
    processed = true

-- result_rows --
-- Workers' reports.
INSERT INTO dagapp.dag_task_results AS t (
    task_id, job_id, node_id, status, output, error_message, worker_id, execution_duration_ms, reported_at, processed,
    error_type, log_path, peak_memory_bytes, cpu_seconds, metrics, ended_by
)
SELECT task_id, job_id, node_id, status, CASE
        WHEN output_mail IS NULL THEN output
        ELSE (SELECT m.output::jsonb FROM dagapp.dag_mailbox m WHERE m.mail_id = output_mail)
    END, left(error_message, 2000), worker_id, execution_duration_ms,
    reported_at, true, left(error_type, 128), details ->> 'log_path', (details ->> 'peak_memory_bytes')::bigint,
    (details ->> 'cpu_seconds')::float, details -> 'metrics', ended_by
FROM json_to_recordset(:results::json) AS r(
    task_id text, job_id bigint, node_id text, status dagapp.task_status, output jsonb, error_message text,
    worker_id text, execution_duration_ms bigint, reported_at timestamptz, error_type text, details jsonb,
    output_mail bigint, ended_by dagapp.ended_by
)
ON CONFLICT (task_id) DO UPDATE
SET {first_end};

-- group_rows --
-- Groups of added tasks.
INSERT INTO dagapp.dag_groups (group_id, job_id, parent_group_id, name, created_at)
SELECT group_id, job_id, parent_group_id, name, created_at
FROM json_to_recordset(:groups::json) AS r(
    group_id bigint, job_id bigint, parent_group_id bigint, name text, created_at timestamptz
)
ON CONFLICT DO NOTHING;

-- dependency_rows --
-- Dependencies of added tasks and groups, as their author wrote them.
INSERT INTO dagapp.dag_dependencies (job_id, previous_id, previous_type, next_id, next_type)
SELECT job_id, previous_id, previous_type, next_id, next_type
FROM json_to_recordset(:dependencies::json) AS r(
    job_id bigint, previous_id bigint, previous_type text, next_id bigint, next_type text
)
ON CONFLICT DO NOTHING;

-- hold_rows --
-- Hold or release the tasks of paused or resumed jobs, except those that this batch closes.
UPDATE dagapp.dag_tasks_waiting t SET held = r.held
FROM json_to_recordset(:holds::json) AS r(job_id bigint, held boolean)
WHERE t.job_id = r.job_id
    AND t.task_id <> ALL (coalesce(:closed_waiting::text[], '{}'));

-- closed_waiting --
-- Ended attempts can no longer be claimed.
DELETE FROM dagapp.dag_tasks_waiting
WHERE task_id = ANY(:closed_waiting::text[]);

-- closed_running --
-- Ended attempts are no longer held.
DELETE FROM dagapp.dag_tasks_running
WHERE task_id = ANY(:closed_running::text[]);

-- {task_record} --
r(
    task_id text, job_id bigint, node_id text, retry_count int, queue text, priority int,
    job_started_at timestamptz, handler text, timeout_seconds float, correlation_id text, trace_parent text,
    dispatched_at timestamptz, held boolean
)

-- waiting --
-- Tasks to enqueue.
INSERT INTO dagapp.dag_tasks_waiting ({task_columns}, held)
SELECT {task_columns}, held FROM json_to_recordset(:waiting::json) AS {task_record};

-- running --
-- Tasks that a worker of this process has already claimed.
INSERT INTO dagapp.dag_tasks_running ({task_columns}, worker_id, claimed_at)
SELECT {task_columns}, :worker_id, dispatched_at FROM json_to_recordset(:running::json) AS {task_record};

-- cancelled_children --
-- Cancel the child jobs of ended attempts.
INSERT INTO dagapp.dag_mailbox (job_id, kind, data)
SELECT c.job_id, 'cancel', '{"actor": "dagmaster", "reason": "the node that called it is over"}'
FROM json_to_recordset(:cancelled_children::json) AS r(job_id bigint, task_id text)
CROSS JOIN LATERAL (
    SELECT job_id FROM dagapp.dag_jobs
    WHERE parent_job_id = r.job_id AND parent_task_id = r.task_id AND status IN ('pending', 'running')
    OFFSET 0
) c;

-- event_rows --
-- The timeline.
INSERT INTO dagapp.dag_job_events (
    job_id, node_id, task_id, event_type, event_status, event_data, error_message, duration_ms, created_at, source_app,
    checkpoint_name
)
SELECT job_id, node_id, task_id, event_type, event_status, event_data, error_message, duration_ms, created_at,
    source_app, checkpoint_name
FROM json_to_recordset(:events::json) AS r(
    job_id bigint, node_id text, task_id text, event_type dagapp.event_type, event_status dagapp.event_status,
    event_data jsonb, error_message text, duration_ms bigint, created_at timestamptz, source_app text,
    checkpoint_name text
);

-- use_rows --
-- The tables that new nodes and tasks refer to, except expired ones.
INSERT INTO dagapp.data_object_uses (object_id, job_id, node_id)
SELECT r.object_id, r.job_id, r.node_id
FROM json_to_recordset(:uses::json) AS r(object_id bigint, job_id bigint, node_id text)
WHERE (SELECT o.state FROM dagapp.data_objects o WHERE o.object_id = r.object_id) <> 'expired'
ON CONFLICT DO NOTHING;

-- passed_rows --
-- Completed nodes with references in their output: other nodes of their jobs may receive them.
UPDATE dagapp.data_object_uses u SET is_passed_on = true
FROM json_to_recordset(:passed::json) AS r(job_id bigint, node_id text)
WHERE u.job_id = r.job_id AND u.node_id = r.node_id AND NOT u.is_passed_on;

-- mail_rows --
-- Remove processed mail.
DELETE FROM dagapp.dag_mailbox
WHERE mail_id = ANY(:mail::bigint[]);

-- delivered_mail --
-- Remove mail that came with notifications, if it still exists and equals the payload.
DELETE FROM dagapp.dag_mailbox m
WHERE m.mail_id = ANY(:delivered_ids::bigint[]) AND {mail_payload} = ANY(:delivered::text[])
RETURNING 1;

-- delivered_jobs --
-- Likewise for the mail of new jobs.
DELETE FROM dagapp.dag_mailbox m
WHERE m.mail_id = ANY(:delivered_job_ids::bigint[]) AND (
    SELECT {new_job_payload} FROM dagapp.dag_jobs j WHERE j.job_id = m.job_id
) = ANY(:delivered_jobs::text[])
RETURNING 1;
