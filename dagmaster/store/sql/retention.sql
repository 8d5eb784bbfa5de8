-- A finished job is kept for the days that its pinned definition says, or else for :days; null keeps it forever.
-- Jobs are marked before their removal, together with the rest of their batch: if a removal is interrupted, the same
-- jobs are exported under the same name and removed when it resumes. The mark holds the job's end time: a job that was
-- reopened since has another one, and the mark is void.

-- lock_retention --
-- One process at a time per database; released with the connection.
SELECT pg_try_advisory_lock(7233, 1) AS is_mine;

-- unlock_retention --
SELECT pg_advisory_unlock(7233, 1);

-- settle_for_removal --
-- Use short lock waits, and find rows by key: few rows are removed compared with those that stay.
SELECT set_config('lock_timeout', '500ms', false), set_config('enable_hashjoin', 'off', false),
    set_config('enable_mergejoin', 'off', false), set_config('enable_seqscan', 'off', false);

-- settle_as_before --
SELECT set_config('lock_timeout', '0', false), set_config('enable_hashjoin', 'on', false),
    set_config('enable_mergejoin', 'on', false), set_config('enable_seqscan', 'on', false);

-- own_retentions --
-- Definitions with their own retention.
SELECT workflow_hash, (definition->>'retention_days')::float8 AS days FROM dagapp.dag_workflows
WHERE definition->'retention_days' IS NOT NULL;

-- {own} --
own AS MATERIALIZED (
    SELECT * FROM unnest(:hashes::text[], :own_days::float8[]) AS o(workflow_hash, days)
)

-- preview_removal --
-- The jobs that would be removed, by workflow.
WITH {own}, gone AS MATERIALIZED (
    SELECT j.job_id, j.workflow_id, j.completed_at
    FROM dagapp.dag_jobs j LEFT JOIN own ON own.workflow_hash = j.workflow_hash
    WHERE j.status IN ('completed', 'failed', 'cancelled') AND j.owner_id IS NULL
        AND (:workflow_id::text IS NULL OR j.workflow_id = :workflow_id)
        AND j.completed_at < now() - make_interval(secs => 86400 * coalesce(own.days, :days::float8))
)
SELECT g.workflow_id, count(*) AS jobs, sum(n.nodes)::bigint AS nodes, sum(e.events)::bigint AS events,
    min(g.completed_at) AS oldest_completed_at
FROM gone g
CROSS JOIN LATERAL (SELECT count(*) AS nodes FROM dagapp.dag_node_states WHERE job_id = g.job_id) n
CROSS JOIN LATERAL (SELECT count(*) AS events FROM dagapp.dag_job_events WHERE job_id = g.job_id) e
GROUP BY g.workflow_id ORDER BY g.workflow_id;

-- mark_for_removal --
-- The next jobs to remove after :after_at and :after_id: a batch that ended on one day, smaller if the jobs are large.
WITH {own}, found AS MATERIALIZED (
    SELECT j.job_id, j.created_at, j.completed_at, j.updated_at, (j.completed_at AT TIME ZONE 'UTC')::date AS day
    FROM dagapp.dag_jobs j
    WHERE j.status IN ('completed', 'failed', 'cancelled') AND j.owner_id IS NULL
        AND (j.created_at, j.job_id) > (:after_at::timestamptz, :after_id::bigint)
        AND j.created_at < now() - make_interval(secs => 86400 * :least_days::float8)
        AND (:workflow_id::text IS NULL OR j.workflow_id = :workflow_id)
        AND (j.metadata->'removal'->>'completed_at')::timestamptz IS DISTINCT FROM j.completed_at
        AND j.completed_at < now() - make_interval(
            secs => 86400 * coalesce((SELECT days FROM own WHERE own.workflow_hash = j.workflow_hash), :days::float8)
        )
    ORDER BY j.created_at, j.job_id LIMIT :jobs
    FOR UPDATE OF j SKIP LOCKED
), sized AS (
    SELECT f.*, (SELECT count(*) FROM dagapp.dag_node_states WHERE job_id = f.job_id)
        + (SELECT count(*) FROM dagapp.dag_task_results WHERE job_id = f.job_id)
        + (SELECT count(*) FROM dagapp.dag_checkpoints WHERE job_id = f.job_id) AS size
    FROM found f
), summed AS (
    SELECT *, sum(size) OVER place - size AS before, min(day) OVER place = max(day) OVER place AS is_one_day
    FROM sized WINDOW place AS (ORDER BY created_at, job_id)
), taken AS MATERIALIZED (
    SELECT *, left(encode(sha256(convert_to(string_agg(job_id::text, ',') OVER (), 'UTF8')), 'hex'), 32) AS batch
    FROM (SELECT * FROM summed WHERE before < :rows AND is_one_day ORDER BY created_at, job_id) s
), marked AS (
    UPDATE dagapp.dag_jobs j
    SET metadata = j.metadata || jsonb_build_object('removal', jsonb_build_object(
        'batch', t.batch, 'completed_at', t.completed_at, 'updated_at', t.updated_at,
        'wants_export', :wants_export::boolean
    ))
    FROM taken t WHERE j.job_id = t.job_id
)
SELECT batch, day, array_agg(job_id ORDER BY created_at, job_id) AS job_ids, sum(size)::bigint AS size,
    max(created_at) AS last_created_at, false AS is_exported, :wants_export::boolean AS wants_export
