-- overview_counts --
-- What is open, how many jobs failed in the last hours, by the index of those, and how many of the newest completed:
-- `since` is where counting those stopped. Here and below `now()`, not `clock_timestamp()`: what changes from row to row
-- keeps PostgreSQL from using an index.
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
-- The jobs that failed lately, the newest first, however many others have ended since.
SELECT job_id, workflow_id, created_at, completed_at, left(error_message, 500) AS error
FROM dagapp.dag_jobs
WHERE status = 'failed' AND completed_at >= now() - make_interval(hours => :hours::int)
ORDER BY completed_at DESC LIMIT :failed;

-- overview_recovered --
-- Those of these workflows whose newest job that has ended was created after this time, and completed.
SELECT w.place
FROM unnest(:workflow_ids::text[], :times::timestamptz[]) WITH ORDINALITY AS w(workflow_id, since, place)
CROSS JOIN LATERAL (
    SELECT status FROM dagapp.dag_jobs j
    WHERE j.workflow_id BETWEEN w.workflow_id AND w.workflow_id AND j.created_at > w.since
        AND j.completed_at IS NOT NULL
    ORDER BY j.workflow_id DESC, j.created_at DESC LIMIT 1
) newest
WHERE newest.status = 'completed';

-- overview_untaken --
-- Tasks that wait and that no worker would take, by queue and handler.
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

-- overview_still --
-- Jobs that stand still, the longest first: something waits for them that nobody takes in or takes up. `total` are all
-- that do for the same reason.
SELECT still.job_id, j.workflow_id, still.why, still.since, still.total
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
) still
JOIN dagapp.dag_jobs j ON j.job_id = still.job_id AND j.status IN ('pending', 'running')
ORDER BY still.since;

-- overview_workers --
-- Workers that need somebody: they were lost lately, beat no more, or have slots that never came back.
SELECT worker_id, hostname, pid, status, last_heartbeat, stuck,
    (SELECT count(*)::int FROM dagapp.dag_tasks_running t WHERE t.worker_id = w.worker_id) AS tasks
FROM (
    SELECT *, CASE jsonb_typeof(stats -> 'stuck') WHEN 'array' THEN jsonb_array_length(stats -> 'stuck') ELSE 0 END AS stuck
    FROM dagapp.dag_workers
) w
WHERE (status = 'lost' AND last_heartbeat > now() - make_interval(secs => :lost_shown_seconds))
    OR (status = 'active' AND (
        stuck > 0 OR last_heartbeat < now() - make_interval(secs => :lost_after_seconds)
    ))
ORDER BY last_heartbeat DESC LIMIT :limit;

-- overview_schedules --
-- Schedules that did not do what they should: they are late, were stopped by the system, or have missed times.
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

-- workflow_runs --
-- The newest jobs of workflows, the newest first; without an id of those workflows that ran last. Names are found by
-- leaps through the index: not every job is read. BETWEEN and not `=`, so that the index by workflow is used: by time
-- alone a workflow that has not run for long would be looked for in all jobs.
WITH RECURSIVE names AS (
    (
        SELECT workflow_id FROM dagapp.dag_jobs WHERE :workflow_id::text IS NULL OR workflow_id = :workflow_id
        ORDER BY workflow_id LIMIT 1
    )
    UNION ALL
    SELECT (SELECT j.workflow_id FROM dagapp.dag_jobs j WHERE j.workflow_id > n.workflow_id ORDER BY j.workflow_id LIMIT 1)
    FROM names n WHERE n.workflow_id IS NOT NULL AND :workflow_id::text IS NULL
), lately AS (
    SELECT n.workflow_id, last.created_at AS last_at
    FROM names n CROSS JOIN LATERAL (
        SELECT created_at FROM dagapp.dag_jobs WHERE workflow_id = n.workflow_id ORDER BY created_at DESC LIMIT 1
    ) last
    ORDER BY last.created_at DESC LIMIT :workflows
)
SELECT l.workflow_id, j.job_id, j.workflow_version, j.workflow_hash, j.status, j.paused_at, j.idle_seconds, j.error_message,
    j.created_at, j.started_at, j.completed_at
FROM lately l CROSS JOIN LATERAL (
    SELECT * FROM dagapp.dag_jobs WHERE workflow_id BETWEEN l.workflow_id AND l.workflow_id
    ORDER BY workflow_id DESC, created_at DESC LIMIT :runs
) j
ORDER BY l.last_at DESC, l.workflow_id, j.created_at DESC, j.job_id DESC;

-- newest_definition --
-- The definition of a workflow that was pinned last.
SELECT definition::text AS definition FROM dagapp.dag_workflows WHERE workflow_id = :workflow_id
ORDER BY created_at DESC, version DESC LIMIT 1;

-- newest_versions --
-- Of workflows that are known from their jobs: what their newest definition says of them.
SELECT DISTINCT ON (workflow_id) workflow_id, version, definition ->> 'name' AS name,
    definition ->> 'description' AS description
FROM dagapp.dag_workflows WHERE workflow_id = ANY(:workflow_ids)
ORDER BY workflow_id, created_at DESC;

-- workflow_versions --
-- The pinned definitions of a workflow, the newest first, with how often each was run among its newest jobs.
WITH jobs AS (
    SELECT workflow_hash, count(*)::int AS runs, min(created_at) AS first_at, max(created_at) AS last_at
    FROM (
        SELECT workflow_hash, created_at FROM dagapp.dag_jobs WHERE workflow_id = :workflow_id
        ORDER BY created_at DESC LIMIT :scan
    ) newest
    GROUP BY workflow_hash
)
SELECT w.workflow_hash, w.version, w.created_at, coalesce(j.runs, 0) AS runs, j.first_at, j.last_at
FROM dagapp.dag_workflows w LEFT JOIN jobs j ON j.workflow_hash = w.workflow_hash
WHERE w.workflow_id = :workflow_id
ORDER BY coalesce(j.last_at, w.created_at) DESC LIMIT :limit;

-- nodes_of_definitions --
-- The names of the nodes of these definitions.
SELECT DISTINCT jsonb_object_keys(definition -> 'nodes') AS node_id
FROM dagapp.dag_workflows WHERE workflow_hash = ANY(:hashes);

-- grid_nodes --
-- How far these nodes of these jobs are. By name: the children of a fan-out may be a million.
SELECT job_id, node_id, status, ended_by, retry_count, error_message, started_at, completed_at
FROM dagapp.dag_node_states WHERE job_id = ANY(:job_ids) AND node_id = ANY(:node_ids);
