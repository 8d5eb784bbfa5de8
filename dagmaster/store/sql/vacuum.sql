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