FROM taken GROUP BY batch, day;

-- {is_marked} --
-- Whether a job was marked, and not reopened since.
status IN ('completed', 'failed', 'cancelled') AND owner_id IS NULL
    AND (metadata->'removal'->>'completed_at')::timestamptz = completed_at

-- marked_for_removal --
-- Marked jobs of an interrupted removal.
SELECT metadata->'removal'->>'batch' AS batch, (completed_at AT TIME ZONE 'UTC')::date AS day,
    array_agg(job_id ORDER BY created_at, job_id) AS job_ids, NULL::bigint AS size, max(created_at) AS last_created_at,
    bool_and(metadata->'removal' ? 'exported_at') AS is_exported,
    bool_or((metadata->'removal'->>'wants_export')::boolean) AS wants_export
FROM dagapp.dag_jobs
WHERE metadata ? 'removal' AND {is_marked}
GROUP BY 1, 2;

-- note_export --
-- From now on rows may be missing, so these jobs must not be exported again.
UPDATE dagapp.dag_jobs SET metadata = jsonb_set(metadata, '{removal,exported_at}', to_jsonb(clock_timestamp()))
WHERE job_id = ANY(:job_ids) AND metadata ? 'removal';

-- still_marked --
-- The jobs that were not reopened.
SELECT job_id FROM dagapp.dag_jobs
WHERE job_id = ANY(:job_ids) AND {is_marked};

-- export_jobs --
SELECT job_id, workflow_id, workflow_version, workflow_hash, status, priority, input_params, input_bytes, result_data,
    error_message, failed_node, ended_by, deadline_at, metadata - 'removal' AS metadata, submitted_by, correlation_id,
    idempotency_key, request_hash, callback_url, asset_id, version_ordinal, trace_parent, parent_job_id, parent_node_id, parent_task_id, schedule_id, scheduled_for,
    signals, paused_at, paused_by, resumed_at, idle_seconds, owner_id, owner_epoch, owner_heartbeat_at, created_at,
    started_at, completed_at, (metadata->'removal'->>'updated_at')::timestamptz AS updated_at, version
FROM dagapp.dag_jobs WHERE job_id = ANY(:job_ids) ORDER BY created_at, job_id;

-- export_nodes --
SELECT job_id, node_id, status, task_id, retry_count, max_retries, times_lost, parent_node_id, fan_out_index,
    fan_out_item_key, fan_out_item_box, queue, definition, result_of, input_params, output, output_bytes,
    error_message, ended_by, checkpoint_phase, checkpoint_data, checkpoint_saved_at, not_before, created_at, dispatched_at, started_at,
    completed_at, updated_at, version
FROM dagapp.dag_node_states WHERE job_id = ANY(:job_ids) ORDER BY job_id, node_id;

-- export_results --
SELECT task_id, job_id, node_id, status, output, error_message, worker_id, execution_duration_ms, progress_current,
    progress_total, progress_percent, progress_message, error_type, ended_by, log_path, peak_memory_bytes,
    cpu_seconds, metrics, reported_at, processed
FROM dagapp.dag_task_results WHERE job_id = ANY(:job_ids) ORDER BY job_id, node_id, task_id;

-- export_checkpoints --
SELECT checkpoint_id, job_id, node_id, task_id, phase_name, phase_index, phase_total, progress_current,
    progress_total, progress_message, state_data, artifacts_completed, artifacts_total, memory_bytes, disk_bytes,
    error_count, is_final, is_valid, created_at
FROM dagapp.dag_checkpoints WHERE job_id = ANY(:job_ids) ORDER BY job_id, checkpoint_id;

-- export_events --
SELECT job_id, event_id, created_at, node_id, task_id, event_type, event_status, checkpoint_name, event_data,
    error_message, duration_ms, source_app
FROM dagapp.dag_job_events WHERE job_id = ANY(:job_ids) ORDER BY job_id, event_id;

