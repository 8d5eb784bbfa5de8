-- list_stac_versions --
-- Versions that the catalogue should describe, by key: of one asset, of one collection, or all.
SELECT v.asset_id, v.version_ordinal, a.data_type, a.platform_id, v.platform_refs, v.blob_path, v.content_hash,
    v.stac_item_id, v.stac_collection_id, v.processing_completed_at, v.version,
    (SELECT min(r.request_id) FROM dagapp.dag_api_requests r WHERE r.job_id = v.current_job_id) AS request_id
FROM dagapp.asset_versions v
JOIN dagapp.geospatial_assets a ON a.asset_id = v.asset_id AND a.deleted_at IS NULL
WHERE v.deleted_at IS NULL AND v.processing_status = 'completed'
    AND v.blob_path IS NOT NULL AND v.stac_collection_id IS NOT NULL
    AND (:asset_id::text IS NULL OR v.asset_id = :asset_id)
    AND (:version_ordinal::int IS NULL OR v.version_ordinal = :version_ordinal)
    AND (:collection_id::text IS NULL OR v.stac_collection_id = :collection_id)
    AND (:after_asset::text IS NULL OR (v.asset_id, v.version_ordinal) > (:after_asset::text, :after_ordinal::int))
ORDER BY v.asset_id, v.version_ordinal
LIMIT :limit;

-- list_items_of_version --
SELECT collection_id, item_id, content FROM dagapp.stac_items
WHERE asset_id = :asset_id AND version_ordinal = :version_ordinal
ORDER BY collection_id, item_id;

-- replace_items_of_version --
-- No row if the version has changed: a job has moved it, and has stored its own entries.
SELECT dagapp.store_stac_documents(:documents::jsonb, v.asset_id, v.version_ordinal)
FROM (
    SELECT asset_id, version_ordinal FROM dagapp.asset_versions
    WHERE asset_id = :asset_id AND version_ordinal = :version_ordinal AND version = :known_version
        AND deleted_at IS NULL
    FOR NO KEY UPDATE
) AS v;

-- remove_items_of_version --
DELETE FROM dagapp.stac_items WHERE asset_id = :asset_id AND version_ordinal = :version_ordinal
RETURNING collection_id, item_id;
