-- list_groups --
-- The groups of added nodes of a job, with the number of each group's own nodes.
SELECT g.group_id, g.parent_group_id, g.name, g.created_at, coalesce(n.nodes, 0)::int AS nodes
FROM dagapp.dag_groups g
LEFT JOIN (
    SELECT definition ->> 'group' AS group_id, count(*) AS nodes FROM dagapp.dag_node_states
    WHERE job_id = :job_id AND definition IS NOT NULL GROUP BY 1
) n ON n.group_id = g.group_id::text
WHERE g.job_id = :job_id
ORDER BY g.group_id LIMIT :limit;

-- list_dependencies --
-- The dependencies of a job's added tasks and groups, with the nodes of the tasks.
WITH added AS MATERIALIZED (
    SELECT node_id, definition ->> 'task' AS task_id FROM dagapp.dag_node_states
    WHERE job_id = :job_id AND definition IS NOT NULL
)
SELECT d.previous_id, d.previous_type, p.node_id AS previous_node_id, d.next_id, d.next_type, n.node_id AS next_node_id
FROM (
    SELECT previous_id, previous_type, next_id, next_type FROM dagapp.dag_dependencies WHERE job_id = :job_id
    ORDER BY previous_id, previous_type, next_id, next_type LIMIT :limit
) d
LEFT JOIN added p ON d.previous_type = 'task' AND p.task_id = d.previous_id::text
LEFT JOIN added n ON d.next_type = 'task' AND n.task_id = d.next_id::text
ORDER BY d.previous_id, d.previous_type, d.next_id, d.next_type;

-- added_status --
-- How many of these nodes a job has, and whether its owner has unread additions.
SELECT j.status,
    (SELECT count(*) FROM dagapp.dag_node_states n WHERE n.job_id = j.job_id AND n.node_id = ANY(:node_ids)) AS known,
    EXISTS (SELECT FROM dagapp.dag_mailbox m WHERE m.job_id = j.job_id AND m.kind = 'added') AS is_unread
FROM dagapp.dag_jobs j WHERE j.job_id = :job_id;

-- last_refusal --
-- Why the owner refused the last addition of an external caller.
SELECT event_data ->> 'warning' AS warning FROM dagapp.dag_job_events
WHERE job_id = :job_id AND event_type = 'job_warning' AND event_data ->> 'refused' = 'added'
ORDER BY event_id DESC LIMIT 1;

-- known_nodes --
-- The nodes among these that a job has.
SELECT node_id FROM dagapp.dag_node_states WHERE job_id = :job_id AND node_id = ANY(:node_ids);
