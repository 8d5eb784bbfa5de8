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

-- list_all_workers --
-- Those at work first, then the newest.
SELECT w.worker_id, w.hostname, w.pid, w.status, w.wanted, w.queues, w.handlers, w.concurrency, w.tasks_completed,
    w.tasks_failed, w.started_at, w.last_heartbeat, w.stats, w.key_id IS NOT NULL AS is_remote,
    w.last_heartbeat < clock_timestamp() - make_interval(secs => :lost_after_seconds) AS is_silent,
    (SELECT count(*)::int FROM dagapp.dag_tasks_running t WHERE t.worker_id = w.worker_id) AS running
FROM dagapp.dag_workers w
WHERE :status::text IS NULL OR w.status = :status
ORDER BY w.status <> 'active', w.started_at DESC, w.worker_id
LIMIT :limit OFFSET :offset;

-- list_workers --
SELECT w.worker_id, w.hostname, w.pid, w.host_key, w.status, w.queues, w.handlers, w.concurrency, w.last_heartbeat,
    w.started_at, w.tasks_completed, w.tasks_failed, w.stats, w.wanted, w.key_id,
    (SELECT count(*)::int FROM dagapp.dag_tasks_running t WHERE t.worker_id = w.worker_id) AS running_tasks,
    CASE jsonb_typeof(w.stats -> 'stuck') WHEN 'array'
        THEN ARRAY(SELECT jsonb_array_elements_text(w.stats -> 'stuck')) ELSE '{}' END AS stuck_tasks
FROM dagapp.dag_workers w ORDER BY w.status, w.started_at DESC LIMIT 100;

-- fleet_workers --
SELECT worker_id, status, concurrency, tasks_completed, tasks_failed,
    CASE jsonb_typeof(stats -> 'stuck') WHEN 'array' THEN jsonb_array_length(stats -> 'stuck') ELSE 0 END AS stuck,
    extract(epoch FROM clock_timestamp() - last_heartbeat)::float AS heartbeat_age_seconds
FROM dagapp.dag_workers ORDER BY worker_id;

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

-- explain_consumers --
-- The workers that consume these queues, and how much each of them has in hand.
SELECT w.worker_id, w.queues, w.handlers, w.concurrency, w.wanted = 'run' AS is_taking,
    CASE jsonb_typeof(w.stats -> 'stuck') WHEN 'array' THEN jsonb_array_length(w.stats -> 'stuck') ELSE 0 END AS stuck,
    (SELECT count(*) FROM dagapp.dag_tasks_running r WHERE r.worker_id = w.worker_id) AS running
FROM dagapp.dag_workers w
WHERE w.status = 'active' AND w.queues && :queues::text[]
ORDER BY w.worker_id;
