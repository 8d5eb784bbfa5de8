-- {seen_stac_items} --
-- The items of approved versions that a caller may see: all public ones, and for internal callers those with the other
-- clearances, of all platforms or of their own. `dagmaster.assets.exposure` decides the same for one version.
FROM dagapp.stac_items i
JOIN dagapp.geospatial_assets a ON a.asset_id = i.asset_id AND a.deleted_at IS NULL
JOIN dagapp.asset_versions v ON v.asset_id = i.asset_id AND v.version_ordinal = i.version_ordinal
    AND v.approval_state = 'approved' AND v.deleted_at IS NULL
WHERE (
    a.clearance_state = ANY (:public_clearances::dagapp.clearance_state[])
    AND (a.exposure_mode = 'all_versions' OR v.version_ordinal = a.latest_approved_version_ordinal)
    OR a.clearance_state = ANY (:inside_clearances::dagapp.clearance_state[])
    AND (:platform_id::text IS NULL OR a.platform_id = :platform_id)
)

-- {matching_stac_items} --
-- Items that meet all conditions. Boxes across the antimeridian extend beyond 180 degrees, so each is compared on both
-- sides of it.
{seen_stac_items}
    AND (:collections::text[] IS NULL OR i.collection_id = ANY (:collections::text[]))
    AND (:ids::text[] IS NULL OR i.item_id = ANY (:ids::text[]))
    AND (:bounds::box IS NULL OR i.bounds && :bounds::box OR i.bounds && :bounds::box + point(360, 0)
        OR i.bounds && :bounds::box - point(360, 0))
    AND (:during::tstzrange IS NULL OR i.during && :during::tstzrange)
    AND (:condition::text IS NULL
        OR jsonb_path_match(i.content, :condition::text::jsonpath, :condition_values::jsonb, silent => true))

-- search_stac_items --
-- The latest first.
SELECT i.collection_id, i.item_id, i.asset_id, i.version_ordinal, lower(i.during) AS at, i.content
{matching_stac_items}
    AND (:after_at::timestamptz IS NULL
        OR (lower(i.during), i.collection_id, i.item_id) < (:after_at::timestamptz, :after_collection::text, :after_id::text))
ORDER BY lower(i.during) DESC, i.collection_id DESC, i.item_id DESC
LIMIT :limit;

-- search_sorted_stac_items --
-- By up to three fields of the items, each up or down; those without the field last.
SELECT i.collection_id, i.item_id, i.asset_id, i.version_ordinal, lower(i.during) AS at, i.content
{matching_stac_items}
ORDER BY
    CASE WHEN NOT :first_descends::boolean THEN NULLIF(i.content #> :first_field::text[], 'null') END ASC NULLS LAST,
    CASE WHEN :first_descends::boolean THEN NULLIF(i.content #> :first_field::text[], 'null') END DESC NULLS LAST,
    CASE WHEN NOT :second_descends::boolean THEN NULLIF(i.content #> :second_field::text[], 'null') END ASC NULLS LAST,
    CASE WHEN :second_descends::boolean THEN NULLIF(i.content #> :second_field::text[], 'null') END DESC NULLS LAST,
    CASE WHEN NOT :third_descends::boolean THEN NULLIF(i.content #> :third_field::text[], 'null') END ASC NULLS LAST,
    CASE WHEN :third_descends::boolean THEN NULLIF(i.content #> :third_field::text[], 'null') END DESC NULLS LAST,
    i.collection_id, i.item_id
LIMIT :limit OFFSET :offset;

-- list_stac_collections --
-- The collections with an item that the caller may see, with the extent of these items.
SELECT c.collection_id, c.content, s.west, s.south, s.east, s.north, s.first_at, s.last_at
FROM dagapp.stac_collections c
JOIN (
    SELECT i.collection_id, min((i.bounds[1])[0]) AS west, min((i.bounds[1])[1]) AS south, max((i.bounds[0])[0]) AS east,
        max((i.bounds[0])[1]) AS north, min(lower(i.during)) AS first_at, max(upper(i.during)) AS last_at
    {seen_stac_items}
        AND (:collection_id::text IS NULL OR i.collection_id = :collection_id)
    GROUP BY i.collection_id
) AS s ON s.collection_id = c.collection_id
ORDER BY c.collection_id
LIMIT :limit;

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
