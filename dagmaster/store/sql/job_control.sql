-- reopen_job --
-- Give a failed job to a live orchestrator, with the retry as mail.
WITH alive AS MATERIALIZED (
    SELECT orchestrator_id FROM dagapp.dag_orchestrators
    WHERE status = 'running' AND heartbeat_at > clock_timestamp() - make_interval(secs => :threshold_seconds)
    ORDER BY random() LIMIT 1
), job AS (
    UPDATE dagapp.dag_jobs j
    SET owner_id = a.orchestrator_id, owner_epoch = j.owner_epoch + 1, owner_heartbeat_at = clock_timestamp()
    FROM alive a WHERE j.job_id = :job_id AND j.status = 'failed' AND j.owner_id IS NULL
        -- Not if its removal has begun.
        AND (j.metadata -> 'removal' ->> 'completed_at')::timestamptz IS DISTINCT FROM j.completed_at
    RETURNING j.job_id
), mail AS (
    INSERT INTO dagapp.dag_mailbox (job_id, kind, node_id, data)
    SELECT job_id, :kind::text, :node_id::text, :data::jsonb FROM job
)
SELECT job_id, pg_notify('dagmaster_mail', '') FROM job;

-- cancel_orphans --
-- Cancel child jobs whose parent attempt ended without cancelling them, except those that were retried since.
INSERT INTO dagapp.dag_mailbox (job_id, kind, data)
SELECT c.job_id, 'cancel', '{"actor": "dagmaster", "reason": "the node that called it is over"}'
FROM dagapp.dag_jobs c
WHERE c.parent_job_id IS NOT NULL AND c.status IN ('pending', 'running')
    AND c.created_at < clock_timestamp() - make_interval(secs => :age_seconds)
    AND NOT EXISTS (
        SELECT FROM dagapp.dag_node_states n
        WHERE n.job_id = c.parent_job_id AND n.node_id = c.parent_node_id AND n.task_id = c.parent_task_id
            AND n.status = 'running'
    )
    AND NOT EXISTS (SELECT FROM dagapp.dag_mailbox m WHERE m.job_id = c.job_id AND m.kind = 'cancel')
    AND NOT EXISTS (
        SELECT FROM dagapp.dag_job_events e WHERE e.job_id = c.job_id AND e.event_type = 'job_reopened'
    )
RETURNING job_id;

-- cancel_abandoned --
-- Cancel jobs whose tasks wait on the queue of a program that has no worker any more: no other one consumes it.
INSERT INTO dagapp.dag_mailbox (job_id, kind, data)
SELECT DISTINCT t.job_id, 'cancel', '{"actor": "dagmaster", "reason": "the program that ran it has ended"}'::jsonb
FROM dagapp.dag_tasks_waiting t
WHERE t.queue ~ :local_queue AND t.dispatched_at < clock_timestamp() - make_interval(secs => :age_seconds)
    AND NOT EXISTS (SELECT FROM dagapp.dag_workers w WHERE w.status = 'active' AND t.queue = ANY(w.queues))
    AND NOT EXISTS (SELECT FROM dagapp.dag_mailbox m WHERE m.job_id = t.job_id AND m.kind = 'cancel')
RETURNING job_id;
