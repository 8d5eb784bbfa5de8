-- {shown_status} --
-- The status of a node as it is shown and counted: what was in progress when its job ended did not fail.
CASE WHEN n.ended_by IN ('revoked', 'cancelled') THEN 'cancelled' ELSE n.status::text END

-- {node_summary} --
-- How a node stands.
n.node_id, n.status, n.ended_by, n.retry_count, n.error_message, n.started_at, n.completed_at

-- {node_columns} --
-- A node without the values that it holds.
{node_summary}, n.task_id, n.max_retries, n.parent_node_id, n.fan_out_index, n.not_before, n.created_at, n.dispatched_at

-- {last_error} --
-- A retry clears the error of its node; that of the attempt before is still known.
coalesce(n.error_message, (
        SELECT b.error_message FROM dagapp.dag_task_results b
        WHERE n.retry_count > 0 AND b.task_id = n.job_id || '_' || n.node_id || '_' || (n.retry_count - 1)
    )) AS last_error

-- {listed_node} --
-- A node in a list over all jobs. The error of an attempt before is not looked up for each of them.
{node_columns}, n.error_message AS last_error, n.job_id, j.workflow_id, j.status AS job_status,
    j.completed_at AS job_completed_at

-- {job_nodes} --
-- A page of a job's own nodes in the order in which they began, of the children of one fan-out in the order of its
-- items, or of all nodes. Outputs are shown as far as they are small, each and all together.
SELECT {node_columns}, n.last_error,
    CASE WHEN n.output_bytes <= :inline_bytes::bigint AND n.shown_bytes <= :max_bytes::bigint THEN n.output END
        AS output, n.output_bytes
FROM (
    SELECT n.*, sum(n.output_bytes) FILTER (WHERE n.output_bytes <= :inline_bytes::bigint)
        OVER (ROWS UNBOUNDED PRECEDING) AS shown_bytes
    FROM (
        SELECT {node_columns}, {last_error}, n.output,
            coalesce(n.output_bytes, pg_column_size(n.output)) AS output_bytes
        FROM dagapp.dag_node_states n
        WHERE n.job_id = :job_id
            AND (:with_children::boolean OR n.parent_node_id IS NOT DISTINCT FROM :parent::text)
            AND (:status::text IS NULL OR {shown_status} = :status)
        ORDER BY CASE WHEN :parent::text IS NOT NULL THEN n.fan_out_index END,
            coalesce(n.started_at, n.dispatched_at) NULLS LAST, n.created_at, n.fan_out_index NULLS FIRST, n.node_id
        LIMIT :limit OFFSET :offset
    ) n
) n

-- search_nodes --
-- Nodes of the newest jobs that fit; what is open can only be in a job that is live. Bounded: a rare status or text
-- must not be looked for in all of history.
WITH jobs AS MATERIALIZED (
    SELECT job_id, workflow_id, status, created_at, completed_at FROM dagapp.dag_jobs
    WHERE (:workflow_id::text IS NULL OR workflow_id = :workflow_id)
        AND (NOT :is_open::boolean OR status IN ('pending', 'running'))
        AND (:since::timestamptz IS NULL OR created_at >= :since)
    ORDER BY created_at DESC, job_id DESC LIMIT :jobs
)
SELECT {listed_node}
FROM jobs j
CROSS JOIN LATERAL (
    SELECT * FROM dagapp.dag_node_states n
    WHERE n.job_id = j.job_id AND (:statuses::text[] IS NULL OR {shown_status} = ANY(:statuses))
        AND (
            :text::text IS NULL OR n.job_id::text = :text OR n.node_id ILIKE '%' || :pattern || '%'
            OR n.error_message ILIKE '%' || :pattern || '%'
        )
    OFFSET 0 -- From the jobs to their nodes, never from all nodes.
) n
ORDER BY j.created_at DESC, j.job_id DESC,
    coalesce(n.completed_at, n.started_at, n.dispatched_at) DESC NULLS LAST, n.node_id
LIMIT :limit OFFSET :offset;

-- view_nodes --
-- Nodes of all jobs, those of the newest first. What is open can only be in a job that is live.
SELECT {listed_node}
FROM dagapp.dag_node_states n JOIN dagapp.dag_jobs j ON j.job_id = n.job_id
WHERE (:job_id::bigint IS NULL OR n.job_id = :job_id)
    AND (:workflow_id::text IS NULL OR j.workflow_id = :workflow_id)
    AND (:status::text IS NULL OR {shown_status} = :status)
    AND (
        coalesce(:status::text, 'completed') IN ('completed', 'failed', 'cancelled', 'skipped')
        OR j.status IN ('pending', 'running')
    )
ORDER BY n.job_id DESC, n.node_id DESC
LIMIT :limit OFFSET :offset;

-- list_job_nodes --
-- The nodes of one job.
{job_nodes};

-- page_nodes --
-- A page of a job's own nodes in the order in which they began, or of what has come of one, without what they hold:
-- the children of a fan-out, and all that was added by it, by them, and by what they have added. Those that have not
-- begun come in the order that is given. Workers are looked up for what is shown alone.
SELECT {node_columns}, n.job_id, n.handler, n.type, n.is_added, {last_error},
    coalesce(t.worker_id, r.worker_id) AS worker_id, r.progress_percent, r.progress_message
