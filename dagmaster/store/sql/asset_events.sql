-- list_asset_events --
-- The history of an asset, oldest first.
SELECT event_id, asset_id, version_ordinal, event_type, actor, reason, job_id, event_data, created_at
FROM dagapp.asset_events WHERE asset_id = :asset_id AND (:version_ordinal::int IS NULL OR version_ordinal = :version_ordinal)
ORDER BY event_id
LIMIT :limit OFFSET :offset;
