-- Invariants, each as a statement that finds its violations. `key` identifies the row for a second check; rows in
-- transit are younger than :settle_seconds.

-- {settled_at} --
clock_timestamp() - make_interval(secs => :settle_seconds)

-- {history_begins} --
clock_timestamp() - make_interval(secs => :days::float * 86400)

-- {all_tasks} --
(
    SELECT task_id, job_id, node_id, 'waiting' AS place, dispatched_at AS since FROM dagapp.dag_tasks_waiting
    UNION ALL
    SELECT task_id, job_id, node_id, 'running', claimed_at FROM dagapp.dag_tasks_running
)

-- {node_type} --
-- The type of a node `n` of the workflow `w`.
coalesce(n.definition ->> 'type', CASE WHEN n.parent_node_id IS NOT NULL THEN 'task' END,
        w.definition #>> ARRAY['nodes', n.node_id, 'type'])

-- {has_report} --
-- Whether a report on the task of the node `n` is in the mail.
EXISTS (SELECT FROM dagapp.dag_mailbox m WHERE m.task_id = n.task_id AND m.job_id = n.job_id AND m.kind <> 'started')

-- {note_repaired_tasks} --
INSERT INTO dagapp.dag_job_events (
    job_id, node_id, task_id, event_type, event_status, event_data, created_at, source_app
)
SELECT job_id, node_id, task_id, 'command', 'warning', :audit::jsonb, clock_timestamp(), 'doctor'

-- {note_repaired_jobs} --
INSERT INTO dagapp.dag_job_events (job_id, event_type, event_status, event_data, created_at, source_app)
SELECT job_id, 'command', 'warning', :audit::jsonb, clock_timestamp(), 'doctor'

-- find_tasks_of_ended_jobs --
SELECT t.task_id AS key, t.job_id, t.node_id, t.task_id, t.place, j.status AS job_status
FROM {all_tasks} t
LEFT JOIN dagapp.dag_jobs j ON j.job_id = t.job_id
WHERE (j.job_id IS NULL OR j.status IN ('completed', 'failed', 'cancelled'))
    AND greatest(t.since, j.updated_at) <= {settled_at}
ORDER BY t.task_id LIMIT :limit;

-- find_superseded_tasks --
SELECT t.task_id AS key, t.job_id, t.node_id, t.task_id, t.place, n.status AS node_status, n.task_id AS current_task_id
FROM {all_tasks} t
JOIN dagapp.dag_jobs j ON j.job_id = t.job_id AND j.status IN ('pending', 'running')
LEFT JOIN dagapp.dag_node_states n ON n.job_id = t.job_id AND n.node_id = t.node_id
WHERE (n.status IS NULL OR n.status NOT IN ('dispatched', 'running') OR n.task_id IS DISTINCT FROM t.task_id)
    AND greatest(t.since, n.updated_at) <= {settled_at}
ORDER BY t.task_id LIMIT :limit;

-- {unheld_nodes} --
-- Nodes of live jobs whose task no worker holds or has reported.
FROM dagapp.dag_jobs j
JOIN dagapp.dag_workflows w ON w.workflow_hash = j.workflow_hash
JOIN dagapp.dag_node_states n ON n.job_id = j.job_id
WHERE j.status IN ('pending', 'running') AND {node_type} = 'task' AND n.updated_at <= {settled_at}
    AND NOT EXISTS (SELECT FROM dagapp.dag_tasks_running t WHERE t.task_id = n.task_id)
    AND NOT {has_report}

-- find_lost_tasks --
SELECT n.task_id AS key, n.job_id, n.node_id, n.task_id, n.dispatched_at
{unheld_nodes}
    AND n.status = 'dispatched' AND NOT EXISTS (SELECT FROM dagapp.dag_tasks_waiting t WHERE t.task_id = n.task_id)
ORDER BY n.task_id LIMIT :limit;

-- find_lost_runs --
SELECT n.task_id AS key, n.job_id, n.node_id, n.task_id, n.started_at
{unheld_nodes} AND n.status = 'running' AND n.result_of IS NULL
ORDER BY n.task_id LIMIT :limit;

-- find_open_nodes_of_ended_jobs --
SELECT n.job_id || '_' || n.node_id AS key, n.job_id, n.node_id, n.status AS node_status, j.status AS job_status
FROM dagapp.dag_jobs j JOIN dagapp.dag_node_states n ON n.job_id = j.job_id
WHERE j.status IN ('completed', 'failed', 'cancelled')
    AND j.created_at > {history_begins}
    AND n.status IN ('pending', 'ready', 'dispatched', 'running')
    AND j.updated_at <= {settled_at}
ORDER BY 1 LIMIT :limit;

-- find_owned_ended_jobs --
SELECT j.job_id::text AS key, j.job_id, j.status AS job_status, j.owner_id, j.completed_at
FROM dagapp.dag_jobs j
WHERE j.owner_id IS NOT NULL AND j.status IN ('completed', 'failed', 'cancelled')
    AND j.updated_at <= {settled_at}
    AND NOT EXISTS (SELECT FROM dagapp.dag_mailbox m WHERE m.job_id = j.job_id)
ORDER BY j.job_id LIMIT :limit;

-- find_jobs_without_owner --
SELECT j.job_id::text AS key, j.job_id, j.workflow_id, j.status AS job_status, j.created_at
FROM dagapp.dag_jobs j
WHERE j.status IN ('pending', 'running') AND j.owner_id IS NULL
    AND j.updated_at <= clock_timestamp() - make_interval(secs => :orphan_seconds)
    AND EXISTS (
        SELECT FROM dagapp.dag_orchestrators o
        WHERE o.status = 'running' AND o.heartbeat_at > clock_timestamp() - make_interval(secs => :orphan_seconds)
            AND o.started_at <= {settled_at}
    )
ORDER BY j.job_id LIMIT :limit;

-- find_jobs_of_dead_owners --
SELECT j.job_id::text AS key, j.job_id, j.workflow_id, j.owner_id, o.status AS owner_status, o.heartbeat_at
FROM dagapp.dag_jobs j LEFT JOIN dagapp.dag_orchestrators o ON o.orchestrator_id = j.owner_id
WHERE j.status IN ('pending', 'running') AND j.owner_id IS NOT NULL
    AND coalesce(o.heartbeat_at, j.owner_heartbeat_at, j.created_at)
        <= clock_timestamp() - make_interval(secs => 2 * :orphan_seconds::float)
ORDER BY j.job_id LIMIT :limit;

-- find_finished_live_jobs --
SELECT j.job_id::text AS key, j.job_id, j.workflow_id, j.owner_id,
    EXISTS (SELECT FROM dagapp.dag_node_states n WHERE n.job_id = j.job_id AND n.status = 'failed') AS has_failed_node
FROM dagapp.dag_jobs j
WHERE j.status IN ('pending', 'running')
    AND EXISTS (SELECT FROM dagapp.dag_node_states n WHERE n.job_id = j.job_id)
    AND NOT EXISTS (
        SELECT FROM dagapp.dag_node_states n
        WHERE n.job_id = j.job_id AND (
            n.status IN ('pending', 'ready', 'dispatched', 'running')
            OR n.updated_at > clock_timestamp() - make_interval(secs => :settle_seconds)
        )
    )
    AND NOT EXISTS (SELECT FROM dagapp.dag_mailbox m WHERE m.job_id = j.job_id)
ORDER BY j.job_id LIMIT :limit;

-- find_failed_nodes_of_completed_jobs --
SELECT n.job_id || '_' || n.node_id AS key, n.job_id, n.node_id, n.error_message
FROM dagapp.dag_jobs j JOIN dagapp.dag_node_states n ON n.job_id = j.job_id
LEFT JOIN dagapp.dag_workflows w ON w.workflow_hash = j.workflow_hash
WHERE j.status = 'completed' AND n.status = 'failed'
    AND j.created_at > {history_begins}
    -- Unless it is allowed to fail, itself or by its fan-out.
    AND coalesce(n.definition, w.definition #> ARRAY['nodes', coalesce(n.parent_node_id, n.node_id)])
        -> 'allow_failure' IS DISTINCT FROM 'true'::jsonb
ORDER BY 1 LIMIT :limit;

-- find_jobs_without_definition --
SELECT j.job_id::text AS key, j.job_id, j.workflow_id, j.workflow_hash, j.status AS job_status
FROM dagapp.dag_jobs j
WHERE (j.status IN ('pending', 'running') OR j.created_at > {history_begins})
    AND NOT EXISTS (SELECT FROM dagapp.dag_workflows w WHERE w.workflow_hash = j.workflow_hash)
ORDER BY j.job_id LIMIT :limit;

-- find_torn_fan_outs --
SELECT n.job_id || '_' || n.node_id AS key, n.job_id, n.node_id, (n.output ->> 'fan_out_count')::int AS fan_out_count,
    made.children
FROM dagapp.dag_jobs j
JOIN dagapp.dag_workflows w ON w.workflow_hash = j.workflow_hash
JOIN dagapp.dag_node_states n ON n.job_id = j.job_id
CROSS JOIN LATERAL (
    SELECT count(*)::int AS children FROM dagapp.dag_node_states c
    WHERE c.job_id = n.job_id AND c.parent_node_id = n.node_id
) made
WHERE jsonb_path_exists(w.definition, '$.nodes.* ? (@.type == "fan_out")')
    AND j.created_at > {history_begins}
    AND n.parent_node_id IS NULL AND n.status = 'completed'
    AND w.definition #>> ARRAY['nodes', n.node_id, 'type'] = 'fan_out'
    AND made.children IS DISTINCT FROM (n.output ->> 'fan_out_count')::int
ORDER BY 1 LIMIT :limit;

-- find_too_many_attempts --
SELECT n.job_id || '_' || n.node_id AS key, n.job_id, n.node_id, n.retry_count, n.max_retries
FROM dagapp.dag_jobs j JOIN dagapp.dag_node_states n ON n.job_id = j.job_id
WHERE j.created_at > {history_begins} AND n.retry_count > n.max_retries
ORDER BY 1 LIMIT :limit;

-- find_double_results --
-- Attempts that were completed twice: only the timeline shows it.
SELECT e.task_id AS key, e.job_id, e.node_id, e.task_id, count(*)::int AS accepted
FROM dagapp.dag_jobs j JOIN dagapp.dag_job_events e ON e.job_id = j.job_id
WHERE j.created_at > {history_begins}
    AND e.created_at > {history_begins}
    AND e.event_type = 'node_completed' AND e.task_id IS NOT NULL
GROUP BY e.job_id, e.node_id, e.task_id HAVING count(*) > 1
ORDER BY 1 LIMIT :limit;

-- find_jobs_without_last_event --
SELECT j.job_id::text AS key, j.job_id, j.workflow_id, j.status AS job_status, j.completed_at
FROM dagapp.dag_jobs j
WHERE j.status IN ('completed', 'failed', 'cancelled')
    AND j.created_at > {history_begins}
    AND NOT EXISTS (
        SELECT FROM dagapp.dag_job_events e WHERE e.job_id = j.job_id AND e.event_type::text = 'job_' || j.status
    )
ORDER BY j.job_id LIMIT :limit;

-- find_ended_jobs_without_time --
SELECT j.job_id::text AS key, j.job_id, j.workflow_id, j.status AS job_status
FROM dagapp.dag_jobs j
WHERE j.status IN ('completed', 'failed', 'cancelled') AND j.completed_at IS NULL
    AND j.created_at > {history_begins}
ORDER BY j.job_id LIMIT :limit;

-- find_unprocessed_results --
SELECT r.task_id AS key, r.job_id, r.node_id, r.task_id, r.reported_at
FROM dagapp.dag_task_results r
WHERE NOT r.processed AND r.status IN ('completed', 'failed')
    AND r.reported_at <= clock_timestamp() - make_interval(secs => :late_seconds)
    AND NOT EXISTS (SELECT FROM dagapp.dag_mailbox m WHERE m.job_id = r.job_id AND m.task_id = r.task_id)
ORDER BY r.reported_at LIMIT :limit;

-- find_old_mail --
SELECT m.mail_id::text AS key, m.mail_id, m.kind, m.job_id, m.task_id, m.created_at, j.status AS job_status, j.owner_id
FROM dagapp.dag_mailbox m LEFT JOIN dagapp.dag_jobs j ON j.job_id = m.job_id
WHERE m.created_at <= clock_timestamp() - make_interval(secs => :late_seconds)
ORDER BY m.mail_id LIMIT :limit;

-- {waiting_tasks} --
SELECT t.task_id AS key, t.job_id, t.node_id, t.task_id, t.queue
FROM dagapp.dag_tasks_waiting t JOIN dagapp.dag_jobs j ON j.job_id = t.job_id
WHERE j.status IN ('pending', 'running') AND greatest(t.dispatched_at, j.updated_at) <= {settled_at}

-- find_held_tasks --
{waiting_tasks} AND t.held AND j.paused_at IS NULL
ORDER BY t.task_id LIMIT :limit;

-- find_unheld_tasks --
{waiting_tasks} AND NOT t.held AND j.paused_at IS NOT NULL
ORDER BY t.task_id LIMIT :limit;

-- find_overdue_callbacks --
SELECT c.callback_id::text AS key, c.callback_id, c.job_id, c.attempts, c.next_attempt_at, c.last_error
FROM dagapp.dag_callbacks c
WHERE c.status = 'waiting' AND c.next_attempt_at <= clock_timestamp() - make_interval(secs => :late_seconds)
ORDER BY c.next_attempt_at LIMIT :limit;

-- find_schedules_without_next_time --
SELECT schedule_id AS key, schedule_id, workflow_id FROM dagapp.dag_schedules
WHERE paused_at IS NULL AND next_at IS NULL
    AND updated_at <= {settled_at}
ORDER BY schedule_id LIMIT :limit;

-- find_late_schedules --
SELECT schedule_id AS key, schedule_id, workflow_id, next_at FROM dagapp.dag_schedules
WHERE paused_at IS NULL AND next_at < clock_timestamp() - make_interval(secs => :late_seconds)
ORDER BY schedule_id LIMIT :limit;

-- find_failing_schedules --
SELECT DISTINCT ON (s.schedule_id) s.schedule_id AS key, s.schedule_id, s.workflow_id, e.error_message,
    e.created_at AS failed_at
FROM dagapp.dag_job_events e JOIN dagapp.dag_schedules s ON s.schedule_id = e.event_data ->> 'schedule_id'
WHERE e.job_id = 0 AND e.event_type = 'schedule_missed' AND e.event_status = 'failure'
    AND e.created_at > {history_begins}
    AND (s.last_at IS NULL OR s.last_at < (e.event_data ->> 'first')::timestamptz)
ORDER BY s.schedule_id, e.created_at DESC LIMIT :limit;

-- find_silent_workers --
SELECT w.worker_id AS key, w.worker_id, w.hostname, w.pid, w.last_heartbeat,
    (SELECT count(*)::int FROM dagapp.dag_tasks_running t WHERE t.worker_id = w.worker_id) AS tasks
FROM dagapp.dag_workers w
WHERE w.status = 'active' AND w.last_heartbeat <= clock_timestamp() - make_interval(secs => :worker_lost_seconds)
ORDER BY w.last_heartbeat LIMIT :limit;

-- find_stalled_orchestrators --
SELECT orchestrator_id AS key, orchestrator_id, hostname, pid, status,
    (stats ->> 'no_progress_seconds')::float AS seconds, stats ->> 'last_error' AS last_error
FROM dagapp.dag_orchestrators
WHERE heartbeat_at > clock_timestamp() - make_interval(secs => :orphan_seconds)
    AND (status = 'stalled' OR (status = 'running' AND (stats ->> 'no_progress_seconds')::float > 30))
ORDER BY orchestrator_id LIMIT :limit;

-- find_misplaced_events --
SELECT e.event_id::text AS key, e.event_id, e.job_id, e.created_at, e.event_type
FROM dagapp.dag_job_events_default e
ORDER BY e.event_id LIMIT :limit;

-- find_missing_partitions --
SELECT name AS key, name AS partition
FROM (
    SELECT 'dag_job_events_' || to_char((now() AT TIME ZONE 'UTC')::date + n, 'YYYYMMDD') AS name
    FROM generate_series(0, 2) AS n
) days
WHERE to_regclass('dagapp.' || name) IS NULL
ORDER BY name LIMIT :limit;

-- repair_dead_tasks --
-- Remove tasks whose job has ended, or whose attempt is not the current one.
WITH dead AS MATERIALIZED (
    SELECT task_id FROM unnest(:keys::text[]) AS k(task_id)
    WHERE NOT EXISTS (
        SELECT FROM dagapp.dag_node_states n JOIN dagapp.dag_jobs j ON j.job_id = n.job_id
        WHERE n.job_id = split_part(k.task_id, '_', 1)::bigint AND n.task_id = k.task_id
            AND n.status IN ('dispatched', 'running') AND j.status IN ('pending', 'running')
    )
), waiting AS (
    DELETE FROM dagapp.dag_tasks_waiting WHERE task_id = ANY(ARRAY(SELECT task_id FROM dead))
    RETURNING job_id, node_id, task_id
), running AS (
    DELETE FROM dagapp.dag_tasks_running WHERE task_id = ANY(ARRAY(SELECT task_id FROM dead))
    RETURNING job_id, node_id, task_id
)
{note_repaired_tasks} FROM (SELECT * FROM waiting UNION ALL SELECT * FROM running) gone
RETURNING job_id;

-- repair_lost_tasks --
-- Report the tasks as lost to the owner, which retries them.
WITH lost AS (
    INSERT INTO dagapp.dag_mailbox (job_id, kind, node_id, task_id)
    SELECT n.job_id, 'lost', n.node_id, n.task_id
    FROM unnest(:keys::text[]) AS k(task_id)
    JOIN dagapp.dag_node_states n ON n.job_id = split_part(k.task_id, '_', 1)::bigint AND n.task_id = k.task_id
    JOIN dagapp.dag_jobs j ON j.job_id = n.job_id
    WHERE j.status IN ('pending', 'running') AND n.status IN ('dispatched', 'running')
        AND NOT EXISTS (SELECT FROM dagapp.dag_tasks_running t WHERE t.task_id = n.task_id)
        AND (n.status = 'running' OR NOT EXISTS (
            SELECT FROM dagapp.dag_tasks_waiting t WHERE t.task_id = n.task_id
        ))
        AND NOT {has_report}
    RETURNING job_id, node_id, task_id
)
{note_repaired_tasks} FROM lost
RETURNING job_id;

-- repair_owned_ended_jobs --
WITH freed AS (
    UPDATE dagapp.dag_jobs j SET owner_id = NULL
    WHERE j.job_id = ANY(:keys::bigint[]) AND j.owner_id IS NOT NULL
        AND j.status IN ('completed', 'failed', 'cancelled')
        AND NOT EXISTS (SELECT FROM dagapp.dag_mailbox m WHERE m.job_id = j.job_id)
    RETURNING j.job_id
)
{note_repaired_jobs} FROM freed
RETURNING job_id;

-- repair_live_jobs --
-- Under a new epoch, a live orchestrator loads the job again, whatever others have in memory.
WITH alive AS MATERIALIZED (
    SELECT orchestrator_id FROM dagapp.dag_orchestrators
    WHERE status = 'running' AND heartbeat_at > clock_timestamp() - make_interval(secs => :orphan_seconds)
), stuck AS MATERIALIZED (
    SELECT j.job_id,
        coalesce(
            (SELECT orchestrator_id FROM alive WHERE orchestrator_id = j.owner_id),
            (SELECT orchestrator_id FROM alive ORDER BY random() LIMIT 1)
        ) AS heir
    FROM dagapp.dag_jobs j
    WHERE j.job_id = ANY(:keys::bigint[]) AND j.status IN ('pending', 'running')
        AND (
            j.owner_id IS NULL OR j.owner_id NOT IN (SELECT orchestrator_id FROM alive)
            -- Loaded again, it ends: as failed if a node has failed.
            OR NOT EXISTS (
                SELECT FROM dagapp.dag_node_states n
                WHERE n.job_id = j.job_id AND n.status IN ('pending', 'ready', 'dispatched', 'running')
            )
        )
    FOR UPDATE OF j SKIP LOCKED
), given AS (
    UPDATE dagapp.dag_jobs j
    SET owner_id = s.heir, owner_epoch = j.owner_epoch + 1, owner_heartbeat_at = clock_timestamp()
    FROM stuck s WHERE j.job_id = s.job_id AND s.heir IS NOT NULL
    RETURNING j.job_id
), mail AS (
    INSERT INTO dagapp.dag_mailbox (job_id, kind) SELECT job_id, 'adopted' FROM given
)
{note_repaired_jobs} FROM given
RETURNING job_id;

-- repair_unprocessed_results --
-- The update mails the row to the job's owner as if it were new.
WITH again AS (
    UPDATE dagapp.dag_task_results r SET processed = false
    WHERE r.task_id = ANY(:keys::text[]) AND NOT r.processed AND r.status IN ('completed', 'failed')
        AND NOT EXISTS (SELECT FROM dagapp.dag_mailbox m WHERE m.job_id = r.job_id AND m.task_id = r.task_id)
    RETURNING r.job_id, r.node_id, r.task_id
)
{note_repaired_tasks} FROM again
RETURNING job_id;

-- repair_held_tasks --
WITH set_right AS (
    UPDATE dagapp.dag_tasks_waiting t SET held = j.paused_at IS NOT NULL
    FROM dagapp.dag_jobs j
    WHERE t.task_id = ANY(:keys::text[]) AND j.job_id = t.job_id AND j.status IN ('pending', 'running')
        AND t.held <> (j.paused_at IS NOT NULL)
    RETURNING t.job_id, t.node_id, t.task_id
)
{note_repaired_tasks} FROM set_right
RETURNING job_id;

-- repair_partitions --
SELECT dagapp.ensure_event_partitions(7) AS made;

-- note_repair --
-- Events without a job are stored under job 0.
INSERT INTO dagapp.dag_job_events (job_id, event_type, event_status, event_data, created_at, source_app)
VALUES (0, 'command', 'warning', :audit::jsonb, clock_timestamp(), 'doctor');
