-- {node_places} --
-- The sources of a node's location: the box of its item, and its small values.
n.node_id, n.parent_node_id, n.status, n.ended_by, {shown_status} AS shown_status, n.fan_out_item_box,
    CASE WHEN pg_column_size(n.input_params) <= :inline_bytes::int THEN n.input_params END AS input_params,
    CASE WHEN pg_column_size(n.output) <= :inline_bytes::int THEN n.output END AS output,
    CASE WHEN pg_column_size(n.checkpoint_data) <= :inline_bytes::int THEN n.checkpoint_data END AS checkpoint_data

-- unfinished_places --
-- The nodes that a retry would run: in a failed job, failed and revoked nodes and children that never started; in a
-- running job, nodes that wait for a retry.
SELECT {node_places}
FROM dagapp.dag_node_states n
WHERE n.job_id = :job_id AND CASE
        WHEN :has_failed::boolean THEN n.status = 'failed'
            OR (n.status = 'skipped' AND n.fan_out_index IS NOT NULL AND n.parent_node_id IS NOT NULL)
        ELSE n.status = 'ready' AND n.not_before IS NOT NULL END
ORDER BY n.parent_node_id NULLS FIRST, n.fan_out_index, n.node_id
LIMIT :limit;

-- placed_outputs --
-- The small outputs of the defined nodes, in the order of their end.
SELECT n.node_id, n.output FROM dagapp.dag_node_states n
WHERE n.job_id = :job_id AND n.fan_out_index IS NULL AND n.definition IS NULL AND n.status = 'completed'
    AND pg_column_size(n.output) <= :inline_bytes::int
ORDER BY n.completed_at, n.node_id
LIMIT :limit;

-- has_added_nodes --
SELECT EXISTS (SELECT FROM dagapp.dag_node_states WHERE job_id = :job_id AND definition IS NOT NULL) AS has_added;

-- tile_places --
-- The children of fan-outs, in the order of their items.
SELECT {node_places}
FROM dagapp.dag_node_states n
WHERE n.job_id = :job_id AND n.fan_out_index IS NOT NULL
ORDER BY n.parent_node_id, n.fan_out_index
LIMIT :limit;
