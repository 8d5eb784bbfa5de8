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
