-- oldest_transaction --
-- The oldest transaction of other sessions in this database; their queries are not shown.
SELECT pid, application_name, state, xact_start, query_start,
    extract(epoch FROM clock_timestamp() - xact_start)::float AS seconds
FROM pg_stat_activity
WHERE datname = current_database() AND backend_type = 'client backend' AND pid <> pg_backend_pid()
    AND xact_start IS NOT NULL AND (NOT :idle::boolean OR state LIKE 'idle in transaction%')
ORDER BY CASE WHEN :idle::boolean THEN state_change ELSE xact_start END LIMIT 1;

-- longest_lock_wait --
SELECT l.pid, a.application_name, l.locktype, l.relation::regclass::text AS relation, l.mode,
    extract(epoch FROM clock_timestamp() - l.waitstart)::float AS seconds
FROM pg_locks l LEFT JOIN pg_stat_activity a ON a.pid = l.pid
WHERE NOT l.granted AND l.waitstart IS NOT NULL AND (l.database IS NULL OR a.datname = current_database())
ORDER BY l.waitstart LIMIT 1;

-- table_health --
-- The partitions of the timeline count as one. Sizes are as of the last vacuum: measuring them would need locks.
SELECT CASE WHEN c.relispartition THEN 'dag_job_events' ELSE s.relname END AS name,
    sum(s.n_live_tup)::bigint AS live_rows, sum(s.n_dead_tup)::bigint AS dead_rows,
    max(greatest(s.last_vacuum, s.last_autovacuum)) AS last_vacuum_at,
    sum(current_setting('block_size')::bigint * (
        SELECT sum(p.relpages) FROM pg_class p
        WHERE p.oid IN (c.oid, c.reltoastrelid)
            OR p.oid IN (SELECT indexrelid FROM pg_index WHERE indrelid = c.oid)
    ))::bigint AS bytes
FROM pg_stat_user_tables s JOIN pg_class c ON c.oid = s.relid
WHERE s.schemaname = 'dagapp' GROUP BY 1 ORDER BY bytes DESC, 1;

-- partition_health --
SELECT count(*)::int AS partitions, min(c.relname) AS oldest, max(c.relname) AS newest,
    (SELECT count(*)::int FROM (SELECT FROM dagapp.dag_job_events_default LIMIT 1000) d) AS rows_in_default
FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid
WHERE i.inhparent = 'dagapp.dag_job_events'::regclass AND c.relname <> 'dag_job_events_default';

-- connection_use --
SELECT coalesce(sum(used), 0)::int AS used, current_setting('max_connections')::int AS most,
    coalesce(jsonb_object_agg(application, used), '{}') AS by_application
FROM (
    SELECT coalesce(nullif(application_name, ''), 'unnamed') AS application, count(*) AS used
    FROM pg_stat_activity WHERE backend_type = 'client backend' GROUP BY 1
) a;

-- server_health --
SELECT current_setting('server_version') AS version, current_setting('server_version_num')::int AS version_number,
    current_setting('fsync') AS fsync, current_setting('synchronous_commit') AS synchronous_commit,
    current_setting('autovacuum') AS autovacuum, current_setting('full_page_writes') AS full_page_writes,
    age(d.datfrozenxid)::bigint AS xid_age,
    (SELECT count(*)::int FROM pg_prepared_xacts) AS prepared,
    coalesce((SELECT extract(epoch FROM clock_timestamp() - min(prepared)) FROM pg_prepared_xacts), 0)::float
        AS oldest_prepared_seconds,
    (SELECT count(*)::int FROM pg_replication_slots) AS slots,
    coalesce((SELECT max(greatest(age(xmin), age(catalog_xmin))) FROM pg_replication_slots), 0)::bigint AS slot_xmin_age
FROM pg_database d WHERE d.datname = current_database();

-- vital_signs --
-- Active workers and orchestrators, and tasks without a worker.
SELECT clock_timestamp() AS now,
    (SELECT count(*)::int FROM dagapp.dag_workers
     WHERE status = 'active' AND last_heartbeat > clock_timestamp() - make_interval(secs => :worker_lost_seconds))
        AS workers,
    (SELECT count(*)::int FROM dagapp.dag_orchestrators
     WHERE status = 'running' AND heartbeat_at > clock_timestamp() - make_interval(secs => :orphan_seconds))
        AS orchestrators,
    (SELECT count(*)::int FROM dagapp.dag_tasks_waiting
     WHERE NOT held AND dispatched_at < clock_timestamp() - make_interval(secs => :stuck_seconds)) AS stuck_tasks,
    (SELECT count(*)::int FROM dagapp.dag_tasks_running t
     WHERE t.worker_id IS NOT NULL AND NOT EXISTS (
         SELECT FROM dagapp.dag_workers w WHERE w.worker_id = t.worker_id AND w.status = 'active'
             AND w.last_heartbeat > clock_timestamp() - make_interval(secs => :worker_lost_seconds)
     )) AS abandoned_tasks;