-- export_groups --
SELECT group_id, job_id, parent_group_id, name, created_at
FROM dagapp.dag_groups WHERE job_id = ANY(:job_ids) ORDER BY job_id, group_id;

-- export_dependencies --
SELECT job_id, previous_id, previous_type, next_id, next_type
FROM dagapp.dag_dependencies WHERE job_id = ANY(:job_ids)
ORDER BY job_id, previous_id, previous_type, next_id, next_type;

-- remove_some_nodes --
-- A slice of a large job's rows; the job itself goes last.
DELETE FROM dagapp.dag_node_states WHERE ctid = ANY(ARRAY(
    SELECT ctid FROM dagapp.dag_node_states WHERE job_id = ANY(:job_ids) LIMIT :limit
));

-- remove_some_results --
DELETE FROM dagapp.dag_task_results WHERE ctid = ANY(ARRAY(
    SELECT ctid FROM dagapp.dag_task_results WHERE job_id = ANY(:job_ids) LIMIT :limit
));

-- remove_some_checkpoints --
DELETE FROM dagapp.dag_checkpoints WHERE ctid = ANY(ARRAY(
    SELECT ctid FROM dagapp.dag_checkpoints WHERE job_id = ANY(:job_ids) LIMIT :limit
));

-- remove_some_groups --
DELETE FROM dagapp.dag_groups WHERE ctid = ANY(ARRAY(
    SELECT ctid FROM dagapp.dag_groups WHERE job_id = ANY(:job_ids) LIMIT :limit
));

-- remove_some_dependencies --
DELETE FROM dagapp.dag_dependencies WHERE ctid = ANY(ARRAY(
    SELECT ctid FROM dagapp.dag_dependencies WHERE job_id = ANY(:job_ids) LIMIT :limit
));

-- remove_some_events --
-- Except events in partitions that are dropped as a whole.
WITH slice AS MATERIALIZED (
    SELECT job_id, max(event_id) AS last FROM (
        SELECT job_id, event_id FROM dagapp.dag_job_events
        WHERE job_id = ANY(:job_ids) AND created_at >= :kept_since LIMIT :limit
    ) s
    GROUP BY job_id
)
DELETE FROM dagapp.dag_job_events e USING slice
WHERE e.job_id = slice.job_id AND e.event_id <= slice.last AND e.created_at >= :kept_since;

-- remove_jobs --
-- Remove the jobs that were not reopened, with all remaining rows.
WITH gone AS MATERIALIZED (
    SELECT job_id FROM dagapp.dag_jobs
    WHERE job_id = ANY(:job_ids) AND {is_marked}
    FOR UPDATE SKIP LOCKED
), ids AS MATERIALIZED (
    SELECT coalesce(array_agg(job_id), '{}') AS job_ids FROM gone
), callbacks AS (
    DELETE FROM dagapp.dag_callbacks WHERE job_id = ANY((SELECT job_ids FROM ids)::bigint[])
), requests AS ( -- Requests about assets are part of their history.
    DELETE FROM dagapp.dag_api_requests
    WHERE job_id = ANY((SELECT job_ids FROM ids)::bigint[]) AND asset_id IS NULL
), groups AS (
    DELETE FROM dagapp.dag_groups WHERE job_id = ANY((SELECT job_ids FROM ids)::bigint[])
), dependencies AS (
    DELETE FROM dagapp.dag_dependencies WHERE job_id = ANY((SELECT job_ids FROM ids)::bigint[])
), checkpoints AS (
    DELETE FROM dagapp.dag_checkpoints WHERE job_id = ANY((SELECT job_ids FROM ids)::bigint[])
), uses AS (
    DELETE FROM dagapp.data_object_uses WHERE job_id = ANY((SELECT job_ids FROM ids)::bigint[])
), results AS (
    DELETE FROM dagapp.dag_task_results WHERE job_id = ANY((SELECT job_ids FROM ids)::bigint[]) RETURNING 1
), nodes AS (
    DELETE FROM dagapp.dag_node_states WHERE job_id = ANY((SELECT job_ids FROM ids)::bigint[]) RETURNING 1
), events AS (
    DELETE FROM dagapp.dag_job_events
    WHERE job_id = ANY((SELECT job_ids FROM ids)::bigint[]) AND created_at >= :kept_since RETURNING 1
), stray AS ( -- Events from before their day had a partition.
    DELETE FROM dagapp.dag_job_events_default
    WHERE job_id = ANY((SELECT job_ids FROM ids)::bigint[]) AND created_at < :kept_since RETURNING 1
), jobs AS (
    DELETE FROM dagapp.dag_jobs WHERE job_id = ANY((SELECT job_ids FROM ids)::bigint[]) RETURNING 1
)
SELECT (SELECT count(*) FROM jobs) AS jobs, (SELECT count(*) FROM nodes) AS nodes,
    (SELECT count(*) FROM results) AS results,
    (SELECT count(*) FROM events) + (SELECT count(*) FROM stray) AS events;

