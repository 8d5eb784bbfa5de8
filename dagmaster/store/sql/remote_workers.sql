-- beat_remote_worker --
-- Renew the lease; no row if the worker was declared lost.
UPDATE dagapp.dag_workers
SET last_heartbeat = clock_timestamp(), tasks_completed = coalesce(:completed::bigint, tasks_completed),
    tasks_failed = coalesce(:failed::bigint, tasks_failed), stats = coalesce(:stats::jsonb, stats)
WHERE worker_id = :worker_id AND status = 'active'
RETURNING wanted;

-- take_reports --
-- Reports of the worker, or of an earlier one with the same key. Reports for tasks that were taken back are mailed
-- too: the owner stores and notes them. Repeated reports are not.
WITH reports AS MATERIALIZED (
    SELECT * FROM json_to_recordset(:reports::json) AS {mail_record}
), ended AS (
    DELETE FROM dagapp.dag_tasks_running t
    WHERE t.task_id = ANY(ARRAY(SELECT task_id FROM reports)) AND EXISTS (
        SELECT FROM dagapp.dag_workers w
        WHERE w.worker_id = t.worker_id AND starts_with(w.host_key, 'http-')
            AND w.key_id IS NOT DISTINCT FROM :key_id::text
    )
    RETURNING t.task_id
), late AS (
    SELECT r.task_id FROM reports r
    JOIN dagapp.dag_node_states n ON n.job_id = r.job_id AND n.node_id = r.node_id AND n.task_id IS NOT NULL
        AND substring(r.task_id FROM '[0-9]+$')::bigint <= n.retry_count
    WHERE r.kind <> 'given_back'
        AND NOT EXISTS (SELECT FROM dagapp.dag_tasks_running t WHERE t.task_id = r.task_id)
        AND NOT EXISTS (SELECT FROM dagapp.dag_tasks_waiting t WHERE t.task_id = r.task_id)
        AND NOT EXISTS (
            SELECT FROM dagapp.dag_task_results t WHERE t.task_id = r.task_id AND t.status IN ('completed', 'failed')
        )
        AND NOT EXISTS (
            SELECT FROM dagapp.dag_mailbox m WHERE m.task_id = r.task_id AND m.kind IN ('completed', 'failed')
        )
), mail AS (
    INSERT INTO dagapp.dag_mailbox ({mail_columns})
    SELECT {mail_columns} FROM reports
    WHERE task_id IN (SELECT task_id FROM ended UNION ALL SELECT task_id FROM late)
)
SELECT task_id FROM ended;

-- leave_remote_worker --
-- An orderly shutdown: its tasks are given back to the owners.
WITH gone AS (
    UPDATE dagapp.dag_workers SET status = 'stopped' WHERE worker_id = :worker_id AND status = 'active'
    RETURNING worker_id
), held AS (
    DELETE FROM dagapp.dag_tasks_running WHERE worker_id = (SELECT worker_id FROM gone)
    RETURNING job_id, node_id, task_id, worker_id
)
INSERT INTO dagapp.dag_mailbox (job_id, kind, node_id, task_id, worker_id)
SELECT job_id, 'given_back', node_id, task_id, worker_id FROM held
RETURNING task_id;

-- own_tasks --
-- The tasks among these that this worker holds, or whose end it reported a moment ago.
SELECT task_id FROM unnest(:task_ids::text[]) AS mine(task_id)
WHERE EXISTS (SELECT FROM dagapp.dag_tasks_running t WHERE t.task_id = mine.task_id AND t.worker_id = :worker_id)
    OR EXISTS (SELECT FROM dagapp.dag_mailbox m WHERE m.task_id = mine.task_id AND m.worker_id = :worker_id)
    OR EXISTS (
        SELECT FROM dagapp.dag_task_results r WHERE r.task_id = mine.task_id AND r.worker_id = :worker_id
            AND r.reported_at > clock_timestamp() - make_interval(secs => :seconds)
    );
