-- dead_rows --
-- Which of the hot tables carry so many dead rows that claims would feel it.
SELECT relname FROM pg_stat_user_tables
WHERE schemaname = 'dagapp' AND relname IN ('dag_tasks_waiting', 'dag_tasks_running', 'dag_mailbox')
    AND n_dead_tup > :threshold;

-- vacuum_dag_tasks_waiting --
VACUUM (TRUNCATE off, PARALLEL 0, SKIP_LOCKED) dagapp.dag_tasks_waiting;

-- vacuum_dag_tasks_running --
VACUUM (TRUNCATE off, PARALLEL 0, SKIP_LOCKED) dagapp.dag_tasks_running;

-- vacuum_dag_mailbox --
VACUUM (TRUNCATE off, PARALLEL 0, SKIP_LOCKED) dagapp.dag_mailbox;

-- is_read_only --
-- Whether nothing can be written: a standby, or a server that somebody has made so.
SELECT pg_is_in_recovery() OR current_setting('transaction_read_only') = 'on' AS is_read_only;

-- schema_revision --
-- Null when the schema was never made.
SELECT to_regclass('dagapp.alembic_version') IS NOT NULL AS is_there;

-- schema_version --
SELECT version_num FROM dagapp.alembic_version;
