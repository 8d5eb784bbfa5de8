-- list_events --
-- A job's timeline, oldest first.
SELECT event_id, created_at, event_type, event_status, node_id, task_id, event_data, error_message, duration_ms,
    source_app
FROM dagapp.dag_job_events
WHERE job_id = :job_id AND event_id > :after
    AND (:node_id::text IS NULL OR node_id = :node_id)
    AND (:event_types::text[] IS NULL OR event_type::text = ANY(:event_types))
ORDER BY event_id
LIMIT :limit;

-- ensure_event_partitions --
SELECT dagapp.ensure_event_partitions(:days_ahead) AS made;
