-- known_nodes --
-- Which of these nodes a job has.
SELECT node_id FROM dagapp.dag_node_states WHERE job_id = :job_id AND node_id = ANY(:node_ids);

-- added_standing --
-- How many of these nodes a job has, and whether its owner has still to look at some.
SELECT j.status,
    (SELECT count(*) FROM dagapp.dag_node_states n WHERE n.job_id = j.job_id AND n.node_id = ANY(:node_ids)) AS known,
    EXISTS (SELECT FROM dagapp.dag_mailbox m WHERE m.job_id = j.job_id AND m.kind = 'added') AS is_unread
FROM dagapp.dag_jobs j WHERE j.job_id = :job_id;

-- last_refusal --
-- Why the owner did not take what was added last from outside.
SELECT event_data ->> 'warning' AS warning FROM dagapp.dag_job_events
WHERE job_id = :job_id AND event_type = 'job_warning' AND event_data ->> 'refused' = 'added'
ORDER BY event_id DESC LIMIT 1;
