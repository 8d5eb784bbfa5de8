-- add_asset --
-- No row if it exists already.
INSERT INTO dagapp.geospatial_assets (asset_id, platform_id, platform_refs, data_type)
VALUES (:asset_id, :platform_id, :platform_refs::jsonb, :data_type)
ON CONFLICT DO NOTHING
RETURNING asset_id;

-- lock_asset --
-- Lock the asset against other decisions until the end of the transaction.
SELECT asset_id, platform_id, platform_refs, data_type, clearance_state, exposure_mode, next_ordinal, version, deleted_at
FROM dagapp.geospatial_assets WHERE asset_id = :asset_id
FOR NO KEY UPDATE;

-- approved_ordinals --
-- The asset must be locked by an earlier statement: one that waits for the lock would see outdated versions.
SELECT version_ordinal FROM dagapp.asset_versions
WHERE asset_id = :asset_id AND approval_state = 'approved' AND deleted_at IS NULL
ORDER BY version_ordinal;

-- save_asset_change --
-- Apply a decision: columns of the asset, columns of the version if it is unchanged, the events, and
-- mail that cancels unneeded jobs. Missing columns stay.
WITH asset AS (
    UPDATE dagapp.geospatial_assets a
    SET (clearance_state, cleared_at, cleared_by, made_public_at, made_public_by, exposure_mode,
        latest_approved_version_ordinal, next_ordinal, deleted_at, deleted_by, updated_at, version) = (
        SELECT r.clearance_state, r.cleared_at, r.cleared_by, r.made_public_at, r.made_public_by, r.exposure_mode,
            r.latest_approved_version_ordinal, r.next_ordinal, r.deleted_at, r.deleted_by, clock_timestamp(),
            a.version + 1
        FROM jsonb_populate_record(a, :asset::jsonb) AS r
    )
    WHERE a.asset_id = :asset_id
    RETURNING a.asset_id
), saved AS (
    UPDATE dagapp.asset_versions v
    SET (version_label, platform_refs, approval_state, approval_by, approval_at, approval_reason, processing_status,
        processing_started_at, processing_completed_at, processing_error, current_job_id, revision, export_job_id,
        export_error, external_blob_path, exported_at, submitted_by, deleted_at, deleted_by, updated_at, version) = (
        SELECT r.version_label, r.platform_refs, r.approval_state, r.approval_by, r.approval_at, r.approval_reason,
            r.processing_status, r.processing_started_at, r.processing_completed_at, r.processing_error,
            r.current_job_id, r.revision, r.export_job_id, r.export_error, r.external_blob_path, r.exported_at,
            r.submitted_by, r.deleted_at, r.deleted_by, clock_timestamp(), v.version + 1
        FROM jsonb_populate_record(v, :changed::jsonb) AS r
    )
    WHERE v.asset_id = :asset_id AND v.version_ordinal = :version_ordinal AND v.version = :known_version
    RETURNING v.version_ordinal
), events AS (
    INSERT INTO dagapp.asset_events (asset_id, version_ordinal, event_type, actor, reason, job_id, event_data)
    SELECT :asset_id, e.version_ordinal, e.event_type, e.actor, e.reason, e.job_id, e.event_data
    FROM json_to_recordset(:events::json) AS e(
        version_ordinal int, event_type dagapp.asset_event_type, actor text, reason text, job_id bigint, event_data jsonb
    )
), mail AS (
    INSERT INTO dagapp.dag_mailbox (job_id, kind, data)
    SELECT j.job_id, 'cancel', jsonb_build_object('actor', coalesce(:actor, 'dagmaster'), 'reason', :cancel_reason::text)
    FROM unnest(:cancelled_job_ids::bigint[]) AS c(job_id)
    CROSS JOIN LATERAL (
        SELECT job_id FROM dagapp.dag_jobs WHERE job_id = c.job_id AND status IN ('pending', 'running') OFFSET 0
    ) AS j
)
SELECT (SELECT count(*) FROM saved) AS versions,
    (SELECT pg_notify('dagmaster_mail', '') WHERE cardinality(:cancelled_job_ids::bigint[]) > 0)
FROM asset;

-- {shown_assets} --
SELECT a.asset_id, a.platform_id, a.platform_refs, a.data_type, a.clearance_state, a.cleared_at, a.cleared_by,
    a.made_public_at, a.made_public_by, a.exposure_mode, a.latest_approved_version_ordinal, a.deleted_at, a.created_at,
    a.updated_at, a.version,
    (SELECT v.version_ordinal FROM dagapp.asset_versions v
     WHERE v.asset_id = a.asset_id AND v.approval_state IN ('pending_review', 'rejected') AND v.deleted_at IS NULL
    ) AS unresolved_ordinal,
    (SELECT count(*) FROM dagapp.asset_versions v
     WHERE v.asset_id = a.asset_id AND v.deleted_at IS NULL)::int AS version_count
