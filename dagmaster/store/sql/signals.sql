-- waiting_approvals --
-- Nodes of live jobs that wait for a decision, oldest first.
WITH live AS MATERIALIZED (
    SELECT job_id, workflow_id, workflow_hash, submitted_by FROM dagapp.dag_jobs WHERE status IN ('pending', 'running')
), asking AS MATERIALIZED (
    SELECT w.workflow_hash, n.key AS node_id
    FROM dagapp.dag_workflows w CROSS JOIN jsonb_each(w.definition -> 'nodes') AS n
    WHERE w.workflow_hash = ANY(ARRAY(SELECT DISTINCT workflow_hash FROM live)) AND n.value ->> 'type' = 'approval'
)
SELECT n.job_id, j.workflow_id, j.submitted_by, n.node_id, n.input_params ->> 'message' AS message,
    coalesce(n.input_params -> 'approvers', '[]') AS approvers, n.started_at, n.not_before AS until
FROM live j
JOIN asking a ON a.workflow_hash = j.workflow_hash
CROSS JOIN LATERAL (
    SELECT * FROM dagapp.dag_node_states
    WHERE job_id = j.job_id AND node_id = a.node_id AND status = 'running' OFFSET 0
) n
ORDER BY n.started_at, n.job_id LIMIT :limit;

-- decided_approvals --
-- The latest decisions, in the newest jobs with approvals.
WITH asking AS MATERIALIZED (
    SELECT DISTINCT workflow_id FROM dagapp.dag_workflows
    WHERE jsonb_path_exists(definition, '$.nodes.* ? (@.type == "approval")')
), jobs AS MATERIALIZED (
    SELECT j.job_id, j.workflow_id, j.created_at
    FROM asking a
    CROSS JOIN LATERAL (
        SELECT job_id, workflow_id, created_at FROM dagapp.dag_jobs
        WHERE workflow_id = a.workflow_id ORDER BY created_at DESC LIMIT :jobs
    ) j
)
SELECT e.job_id, j.workflow_id, e.node_id, e.created_at AS decided_at, e.event_data -> 'approved' AS is_approved,
    e.event_data ->> 'by' AS decided_by, e.event_data ->> 'comment' AS comment, n.input_params ->> 'message' AS message
FROM jobs j
JOIN dagapp.dag_job_events e ON e.job_id = j.job_id AND e.created_at >= j.created_at
    AND e.event_type = 'approval_decided'
LEFT JOIN dagapp.dag_node_states n ON n.job_id = e.job_id AND n.node_id = e.node_id
ORDER BY e.created_at DESC LIMIT :limit;

-- waiting_of_jobs --
-- The jobs among these that wait only for a decision or a signal: none of their tasks waits or runs.
SELECT DISTINCT ON (j.job_id) j.job_id, n.node_id, w.type AS waits_for, w.signal
FROM dagapp.dag_jobs j
CROSS JOIN LATERAL (
    SELECT key AS node_id, CASE WHEN value ->> 'type' = 'approval' THEN 'approval' ELSE 'signal' END AS type,
        value ->> 'signal' AS signal
    FROM dagapp.dag_workflows d CROSS JOIN jsonb_each(d.definition -> 'nodes')
    WHERE d.workflow_hash = j.workflow_hash
        AND (value ->> 'type' = 'approval' OR (value ->> 'type' = 'wait' AND value ->> 'signal' IS NOT NULL))
) w
CROSS JOIN LATERAL (
    SELECT node_id, started_at FROM dagapp.dag_node_states
    WHERE job_id = j.job_id AND node_id = w.node_id AND status = 'running'
    OFFSET 0
) n
WHERE j.job_id = ANY(:job_ids) AND j.status = 'running'
    AND NOT EXISTS (SELECT FROM dagapp.dag_tasks_running t WHERE t.job_id = j.job_id)
    AND NOT EXISTS (SELECT FROM dagapp.dag_tasks_waiting t WHERE t.job_id = j.job_id)
ORDER BY j.job_id, n.started_at;

-- has_unread_signal --
-- Whether the job's owner has not yet read a signal.
SELECT EXISTS (SELECT FROM dagapp.dag_mailbox WHERE job_id = :job_id AND kind = 'signal') AS has_unread_signal;

-- inputs_of_call --
-- The inputs of a node's child job.
SELECT input_params FROM dagapp.dag_node_states WHERE job_id = :job_id AND node_id = :node_id;

-- approval_of_node --
-- A node with its type and its approval request.
SELECT n.status, n.task_id, n.input_params, w.definition #>> ARRAY['nodes', n.node_id, 'type'] AS type
FROM dagapp.dag_node_states n
JOIN dagapp.dag_jobs j ON j.job_id = n.job_id
LEFT JOIN dagapp.dag_workflows w ON w.workflow_hash = j.workflow_hash
WHERE n.job_id = :job_id AND n.node_id = :node_id;
