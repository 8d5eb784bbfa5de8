-- job_snapshot --
-- The states of a job and its defined nodes, with the children of each fan-out summed in one pass, and the nodes that
-- each node's tasks have added, whose ids start with its id. Only a node with children is certainly a fan-out: a task
-- may return an output that looks like one.
WITH states AS MATERIALIZED (
    SELECT CASE WHEN definition IS NULL OR parent_node_id IS NULL THEN parent_node_id
            ELSE split_part(split_part(node_id, '.', 1), '__', 1) END AS parent_node_id,
        definition IS NOT NULL AS is_added, CASE WHEN parent_node_id IS NULL THEN node_id END AS node_id,
        {shown_status} AS status, count(*) AS nodes,
        sum(retry_count) AS retries, max(dispatched_at) AS dispatched_at, max(started_at) AS started_at,
        max(completed_at) AS completed_at, max(not_before) AS not_before, avg(completed_at - started_at) AS duration
    FROM dagapp.dag_node_states n WHERE job_id = :job_id GROUP BY 1, 2, 3, 4
), fans AS MATERIALIZED ( -- Not once per node, as planned without statistics.
    SELECT s.parent_node_id, jsonb_object_agg(s.status, s.nodes) AS counts, sum(s.retries)::bigint AS retries,
        max(s.completed_at) AS last_ended_at,
        max(s.started_at) FILTER (WHERE s.status = 'running') AS newest_started_at,
        extract(epoch FROM max(s.duration) FILTER (WHERE s.status = 'completed'))::float AS child_seconds,
        (
            SELECT (n.output ->> 'fan_out_count')::int FROM dagapp.dag_node_states n
            WHERE n.job_id = :job_id AND n.node_id = s.parent_node_id
        ) AS items
    FROM states s WHERE s.parent_node_id IS NOT NULL AND NOT s.is_added GROUP BY s.parent_node_id
), added AS MATERIALIZED (
    SELECT parent_node_id, jsonb_object_agg(status, nodes) AS counts
    FROM states WHERE parent_node_id IS NOT NULL AND is_added GROUP BY parent_node_id
)
SELECT j.workflow_hash, j.status AS job_status, j.completed_at AS job_completed_at, j.paused_at,
    clock_timestamp() AS now, n.node_id, n.status, n.dispatched_at, n.started_at, n.completed_at, n.not_before,
    f.items, f.counts, f.retries, f.last_ended_at, f.newest_started_at, f.child_seconds, a.counts AS added,
    CASE WHEN n.status = 'failed' OR f.counts ? 'failed' THEN coalesce(( -- Only then: a definition may be large.
        SELECT (w.definition #> ARRAY['nodes', n.node_id, 'allow_failure'])::boolean
        FROM dagapp.dag_workflows w WHERE w.workflow_hash = j.workflow_hash
    ), false) ELSE false END AS may_fail
FROM dagapp.dag_jobs j
LEFT JOIN states n ON n.parent_node_id IS NULL
LEFT JOIN fans f ON f.parent_node_id = n.node_id
LEFT JOIN added a ON a.parent_node_id = n.node_id
WHERE j.job_id = :job_id;

-- usual_times --
-- How long the nodes of a workflow took in its last completed jobs, those with the same definition first. Only some
-- children of a fan-out are read, by id: ten cost as much as a hundred thousand.
WITH recent AS MATERIALIZED (
    SELECT job_id, status, workflow_hash = :workflow_hash AS is_same, created_at
    FROM dagapp.dag_jobs WHERE workflow_id = :workflow_id
    ORDER BY created_at DESC LIMIT :window
), jobs AS MATERIALIZED (
    SELECT job_id, is_same FROM recent WHERE status = 'completed'
    ORDER BY is_same DESC, created_at DESC LIMIT :jobs
), nodes AS MATERIALIZED (
    SELECT j.job_id, j.is_same, n.node_id, n.status, n.node_id = ANY(:fan_outs::text[]) AS is_fan_out,
        greatest(extract(epoch FROM n.completed_at - n.started_at), 0)::float AS run_seconds,
        greatest(extract(epoch FROM n.started_at - n.dispatched_at), 0)::float AS wait_seconds,
        CASE WHEN n.node_id = ANY(:fan_outs::text[]) THEN (n.output ->> 'fan_out_count')::int END AS items
    FROM jobs j
    CROSS JOIN LATERAL (
        SELECT * FROM dagapp.dag_node_states
        WHERE job_id = j.job_id AND node_id = ANY(:node_ids::text[]) AND status IN ('completed', 'skipped')
    ) n
), children AS (
    SELECT f.is_same, f.node_id, f.job_id, f.items, c.started_at, c.completed_at,
        greatest(extract(epoch FROM c.completed_at - c.started_at), 0.001)::float AS run_seconds
    FROM nodes f
    CROSS JOIN LATERAL (
        SELECT * FROM dagapp.dag_node_states
        WHERE job_id = f.job_id AND status = 'completed' AND node_id = ANY(ARRAY(
            SELECT f.node_id || '__' || place * f.items / least(f.items, :children::int)
            FROM generate_series(0, least(f.items, :children::int) - 1) AS place
        ))
    ) c
    WHERE f.is_fan_out AND f.items > 0
), fans AS (
    SELECT is_same, node_id,
        max(items) * avg(run_seconds) / greatest(extract(epoch FROM max(completed_at) - min(started_at)), 0.001)::float
            AS parallel
    FROM children GROUP BY is_same, node_id, job_id
), times AS (
    SELECT is_same, node_id, percentile_cont(0.5) WITHIN GROUP (ORDER BY run_seconds) AS run_seconds,
        percentile_cont(0.5) WITHIN GROUP (ORDER BY wait_seconds) AS wait_seconds
    FROM nodes WHERE NOT is_fan_out AND status = 'completed' GROUP BY is_same, node_id
    UNION ALL
    SELECT is_same, node_id, percentile_cont(0.5) WITHIN GROUP (ORDER BY run_seconds), 0
    FROM children GROUP BY is_same, node_id
), known AS (
    SELECT is_same, node_id, percentile_disc(0.5) WITHIN GROUP (ORDER BY items) AS items,
        bool_and(status = 'skipped') AS is_skipped
    FROM nodes GROUP BY is_same, node_id
)
SELECT DISTINCT ON (k.node_id) k.node_id, t.run_seconds, t.wait_seconds, k.items, k.is_skipped,
    (SELECT max(f.parallel) FROM fans f WHERE f.is_same = k.is_same AND f.node_id = k.node_id) AS parallel
FROM known k LEFT JOIN times t ON t.is_same = k.is_same AND t.node_id = k.node_id
ORDER BY k.node_id, t.run_seconds IS NULL, k.is_same DESC;
