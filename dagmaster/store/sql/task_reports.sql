-- find_task --
-- The node of an attempt.
SELECT status, task_id, retry_count FROM dagapp.dag_node_states
WHERE job_id = :job_id AND node_id = :node_id;

-- take_result --
-- Mail how an attempt ended to the job's owner. Only the first reporter removes the attempt from the waiting or
-- running tasks; a later one finds nothing.
WITH node AS MATERIALIZED (
    SELECT job_id, node_id, task_id FROM dagapp.dag_node_states
    WHERE job_id = :job_id AND node_id = :node_id AND task_id = :task_id AND status IN ('dispatched', 'running')
), taken AS (
    DELETE FROM dagapp.dag_tasks_running WHERE task_id = (SELECT task_id FROM node) RETURNING task_id
), untaken AS (
    DELETE FROM dagapp.dag_tasks_waiting WHERE task_id = (SELECT task_id FROM node) RETURNING task_id
)
INSERT INTO dagapp.dag_mailbox ({mail_columns})
SELECT job_id, :kind, node_id, task_id, :worker_id, :output::json, :error, :duration_ms, :data::jsonb
FROM node WHERE EXISTS (SELECT FROM taken UNION ALL SELECT FROM untaken)
RETURNING mail_id, pg_notify('dagmaster_mail', '');

-- begin_elsewhere --
-- Mark an attempt as running elsewhere. Returns whether it is the current attempt of a node in flight, and whether this
-- is its first sign of life.
SELECT task_id, dagapp.begin_elsewhere(task_id, :worker_id) AS is_new FROM dagapp.dag_node_states
WHERE job_id = :job_id AND node_id = :node_id AND task_id = :task_id AND status IN ('dispatched', 'running');

-- find_report --
-- The first report on an attempt: whether it says the same, and whether it came too late.
SELECT r.kind = :kind AND r.output IS NOT DISTINCT FROM dagapp.as_jsonb(:output::json)
    AND r.error IS NOT DISTINCT FROM left(:error::text, 2000) AS is_same,
    EXISTS (
        SELECT FROM dagapp.dag_job_events e
        WHERE e.job_id = :job_id AND e.event_type = 'result_ignored'
            AND coalesce(e.event_data ->> 'reported_task_id', e.task_id) = :task_id
            AND coalesce((e.event_data ->> 'kept')::boolean, true)
    ) AS is_ignored
FROM (
    SELECT t.status::text AS kind, coalesce(t.output, CASE WHEN t.status = 'completed' THEN n.output END) AS output,
        t.error_message AS error, 0 AS place
    FROM dagapp.dag_task_results t
    LEFT JOIN dagapp.dag_node_states n -- Large outputs are stored here only.
        ON n.job_id = t.job_id AND n.node_id = t.node_id AND n.task_id = t.task_id
    WHERE t.task_id = :task_id AND t.status IN ('completed', 'failed')
    UNION ALL
    SELECT kind, dagapp.as_jsonb(output), left(error, 2000), mail_id FROM dagapp.dag_mailbox
    WHERE task_id = :task_id AND job_id = :job_id AND kind IN ('completed', 'failed')
) r
ORDER BY r.place LIMIT 1;

-- keep_late_result --
-- A late report: stored if there is no other, stored or mailed, and noted once in the timeline.
WITH kept AS (
    INSERT INTO dagapp.dag_task_results AS t (
        task_id, job_id, node_id, status, output, error_message, worker_id, execution_duration_ms, reported_at,
        processed, ended_by
    )
    SELECT :task_id::text, :job_id::bigint, :node_id::text, :kind::dagapp.task_status, dagapp.as_jsonb(:output::json),
        left(:error::text, 2000), :worker_id::text, :duration_ms::bigint, clock_timestamp(), true,
        CASE WHEN :kind::text = 'completed' THEN 'result' ELSE 'failure' END::dagapp.ended_by
    WHERE NOT EXISTS (
        SELECT FROM dagapp.dag_mailbox
        WHERE task_id = :task_id AND job_id = :job_id AND kind IN ('completed', 'failed')
    )
    ON CONFLICT (task_id) DO UPDATE
    SET status = excluded.status, output = excluded.output, error_message = excluded.error_message,
        worker_id = coalesce(excluded.worker_id, t.worker_id), execution_duration_ms = excluded.execution_duration_ms,
        reported_at = excluded.reported_at, processed = true, ended_by = excluded.ended_by
    WHERE t.status NOT IN ('completed', 'failed')
    RETURNING task_id
)
INSERT INTO dagapp.dag_job_events (
    job_id, node_id, task_id, event_type, event_status, event_data, created_at, source_app
)
SELECT :job_id, :node_id, :task_id, 'result_ignored', 'warning', jsonb_build_object(
    'reason', :reason::text, 'reported_task_id', :task_id::text, 'reported_status', :kind::text,
    'worker_id', :worker_id::text, 'kept', EXISTS (SELECT FROM kept)
), clock_timestamp(), 'api'
WHERE NOT EXISTS (
    SELECT FROM dagapp.dag_job_events e
    WHERE e.job_id = :job_id AND e.event_type = 'result_ignored'
        AND coalesce(e.event_data ->> 'reported_task_id', e.task_id) = :task_id
);

-- save_progress --
-- The progress of an attempt, which is also a sign of life. An ended attempt stays as it is.
INSERT INTO dagapp.dag_task_results AS t (
    task_id, job_id, node_id, status, worker_id, progress_current, progress_total, progress_percent,
    progress_message, reported_at, processed
)
SELECT task_id, job_id, node_id, 'running', :worker_id, :progress_current, :progress_total, :progress_percent,
    :progress_message, clock_timestamp(), true
