-- gateway_access --
-- Whether the role can read the views, and whether it could read more.
SELECT coalesce((SELECT has_schema_privilege(oid, 'USAGE') FROM pg_namespace WHERE nspname = 'dagapp'), false)
        AS reads_tables,
    EXISTS (SELECT FROM gateway.requests LIMIT 1) AS has_requests;

-- gateway_key --
SELECT name, role, platform_id FROM gateway.find_key(:key_id, :key_hash);

-- gateway_request --
SELECT request_id, platform_id, workflow_id, asset_id, version_ordinal, status, submitted_at, completed_at, result, error,
    progress
FROM gateway.requests WHERE request_id = :request_id AND (:platform_id::text IS NULL OR platform_id = :platform_id);

-- gateway_platforms --
SELECT platform_id, display_name, required_refs, optional_refs, is_active, allowed_workflows, created_at, updated_at
FROM gateway.platforms WHERE :platform_id::text IS NULL OR platform_id = :platform_id ORDER BY platform_id;

-- gateway_assets --
-- The newest matches. References are those of the asset or of one of its versions.
SELECT a.asset_id, a.platform_id, a.platform_refs, a.data_type, a.clearance_state, a.cleared_at, a.made_public_at,
    a.exposure_mode, a.latest_approved_version_ordinal, a.unresolved_ordinal, a.version_count, a.created_at, a.updated_at
FROM gateway.assets a
WHERE (:asset_id::text IS NULL OR a.asset_id = :asset_id)
    AND (:platform_id::text IS NULL OR a.platform_id = :platform_id)
    AND (:data_type::text IS NULL OR a.data_type = :data_type)
    AND (:clearance_state::text IS NULL OR a.clearance_state = :clearance_state)
    AND (
        (:approval_state::text IS NULL AND :processing_status::text IS NULL)
        OR EXISTS (
            SELECT FROM gateway.versions v
            WHERE v.asset_id = a.asset_id
                AND (:approval_state::text IS NULL OR v.approval_state = :approval_state)
                AND (:processing_status::text IS NULL OR v.processing_status = :processing_status)
        )
    )
    AND (:refs::jsonb IS NULL OR a.asset_id = ANY (ARRAY(
        SELECT w.asset_id FROM gateway.assets w WHERE w.platform_refs @> :refs::jsonb
        UNION
        SELECT v.asset_id FROM gateway.versions v WHERE v.platform_refs @> :refs::jsonb
    )))
ORDER BY a.created_at DESC, a.asset_id LIMIT :limit OFFSET :offset;

-- gateway_versions --
-- The latest first.
SELECT asset_id, version_ordinal, version_label, platform_refs, approval_state, approval_at, approval_reason,
    processing_status, processing_started_at, processing_completed_at, processing_error, revision, blob_path, table_name,
    stac_item_id, stac_collection_id, content_hash, bbox, external_blob_path, exported_at, created_at, updated_at
FROM gateway.versions
WHERE asset_id = :asset_id AND (:ordinal::int IS NULL OR version_ordinal = :ordinal)
ORDER BY version_ordinal DESC LIMIT :limit OFFSET :offset;

-- gateway_layers --
SELECT asset_id, platform_id, data_type, display_name, description, attribution, keywords, style, legend, field_metadata, min_zoom,
    max_zoom, default_visible, sort_order, thumbnail_url, published_at, published_externally_at,
    has_unpublished_changes, created_at, updated_at, version
FROM gateway.layer_metadata WHERE :asset_id::text IS NULL OR asset_id = :asset_id
ORDER BY sort_order, asset_id LIMIT :limit OFFSET :offset;

-- gateway_catalog --
SELECT table_name, source_asset_id, version_ordinal, data_type, display_name, description, attribution, keywords, style,
    legend, field_metadata, min_zoom, max_zoom, default_visible, sort_order, thumbnail_url, bbox, published_at
FROM gateway.layer_catalog
WHERE (:table_name::text IS NULL OR table_name = :table_name) AND (:data_type::text IS NULL OR data_type = :data_type)
ORDER BY sort_order, table_name LIMIT :limit OFFSET :offset;
