-- count_nodes_of_jobs --
-- The number of nodes of each job by state; children are counted separately, with the state of their parent.
SELECT c.job_id, c.parent_node_id, c.is_added, c.status, c.nodes, c.last_ended_at,
    {shown_status} AS parent_status,
    CASE WHEN c.status = 'failed' AND n.status IS NOT NULL AND NOT c.is_added THEN coalesce((
        SELECT (w.definition #> ARRAY['nodes', c.parent_node_id, 'allow_failure'])::boolean
        FROM dagapp.dag_jobs j JOIN dagapp.dag_workflows w ON w.workflow_hash = j.workflow_hash
        WHERE j.job_id = c.job_id
    ), false) ELSE false END AS may_fail
FROM (
    SELECT job_id, CASE WHEN definition IS NULL OR parent_node_id IS NULL THEN parent_node_id
            ELSE split_part(split_part(node_id, '.', 1), '__', 1) END AS parent_node_id,
        definition IS NOT NULL AND parent_node_id IS NOT NULL AS is_added,
        {shown_status} AS status, count(*) AS nodes,
        max(completed_at) AS last_ended_at
    FROM dagapp.dag_node_states n WHERE job_id = ANY(:job_ids) GROUP BY 1, 2, 3, 4
) c
LEFT JOIN dagapp.dag_node_states n ON n.job_id = c.job_id AND n.node_id = c.parent_node_id;

-- has_more_nodes --
-- Whether a job has more nodes than this.
SELECT EXISTS (SELECT FROM dagapp.dag_node_states WHERE job_id = :job_id OFFSET :than) AS has_more;

-- count_folded --
-- Nodes that are drawn inside another node: the items of fan-outs, and all descendants of added nodes.
SELECT CASE WHEN definition IS NULL THEN parent_node_id ELSE split_part(split_part(node_id, '.', 1), '__', 1) END
        AS parent_node_id,
    definition IS NOT NULL AS is_added,
    {shown_status} AS status, count(*) AS nodes, min(started_at) AS began_at,
    max(completed_at) AS last_ended_at
FROM dagapp.dag_node_states n
WHERE job_id = :job_id AND (parent_node_id IS NOT NULL OR definition IS NOT NULL)
GROUP BY 1, 2, 3;

-- page_count_children --
-- The number of descendants of a node by state, as `page_nodes` lists them.
SELECT definition IS NOT NULL AS is_added, {shown_status} AS status, count(*) AS nodes,
    max(completed_at) AS last_ended_at
FROM dagapp.dag_node_states n
WHERE job_id = :job_id AND CASE WHEN definition IS NULL THEN parent_node_id = :node_id
    ELSE node_id ^@ (:node_id || '.') OR node_id ^@ (:node_id || '__') END
GROUP BY 1, 2;

-- page_count_outside --
-- The descendants of externally added nodes: the first two parts of their ids are those of the ancestor.
SELECT split_part(node_id, '.', 1) || '.' || split_part(node_id, '.', 2) AS node_id,
    {shown_status} AS status, count(*) AS nodes
FROM dagapp.dag_node_states n
WHERE job_id = :job_id AND parent_node_id IS NOT NULL AND definition IS NOT NULL AND node_id ^@ :prefix
GROUP BY 1, 2;

-- page_fan_outs --
-- The time range in which the children of some fan-outs ran.
SELECT parent_node_id, min(dispatched_at) AS dispatched_at, min(started_at) AS started_at,
    CASE WHEN bool_and(completed_at IS NOT NULL) THEN max(completed_at) END AS completed_at, count(*) AS children
FROM dagapp.dag_node_states WHERE job_id = :job_id AND parent_node_id = ANY(:node_ids::text[])
GROUP BY parent_node_id;

-- page_density --
-- How many children of a fan-out started and ended in each of equal parts of a time range, in one pass.
WITH children AS (
    SELECT {shown_status} AS status,
        width_bucket(date_part('epoch', started_at), :since::float, :until::float, :parts::int) AS first,
        width_bucket(date_part('epoch', completed_at), :since::float, :until::float, :parts::int) AS last
    FROM dagapp.dag_node_states n
    WHERE job_id = :job_id AND parent_node_id = :node_id::text AND started_at IS NOT NULL
), counted AS (
    SELECT first, last, status = 'failed' AS is_failed, count(*) AS nodes FROM children GROUP BY 1, 2, 3
)
SELECT part, sum(begun)::int AS begun, sum(ended)::int AS ended, sum(failed)::int AS failed
FROM (
    SELECT first AS part, nodes AS begun, 0 AS ended, 0 AS failed FROM counted
    UNION ALL
    SELECT last, 0, nodes, CASE WHEN is_failed THEN nodes ELSE 0 END FROM counted WHERE last IS NOT NULL
) c
GROUP BY part ORDER BY part;
