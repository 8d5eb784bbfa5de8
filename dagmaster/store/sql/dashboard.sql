-- overview_counts --
-- Open jobs, failed jobs of the last hours (by their index), and completed jobs among the newest: `since` is where that
-- count stopped. Here and below `now()`, not `clock_timestamp()`: a volatile function prevents index use.
SELECT live.pending, live.running, live.paused, failed.failed, ended.completed, ended.since,
    live.pending + live.running > 0 OR EXISTS (SELECT FROM dagapp.dag_jobs) AS has_jobs
FROM (
    SELECT count(*) FILTER (WHERE status = 'pending')::int AS pending,
        count(*) FILTER (WHERE status = 'running')::int AS running,
        count(*) FILTER (WHERE paused_at IS NOT NULL)::int AS paused
    FROM dagapp.dag_jobs WHERE status IN ('pending', 'running')
) live, (
    SELECT count(*)::int AS failed FROM dagapp.dag_jobs
    WHERE status = 'failed' AND completed_at >= now() - make_interval(hours => :hours::int)
) failed, (
    SELECT count(*) FILTER (WHERE status = 'completed')::int AS completed,
        CASE WHEN count(*) < :scan::int THEN now() - make_interval(hours => :hours::int) ELSE min(completed_at) END
            AS since
    FROM (
        SELECT status, completed_at FROM dagapp.dag_jobs
        WHERE completed_at >= now() - make_interval(hours => :hours::int)
        ORDER BY completed_at DESC LIMIT :scan::int
    ) newest
) ended;

-- overview_failures --
-- Recently failed jobs, newest first, however many others have ended since.
SELECT job_id, workflow_id, created_at, completed_at, left(error_message, 500) AS error
FROM dagapp.dag_jobs
WHERE status = 'failed' AND completed_at >= now() - make_interval(hours => :hours::int)
ORDER BY completed_at DESC LIMIT :failed;

-- overview_recovered --
-- The workflows among these whose newest ended job was created after this time, and completed.
SELECT w.place
FROM unnest(:workflow_ids::text[], :times::timestamptz[]) WITH ORDINALITY AS w(workflow_id, since, place)
CROSS JOIN LATERAL (
    SELECT status FROM dagapp.dag_jobs j
    WHERE j.workflow_id BETWEEN w.workflow_id AND w.workflow_id AND j.created_at > w.since
        AND j.completed_at IS NOT NULL
    ORDER BY j.workflow_id DESC, j.created_at DESC LIMIT 1
) newest
WHERE newest.status = 'completed';

-- overview_unclaimed --
-- Waiting tasks that no worker can claim, by queue and handler.
SELECT t.queue, t.handler, t.tasks, t.oldest, EXISTS (
    SELECT FROM dagapp.dag_workers w WHERE w.status = 'active' AND w.wanted = 'run' AND t.queue = ANY(w.queues)
        AND w.last_heartbeat > now() - make_interval(secs => :lost_after_seconds)
) AS is_consumed
FROM (
    SELECT queue, handler, count(*)::int AS tasks, min(dispatched_at) AS oldest
    FROM dagapp.dag_tasks_waiting WHERE NOT held GROUP BY queue, handler
) t
WHERE NOT EXISTS (
    SELECT FROM dagapp.dag_workers w WHERE w.status = 'active' AND w.wanted = 'run' AND t.queue = ANY(w.queues)
        AND (w.handlers IS NULL OR t.handler = ANY(w.handlers))
        AND w.last_heartbeat > now() - make_interval(secs => :lost_after_seconds)
) AND t.oldest < now() - make_interval(secs => :settle_seconds)
ORDER BY t.oldest LIMIT :limit;

-- overview_stalled --
-- Stalled jobs, the longest first: their mail or tasks wait and are not processed. `total` counts all jobs with the
-- same reason.
SELECT stalled.job_id, j.workflow_id, stalled.why, stalled.since, stalled.total
FROM (
    SELECT job_id, why, since, (count(*) OVER (PARTITION BY why))::int AS total
    FROM (
        SELECT job_id, 'mail' AS why, min(created_at) AS since FROM dagapp.dag_mailbox
        WHERE created_at < now() - make_interval(secs => :late_seconds) GROUP BY job_id
        UNION ALL
        SELECT job_id, 'tasks', min(dispatched_at) FROM dagapp.dag_tasks_waiting
        WHERE NOT held AND dispatched_at < now() - make_interval(secs => :stuck_after_seconds) GROUP BY job_id
        UNION ALL
        SELECT job_id, 'begin', created_at FROM dagapp.dag_jobs
        WHERE status = 'pending' AND paused_at IS NULL AND created_at < now() - make_interval(secs => :late_seconds)
    ) found
    ORDER BY since LIMIT :limit
) stalled
JOIN dagapp.dag_jobs j ON j.job_id = stalled.job_id AND j.status IN ('pending', 'running')
ORDER BY stalled.since;

-- overview_schedules --
-- Schedules with problems: they are late, were paused by the system, or have missed times.
SELECT s.schedule_id, s.workflow_id, s.next_at, s.paused_at IS NOT NULL AS is_paused,
    coalesce(missed.count, 0)::int AS missed, missed.error, coalesce(missed.last_at, s.next_at, s.paused_at) AS since
FROM dagapp.dag_schedules s
LEFT JOIN (
    SELECT event_data ->> 'schedule_id' AS schedule_id, max(created_at) AS last_at,
        sum(CASE jsonb_typeof(event_data -> 'count') WHEN 'number' THEN (event_data -> 'count')::int ELSE 1 END) AS count,
        (array_agg(error_message ORDER BY event_id DESC) FILTER (WHERE error_message IS NOT NULL))[1] AS error
    FROM dagapp.dag_job_events
    WHERE job_id = 0 AND event_type = 'schedule_missed'
        AND created_at >= now() - make_interval(hours => :hours::int)
    GROUP BY 1
) missed ON missed.schedule_id = s.schedule_id
WHERE missed.schedule_id IS NOT NULL OR (s.paused_at IS NOT NULL AND s.paused_by = 'dagmaster')
    OR (s.paused_at IS NULL AND s.next_at < now() - make_interval(secs => :late_seconds))
ORDER BY since DESC LIMIT :limit;
