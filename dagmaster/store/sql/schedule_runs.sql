-- claim_due_schedule --
-- Claim a due schedule, locked until the transaction ends; others skip it.
SELECT s.schedule_id, s.workflow_hash, s.cron, s.interval_seconds, s.timezone, s.next_at, clock_timestamp() AS now,
    (SELECT w.definition::text FROM dagapp.dag_workflows w WHERE w.workflow_hash = s.workflow_hash) AS definition
FROM dagapp.dag_schedules s
WHERE s.paused_at IS NULL AND s.next_at <= now() AND s.schedule_id <> ALL(:seen::text[])
ORDER BY s.next_at LIMIT 1
FOR UPDATE OF s SKIP LOCKED;

-- schedule_definition --
SELECT definition::text AS definition FROM dagapp.dag_workflows WHERE workflow_hash = :workflow_hash;

-- seconds_to_next_schedule --
SELECT extract(epoch FROM min(next_at) - clock_timestamp())::float8 AS seconds
FROM dagapp.dag_schedules WHERE paused_at IS NULL;

-- move_schedule --
-- Advance the schedule. Without a next time it is paused.
UPDATE dagapp.dag_schedules
SET next_at = coalesce(:next_at::timestamptz, next_at), last_at = coalesce(:last_at::timestamptz, last_at),
    paused_at = CASE WHEN :next_at::timestamptz IS NULL THEN clock_timestamp() END,
    paused_by = CASE WHEN :next_at::timestamptz IS NULL THEN 'dagmaster' END,
    updated_at = clock_timestamp()
WHERE schedule_id = :schedule_id;

-- note_fired --
-- Record the schedule in the timelines of the started jobs.
INSERT INTO dagapp.dag_job_events (job_id, event_type, event_status, event_data, created_at, source_app)
SELECT r.job_id, 'schedule_fired', 'info', r.data, clock_timestamp(), :source_app
FROM json_to_recordset(:events::json) AS r(job_id bigint, data jsonb);

-- note_missed --
-- Record missed times in the audit log.
INSERT INTO dagapp.dag_job_events (
    job_id, event_type, event_status, event_data, error_message, created_at, source_app
)
VALUES (0, 'schedule_missed', CASE WHEN :error::text IS NULL THEN 'warning' ELSE 'failure' END::dagapp.event_status,
    :data::jsonb, left(:error, 2000), clock_timestamp(), 'orchestrator');

-- find_scheduled --
-- The times of a schedule that have a job.
SELECT idempotency_key FROM dagapp.dag_jobs
WHERE submitted_by = :submitted_by AND idempotency_key = ANY(:keys::text[]);
