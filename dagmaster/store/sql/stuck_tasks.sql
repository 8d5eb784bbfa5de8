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
