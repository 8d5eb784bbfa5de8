-- list_layers --
-- The metadata of layers of assets that are not deleted, or of one asset, in display order.
SELECT m.data_type, m.display_name, m.description, m.attribution, m.keywords, m.style, m.legend, m.field_metadata,
    m.min_zoom, m.max_zoom, m.default_visible, m.sort_order, m.thumbnail_url, m.asset_id, m.published_at,
    m.published_externally_at, m.is_external, m.external_pending, m.created_at, m.updated_at, m.version, a.platform_id
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
-- No row if it was replaced since this version was read.
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
-- When the layer was published; null if it is not.
UPDATE dagapp.layer_metadata
SET published_at = CASE WHEN :is_published::boolean THEN clock_timestamp() END WHERE asset_id = :asset_id
RETURNING published_at;

-- expect_external_layer --
-- Whether the external database should have the layer, and the revision that is sent there. It may take a while to
-- arrive before it is sent again.
UPDATE dagapp.layer_metadata
SET is_external = :is_external, external_pending = clock_timestamp(),
    refresh_after = clock_timestamp() + make_interval(secs => :patience_seconds)
WHERE asset_id = :asset_id
RETURNING external_pending;

-- confirm_external_layer --
-- The external database has this revision. No effect if another one was sent since.
UPDATE dagapp.layer_metadata
SET external_pending = NULL, refresh_after = NULL,
    published_externally_at = CASE WHEN NOT :is_there::boolean THEN NULL
        WHEN :is_changed::boolean OR published_externally_at IS NULL THEN clock_timestamp()
        ELSE published_externally_at END
WHERE asset_id = :asset_id AND external_pending = :revision;

-- withdraw_external_layer --
-- The external database did not apply this revision, and is no longer expected to. If it may have applied it anyway,
-- it is sent the correct state.
UPDATE dagapp.layer_metadata
SET is_external = :is_external, external_pending = CASE WHEN :is_settled::boolean THEN NULL ELSE external_pending END
WHERE asset_id = :asset_id AND external_pending = :revision;

-- mark_refreshed_layer --
-- The projections in this database show this version.
UPDATE dagapp.layer_metadata
SET refreshed_ordinal = :version_ordinal, refreshed_version = :version,
    refresh_after = CASE WHEN external_pending IS NOT NULL THEN refresh_after END
WHERE asset_id = :asset_id;

-- claim_stale_layers --
-- Published layers that lag behind the latest approved version, or that the external database has not confirmed. They
-- become due again after a pause if this attempt fails.
UPDATE dagapp.layer_metadata
SET refresh_after = clock_timestamp() + make_interval(secs => :pause_seconds)
WHERE asset_id IN (
    SELECT m.asset_id FROM dagapp.layer_metadata m
    JOIN dagapp.geospatial_assets a USING (asset_id)
    LEFT JOIN dagapp.asset_versions v ON a.deleted_at IS NULL AND v.asset_id = a.asset_id
        AND v.version_ordinal = a.latest_approved_version_ordinal
    WHERE (m.published_at IS NOT NULL OR m.is_external OR m.external_pending IS NOT NULL)
        AND (:has_external::boolean OR NOT (m.is_external OR m.external_pending IS NOT NULL))
        AND (m.refresh_after IS NULL OR m.refresh_after <= clock_timestamp())
        AND (v.asset_id IS NULL OR m.external_pending IS NOT NULL OR m.refreshed_ordinal IS DISTINCT FROM v.version_ordinal
            OR m.refreshed_version IS DISTINCT FROM v.version)
    LIMIT :limit
    FOR NO KEY UPDATE OF m SKIP LOCKED
)
RETURNING asset_id;

-- layer_ids --
-- The assets with metadata, by id; includes deleted assets whose layer is published.
SELECT m.asset_id FROM dagapp.layer_metadata m
JOIN dagapp.geospatial_assets a USING (asset_id)
WHERE m.asset_id > :after
    AND CASE WHEN :is_published::boolean THEN m.published_at IS NOT NULL OR m.is_external
            OR m.external_pending IS NOT NULL ELSE a.deleted_at IS NULL END
ORDER BY m.asset_id LIMIT :limit;

-- find_unused_tables --
-- The tables among these, by name and job, that no version uses and whose job can no longer write to them: it has ended
-- or was removed. The table of a failed job that can be retried is in use, unless its version belongs to another job.
SELECT t.table_name
FROM unnest(:table_names::text[], :job_ids::bigint[], :asset_ids::text[], :ordinals::int[]) AS t(
    table_name, job_id, asset_id, version_ordinal
)
WHERE NOT EXISTS (SELECT FROM dagapp.asset_versions v WHERE v.table_name = t.table_name AND v.deleted_at IS NULL)
    AND NOT EXISTS (
        SELECT FROM dagapp.dag_jobs j
        WHERE j.job_id = t.job_id AND (j.status IN ('pending', 'running')
            OR t.asset_id IS NULL
            OR EXISTS (
                SELECT FROM dagapp.asset_versions v
                WHERE v.asset_id = t.asset_id AND v.version_ordinal = t.version_ordinal AND v.current_job_id = t.job_id
                    AND v.deleted_at IS NULL
            ))
    );

-- list_tables_of_version --
-- The tables that jobs created for a version, by the comments on the tables, and the command that drops each.
SELECT format('%s.%s', n.nspname, c.relname) AS table_name, format('DROP TABLE %I.%I', n.nspname, c.relname) AS command
FROM pg_class c
JOIN pg_namespace n ON n.oid = c.relnamespace
CROSS JOIN LATERAL (SELECT obj_description(c.oid, 'pg_class') AS comment) d
WHERE n.nspname = 'geo' AND c.relkind = 'r'
    AND CASE WHEN d.comment LIKE '{"dagmaster": {%}}'
        THEN d.comment::jsonb -> 'dagmaster' @> jsonb_build_object(
            'asset_id', :asset_id::text, 'version_ordinal', :version_ordinal::int
        ) END
ORDER BY 1;
