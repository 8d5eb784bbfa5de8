-- {platform} --
platform_id, display_name, required_refs, optional_refs, is_active, allowed_workflows, created_at, updated_at

-- list_platforms --
-- All platforms, or the one with this id.
SELECT {platform} FROM dagapp.platforms
WHERE :platform_id::text IS NULL OR platform_id = :platform_id ORDER BY platform_id;

-- add_platform --
-- No row if the id exists.
INSERT INTO dagapp.platforms (platform_id, display_name, required_refs, optional_refs, is_active, allowed_workflows)
VALUES (:platform_id, :display_name, :required_refs, :optional_refs, :is_active, :allowed_workflows)
ON CONFLICT (platform_id) DO NOTHING
RETURNING {platform};

-- change_platform --
-- Null leaves a column as it is; allowed_workflows can become null, so a flag says whether it changes.
UPDATE dagapp.platforms
SET display_name = coalesce(:display_name, display_name),
    optional_refs = coalesce(:optional_refs::text[], optional_refs),
    is_active = coalesce(:is_active, is_active),
    allowed_workflows = CASE WHEN :changes_workflows THEN :allowed_workflows::text[] ELSE allowed_workflows END,
    updated_at = clock_timestamp()
WHERE platform_id = :platform_id
RETURNING {platform};

-- seed_platforms --
-- Add the missing default platforms.
SELECT dagapp.seed_platforms() AS added;
