-- list_catalog --
-- The published layers with a table, in display order.
SELECT c.data_type, c.display_name, c.description, c.attribution, c.keywords, c.style, c.legend, c.field_metadata,
    c.min_zoom, c.max_zoom, c.default_visible, c.sort_order, c.thumbnail_url, c.table_name, c.source_asset_id,
    c.version_ordinal, c.bbox, c.published_at
FROM dagapp.layer_catalog c
WHERE (:table_name::text IS NULL OR c.table_name = :table_name)
    AND (:platform_id::text IS NULL OR EXISTS (
        SELECT FROM dagapp.geospatial_assets a WHERE a.asset_id = c.source_asset_id AND a.platform_id = :platform_id
    ))
ORDER BY c.sort_order, c.display_name, c.table_name
LIMIT :limit OFFSET :offset;

-- catalog_of_asset --
-- The rows of an asset, without the time.
SELECT table_name, source_asset_id, version_ordinal, data_type, display_name, description, attribution, keywords, style,
    legend, field_metadata, min_zoom, max_zoom, default_visible, sort_order, thumbnail_url, bbox
FROM dagapp.layer_catalog WHERE source_asset_id = :asset_id;

-- save_catalog_entry --
-- No row if the table belongs to another asset.
INSERT INTO dagapp.layer_catalog AS c (
    table_name, source_asset_id, version_ordinal, data_type, display_name, description, attribution, keywords, style,
    legend, field_metadata, min_zoom, max_zoom, default_visible, sort_order, thumbnail_url, bbox, published_at
)
SELECT r.table_name, r.source_asset_id, r.version_ordinal, r.data_type, r.display_name, r.description, r.attribution,
    r.keywords, r.style, r.legend, r.field_metadata, r.min_zoom, r.max_zoom, r.default_visible, r.sort_order,
    r.thumbnail_url, r.bbox, clock_timestamp()
FROM jsonb_populate_record(NULL::dagapp.layer_catalog, :entry::jsonb) AS r
ON CONFLICT (table_name) DO UPDATE
SET version_ordinal = excluded.version_ordinal, data_type = excluded.data_type, display_name = excluded.display_name,
    description = excluded.description, attribution = excluded.attribution, keywords = excluded.keywords,
    style = excluded.style, legend = excluded.legend, field_metadata = excluded.field_metadata,
    min_zoom = excluded.min_zoom, max_zoom = excluded.max_zoom, default_visible = excluded.default_visible,
    sort_order = excluded.sort_order, thumbnail_url = excluded.thumbnail_url, bbox = excluded.bbox,
    published_at = excluded.published_at
WHERE c.source_asset_id = excluded.source_asset_id
RETURNING c.table_name;

-- remove_catalog_entries --
-- Remove the rows of an asset, except that of the kept table.
DELETE FROM dagapp.layer_catalog
WHERE source_asset_id = :asset_id AND (:kept_table::text IS NULL OR table_name <> :kept_table)
RETURNING table_name;

-- external_tables --
-- Whether the catalogue exists, and whether this is dagmaster's own database.
SELECT to_regclass('dagapp.layer_catalog') IS NOT NULL AND to_regclass('dagapp.layer_revisions') IS NOT NULL AS is_complete,
    to_regclass('dagapp.dag_jobs') IS NOT NULL AS is_own;

-- advance_layer_revision --
-- No row if a later state has arrived. Locks the asset's layer until the transaction ends.
INSERT INTO dagapp.layer_revisions AS r (asset_id, revision) VALUES (:asset_id, :revision)
ON CONFLICT (asset_id) DO UPDATE SET revision = excluded.revision WHERE r.revision < excluded.revision
RETURNING r.asset_id;
