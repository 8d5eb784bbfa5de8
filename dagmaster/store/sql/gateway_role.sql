-- find_role --
-- Whether create-reader created the role: no other role is ever changed.
SELECT shobj_description(oid, 'pg_authid') IS NOT DISTINCT FROM :mark AS is_reader FROM pg_roles WHERE rolname = :name;

-- reader_statements --
-- The statements that limit a role to reading the gateway's views, in order. The server quotes the names.
SELECT format(statement, :name::text, :verifier::text, current_database(), :mark::text, :connections::int) AS statement
FROM unnest(ARRAY[
    CASE WHEN :is_new THEN
        'CREATE ROLE %1$I LOGIN NOSUPERUSER NOCREATEDB NOCREATEROLE NOINHERIT NOREPLICATION NOBYPASSRLS CONNECTION LIMIT %5$s '
        'PASSWORD %2$L'
    ELSE 'ALTER ROLE %1$I LOGIN NOINHERIT CONNECTION LIMIT %5$s PASSWORD %2$L' END,
    'COMMENT ON ROLE %1$I IS %4$L',
    'ALTER ROLE %1$I SET default_transaction_read_only = on',
    'ALTER ROLE %1$I SET statement_timeout = ''30s''',
    'ALTER ROLE %1$I SET idle_in_transaction_session_timeout = ''60s''',
    'REVOKE ALL ON ALL TABLES IN SCHEMA dagapp, gateway FROM %1$I',
    'REVOKE ALL ON SCHEMA dagapp, gateway FROM %1$I',
    'REVOKE ALL ON DATABASE %3$I FROM %1$I',
    'REVOKE TEMPORARY ON DATABASE %3$I FROM PUBLIC',
    'GRANT CONNECT ON DATABASE %3$I TO %1$I',
    'GRANT USAGE ON SCHEMA gateway TO %1$I',
    'GRANT SELECT ON ALL TABLES IN SCHEMA gateway TO %1$I',
    'GRANT EXECUTE ON FUNCTION gateway.find_key(text, text) TO %1$I',
    'ALTER DEFAULT PRIVILEGES IN SCHEMA gateway GRANT SELECT ON TABLES TO %1$I'
]) WITH ORDINALITY AS step (statement, number) ORDER BY number;

-- reader_surplus --
-- What else the role could do, through PUBLIC or through membership in another role.
SELECT 'TEMPORARY on the database ' || current_database() AS surplus
WHERE has_database_privilege(:name, current_database(), 'TEMPORARY')
UNION ALL
SELECT 'CREATE on the database ' || current_database() WHERE has_database_privilege(:name, current_database(), 'CREATE')
UNION ALL
SELECT 'CREATE on the schema ' || nspname FROM pg_namespace
WHERE nspname !~ '^pg_(temp|toast)' AND has_schema_privilege(:name, oid, 'CREATE')
UNION ALL
SELECT 'USAGE on the schema dagapp' FROM pg_namespace
WHERE nspname = 'dagapp' AND has_schema_privilege(:name, oid, 'USAGE')
UNION ALL
SELECT 'membership of the role ' || r.rolname FROM pg_auth_members m
JOIN pg_roles r ON r.oid = m.roleid JOIN pg_roles reader ON reader.oid = m.member AND reader.rolname = :name;
