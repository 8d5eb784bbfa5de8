-- {shown_status} --
-- The displayed status of a node: one that was in flight when its job ended did not fail.
CASE WHEN n.ended_by IN ('revoked', 'cancelled') THEN 'cancelled' ELSE n.status::text END

-- {node_summary} --
-- The state of a node.
n.node_id, n.status, n.ended_by, n.retry_count, n.error_message, n.started_at, n.completed_at

-- {node_columns} --
-- A node without its values.
{node_summary}, n.task_id, n.max_retries, n.parent_node_id, n.fan_out_index, n.not_before, n.created_at, n.dispatched_at

-- {last_error} --
-- A retry clears the node's error; the error of the previous attempt is still known.
coalesce(n.error_message, (
        SELECT b.error_message FROM dagapp.dag_task_results b
        WHERE n.retry_count > 0 AND b.task_id = n.job_id || '_' || n.node_id || '_' || (n.retry_count - 1)
    )) AS last_error

-- {listed_node} --
-- A node in a list over all jobs. Errors of previous attempts are not looked up.
{node_columns}, n.error_message AS last_error, n.job_id, j.workflow_id, j.status AS job_status,
    j.completed_at AS job_completed_at

-- {job_nodes} --
-- A page of a job's own nodes in the order of their start, of the children of one fan-out in the order of its items, or
-- of all nodes. Outputs are shown if they are small, up to a total size.
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
-- Nodes of the newest matching jobs; unfinished nodes exist only in live jobs. Bounded: a rare status or text must not
-- search all of history.
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

-- kinds_of_nodes --
-- The types of these nodes and the signals that they wait for, from the pinned definitions or their own.
SELECT n.job_id, n.node_id, k.definition ->> 'type' AS type, k.definition ->> 'signal' AS signal
FROM unnest(:job_ids::bigint[], :node_ids::text[]) AS r(job_id, node_id)
JOIN dagapp.dag_node_states n ON n.job_id = r.job_id AND n.node_id = r.node_id
JOIN dagapp.dag_jobs j ON j.job_id = n.job_id
JOIN dagapp.dag_workflows w ON w.workflow_hash = j.workflow_hash
CROSS JOIN LATERAL (
    SELECT coalesce(n.definition, w.definition #> ARRAY['nodes', n.node_id]) AS definition
) k;

-- view_nodes --
-- Nodes of all jobs, newest job first. Unfinished nodes exist only in live jobs.
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
-- A page of a job's own nodes in the order of their start, or of a node's descendants, without values: the children of
-- a fan-out, and all nodes added by it, by them, and so on. Nodes that have not started come in the given order.
-- Workers are looked up only for the page.
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
-- Some failed nodes, the first failure first, including those that are allowed to fail.
SELECT node_id, parent_node_id, error_message FROM dagapp.dag_node_states n
WHERE job_id = :job_id AND {shown_status} = 'failed'
ORDER BY CASE WHEN fan_out_index IS NULL THEN completed_at END, parent_node_id, fan_out_index, node_id LIMIT :limit;

-- waiting_nodes --
-- The nodes among these that wait for a decision or a signal.
SELECT node_id, input_params, started_at FROM dagapp.dag_node_states
WHERE job_id = :job_id AND node_id = ANY(:node_ids::text[]) AND status = 'running'
ORDER BY started_at, node_id;

-- get_node --
-- One node with all columns.
SELECT {node_columns}, n.job_id, {last_error}, n.queue, n.definition, n.input_params, n.output, n.output_bytes,
    n.checkpoint_phase, n.checkpoint_data, n.checkpoint_saved_at,
    coalesce(pg_column_size(n.input_params), 0) + coalesce(pg_column_size(n.checkpoint_data), 0) AS held_bytes
FROM dagapp.dag_node_states n
WHERE n.job_id = :job_id AND n.node_id = :node_id;

-- find_node_head --
-- The state of a node, without its values.
SELECT node_id, status, retry_count, not_before FROM dagapp.dag_node_states
WHERE job_id = :job_id AND node_id = :node_id;

-- view_graph --
-- The data of a job's graph: the states of its own nodes, and the taken branches.
SELECT {node_summary}, n.max_retries, n.not_before, n.output ->> 'taken_branch' AS taken_branch
FROM dagapp.dag_node_states n WHERE n.job_id = :job_id AND n.parent_node_id IS NULL AND n.definition IS NULL;

-- view_folded --
-- A page of the nodes inside another node, by item or in the order in which they were added.
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
-- The states of these nodes of these jobs. By name: a fan-out may have a million children.
SELECT {node_summary}, n.job_id
FROM dagapp.dag_node_states n WHERE n.job_id = ANY(:job_ids) AND n.node_id = ANY(:node_ids);

-- get_node_progress --
-- One node, and the progress that its newest attempt reported.
SELECT n.job_id, n.node_id, n.status, n.ended_by, n.retry_count, n.max_retries, n.task_id, n.checkpoint_phase,
    n.checkpoint_saved_at, r.progress_current, r.progress_total, r.progress_percent, r.progress_message
FROM dagapp.dag_node_states n LEFT JOIN dagapp.dag_task_results r ON r.task_id = n.task_id
WHERE n.job_id = :job_id AND n.node_id = :node_id;
