-- view_nodes --
-- Nodes of all jobs, those of the newest first. What is open can only be in a job that is live.
SELECT n.job_id, j.workflow_id, n.node_id, n.status, n.task_id, n.retry_count, n.max_retries, n.parent_node_id,
    n.fan_out_index, n.error_message, n.error_message AS last_error, n.not_before, n.created_at, n.dispatched_at,
    n.started_at, n.completed_at, n.ended_by, j.completed_at AS job_completed_at
FROM dagapp.dag_node_states n JOIN dagapp.dag_jobs j ON j.job_id = n.job_id
WHERE (:job_id::bigint IS NULL OR n.job_id = :job_id)
    AND (:workflow_id::text IS NULL OR j.workflow_id = :workflow_id)
    AND (:status::text IS NULL OR CASE WHEN n.ended_by = 'cancelled' THEN 'cancelled' ELSE n.status::text END = :status)
    AND (coalesce(:status::text, 'completed') IN ('completed', 'failed', 'cancelled', 'skipped') OR j.status IN ('pending', 'running'))
ORDER BY n.job_id DESC, n.node_id DESC
LIMIT :limit OFFSET :offset;

-- view_tasks --
-- Attempts that wait in a queue or that a worker has, the oldest first.
SELECT * FROM (
    SELECT task_id, job_id, node_id, CASE WHEN held THEN 'held' ELSE 'waiting' END AS state, queue, handler, priority,
        retry_count, NULL AS worker_id, dispatched_at AS since, dispatched_at
    FROM dagapp.dag_tasks_waiting
    UNION ALL
    SELECT task_id, job_id, node_id, 'running', queue, handler, priority, retry_count, worker_id, claimed_at,
        dispatched_at
    FROM dagapp.dag_tasks_running
) t
WHERE (:job_id::bigint IS NULL OR job_id = :job_id)
    AND (:state::text IS NULL OR state = :state)
    AND (:queue::text IS NULL OR queue = :queue)
    AND (:handler::text IS NULL OR handler = :handler)
    AND (:worker_id::text IS NULL OR worker_id = :worker_id)
ORDER BY since, task_id
LIMIT :limit OFFSET :offset;

-- count_tasks --
-- How many of `view_tasks` there are.
SELECT count(*)::int AS tasks FROM (
    SELECT job_id, CASE WHEN held THEN 'held' ELSE 'waiting' END AS state, queue, handler, NULL AS worker_id
    FROM dagapp.dag_tasks_waiting
    UNION ALL
    SELECT job_id, 'running', queue, handler, worker_id FROM dagapp.dag_tasks_running
) t
WHERE (:job_id::bigint IS NULL OR job_id = :job_id)
    AND (:state::text IS NULL OR state = :state)
    AND (:queue::text IS NULL OR queue = :queue)
    AND (:handler::text IS NULL OR handler = :handler)
    AND (:worker_id::text IS NULL OR worker_id = :worker_id);

-- view_ended_tasks --
-- Attempts that have ended, the newest first: those of one job, or of the newest jobs.
SELECT r.task_id, r.job_id, r.node_id, r.status::text AS state, NULL AS queue, h.handler, NULL::int AS priority,
    substring(r.task_id FROM '[0-9]+$')::int AS retry_count, r.worker_id, r.reported_at AS since,
    NULL::timestamptz AS dispatched_at, r.error_message, r.execution_duration_ms