FROM dagapp.geospatial_assets a

-- show_asset --
{shown_assets} WHERE a.asset_id = :asset_id;

-- list_assets --
-- The newest first. Conditions on versions must hold for the same version. :text is an id, or the value of any
-- reference that a platform names.
{shown_assets}
WHERE (:include_deleted::boolean OR a.deleted_at IS NULL)
    AND (:platform_id::text IS NULL OR a.platform_id = :platform_id)
    AND (:data_type::text IS NULL OR a.data_type = :data_type)
    AND (:clearance_state::text IS NULL OR a.clearance_state = :clearance_state::dagapp.clearance_state)
    AND (:refs::jsonb IS NULL OR a.asset_id = ANY (ARRAY(
        SELECT w.asset_id FROM dagapp.geospatial_assets w
        WHERE w.platform_refs @> :refs::jsonb AND (:include_deleted::boolean OR w.deleted_at IS NULL)
        UNION
        SELECT v.asset_id FROM dagapp.asset_versions v WHERE v.platform_refs @> :refs::jsonb AND v.deleted_at IS NULL
    )))
    AND (:text::text IS NULL OR a.asset_id = :text OR a.asset_id = ANY (ARRAY(
        WITH wanted AS (
            SELECT DISTINCT jsonb_build_object(name, :text::text) AS refs
            FROM dagapp.platforms, unnest(required_refs || optional_refs) AS name
        )
        SELECT w.asset_id FROM wanted JOIN dagapp.geospatial_assets w ON w.platform_refs @> wanted.refs
        WHERE :include_deleted::boolean OR w.deleted_at IS NULL
        UNION
        SELECT v.asset_id FROM wanted JOIN dagapp.asset_versions v ON v.platform_refs @> wanted.refs
        WHERE v.deleted_at IS NULL
    )))
    AND (:approval_state::text IS NULL AND :processing_status::text IS NULL OR EXISTS (
        SELECT FROM dagapp.asset_versions v
        WHERE v.asset_id = a.asset_id AND v.deleted_at IS NULL
            AND (:approval_state::text IS NULL OR v.approval_state = :approval_state::dagapp.approval_state)
            AND (:processing_status::text IS NULL OR v.processing_status = :processing_status::dagapp.processing_status)
    ))
ORDER BY a.created_at DESC, a.asset_id
LIMIT :limit OFFSET :offset;

-- list_asset_events --
-- The history of an asset, oldest first or newest first.
SELECT event_id, asset_id, version_ordinal, event_type, actor, reason, job_id, event_data, created_at
FROM dagapp.asset_events WHERE asset_id = :asset_id AND (:version_ordinal::int IS NULL OR version_ordinal = :version_ordinal)
ORDER BY CASE WHEN :newest_first::boolean THEN -event_id ELSE event_id END
LIMIT :limit OFFSET :offset;

-- find_asset_event --
-- Whether this job has caused an event of this type.
SELECT FROM dagapp.asset_events WHERE asset_id = :asset_id AND event_type = :event_type::dagapp.asset_event_type
    AND job_id = :job_id
LIMIT 1;

-- lock_wrong_assets --
-- Lock the assets whose latest approved ordinal is wrong, so that no decision interferes.
SELECT a.asset_id FROM dagapp.geospatial_assets a
WHERE a.latest_approved_version_ordinal IS DISTINCT FROM (
    SELECT max(v.version_ordinal) FROM dagapp.asset_versions v
    WHERE v.asset_id = a.asset_id AND v.approval_state = 'approved' AND v.deleted_at IS NULL
)
ORDER BY a.asset_id
FOR NO KEY UPDATE OF a;

-- correct_latest_versions --
-- Correct locked assets from the current state of their versions.
UPDATE dagapp.geospatial_assets a
SET latest_approved_version_ordinal = latest.ordinal, updated_at = clock_timestamp(), version = a.version + 1
FROM unnest(:asset_ids::text[]) AS wrong(asset_id)
CROSS JOIN LATERAL (
    SELECT max(v.version_ordinal) AS ordinal FROM dagapp.asset_versions v
    WHERE v.asset_id = wrong.asset_id AND v.approval_state = 'approved' AND v.deleted_at IS NULL
) AS latest
WHERE a.asset_id = wrong.asset_id AND a.latest_approved_version_ordinal IS DISTINCT FROM latest.ordinal
RETURNING a.asset_id;
