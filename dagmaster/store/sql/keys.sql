-- add_key --
-- A new key, and an audit event with its creator.
WITH added AS (
    INSERT INTO dagapp.dag_api_keys (key_id, name, role, platform_id, key_hash, created_by, expires_at)
    VALUES (:key_id, :name, :role, :platform_id, :key_hash, :actor, :expires_at)
    RETURNING key_id, name, role, platform_id
)
INSERT INTO dagapp.dag_job_events (job_id, event_type, event_status, event_data, created_at, source_app)
SELECT 0, 'command', 'info', jsonb_build_object(
    'command', 'keys.create', 'actor', :actor::text, 'key_id', key_id, 'name', name, 'role', role, 'platform_id', platform_id
), clock_timestamp(), :source_app
FROM added;

-- find_key --
-- A valid key.
SELECT key_id, name, role, platform_id, key_hash, created_at, created_by, expires_at, revoked_at, last_used_at,
    coalesce(last_used_at < clock_timestamp() - interval '1 minute', true) AS is_use_old
FROM dagapp.dag_api_keys
WHERE key_id = :key_id AND revoked_at IS NULL AND coalesce(expires_at > clock_timestamp(), true);

-- touch_key --
-- Record the use of the key. A concurrent update is just as good, so nothing waits.
UPDATE dagapp.dag_api_keys SET last_used_at = clock_timestamp()
WHERE key_id = (SELECT key_id FROM dagapp.dag_api_keys WHERE key_id = :key_id FOR UPDATE SKIP LOCKED);

-- list_keys --
SELECT key_id, name, role, platform_id, created_at, created_by, expires_at, revoked_at, last_used_at
FROM dagapp.dag_api_keys ORDER BY created_at, key_id;

-- any_keys --
-- Whether any key is in use.
SELECT EXISTS (SELECT FROM dagapp.dag_api_keys WHERE revoked_at IS NULL) AS is_there;

-- revoke_key --
-- Revoke the key, and write an audit event. An id takes precedence over a name.
WITH meant AS MATERIALIZED (
    SELECT key_id FROM dagapp.dag_api_keys
    WHERE (key_id = :key_or_name OR name = :key_or_name) AND revoked_at IS NULL
    ORDER BY key_id = :key_or_name DESC LIMIT 1
), revoked AS (
    UPDATE dagapp.dag_api_keys k SET revoked_at = clock_timestamp()
    FROM meant WHERE k.key_id = meant.key_id AND k.revoked_at IS NULL
    RETURNING k.key_id, k.name, k.role, k.platform_id, k.created_at, k.created_by, k.expires_at, k.revoked_at,
        k.last_used_at
), noted AS (
    INSERT INTO dagapp.dag_job_events (job_id, event_type, event_status, event_data, created_at, source_app)
    SELECT 0, 'command', 'info', jsonb_build_object(
        'command', 'keys.revoke', 'actor', :actor::text, 'key_id', key_id, 'name', name, 'role', role, 'platform_id', platform_id
    ), clock_timestamp(), :source_app
    FROM revoked
)
SELECT * FROM revoked;
