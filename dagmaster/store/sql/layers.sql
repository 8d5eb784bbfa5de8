-- list_layers --
-- The metadata of layers of assets that are not deleted, or of one asset, in the order in which maps list them.
SELECT m.asset_id, m.data_type, m.display_name, m.description, m.attribution, m.keywords, m.style, m.legend,
    m.field_metadata, m.min_zoom, m.max_zoom, m.default_visible, m.sort_order, m.thumbnail_url, m.published_at,
    m.published_externally_at, m.created_at, m.updated_at, m.version, a.platform_id
FROM dagapp.layer_metadata m
JOIN dagapp.geospatial_assets a USING (asset_id)
WHERE (a.deleted_at IS NULL OR :include_deleted::boolean)
    AND (:asset_id::text IS NULL OR m.asset_id = :asset_id)
    AND (:platform_id::text IS NULL OR a.platform_id = :platform_id)
    AND (:is_published::boolean IS NULL OR (m.published_at IS NOT NULL) = :is_published)
ORDER BY m.sort_order, m.display_name, m.asset_id
LIMIT :limit OFFSET :offset;

-- add_layer --
-- No row if the asset has metadata already.
INSERT INTO dagapp.layer_metadata (
    asset_id, data_type, display_name, description, attribution, keywords, style, legend, field_metadata, min_zoom,
    max_zoom, default_visible, sort_order, thumbnail_url
)
SELECT :asset_id, :data_type, r.display_name, r.description, r.attribution, r.keywords, r.style, r.legend,
    r.field_metadata, r.min_zoom, r.max_zoom, r.default_visible, r.sort_order, r.thumbnail_url
FROM jsonb_populate_record(NULL::dagapp.layer_metadata, :fields::jsonb) AS r
ON CONFLICT (asset_id) DO NOTHING
RETURNING asset_id;

-- replace_layer --
-- No row if somebody else has replaced it since this version was read.
UPDATE dagapp.layer_metadata m
SET display_name = r.display_name, description = r.description, attribution = r.attribution, keywords = r.keywords,
    style = r.style, legend = r.legend, field_metadata = r.field_metadata, min_zoom = r.min_zoom, max_zoom = r.max_zoom,
    default_visible = r.default_visible, sort_order = r.sort_order, thumbnail_url = r.thumbnail_url,
    updated_at = clock_timestamp(), version = m.version + 1
FROM jsonb_populate_record(NULL::dagapp.layer_metadata, :fields::jsonb) AS r
WHERE m.asset_id = :asset_id AND m.version = :version
RETURNING m.asset_id;

-- remove_layer --
DELETE FROM dagapp.layer_metadata WHERE asset_id = :asset_id RETURNING asset_id;

-- mark_layer --
-- When the layer was published; null: it is not.
UPDATE dagapp.layer_metadata
SET published_at = CASE WHEN :is_published::boolean THEN clock_timestamp() END WHERE asset_id = :asset_id
RETURNING published_at;

-- mark_external_layer --
-- When the layer was published outside; null: it is not.
UPDATE dagapp.layer_metadata
SET published_externally_at = CASE WHEN :is_published::boolean THEN clock_timestamp() END WHERE asset_id = :asset_id
RETURNING published_externally_at;

-- layer_ids --
-- The assets that have metadata, in the order of their ids; deleted assets too, if their layer is published.
SELECT m.asset_id FROM dagapp.layer_metadata m
JOIN dagapp.geospatial_assets a USING (asset_id)
WHERE m.asset_id > :after
    AND CASE WHEN :is_published::boolean THEN m.published_at IS NOT NULL OR m.published_externally_at IS NOT NULL
        ELSE a.deleted_at IS NULL END
ORDER BY m.asset_id LIMIT :limit;