FROM dagapp.dag_node_states
WHERE job_id = :job_id AND node_id = :node_id AND task_id = :task_id AND status IN ('dispatched', 'running')
ON CONFLICT (task_id) DO UPDATE
SET status = 'running', worker_id = coalesce(excluded.worker_id, t.worker_id),
    progress_current = excluded.progress_current, progress_total = excluded.progress_total,
    progress_percent = excluded.progress_percent, progress_message = excluded.progress_message,
    reported_at = excluded.reported_at
WHERE t.status NOT IN ('completed', 'failed')
RETURNING task_id, dagapp.begin_elsewhere(task_id, :reporter);

-- tell_progress --
-- The progress of a task that this worker holds. An ended attempt stays as it is.
INSERT INTO dagapp.dag_task_results AS t (
    task_id, job_id, node_id, status, worker_id, progress_current, progress_total, progress_percent,
    progress_message, reported_at, processed
)
SELECT task_id, job_id, node_id, 'running', worker_id, :progress_current::float, :progress_total::float,
    :progress_percent::float, :progress_message::text, clock_timestamp(), true
FROM dagapp.dag_tasks_running WHERE task_id = :task_id AND worker_id || '' = :worker_id
ON CONFLICT (task_id) DO UPDATE
SET progress_current = excluded.progress_current, progress_total = excluded.progress_total,
    progress_percent = excluded.progress_percent, progress_message = excluded.progress_message,
    worker_id = excluded.worker_id, reported_at = excluded.reported_at
WHERE t.status NOT IN ('completed', 'failed');

-- save_checkpoint --
-- Store a checkpoint in the history, and mail it to the job's owner, who writes it to the node and the timeline. A
-- worker that claims tasks must hold the task, and the lock keeps it: the next attempt starts from the checkpoint. An
-- attempt outside of workers holds nothing; its checkpoint is a sign of life.
WITH claimed AS MATERIALIZED (
    SELECT task_id FROM dagapp.dag_tasks_running
    WHERE :is_claimed::boolean AND task_id = :task_id AND worker_id || '' = :worker_id::text
    FOR KEY SHARE
), node AS MATERIALIZED (
    SELECT job_id, node_id, task_id,
        CASE WHEN NOT :is_claimed::boolean THEN dagapp.begin_elsewhere(task_id, :worker_id::text) END
    FROM dagapp.dag_node_states
    WHERE job_id = :job_id AND node_id = :node_id AND task_id = :task_id AND status IN ('dispatched', 'running')
        AND (NOT :is_claimed::boolean OR EXISTS (SELECT FROM claimed))
), saved AS (
    INSERT INTO dagapp.dag_checkpoints (
        checkpoint_id, job_id, node_id, task_id, phase_name, phase_index, phase_total, progress_current,
        progress_total, progress_message, state_data, artifacts_completed, artifacts_total, memory_bytes, disk_bytes,
        error_count, is_final
    )
    SELECT :checkpoint_id, job_id, node_id, task_id, :phase_name, :phase_index, :phase_total, :progress_current,
        :progress_total, :progress_message, :output::jsonb, :artifacts_completed::jsonb, :artifacts_total,
        :memory_bytes, :disk_bytes, :error_count, :is_final
    FROM node
)
INSERT INTO dagapp.dag_mailbox (job_id, kind, node_id, task_id, worker_id, output, data)
SELECT job_id, :kind::text, node_id, task_id, :worker_id::text, :output::json, :data::jsonb
FROM node
RETURNING mail_id;

-- add_nodes --
-- Nodes that a running task adds to its job, mailed to the owner in slices.
WITH node AS MATERIALIZED (
    SELECT job_id, node_id, task_id FROM dagapp.dag_node_states
    WHERE job_id = :job_id AND node_id = :node_id AND task_id = :task_id AND status IN ('dispatched', 'running')
        AND result_of IS NULL
)
INSERT INTO dagapp.dag_mailbox (job_id, kind, node_id, task_id, worker_id, output)
SELECT n.job_id, 'added', n.node_id, n.task_id, :worker_id::text, r.slice
FROM node n CROSS JOIN json_to_recordset(:slices::json) AS r(place int, slice json)
ORDER BY r.place
RETURNING mail_id;

-- discard_checkpoint --
-- Discard an unusable checkpoint, with a note in the timeline; the newest valid one of the node is used instead.
WITH bad AS (
    UPDATE dagapp.dag_checkpoints c SET is_valid = false
    FROM dagapp.dag_tasks_running t
    WHERE t.task_id = :task_id AND t.worker_id = :worker_id AND c.job_id = t.job_id AND c.node_id = t.node_id
        AND c.checkpoint_id = :checkpoint_id AND c.is_valid
    RETURNING c.job_id, c.node_id, c.phase_name
), noted AS (
    INSERT INTO dagapp.dag_job_events (
        job_id, node_id, task_id, event_type, event_status, checkpoint_name, event_data, created_at, source_app
    )
    SELECT job_id, node_id, :task_id, 'node_warning', 'warning', phase_name, jsonb_build_object(
        'warning', 'the checkpoint ' || phase_name || ' was discarded: ' || :reason::text, 'worker_id', :worker_id::text
    ), clock_timestamp(), 'worker'
    FROM bad
)
SELECT checkpoint_id, phase_name, state_data, artifacts_completed FROM dagapp.dag_checkpoints
WHERE job_id = :job_id AND node_id = :node_id AND is_valid AND checkpoint_id <> :checkpoint_id
ORDER BY created_at DESC, checkpoint_id DESC LIMIT 1;
