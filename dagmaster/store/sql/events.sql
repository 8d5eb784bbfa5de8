-- {events} --
SELECT event_id, created_at, event_type, event_status, node_id, task_id, event_data, error_message, duration_ms,
    source_app
FROM dagapp.dag_job_events

-- list_events --
-- A job's timeline, oldest first.
{events}
WHERE job_id = :job_id AND event_id > :after
    AND (:node_id::text IS NULL OR node_id = :node_id)
    AND (:event_types::text[] IS NULL OR event_type::text = ANY(:event_types))
ORDER BY event_id
LIMIT :limit;

-- {page_of_events} --
{events}
WHERE job_id = :job_id AND created_at >= :since
    AND (:node_id::text IS NULL OR node_id = :node_id)
    AND (:event_type::text IS NULL OR event_type::text = :event_type)

-- page_events_up --
-- A page of a job's timeline, the oldest first.
{page_of_events} AND event_id > :cursor ORDER BY event_id LIMIT :limit;

-- page_events_down --
-- A page of a job's timeline, the newest first.
{page_of_events} AND event_id < :cursor ORDER BY event_id DESC LIMIT :limit;

-- last_event_of_job --
-- Events of a job are not older than the job.
SELECT coalesce(max(event_id), 0) AS event_id FROM dagapp.dag_job_events
WHERE job_id = :job_id AND created_at >= :since;

-- count_changes --
-- A counter that rises with every event of a job or an asset, for change detection. From the sequences, because no
-- index has the ids of all jobs in order.
SELECT (
    coalesce(pg_sequence_last_value(pg_get_serial_sequence('dagapp.dag_job_events', 'event_id')), 0)
    + coalesce(pg_sequence_last_value(pg_get_serial_sequence('dagapp.asset_events', 'event_id')), 0)
) AS changes;

-- is_settled --
-- Whether no transaction is in progress: every event with an assigned id is visible.
SELECT pg_snapshot_xmin(s) = pg_snapshot_xmax(s) AS is_settled FROM pg_current_snapshot() AS s;

-- summarise_events --
-- A summary of all events of a job or of one of its nodes.
SELECT coalesce(sum(events), 0)::bigint AS total_events, min(first) AS first_event, max(last) AS last_event,
    coalesce(jsonb_object_agg(event_type, events), '{}') AS event_counts,
    ARRAY(
        SELECT DISTINCT node_id FROM dagapp.dag_job_events
        WHERE job_id = :job_id AND event_type = 'node_retrying' AND (:node_id::text IS NULL OR node_id = :node_id)
        ORDER BY node_id LIMIT 1000
    ) AS nodes_with_retries
FROM (
    SELECT event_type, count(*) AS events, min(created_at) AS first, max(created_at) AS last
    FROM dagapp.dag_job_events
    WHERE job_id = :job_id AND (:node_id::text IS NULL OR node_id = :node_id)
    GROUP BY event_type
) e;

-- view_audit --
-- The audit log, newest first.
{events}
WHERE job_id = 0 AND (:event_types::text[] IS NULL OR event_type::text = ANY(:event_types))
ORDER BY event_id DESC LIMIT :limit OFFSET :offset;

-- watched_events --
-- New events for watchers of jobs: after `after`, without those in `seen`. One row per watcher even without new events,
-- with the job's status.
SELECT w.place, j.status AS job_status, e.*
FROM json_to_recordset(:watchers::json) AS w(
    place int, job_id bigint, after bigint, since timestamptz, seen bigint[]
)
LEFT JOIN dagapp.dag_jobs j ON j.job_id = w.job_id
LEFT JOIN LATERAL (
    SELECT e.event_id, e.created_at, e.event_type, e.event_status, e.node_id, e.task_id, e.event_data,
        e.error_message, e.duration_ms, e.source_app
    FROM dagapp.dag_job_events e
    WHERE e.job_id = w.job_id AND e.event_id > w.after AND e.created_at >= w.since AND e.event_id <> ALL (w.seen)
    ORDER BY e.event_id LIMIT :page
) e ON true
ORDER BY w.place, e.event_id;
