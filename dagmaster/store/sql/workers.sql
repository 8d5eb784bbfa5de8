-- list_workers --
-- Active workers first, then the newest: with a status, of some queues, or only those that need attention because they
-- were lost recently, are silent, or have stuck slots.
SELECT w.worker_id, w.hostname, w.pid, w.host_key, w.status, w.wanted, w.queues, w.handlers, w.concurrency,
    w.tasks_completed, w.tasks_failed, w.started_at, w.last_heartbeat, w.stats, w.key_id,
    extract(epoch FROM clock_timestamp() - w.last_heartbeat)::float AS heartbeat_age_seconds,
    CASE jsonb_typeof(w.stats -> 'stuck') WHEN 'array' -- Remote workers may send any stats.
        THEN ARRAY(SELECT jsonb_array_elements_text(w.stats -> 'stuck')) ELSE '{}' END AS stuck_tasks,
    -- At most its slots: a claim may be stored before the report that freed the slot.
    least(w.concurrency, (SELECT count(*)::int FROM dagapp.dag_tasks_running t WHERE t.worker_id = w.worker_id))
        AS running_tasks
FROM dagapp.dag_workers w
WHERE (:status::text IS NULL OR w.status = :status)
    AND (:queues::text[] IS NULL OR w.queues && :queues)
    AND (
        NOT :needs_attention::boolean
        OR (w.status = 'lost' AND w.last_heartbeat > now() - make_interval(secs => :lost_shown_seconds))
        OR (w.status = 'active' AND (
            w.last_heartbeat < now() - make_interval(secs => :lost_after_seconds)
            OR CASE jsonb_typeof(w.stats -> 'stuck') WHEN 'array' THEN jsonb_array_length(w.stats -> 'stuck') > 0 END
        ))
    )
ORDER BY w.status <> 'active', w.started_at DESC, w.worker_id
LIMIT :limit OFFSET :offset;

-- find_worker --
-- The columns that authorise a worker's requests.
SELECT worker_id, host_key, status, wanted, queues, key_id FROM dagapp.dag_workers WHERE worker_id = :worker_id;
