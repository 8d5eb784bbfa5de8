-- {task_columns} --
-- The columns that a task keeps from waiting to running.
task_id, job_id, node_id, retry_count, queue, priority, job_started_at, handler, timeout_seconds, correlation_id,
        trace_parent, dispatched_at

-- {claimed_columns} --
-- A task as a worker claims it.
t.task_id, t.job_id, t.node_id, t.retry_count, t.queue, t.handler, t.timeout_seconds, t.correlation_id,
    t.trace_parent, t.dispatched_at, n.input_params AS params, c.checkpoint_id,
    c.phase_name AS checkpoint_phase, c.state_data AS checkpoint_data, c.artifacts_completed AS checkpoint_artifacts

-- {params_and_checkpoint} --
-- For the task `t`. The first attempt has no checkpoint; later ones continue after the newest valid one.
JOIN dagapp.dag_node_states n ON n.job_id = t.job_id AND n.node_id = t.node_id
LEFT JOIN LATERAL (
    SELECT checkpoint_id, phase_name, state_data, artifacts_completed FROM dagapp.dag_checkpoints
    WHERE job_id = t.job_id AND node_id = t.node_id AND is_valid
    ORDER BY created_at DESC, checkpoint_id DESC LIMIT 1
) c ON t.retry_count > 0

-- {take_tasks} --
-- Up to :limit waiting tasks of the worker's queues: highest priority first, then the oldest started job, then in order
-- of creation. Only handlers that the worker has, and nothing for a lost worker.
me AS MATERIALIZED (
    SELECT queues, handlers FROM dagapp.dag_workers
    WHERE worker_id = :worker_id AND status = 'active' AND wanted = 'run'
), picked AS MATERIALIZED (
    SELECT w.task_id
    FROM me CROSS JOIN unnest(me.queues) AS q(name)
    CROSS JOIN LATERAL (
        SELECT t.task_id, t.priority, t.job_started_at, t.seq FROM dagapp.dag_tasks_waiting t
        WHERE t.queue = q.name AND NOT t.held AND (me.handlers IS NULL OR t.handler = ANY(me.handlers))
        ORDER BY t.priority DESC, t.job_started_at, t.seq
        LIMIT :limit
        FOR UPDATE SKIP LOCKED
    ) w
    ORDER BY w.priority DESC, w.job_started_at, w.seq
    LIMIT :limit
), taken AS (
    DELETE FROM dagapp.dag_tasks_waiting WHERE task_id = ANY(ARRAY(SELECT task_id FROM picked)) RETURNING *
), held AS (
    INSERT INTO dagapp.dag_tasks_running ({task_columns}, worker_id, claimed_at)
    SELECT {task_columns}, :worker_id, clock_timestamp() FROM taken
)

-- {taken_tasks} --
SELECT {claimed_columns}
FROM taken t
{params_and_checkpoint}
ORDER BY t.priority DESC, t.job_started_at, t.seq

-- claim_tasks --
-- Claim waiting tasks without telling their owners: most tasks end soon, and the report implies the start.
WITH {take_tasks}
{taken_tasks};

-- claim_and_announce_tasks --
-- Claim waiting tasks, and mail their start to the owners.
WITH {take_tasks}, mail AS (
    INSERT INTO dagapp.dag_mailbox (job_id, kind, node_id, task_id, worker_id)
    SELECT job_id, 'started', node_id, task_id, :worker_id FROM taken
)
{taken_tasks};

-- tell_starts --
-- Mail the start of the tasks that the worker still holds to the owners.
INSERT INTO dagapp.dag_mailbox (job_id, kind, node_id, task_id, worker_id)
SELECT job_id, 'started', node_id, task_id, worker_id FROM dagapp.dag_tasks_running
WHERE task_id = ANY(:task_ids::text[]) AND worker_id || '' = :worker_id
RETURNING mail_id;

-- report_tasks --
-- Close the reported tasks and mail the reports to the owners, with or without a notification. The rows are read once:
-- kept for a second pass, a large output would spill to a temporary file.
WITH ended AS (
    DELETE FROM dagapp.dag_tasks_running WHERE task_id = ANY(:task_ids::text[]) AND worker_id || '' = :worker_id
), mail AS (
    INSERT INTO dagapp.dag_mailbox ({mail_columns})
    SELECT {mail_columns} FROM json_to_recordset(:reports::json) AS {mail_record}
)
SELECT pg_notify('dagmaster_mail', '') WHERE :notifies::boolean;

