-- schema_revision --
-- False if the schema does not exist.
SELECT to_regclass('dagapp.alembic_version') IS NOT NULL AS is_there;

-- schema_version --
SELECT version_num FROM dagapp.alembic_version;

-- database_name --
SELECT current_database()::text AS name;

-- is_read_only --
-- Whether writes fail: a standby, or a server that was made read-only.
SELECT pg_is_in_recovery() OR current_setting('transaction_read_only') = 'on' AS is_read_only;

-- view_tables --
-- The tables of the schema with estimated sizes; partitions count for their table.
SELECT c.relname AS name, greatest(sum(p.reltuples), 0)::bigint AS estimated_rows,
    sum(pg_total_relation_size(p.oid))::bigint AS bytes
FROM pg_class c
JOIN pg_namespace s ON s.oid = c.relnamespace AND s.nspname = 'dagapp'
JOIN pg_class p ON p.oid = c.oid OR p.oid IN (SELECT inhrelid FROM pg_inherits WHERE inhparent = c.oid)
WHERE c.relkind IN ('r', 'p') AND NOT c.relispartition
GROUP BY c.relname ORDER BY c.relname;

-- view_missing_partitions --
-- For today and tomorrow.
SELECT count(*)::int AS missing FROM generate_series(0, 1) AS n
WHERE to_regclass('dagapp.dag_job_events_' || to_char((now() AT TIME ZONE 'UTC')::date + n::int, 'YYYYMMDD')) IS NULL;

-- ensure_event_partitions --
SELECT dagapp.ensure_event_partitions(:days_ahead) AS made;

-- drop_schema --
-- Drop everything.
DROP SCHEMA IF EXISTS dagapp, gateway CASCADE;

-- dead_rows --
-- The hot tables with so many dead rows that claims slow down.
SELECT relname FROM pg_stat_user_tables
WHERE schemaname = 'dagapp' AND relname IN ('dag_tasks_waiting', 'dag_tasks_running', 'dag_mailbox')
    AND n_dead_tup > :threshold;

-- vacuum_dag_tasks_waiting --
VACUUM (TRUNCATE off, PARALLEL 0, SKIP_LOCKED) dagapp.dag_tasks_waiting;

-- vacuum_dag_tasks_running --
VACUUM (TRUNCATE off, PARALLEL 0, SKIP_LOCKED) dagapp.dag_tasks_running;

-- vacuum_dag_mailbox --
VACUUM (TRUNCATE off, PARALLEL 0, SKIP_LOCKED) dagapp.dag_mailbox;
