-- list_schedules --
-- Schedules with the newest job of each.
SELECT s.schedule_id, s.workflow_id, s.workflow_hash, s.cron, s.interval_seconds, s.timezone, s.catchup,
    s.input_params, s.paused_at, s.paused_by, s.next_at, s.last_at, s.created_at, s.updated_at,
    j.job_id AS last_job_id, j.status AS last_job_status, clock_timestamp() AS now
FROM dagapp.dag_schedules s
LEFT JOIN LATERAL (
    SELECT job_id, status FROM dagapp.dag_jobs
    WHERE schedule_id = s.schedule_id ORDER BY scheduled_for DESC, job_id DESC LIMIT 1
) j ON true
WHERE :schedule_id::text IS NULL OR s.schedule_id = :schedule_id
ORDER BY s.schedule_id;

-- schedule_counts --
-- The number of schedules, and how many are late.
SELECT count(*) FILTER (WHERE paused_at IS NULL)::int AS active,
    count(*) FILTER (WHERE paused_at IS NOT NULL)::int AS paused,
    count(*) FILTER (WHERE paused_at IS NULL AND next_at <= clock_timestamp())::int AS due,
    count(*) FILTER (
        WHERE paused_at IS NULL AND next_at < clock_timestamp() - make_interval(secs => :late_seconds)
    )::int AS late
FROM dagapp.dag_schedules;

-- missed_schedules --
-- Recent times for which a schedule has started no job, the newest of each schedule.
SELECT DISTINCT ON (event_data ->> 'schedule_id') event_data ->> 'schedule_id' AS schedule_id, created_at,
    event_data ->> 'first' AS first, (event_data ->> 'count')::int AS count, error_message
FROM dagapp.dag_job_events
WHERE job_id = 0 AND event_type = 'schedule_missed'
    AND created_at >= clock_timestamp() - make_interval(days => :days::int)
ORDER BY event_data ->> 'schedule_id', event_id DESC;

-- database_now --
SELECT clock_timestamp() AS now;

-- sync_schedules --
-- Store schedules with their definitions. A pause stays; the next time stays unless the rule has changed.
WITH incoming AS MATERIALIZED (
    SELECT * FROM json_to_recordset(:schedules::json) AS r(
        schedule_id text, workflow_id text, workflow_hash text, cron text, interval_seconds float8, timezone text,
        catchup text, input_params jsonb, next_at timestamptz
    )
), pinned AS (
    INSERT INTO dagapp.dag_workflows (workflow_hash, workflow_id, version, definition)
    SELECT r.workflow_hash, r.workflow_id, r.version, r.definition
    FROM json_to_recordset(:workflows::json) AS r(workflow_hash text, workflow_id text, version int, definition jsonb)
    ORDER BY r.workflow_hash
    ON CONFLICT (workflow_hash) DO NOTHING
)
INSERT INTO dagapp.dag_schedules AS s (
    schedule_id, workflow_id, workflow_hash, cron, interval_seconds, timezone, catchup, input_params, next_at
)
SELECT schedule_id, workflow_id, workflow_hash, cron, interval_seconds, timezone, catchup, input_params, next_at
FROM incoming ORDER BY schedule_id
ON CONFLICT (schedule_id) DO UPDATE SET
    workflow_hash = excluded.workflow_hash, cron = excluded.cron, interval_seconds = excluded.interval_seconds,
    timezone = excluded.timezone, catchup = excluded.catchup, input_params = excluded.input_params,
    next_at = CASE
        WHEN (s.cron, s.interval_seconds, s.timezone)
            IS NOT DISTINCT FROM (excluded.cron, excluded.interval_seconds, excluded.timezone)
        THEN coalesce(s.next_at, excluded.next_at) ELSE excluded.next_at
    END,
    updated_at = clock_timestamp()
WHERE s.workflow_hash <> excluded.workflow_hash OR s.next_at IS NULL
RETURNING schedule_id, xmax = 0 AS is_new;

-- remove_schedules --
-- Remove the schedules of these workflows, which no longer have one; with :prune, also all but the kept ones.
DELETE FROM dagapp.dag_schedules
WHERE schedule_id = ANY(:ended::text[]) OR (:prune::boolean AND schedule_id <> ALL(:kept::text[]))
RETURNING schedule_id;

-- pause_schedule --
-- Pause the schedule. The first actor is kept.
UPDATE dagapp.dag_schedules
SET paused_at = coalesce(paused_at, clock_timestamp()),
    paused_by = CASE WHEN paused_at IS NULL THEN :actor::text ELSE paused_by END, updated_at = clock_timestamp()
WHERE schedule_id = :schedule_id;

-- resume_schedule --
-- Continue with the next future time: times within the pause are not made up for.
UPDATE dagapp.dag_schedules
SET paused_at = NULL, paused_by = NULL, next_at = :next_at, updated_at = clock_timestamp()
WHERE schedule_id = :schedule_id AND paused_at IS NOT NULL;
