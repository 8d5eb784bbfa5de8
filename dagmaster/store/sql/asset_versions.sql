-- add_version --
-- No row if another version of the asset is unresolved.
INSERT INTO dagapp.asset_versions (asset_id, version_ordinal, version_label, platform_refs, submitted_by)
VALUES (:asset_id, :version_ordinal, :version_label, :platform_refs::jsonb, :submitted_by)
ON CONFLICT (asset_id) WHERE approval_state IN ('pending_review', 'rejected') AND deleted_at IS NULL DO NOTHING
RETURNING version_ordinal;

-- find_version --
-- By ordinal, or the unresolved version.
SELECT asset_id, version_ordinal, version_label, approval_state, processing_status, revision, current_job_id, version,
    platform_refs, blob_path, export_job_id, deleted_at
FROM dagapp.asset_versions
WHERE asset_id = :asset_id AND CASE WHEN :version_ordinal::int IS NULL
    THEN approval_state IN ('pending_review', 'rejected') AND deleted_at IS NULL
    ELSE version_ordinal = :version_ordinal END;

-- jobs_of_asset --
-- The jobs that process or export its versions.
SELECT v.current_job_id AS job_id FROM dagapp.asset_versions v
WHERE v.asset_id = :asset_id AND v.current_job_id IS NOT NULL
UNION
SELECT v.export_job_id FROM dagapp.asset_versions v WHERE v.asset_id = :asset_id AND v.export_job_id IS NOT NULL;

-- list_versions --
-- The versions of one asset, latest first.
SELECT v.asset_id, v.version_ordinal, v.version_label, v.platform_refs, v.approval_state, v.approval_by, v.approval_at,
    v.approval_reason, v.processing_status, v.processing_started_at, v.processing_completed_at, v.processing_error,
    v.current_job_id, v.revision, v.blob_path, v.table_name, v.stac_item_id, v.stac_collection_id, v.content_hash,
    v.bbox, v.export_job_id, v.external_blob_path, v.adf_run_id, v.exported_at, v.export_error, v.submitted_by,
    v.deleted_at, v.created_at, v.updated_at, v.version
FROM dagapp.asset_versions v
WHERE v.asset_id = :asset_id AND (:include_deleted::boolean OR v.deleted_at IS NULL)
    AND (:version_ordinal::int IS NULL OR v.version_ordinal = :version_ordinal)
ORDER BY v.version_ordinal DESC
LIMIT :limit OFFSET :offset;

-- list_unresolved_versions --
-- The unresolved versions of these assets: at most one each.
SELECT asset_id, version_ordinal, version_label, approval_state, processing_status, updated_at
FROM dagapp.asset_versions
WHERE asset_id = ANY(:asset_ids::text[]) AND approval_state IN ('pending_review', 'rejected') AND deleted_at IS NULL;

-- list_review_queue --
-- The versions in review, oldest first, with the asset's columns that a reviewer needs.
SELECT v.asset_id, v.version_ordinal, v.version_label, v.platform_refs, v.processing_status, v.processing_error,
    v.current_job_id, v.revision, v.submitted_by, v.created_at, a.platform_id, a.data_type, a.clearance_state,
    a.latest_approved_version_ordinal
FROM dagapp.asset_versions v
JOIN dagapp.geospatial_assets a USING (asset_id)
WHERE v.approval_state = 'pending_review' AND v.deleted_at IS NULL AND a.deleted_at IS NULL
    AND (:platform_id::text IS NULL OR a.platform_id = :platform_id)
    AND (NOT :is_reviewable::boolean OR v.processing_status = 'completed')
ORDER BY v.created_at, v.asset_id
LIMIT :limit OFFSET :offset;
