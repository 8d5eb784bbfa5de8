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