FROM (
    SELECT {node_columns}, n.job_id, n.definition ->> 'handler' AS handler, n.definition ->> 'type' AS type,
        n.definition IS NOT NULL AS is_added, given.place
    FROM dagapp.dag_node_states n
    LEFT JOIN unnest(:order::text[]) WITH ORDINALITY AS given(name, place) ON given.name = n.node_id
    WHERE n.job_id = :job_id AND CASE
            WHEN :is_everywhere::boolean THEN true
            WHEN :parent::text IS NULL OR n.definition IS NULL THEN n.parent_node_id IS NOT DISTINCT FROM :parent
            ELSE n.node_id ^@ (:parent || '.') OR n.node_id ^@ (:parent || '__') END
        AND (
            :status::text IS NULL OR n.node_id = ANY(:fitting::text[])
            OR ({shown_status} = :status AND n.node_id <> ALL(:other::text[]))
        )
        AND (
            :pattern::text IS NULL OR n.node_id ILIKE '%' || :pattern || '%'
            OR n.error_message ILIKE '%' || :pattern || '%'
        )
    ORDER BY n.fan_out_index, coalesce(n.dispatched_at, n.started_at) NULLS LAST, n.started_at, n.completed_at,
        given.place, n.node_id
    LIMIT :limit OFFSET :offset
) n
LEFT JOIN dagapp.dag_task_results r ON r.task_id = n.task_id
LEFT JOIN dagapp.dag_tasks_running t ON t.task_id = n.task_id
ORDER BY n.fan_out_index, coalesce(n.dispatched_at, n.started_at) NULLS LAST, n.started_at, n.completed_at, n.place,
    n.node_id;

-- failed_nodes --
-- Some that have failed, the first that did so first; those that the definition allows to fail are among them.
SELECT node_id, parent_node_id, error_message FROM dagapp.dag_node_states n
WHERE job_id = :job_id AND {shown_status} = 'failed'
ORDER BY CASE WHEN fan_out_index IS NULL THEN completed_at END, parent_node_id, fan_out_index, node_id LIMIT :limit;

-- waiting_nodes --
-- Of these nodes, those that wait for somebody outside.
SELECT node_id, input_params, started_at FROM dagapp.dag_node_states
WHERE job_id = :job_id AND node_id = ANY(:node_ids::text[]) AND status = 'running'
ORDER BY started_at, node_id;

-- get_node --
-- One node, whole.
SELECT {node_columns}, n.job_id, {last_error}, n.queue, n.definition, n.input_params, n.output, n.output_bytes,
    n.checkpoint_phase, n.checkpoint_data, n.checkpoint_saved_at,
    coalesce(pg_column_size(n.input_params), 0) + coalesce(pg_column_size(n.checkpoint_data), 0) AS held_bytes
FROM dagapp.dag_node_states n
WHERE n.job_id = :job_id AND n.node_id = :node_id;

-- find_node_head --
-- How far a node is, without its values.
SELECT node_id, status, retry_count, not_before FROM dagapp.dag_node_states
WHERE job_id = :job_id AND node_id = :node_id;

-- view_graph --
-- What is needed to draw a job: how far its own nodes are, and which branches were taken.
SELECT {node_summary}, n.max_retries, n.not_before, n.output ->> 'taken_branch' AS taken_branch
FROM dagapp.dag_node_states n WHERE n.job_id = :job_id AND n.parent_node_id IS NULL AND n.definition IS NULL;

-- view_folded --
-- Some of what is drawn within another node, in the order of the items or as it was added.
SELECT node_id, status, ended_by, retry_count, left(error_message, 300) AS error_message, started_at, completed_at,
    fan_out_index
FROM dagapp.dag_node_states n
WHERE job_id = :job_id
    AND (:status::text IS NULL OR {shown_status} = :status)
    AND CASE WHEN definition IS NULL THEN parent_node_id ELSE split_part(split_part(node_id, '.', 1), '__', 1) END
        = :parent
ORDER BY fan_out_index NULLS LAST, created_at, length(node_id), node_id
LIMIT :limit OFFSET :offset;

-- grid_nodes --
-- How far these nodes of these jobs are. By name: the children of a fan-out may be a million.
SELECT {node_summary}, n.job_id
FROM dagapp.dag_node_states n WHERE n.job_id = ANY(:job_ids) AND n.node_id = ANY(:node_ids);

-- get_node_progress --
-- One node, and what its newest attempt has told of its progress.
SELECT n.job_id, n.node_id, n.status, n.ended_by, n.retry_count, n.max_retries, n.task_id, n.checkpoint_phase,
    n.checkpoint_saved_at, r.progress_current, r.progress_total, r.progress_percent, r.progress_message
FROM dagapp.dag_node_states n LEFT JOIN dagapp.dag_task_results r ON r.task_id = n.task_id
WHERE n.job_id = :job_id AND n.node_id = :node_id;
