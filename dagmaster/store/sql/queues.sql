-- list_queues --
-- The waiting and running tasks of each queue, and its number of workers; silent workers do not count if
-- :lost_after_seconds is given.
SELECT queue, coalesce(sum(waiting), 0)::int AS depth, coalesce(sum(held), 0)::int AS held,
    coalesce(sum(running), 0)::int AS running, coalesce(sum(consumers), 0)::int AS consumers,
    min(oldest) AS oldest_dispatched_at,
    extract(epoch FROM clock_timestamp() - min(oldest))::float AS oldest_wait_seconds
FROM (
    SELECT queue, count(*) FILTER (WHERE NOT held) AS waiting, count(*) FILTER (WHERE held) AS held, 0 AS running,
        0 AS consumers, min(dispatched_at) FILTER (WHERE NOT held) AS oldest
    FROM dagapp.dag_tasks_waiting GROUP BY queue
    UNION ALL
    SELECT queue, 0, 0, count(*), 0, NULL FROM dagapp.dag_tasks_running GROUP BY queue
    UNION ALL
    SELECT queue, 0, 0, 0, count(*), NULL FROM dagapp.dag_workers w CROSS JOIN unnest(w.queues) AS queue
    WHERE w.status = 'active' AND w.wanted = 'run' AND (
        :lost_after_seconds::float IS NULL
        OR w.last_heartbeat > clock_timestamp() - make_interval(secs => :lost_after_seconds)
    )
    GROUP BY queue
) q GROUP BY queue ORDER BY queue;

-- queue_depths --
-- The claimable tasks by queue. Backpressure polls this, so it must not wait for locks on other tables.
SELECT queue, count(*)::int AS depth FROM dagapp.dag_tasks_waiting WHERE NOT held GROUP BY queue;

-- waiting_handlers --
-- The waiting tasks of each queue, by handler.
SELECT queue, handler, count(*)::int AS waiting, min(dispatched_at) AS oldest
FROM dagapp.dag_tasks_waiting WHERE NOT held GROUP BY queue, handler ORDER BY queue, handler;

-- unserved_tasks --
-- The waiting tasks of a job that no active worker can claim.
SELECT t.queue, t.handler, count(*) AS tasks
FROM dagapp.dag_tasks_waiting t
WHERE t.job_id = :job_id AND NOT t.held AND NOT EXISTS (
    SELECT FROM dagapp.dag_workers w
    WHERE w.status = 'active' AND w.wanted = 'run' AND t.queue = ANY(w.queues)
        AND (w.handlers IS NULL OR t.handler = ANY(w.handlers))
)
GROUP BY t.queue, t.handler ORDER BY t.queue, t.handler;
