-- view_orchestrators --
-- Those that beat, the newest first.
SELECT orchestrator_id, hostname, pid, host_key, started_at, heartbeat_at, jobs_owned, stats, clock_timestamp() AS now
FROM dagapp.dag_orchestrators
WHERE status = 'running' AND heartbeat_at > clock_timestamp() - make_interval(secs => :threshold_seconds)
ORDER BY started_at DESC, orchestrator_id LIMIT 1000;

-- list_orchestrators --
SELECT orchestrator_id, hostname, pid, host_key, status, started_at, heartbeat_at, jobs_owned, stats
FROM dagapp.dag_orchestrators ORDER BY started_at DESC LIMIT 100;

-- beating_orchestrators --
-- Those that could take a job.
SELECT host_key, pid FROM dagapp.dag_orchestrators
WHERE status = 'running' AND heartbeat_at > clock_timestamp() - make_interval(secs => :threshold_seconds);

-- stalled_orchestrators --
-- Those that are there and get nothing done.
SELECT orchestrator_id, hostname, pid, status, (stats ->> 'no_progress_seconds')::float AS seconds,
    stats ->> 'last_error' AS last_error
FROM dagapp.dag_orchestrators
WHERE heartbeat_at > clock_timestamp() - make_interval(secs => :orphan_seconds)
    AND status IN ('running', 'stalled')
    AND (status = 'stalled' OR (stats ->> 'no_progress_seconds')::float > :progress_seconds::float)
ORDER BY orchestrator_id;

-- fleet_orchestrators --
-- Every instance that is remembered: a counter must not fall because its process has ended.
SELECT orchestrator_id, status, jobs_owned,
    stats - '{completions, failures, workflows, failing_handlers, failing_queues}'::text[] AS stats,
    extract(epoch FROM clock_timestamp() - heartbeat_at)::float AS heartbeat_age_seconds
FROM dagapp.dag_orchestrators ORDER BY orchestrator_id;

-- view_backlog --
-- What has yet to be taken in, and what has yet to be taken.
SELECT (SELECT count(*)::int FROM dagapp.dag_mailbox WHERE kind IN ('completed', 'failed', 'lost', 'given_back'))
        AS pending_results,
    (SELECT count(*)::int FROM dagapp.dag_task_results
     WHERE NOT processed AND status IN ('completed', 'failed')) AS db_unprocessed_results,
    (SELECT count(*)::int FROM dagapp.dag_tasks_waiting WHERE NOT held) AS queue_depth;
