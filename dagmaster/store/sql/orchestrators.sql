-- list_orchestrators --
-- The newest first: all known, or only live ones. Stats named in :omitted are left out.
SELECT orchestrator_id, hostname, pid, host_key, status, started_at, heartbeat_at, jobs_owned,
    stats - :omitted::text[] AS stats,
    extract(epoch FROM clock_timestamp() - heartbeat_at)::float AS heartbeat_age_seconds,
    extract(epoch FROM clock_timestamp() - started_at)::float AS uptime_seconds
FROM dagapp.dag_orchestrators
WHERE :threshold_seconds::float IS NULL
    OR (status = 'running' AND heartbeat_at > clock_timestamp() - make_interval(secs => :threshold_seconds))
ORDER BY started_at DESC, orchestrator_id LIMIT :limit;

-- beating_orchestrators --
-- Orchestrators that could adopt a job.
SELECT host_key, pid FROM dagapp.dag_orchestrators
WHERE status = 'running' AND heartbeat_at > clock_timestamp() - make_interval(secs => :threshold_seconds);

-- stalled_orchestrators --
-- Orchestrators that are alive but make no progress.
SELECT orchestrator_id, hostname, pid, status, (stats ->> 'no_progress_seconds')::float AS seconds,
    stats ->> 'last_error' AS last_error
FROM dagapp.dag_orchestrators
WHERE heartbeat_at > clock_timestamp() - make_interval(secs => :orphan_seconds)
    AND status IN ('running', 'stalled')
    AND (status = 'stalled' OR (stats ->> 'no_progress_seconds')::float > :progress_seconds::float)
ORDER BY orchestrator_id;

-- view_backlog --
-- Unread mail and unclaimed tasks.
SELECT (SELECT count(*)::int FROM dagapp.dag_mailbox WHERE kind IN ('completed', 'failed', 'lost', 'given_back'))
        AS pending_results,
    (SELECT count(*)::int FROM dagapp.dag_task_results
     WHERE NOT processed AND status IN ('completed', 'failed')) AS db_unprocessed_results,
    (SELECT count(*)::int FROM dagapp.dag_tasks_waiting WHERE NOT held) AS queue_depth;
