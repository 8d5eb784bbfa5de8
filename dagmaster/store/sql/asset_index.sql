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
