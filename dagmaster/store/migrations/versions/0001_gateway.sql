-- The gateway's views, in a schema of their own. They run with the rights of their owner, so that the gateway's role
-- needs no right on any table. None exposes owners, hosts, epochs, hashes, callback URLs or secrets.

-- Remains of an earlier schema, after `DROP SCHEMA dagapp CASCADE`, are replaced.
CREATE SCHEMA IF NOT EXISTS gateway;
COMMENT ON SCHEMA gateway IS 'dagmaster: views for the gateway, which can only read';

CREATE VIEW gateway.platforms AS
SELECT platform_id, display_name, required_refs, optional_refs, is_active, allowed_workflows, created_at, updated_at
FROM dagapp.platforms;

-- A request by its sender's id. Its job, which may be removed, is not named: the outputs of the steps are merged by
-- output name, later steps last, and the error is that of the failed step.
CREATE VIEW gateway.requests AS
SELECT r.request_id, r.platform_id, r.workflow_id, r.asset_id, r.version_ordinal,
    CASE r.status WHEN 'cancelled' THEN 'failed' ELSE r.status::text END AS status,
    r.created_at AS submitted_at, j.started_at, r.completed_at,
    CASE
        WHEN r.status <> 'completed' THEN NULL
        WHEN pg_column_size(j.result_data) > 4194304 THEN '{"omitted": "the result is larger than 4 MiB"}'
        ELSE (
            SELECT jsonb_object_agg(part.key, part.value ORDER BY n.completed_at, n.node_id)
            FROM jsonb_each(j.result_data) AS step (node_id, output)
            JOIN dagapp.dag_node_states n ON n.job_id = j.job_id AND n.node_id = step.node_id
            CROSS JOIN jsonb_each(CASE jsonb_typeof(step.output)
                WHEN 'object' THEN step.output ELSE jsonb_build_object('value', step.output) END) AS part
        )
    END AS result,
    CASE
        WHEN r.status = 'cancelled' THEN 'the request was cancelled'
        WHEN r.status = 'failed' AND j.ended_by = 'deadline' THEN 'the processing did not end in time'
        WHEN r.status = 'failed' THEN coalesce(
            (SELECT n.error_message FROM dagapp.dag_node_states n WHERE n.job_id = j.job_id AND n.node_id = j.failed_node),
            'the processing failed'
        )
    END AS error,
    CASE
        WHEN r.status = 'completed' THEN 100.0
        WHEN j.started_at IS NOT NULL THEN (
            SELECT round(100.0 * count(*) FILTER (WHERE n.status IN ('completed', 'failed', 'skipped')) / nullif(count(*), 0), 1)
            FROM dagapp.dag_node_states n WHERE n.job_id = j.job_id
        )
    END::float AS progress,
    r.submitted_by, r.idempotency_key
FROM dagapp.dag_api_requests r
LEFT JOIN dagapp.dag_jobs j ON j.job_id = r.job_id;

CREATE VIEW gateway.assets AS
SELECT a.asset_id, a.platform_id, a.platform_refs, a.data_type, a.clearance_state::text AS clearance_state, a.cleared_at,
    a.made_public_at, a.exposure_mode, a.latest_approved_version_ordinal,
    (SELECT v.version_ordinal FROM dagapp.asset_versions v
     WHERE v.asset_id = a.asset_id AND v.approval_state IN ('pending_review', 'rejected') AND v.deleted_at IS NULL)
        AS unresolved_ordinal,
    (SELECT count(*)::int FROM dagapp.asset_versions v WHERE v.asset_id = a.asset_id AND v.deleted_at IS NULL)
        AS version_count,
    a.created_at, a.updated_at
FROM dagapp.geospatial_assets a
WHERE a.deleted_at IS NULL;

CREATE VIEW gateway.versions AS
SELECT v.asset_id, v.version_ordinal, v.version_label, v.platform_refs, v.approval_state::text AS approval_state,
    v.approval_at, v.approval_reason, v.processing_status::text AS processing_status, v.processing_started_at,
    v.processing_completed_at,
    CASE WHEN v.processing_status = 'failed' THEN coalesce(
        (SELECT n.error_message FROM dagapp.dag_jobs j
         JOIN dagapp.dag_node_states n ON n.job_id = j.job_id AND n.node_id = j.failed_node
         WHERE j.job_id = v.current_job_id),
        'the processing failed'
    ) END AS processing_error,
    v.revision, v.blob_path, v.table_name, v.stac_item_id, v.stac_collection_id, v.content_hash, v.bbox,
    v.external_blob_path, v.exported_at, v.created_at, v.updated_at
FROM dagapp.asset_versions v
JOIN dagapp.geospatial_assets a ON a.asset_id = v.asset_id AND a.deleted_at IS NULL
WHERE v.deleted_at IS NULL;