FROM (
    SELECT job_id, workflow_hash FROM dagapp.dag_jobs
    WHERE :job_id::bigint IS NULL OR job_id = :job_id
    ORDER BY created_at DESC LIMIT :jobs
) j
CROSS JOIN LATERAL (
    SELECT task_id, job_id, node_id, status, worker_id, reported_at, error_message, execution_duration_ms
    FROM dagapp.dag_task_results
    WHERE job_id = j.job_id AND status IN ('completed', 'failed') AND (:state::text IS NULL OR status::text = :state)
        AND (:worker_id::text IS NULL OR worker_id = :worker_id)
    OFFSET 0
) r
LEFT JOIN LATERAL (
    SELECT coalesce(n.definition ->> 'handler', w.definition #>> ARRAY['nodes', split_part(r.node_id, '__', 1), 'handler'],
        w.definition #>> ARRAY['nodes', split_part(r.node_id, '__', 1), 'task', 'handler']) AS handler
    FROM dagapp.dag_node_states n CROSS JOIN dagapp.dag_workflows w
    WHERE n.job_id = r.job_id AND n.node_id = r.node_id AND w.workflow_hash = j.workflow_hash
) h ON true
WHERE :handler::text IS NULL OR h.handler = :handler
ORDER BY r.reported_at DESC, r.task_id
LIMIT :limit OFFSET :offset;

-- view_job_nodes --
-- A job's own nodes in the order in which they began, or the children of one fan-out in the order of its items.
-- Outputs are shown as far as they are small, each and all together.
SELECT job_id, node_id, status, task_id, retry_count, max_retries, parent_node_id, fan_out_index,
    CASE WHEN output_bytes <= :inline_bytes AND shown_bytes <= :max_bytes THEN output END AS output, output_bytes,
    error_message, last_error, not_before, created_at, dispatched_at, started_at, completed_at, ended_by
FROM (
SELECT *, sum(output_bytes) FILTER (WHERE output_bytes <= :inline_bytes) OVER (ROWS UNBOUNDED PRECEDING) AS shown_bytes
FROM (
SELECT n.job_id, n.node_id, n.status, n.task_id, n.retry_count, n.max_retries, n.parent_node_id, n.fan_out_index,
    n.output, coalesce(n.output_bytes, pg_column_size(n.output)) AS output_bytes, n.error_message, coalesce(n.error_message, r.error_message) AS last_error, n.not_before, n.created_at,
    n.dispatched_at, n.started_at, n.completed_at, n.ended_by
FROM dagapp.dag_node_states n
LEFT JOIN dagapp.dag_task_results r -- Of the attempt before: a retry clears the error of its node.
    ON n.retry_count > 0 AND r.task_id = n.job_id || '_' || n.node_id || '_' || (n.retry_count - 1)
WHERE n.job_id = :job_id AND n.parent_node_id IS NOT DISTINCT FROM :parent::text
    AND (:status::text IS NULL OR CASE WHEN n.ended_by = 'cancelled' THEN 'cancelled' ELSE n.status::text END = :status)
ORDER BY n.fan_out_index, coalesce(n.started_at, n.dispatched_at) NULLS LAST, n.created_at, n.node_id
LIMIT :limit OFFSET :offset
) page
) weighed;

-- view_node --
-- One node, whole.
SELECT n.job_id, n.node_id, n.status, n.task_id, n.retry_count, n.max_retries, n.times_lost, n.parent_node_id,
    n.fan_out_index, n.fan_out_item_key, n.queue, n.definition, n.result_of, n.input_params, n.output, n.output_bytes,
    n.error_message, n.ended_by, n.checkpoint_phase, n.checkpoint_data, n.checkpoint_saved_at, n.not_before,
    n.created_at, n.dispatched_at, n.started_at, n.completed_at, n.updated_at, n.version,
    coalesce(n.error_message, r.error_message) AS last_error,
    coalesce(pg_column_size(n.input_params), 0) + coalesce(pg_column_size(n.checkpoint_data), 0) AS held_bytes
FROM dagapp.dag_node_states n
LEFT JOIN dagapp.dag_task_results r
    ON n.retry_count > 0 AND r.task_id = n.job_id || '_' || n.node_id || '_' || (n.retry_count - 1)
WHERE n.job_id = :job_id AND n.node_id = :node_id;

-- view_attempts --
-- What was reported of a node, attempt by attempt. One that was last heard of while it ran, and is not the present one,
-- has ended as the timeline says.
SELECT r.task_id, CASE WHEN over.is_over THEN 'failed' ELSE r.status::text END AS status,
    CASE WHEN over.is_over THEN over.ended_by ELSE r.ended_by::text END AS ended_by, r.worker_id, r.error_type,
    CASE WHEN over.is_over THEN over.error_message ELSE r.error_message END AS error_message,
    r.execution_duration_ms, r.peak_memory_bytes, r.cpu_seconds, r.metrics, r.log_path, r.progress_current,
    r.progress_total, r.progress_percent, r.progress_message, r.reported_at
FROM dagapp.dag_task_results r
LEFT JOIN LATERAL (
    SELECT true AS is_over, e.error_message, e.ended_by
    FROM dagapp.dag_node_states n
    LEFT JOIN LATERAL (
        SELECT error_message, event_data ->> 'ended_by' AS ended_by FROM dagapp.dag_job_events
        WHERE job_id = r.job_id AND task_id = r.task_id AND event_type IN ('node_failed', 'node_timeout')
            AND error_message IS NOT NULL
        ORDER BY event_id DESC LIMIT 1
    ) e ON true
    WHERE r.status NOT IN ('completed', 'failed') AND n.job_id = r.job_id AND n.node_id = r.node_id
        AND (n.task_id IS DISTINCT FROM r.task_id OR n.status NOT IN ('dispatched', 'running'))
) over ON true
WHERE r.job_id = :job_id AND r.node_id = :node_id
ORDER BY r.reported_at, r.task_id LIMIT 1000;

-- node_standing --
-- How far a node is, and nothing of what it holds.
SELECT status, retry_count FROM dagapp.dag_node_states WHERE job_id = :job_id AND node_id = :node_id;

-- view_logged --
-- Nodes that a worker has or had: what failed first, then what runs.
SELECT n.node_id, n.status, n.retry_count + 1 AS attempt, n.ended_by, n.error_message
FROM dagapp.dag_node_states n
WHERE n.job_id = :job_id AND (:node_id::text IS NULL OR n.node_id = :node_id) AND (
    EXISTS (SELECT FROM dagapp.dag_task_results r WHERE r.job_id = n.job_id AND r.node_id = n.node_id)
    OR EXISTS (SELECT FROM dagapp.dag_tasks_running t WHERE t.task_id = n.task_id)
)
ORDER BY n.status <> 'failed', n.status <> 'running', n.started_at, n.node_id
LIMIT :limit OFFSET :offset;

-- log_place --
-- Where an attempt's log is, and on which machine it was written.
SELECT r.log_path, w.hostname
FROM dagapp.dag_task_results r LEFT JOIN dagapp.dag_workers w ON w.worker_id = r.worker_id
WHERE r.task_id = :task_id AND r.log_path IS NOT NULL;

-- view_checkpoints --
-- The newest first.
SELECT checkpoint_id, job_id, node_id, task_id, phase_name, phase_index, phase_total, progress_current,
    progress_total, progress_message, state_data, artifacts_completed, artifacts_total, memory_bytes, disk_bytes,
    error_count, is_final, is_valid, created_at
FROM dagapp.dag_checkpoints WHERE job_id = :job_id AND node_id = :node_id
ORDER BY checkpoint_id DESC LIMIT :limit OFFSET :offset;

-- view_graph --
-- What is needed to draw a job: how far its own nodes are, and which branches were taken.
SELECT node_id, status, ended_by, retry_count, max_retries, error_message, not_before, started_at, completed_at,
    output ->> 'taken_branch' AS taken_branch
FROM dagapp.dag_node_states WHERE job_id = :job_id AND parent_node_id IS NULL AND definition IS NULL;

-- count_folded --
-- What is drawn within another node: the items of fan-outs, and all that has come of what a node has added.
SELECT CASE WHEN definition IS NULL THEN parent_node_id ELSE split_part(split_part(node_id, '.', 1), '__', 1) END
        AS parent_node_id,
    definition IS NOT NULL AS is_added,
    CASE WHEN ended_by = 'cancelled' THEN 'cancelled' ELSE status::text END AS status, count(*) AS nodes, min(started_at) AS began_at,
    max(completed_at) AS last_ended_at
FROM dagapp.dag_node_states
WHERE job_id = :job_id AND (parent_node_id IS NOT NULL OR definition IS NOT NULL)
GROUP BY 1, 2, 3;

-- view_folded --
-- Some of what is drawn within another node, in the order of the items or as it was added.
SELECT node_id, status, ended_by, retry_count, fan_out_index, left(error_message, 300) AS error_message, started_at,
    completed_at
FROM dagapp.dag_node_states
WHERE job_id = :job_id
    AND (:status::text IS NULL OR CASE WHEN ended_by = 'cancelled' THEN 'cancelled' ELSE status::text END = :status)
    AND CASE WHEN definition IS NULL THEN parent_node_id ELSE split_part(split_part(node_id, '.', 1), '__', 1) END
        = :parent
ORDER BY fan_out_index NULLS LAST, created_at, length(node_id), node_id
LIMIT :limit OFFSET :offset;

-- last_event_of_job --
-- Events of a job are not older than the job.
SELECT coalesce(max(event_id), 0) AS event_id FROM dagapp.dag_job_events
WHERE job_id = :job_id AND created_at >= :since;

-- summarise_events --
-- Over all events of a job or of one of its nodes.
SELECT coalesce(sum(events), 0)::bigint AS total_events, min(first) AS first_event, max(last) AS last_event,
    coalesce(jsonb_object_agg(event_type, events), '{}') AS event_counts,
    ARRAY(
        SELECT DISTINCT node_id FROM dagapp.dag_job_events
        WHERE job_id = :job_id AND event_type = 'node_retrying' AND (:node_id::text IS NULL OR node_id = :node_id)
        ORDER BY node_id LIMIT 1000
    ) AS nodes_with_retries
FROM (
    SELECT event_type, count(*) AS events, min(created_at) AS first, max(created_at) AS last
    FROM dagapp.dag_job_events
    WHERE job_id = :job_id AND (:node_id::text IS NULL OR node_id = :node_id)
    GROUP BY event_type
) e;

-- view_audit --
-- What was done to the system, the newest first.
SELECT event_id, created_at, event_type, event_status, node_id, task_id, event_data, error_message, duration_ms,
    source_app
FROM dagapp.dag_job_events
WHERE job_id = 0 AND (:event_types::text[] IS NULL OR event_type::text = ANY(:event_types))
ORDER BY event_id DESC LIMIT :limit OFFSET :offset;

-- view_queues --
-- What waits and runs in each queue, and how many workers take from it.
SELECT queue, coalesce(sum(waiting), 0)::int AS depth, coalesce(sum(held), 0)::int AS held,
    coalesce(sum(running), 0)::int AS running, coalesce(sum(consumers), 0)::int AS consumers,
    extract(epoch FROM clock_timestamp() - min(oldest))::float AS oldest_wait_seconds
FROM (
    SELECT queue, count(*) FILTER (WHERE NOT held) AS waiting, count(*) FILTER (WHERE held) AS held, 0 AS running,
        0 AS consumers, min(dispatched_at) FILTER (WHERE NOT held) AS oldest
    FROM dagapp.dag_tasks_waiting GROUP BY queue
    UNION ALL
    SELECT queue, 0, 0, count(*), 0, NULL FROM dagapp.dag_tasks_running GROUP BY queue
    UNION ALL
    SELECT queue, 0, 0, 0, count(*), NULL FROM dagapp.dag_workers w CROSS JOIN unnest(w.queues) AS queue
    WHERE w.status = 'active' AND w.wanted = 'run'
        AND w.last_heartbeat > clock_timestamp() - make_interval(secs => :lost_after_seconds)
    GROUP BY queue
) q GROUP BY queue ORDER BY queue;

-- view_workers --
-- Those at work first, then the newest.
SELECT w.worker_id, w.hostname, w.pid, w.status, w.wanted, w.queues, w.handlers, w.concurrency, w.tasks_completed,
    w.tasks_failed, w.started_at, w.last_heartbeat,
    CASE jsonb_typeof(w.stats -> 'stuck') WHEN 'array' -- What a worker over HTTP says of itself may be anything.
        THEN ARRAY(SELECT jsonb_array_elements_text(w.stats -> 'stuck')) ELSE '{}' END AS stuck_tasks,
    (SELECT count(*)::int FROM dagapp.dag_tasks_running t WHERE t.worker_id = w.worker_id) AS running_tasks
FROM dagapp.dag_workers w
WHERE :status::text IS NULL OR w.status = :status
ORDER BY w.status <> 'active', w.started_at DESC, w.worker_id
LIMIT :limit OFFSET :offset;

-- view_orchestrators --
-- Those that beat, the newest first.
SELECT orchestrator_id, hostname, pid, host_key, started_at, heartbeat_at, jobs_owned, stats, clock_timestamp() AS now
FROM dagapp.dag_orchestrators
WHERE status = 'running' AND heartbeat_at > clock_timestamp() - make_interval(secs => :threshold_seconds)
ORDER BY started_at DESC, orchestrator_id LIMIT 1000;

-- view_backlog --
-- What has yet to be taken in, and what has yet to be taken.
SELECT (SELECT count(*)::int FROM dagapp.dag_mailbox WHERE kind IN ('completed', 'failed', 'lost', 'given_back'))
        AS pending_results,
    (SELECT count(*)::int FROM dagapp.dag_task_results
     WHERE NOT processed AND status IN ('completed', 'failed')) AS db_unprocessed_results,
    (SELECT count(*)::int FROM dagapp.dag_tasks_waiting WHERE NOT held) AS queue_depth;

-- view_missing_partitions --
-- Of today and tomorrow.
SELECT count(*)::int AS missing FROM generate_series(0, 1) AS n
WHERE to_regclass('dagapp.dag_job_events_' || to_char((now() AT TIME ZONE 'UTC')::date + n::int, 'YYYYMMDD')) IS NULL;

-- view_tables --
-- What the schema holds, by estimate; the partitions of a table count for it.
SELECT c.relname AS name, greatest(sum(p.reltuples), 0)::bigint AS estimated_rows,
    sum(pg_total_relation_size(p.oid))::bigint AS bytes
FROM pg_class c
JOIN pg_namespace s ON s.oid = c.relnamespace AND s.nspname = 'dagapp'
JOIN pg_class p ON p.oid = c.oid OR p.oid IN (SELECT inhrelid FROM pg_inherits WHERE inhparent = c.oid)
WHERE c.relkind IN ('r', 'p') AND NOT c.relispartition
GROUP BY c.relname ORDER BY c.relname;

-- database_name --
SELECT current_database()::text AS name;

-- drop_schema --
-- Everything is gone.
DROP SCHEMA IF EXISTS dagapp CASCADE;

-- note_command --
-- Somebody did something to the system.
INSERT INTO dagapp.dag_job_events (
    job_id, event_type, event_status, event_data, error_message, duration_ms, created_at, source_app
)
VALUES (0, 'command', :event_status::dagapp.event_status, :data::jsonb, left(:error, 2000), :duration_ms,
    clock_timestamp(), 'api');

-- last_reload --
-- When somebody last asked the servers to read their workflows again.
SELECT max(event_id) AS event_id FROM dagapp.dag_job_events
WHERE job_id = 0 AND event_type = 'command' AND created_at > clock_timestamp() - interval '1 day'
    AND event_data ->> 'command' IN ('workflows.reload', 'cache.invalidate');

-- watched_events --
-- What is new for those who watch jobs: behind `after`, without what they have `seen`. A row for each who watches,
-- even if nothing is new, with the state of the job.
SELECT w.place, j.status AS job_status, e.*
FROM json_to_recordset(:watchers::json) AS w(
    place int, job_id bigint, after bigint, since timestamptz, seen bigint[]
)
LEFT JOIN dagapp.dag_jobs j ON j.job_id = w.job_id
LEFT JOIN LATERAL (
    SELECT e.event_id, e.created_at, e.event_type, e.event_status, e.node_id, e.task_id, e.event_data,
        e.error_message, e.duration_ms, e.source_app
    FROM dagapp.dag_job_events e
    WHERE e.job_id = w.job_id AND e.event_id > w.after AND e.created_at >= w.since AND e.event_id <> ALL (w.seen)
    ORDER BY e.event_id LIMIT :page
) e ON true
ORDER BY w.place, e.event_id;