-- event_days --
-- Past partitions of the timeline, oldest first, and the command that drops each.
SELECT day AS low, day + interval '1 day' AS high, format('DROP TABLE dagapp.%I', relname) AS command
FROM (
    SELECT c.relname, to_date(right(c.relname, 8), 'YYYYMMDD')::timestamp AT TIME ZONE 'UTC' AS day
    FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid
    WHERE i.inhparent = 'dagapp.dag_job_events'::regclass AND c.relname ~ '^dag_job_events_\d{8}$'
) days
WHERE day + interval '1 day' < now() - interval '1 hour'
ORDER BY day;

-- day_is_kept --
-- Whether the day has an event of a job that stays, or of the system. With :gone_only a job stays until it is removed.
-- One lookup per job, not per event.
WITH RECURSIVE {own}, seen(job_id) AS (
    SELECT min(job_id) FROM dagapp.dag_job_events WHERE created_at >= :low AND created_at < :high
    UNION ALL
    SELECT (
        SELECT min(e.job_id) FROM dagapp.dag_job_events e
        WHERE e.created_at >= :low AND e.created_at < :high AND e.job_id > s.job_id
    )
    FROM seen s WHERE s.job_id IS NOT NULL
)
SELECT EXISTS (
    SELECT FROM seen s LEFT JOIN dagapp.dag_jobs j ON j.job_id = s.job_id
    WHERE CASE
        WHEN s.job_id = 0 THEN coalesce(:high::timestamptz > now() - make_interval(secs => 86400 * :days::float8), true)
        WHEN j.job_id IS NULL THEN false
        WHEN :gone_only::boolean THEN true
        ELSE (
            j.status IN ('completed', 'failed', 'cancelled') AND j.owner_id IS NULL
            AND (:workflow_id::text IS NULL OR j.workflow_id = :workflow_id)
            AND j.completed_at < now() - make_interval(
                secs => 86400 * coalesce((SELECT days FROM own WHERE own.workflow_hash = j.workflow_hash), :days::float8)
            )
        ) IS NOT TRUE
    END
) AS is_kept;

-- {called} --
-- The definitions that others call.
WITH called AS MATERIALIZED (
    SELECT DISTINCT jsonb_path_query(definition, '$.nodes.*.workflow_hash') #>> '{}' AS workflow_hash
    FROM dagapp.dag_workflows
)

-- unused_definitions --
-- Pinned definitions that no job, schedule or other definition needs.
{called}
SELECT w.workflow_hash FROM dagapp.dag_workflows w
WHERE w.created_at < now() - interval '1 day' AND NOT EXISTS (
    SELECT FROM dagapp.dag_jobs j WHERE j.workflow_id = w.workflow_id AND j.workflow_hash = w.workflow_hash
) AND NOT EXISTS (SELECT FROM dagapp.dag_schedules s WHERE s.workflow_hash = w.workflow_hash)
    AND NOT EXISTS (SELECT FROM called c WHERE c.workflow_hash = w.workflow_hash)
LIMIT :limit;

-- hold_submissions --
-- A submission pins its definition first: after this lock, no unseen submission is in progress, and none starts.
LOCK TABLE dagapp.dag_workflows IN SHARE ROW EXCLUSIVE MODE;

-- remove_definitions --
-- Only recent jobs can have escaped the first check.
{called}
DELETE FROM dagapp.dag_workflows w
WHERE w.workflow_hash = ANY(:hashes) AND NOT EXISTS (SELECT FROM called c WHERE c.workflow_hash = w.workflow_hash)
    AND NOT EXISTS (
    SELECT FROM dagapp.dag_jobs j
    WHERE j.workflow_id = w.workflow_id AND j.created_at > now() - interval '1 hour' AND j.workflow_hash = w.workflow_hash
) AND NOT EXISTS (SELECT FROM dagapp.dag_schedules s WHERE s.workflow_hash = w.workflow_hash);

-- remove_expired_results --
DELETE FROM dagapp.dag_task_cache
WHERE cache_key = ANY(ARRAY(
    SELECT cache_key FROM dagapp.dag_task_cache WHERE expires_at <= now() LIMIT :limit FOR UPDATE SKIP LOCKED
));