CREATE VIEW gateway.layer_metadata AS
SELECT l.asset_id, a.platform_id, l.data_type, l.display_name, l.description, l.attribution, l.keywords, l.style, l.legend,
    l.field_metadata, l.min_zoom, l.max_zoom, l.default_visible, l.sort_order, l.thumbnail_url, l.published_at,
    l.published_externally_at, coalesce(l.updated_at > l.published_at, false) AS has_unpublished_changes, l.created_at,
    l.updated_at, l.version
FROM dagapp.layer_metadata l JOIN dagapp.geospatial_assets a ON a.asset_id = l.asset_id;

CREATE VIEW gateway.layer_catalog AS
SELECT table_name, source_asset_id, version_ordinal, data_type, display_name, description, attribution, keywords, style,
    legend, field_metadata, min_zoom, max_zoom, default_visible, sort_order, thumbnail_url, bbox, published_at
FROM dagapp.layer_catalog;

-- For operators. Seconds since the owner's last heartbeat show whether it is alive; null if the job has no owner. The
-- status keeps its type, and now() is stable, so that indexes are used through the view.
CREATE VIEW gateway.jobs AS
SELECT j.job_id, j.workflow_id, j.workflow_version, j.status, j.priority, j.result_data, j.error_message,
    j.failed_node, j.ended_by::text AS ended_by, j.submitted_by, j.correlation_id, j.idempotency_key, j.asset_id,
    j.version_ordinal, j.parent_job_id, j.schedule_id, j.paused_at, j.deadline_at, j.created_at, j.started_at,
    j.completed_at, j.updated_at,
    CASE WHEN j.owner_id IS NOT NULL THEN
        extract(epoch FROM now() - coalesce(o.heartbeat_at, j.owner_heartbeat_at, j.created_at))::float
    END AS owner_silent_seconds
FROM dagapp.dag_jobs j
LEFT JOIN dagapp.dag_orchestrators o ON o.orchestrator_id = j.owner_id;

CREATE VIEW gateway.nodes AS
SELECT job_id, node_id, status, retry_count, max_retries, parent_node_id, fan_out_index, queue,
    error_message, ended_by::text AS ended_by, not_before, created_at, dispatched_at, started_at, completed_at, updated_at
FROM dagapp.dag_node_states;

-- The owners before and after a takeover are left out.
CREATE VIEW gateway.events AS
SELECT job_id, event_id, created_at, node_id, event_type::text AS event_type, event_status::text AS event_status,
    checkpoint_name, CASE WHEN event_type <> 'job_taken_over' THEN event_data END AS event_data, error_message, duration_ms,
    source_app
FROM dagapp.dag_job_events;

CREATE VIEW gateway.workflows AS
SELECT DISTINCT ON (workflow_id) workflow_id, version, created_at
FROM dagapp.dag_workflows ORDER BY workflow_id, created_at DESC, version DESC;

-- One row: counts, and the ages of the latest heartbeats: zero for one after the transaction began.
CREATE VIEW gateway.stats AS
SELECT
    (SELECT coalesce(jsonb_object_agg(status, jobs), '{}') FROM (
        SELECT status::text AS status, count(*) AS jobs FROM dagapp.dag_jobs GROUP BY 1
    ) AS by_status) AS jobs,
    (SELECT count(*) FROM dagapp.dag_tasks_waiting) AS tasks_waiting,
    (SELECT count(*) FROM dagapp.dag_tasks_running) AS tasks_running,
    (SELECT count(*) FROM dagapp.dag_api_requests) AS requests,
    (SELECT count(*) FROM dagapp.geospatial_assets WHERE deleted_at IS NULL) AS assets,
    (SELECT count(*) FROM dagapp.asset_versions WHERE approval_state = 'pending_review' AND deleted_at IS NULL)
        AS versions_to_review,
    (SELECT extract(epoch FROM greatest(now(), max(heartbeat_at)) - max(heartbeat_at))::float
     FROM dagapp.dag_orchestrators WHERE status = 'running') AS orchestrator_silent_seconds,
    (SELECT extract(epoch FROM greatest(now(), max(last_heartbeat)) - max(last_heartbeat))::float
     FROM dagapp.dag_workers WHERE status = 'active') AS worker_silent_seconds;

-- The holder of a key, for a caller who has the whole key; no row if it was revoked or has expired.
CREATE OR REPLACE FUNCTION gateway.find_key(key_id text, key_hash text)
RETURNS TABLE (name text, role text, platform_id text)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    SELECT k.name::text, k.role::text, k.platform_id::text
    FROM dagapp.dag_api_keys k
    WHERE k.key_id = find_key.key_id AND k.key_hash = find_key.key_hash AND k.revoked_at IS NULL
        AND coalesce(k.expires_at > now(), true)
$$;
REVOKE ALL ON FUNCTION gateway.find_key(text, text) FROM PUBLIC;