-- report_task --
-- The same for one task. The notification carries the mail, unless the job may have other unread mail, which it must
-- not overtake. More than a little unread mail is not searched: it will be read anyway.
WITH ended AS (
    DELETE FROM dagapp.dag_tasks_running WHERE task_id = :task_id AND worker_id || '' = :worker_id
), unread AS MATERIALIZED (
    SELECT job_id FROM dagapp.dag_mailbox ORDER BY mail_id LIMIT 10
), mail AS (
    INSERT INTO dagapp.dag_mailbox ({mail_columns})
    VALUES (
        :job_id, :kind, :node_id, :task_id, :worker_id, :output::json, :error, :duration_ms, :data::jsonb
    )
    RETURNING *
)
SELECT pg_notify('dagmaster_mail', CASE WHEN octet_length(p.payload) <= {max_payload_bytes} THEN p.payload ELSE '' END)
FROM mail m CROSS JOIN LATERAL (
    SELECT CASE WHEN count(*) < 10 AND count(*) FILTER (WHERE u.job_id = m.job_id) = 0 THEN {mail_payload} ELSE '' END
        AS payload
    FROM unread u
) p;

-- held_tasks --
-- The tasks that this worker holds according to the database.
SELECT {claimed_columns}
FROM dagapp.dag_tasks_running t
{params_and_checkpoint}
WHERE t.worker_id = :worker_id AND NOT t.task_id = ANY(:known);

-- worker_orders --
-- The desired state of a worker, and the tasks among these that it no longer holds: their job has ended or another
-- attempt has started.
SELECT w.wanted, ARRAY(
    SELECT task_id FROM unnest(:task_ids::text[]) AS mine(task_id)
    WHERE NOT EXISTS (
        SELECT FROM dagapp.dag_tasks_running t WHERE t.task_id = mine.task_id AND t.worker_id = :worker_id
    )
) AS withdrawn
FROM dagapp.dag_workers w WHERE w.worker_id = :worker_id;

-- close_stale_tasks --
-- Tasks that were claimed while their attempt was being closed: their workers must stop.
DELETE FROM dagapp.dag_tasks_running r USING dagapp.dag_node_states n
WHERE n.job_id = r.job_id AND n.node_id = r.node_id
    AND (n.status NOT IN ('dispatched', 'running') OR n.task_id IS DISTINCT FROM r.task_id);

-- sealed_texts --
-- The parameters and checkpoints of a task that this worker holds.
SELECT n.input_params::text AS content
FROM dagapp.dag_tasks_running t JOIN dagapp.dag_node_states n ON n.job_id = t.job_id AND n.node_id = t.node_id
WHERE t.task_id = :task_id AND t.worker_id = :worker_id
UNION ALL
SELECT c.state_data::text
FROM dagapp.dag_tasks_running t JOIN dagapp.dag_checkpoints c ON c.job_id = t.job_id AND c.node_id = t.node_id
WHERE t.task_id = :task_id AND t.worker_id = :worker_id AND c.is_valid;

-- watch_turn --
-- One orchestrator at a time checks for stuck tasks; the lock is held until its transaction ends.
SELECT pg_try_advisory_xact_lock(hashtext('dagmaster stuck tasks')) AS is_mine;

-- warn_of_stuck_tasks --
-- A timeline entry for each task that no worker has claimed for too long.
INSERT INTO dagapp.dag_job_events (
    job_id, node_id, task_id, event_type, event_status, event_data, created_at, source_app
)
SELECT t.job_id, t.node_id, t.task_id, 'node_warning', 'warning', jsonb_build_object(
    'warning', 'no worker has taken it', 'queue', t.queue, 'handler', t.handler,
    'waited_seconds', round(extract(epoch FROM clock_timestamp() - t.dispatched_at)),
    'queue_is_consumed', EXISTS (
        SELECT FROM dagapp.dag_workers w WHERE w.status = 'active' AND w.wanted = 'run' AND t.queue = ANY(w.queues)
    ),
    'handler_is_known', EXISTS (
        SELECT FROM dagapp.dag_workers w WHERE w.status = 'active' AND w.wanted = 'run' AND t.queue = ANY(w.queues)
            AND (w.handlers IS NULL OR t.handler = ANY(w.handlers))
    )
), clock_timestamp(), 'orchestrator'
FROM dagapp.dag_tasks_waiting t
WHERE NOT t.held AND t.dispatched_at < clock_timestamp() - make_interval(secs => :stuck_after_seconds)
    AND NOT EXISTS (
        SELECT FROM dagapp.dag_job_events e
        WHERE e.job_id = t.job_id AND e.task_id = t.task_id AND e.event_type = 'node_warning'
            AND e.event_data ? 'waited_seconds'
    )
ORDER BY t.dispatched_at LIMIT :limit
RETURNING task_id;
