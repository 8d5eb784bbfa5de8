-- load_jobs --
-- Load these jobs for their owner's memory.
WITH named AS MATERIALIZED (
    SELECT job_id, owner_id, workflow_hash, status, priority, input_params, input_bytes, correlation_id, owner_epoch,
        created_at, started_at, version, trace_parent, paused_at, paused_by, resumed_at, error_message, failed_node, ended_by,
        deadline_at, signals, asset_id IS NOT NULL AS has_version
    FROM dagapp.dag_jobs WHERE job_id = ANY(:job_ids)
)
SELECT job_id, workflow_hash, status, priority, correlation_id, owner_epoch, created_at, started_at,
    CASE WHEN coalesce(input_bytes, pg_column_size(input_params)) <= :inline_bytes THEN input_params END AS input_params,
    coalesce(input_bytes, pg_column_size(input_params)) AS input_bytes,
    version, trace_parent, paused_at, paused_by, resumed_at, error_message, failed_node, ended_by, deadline_at, signals,
    has_version
FROM named WHERE owner_id = :owner_id AND status IN ('pending', 'running', 'failed'); -- A failed one is reopened.

-- load_nodes --
-- All nodes of these jobs, children after their fan-outs and in order. Large outputs are not read.
SELECT job_id, node_id, status, retry_count, max_retries, parent_node_id, fan_out_index,
    CASE WHEN coalesce(output_bytes, pg_column_size(output)) <= CASE
        WHEN parent_node_id IS NULL AND definition IS NULL THEN :inline_bytes::bigint ELSE :child_bytes::bigint
    END THEN output END AS output,
    coalesce(output_bytes, pg_column_size(output)) AS output_bytes, input_params IS NOT NULL AS has_params,
    error_message, dispatched_at, started_at, completed_at, not_before, queue, version, definition, result_of,
    times_lost, ended_by
FROM dagapp.dag_node_states
WHERE job_id = ANY(:job_ids)
ORDER BY job_id, fan_out_index NULLS FIRST, created_at;

-- load_outputs --
-- The outputs of these nodes.
SELECT node_id, output FROM dagapp.dag_node_states WHERE job_id = :job_id AND node_id = ANY(:node_ids);

-- load_inputs --
SELECT input_params FROM dagapp.dag_jobs WHERE job_id = :job_id;
