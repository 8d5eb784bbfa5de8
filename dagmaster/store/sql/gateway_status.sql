-- {silent_seconds} --
-- Seconds since the owner's last heartbeat, or since the creation of a job without owner.
coalesce(owner_silent_seconds, extract(epoch FROM now() - created_at)::float)

-- {gateway_job} --
job_id, workflow_id, workflow_version, status, priority, error_message, failed_node, ended_by, submitted_by,
    correlation_id, idempotency_key, asset_id, version_ordinal, parent_job_id, schedule_id, paused_at, created_at,
    started_at, completed_at,
    status IN ('pending', 'running') AND :orphan_seconds::float < {silent_seconds} AS is_orphaned

-- {gateway_node} --
SELECT job_id, node_id, status, retry_count, max_retries, parent_node_id, fan_out_index, queue, error_message, ended_by,
    not_before, created_at, dispatched_at, started_at, completed_at
FROM gateway.nodes

-- {gateway_event} --
SELECT job_id, event_id, created_at, node_id, event_type, event_status, checkpoint_name, event_data, error_message,
    duration_ms, source_app
FROM gateway.events

-- gateway_jobs --
-- The newest matches. Orphans are live jobs whose owner is silent, or that have had no owner for as long.
SELECT {gateway_job}
FROM gateway.jobs
WHERE (:status::text IS NULL OR status::text = :status)
    AND (NOT :only_live::boolean OR status IN ('pending', 'running')) -- Has an index.
    AND (:workflow_id::text IS NULL OR workflow_id = :workflow_id)
    AND (:correlation_id::text IS NULL OR correlation_id = :correlation_id)
    AND (:idempotency_key::text IS NULL OR idempotency_key = :idempotency_key)
    AND (NOT :only_orphans::boolean OR :orphan_seconds::float < {silent_seconds})
ORDER BY created_at DESC, job_id DESC LIMIT :limit OFFSET :offset;

-- gateway_job --
SELECT {gateway_job}, deadline_at, updated_at,
    CASE WHEN pg_column_size(result_data) <= :max_result_bytes THEN result_data END AS result_data
FROM gateway.jobs WHERE job_id = :job_id;

-- gateway_nodes --
-- Of these jobs, in the order of their start.
{gateway_node}
WHERE job_id = ANY(:job_ids::bigint[])
ORDER BY job_id DESC, coalesce(started_at, dispatched_at) NULLS LAST, created_at, node_id LIMIT :limit OFFSET :offset;

-- gateway_nodes_by_status --
-- The last changed first, of jobs that are unfinished or ended recently: all jobs may have many millions of nodes.
{gateway_node}
WHERE status::text = :status AND job_id IN (
    SELECT job_id FROM gateway.jobs WHERE status IN ('pending', 'running')
    UNION ALL
    SELECT job_id FROM gateway.jobs WHERE completed_at > now() - make_interval(hours => :hours)
)
ORDER BY updated_at DESC, job_id DESC, node_id LIMIT :limit OFFSET :offset;

-- gateway_events --
-- Of one job, in order.
{gateway_event} WHERE job_id = :job_id ORDER BY event_id LIMIT :limit OFFSET :offset;

-- gateway_recent_events --
{gateway_event}
WHERE created_at > now() - make_interval(hours => :hours) AND job_id <> 0
ORDER BY created_at DESC, event_id DESC LIMIT :limit OFFSET :offset;

-- gateway_workflows --
SELECT workflow_id, version, created_at FROM gateway.workflows ORDER BY workflow_id LIMIT :limit OFFSET :offset;

-- gateway_stats --
SELECT jobs, tasks_waiting, tasks_running, requests, assets, versions_to_review, orchestrator_silent_seconds,
    worker_silent_seconds
FROM gateway.stats;
