-- is_unheard --
-- Whether the job's owner has not yet read a signal.
SELECT EXISTS (SELECT FROM dagapp.dag_mailbox WHERE job_id = :job_id AND kind = 'signal') AS is_unheard;

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
