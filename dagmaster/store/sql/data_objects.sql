-- announce_data_object --
-- The entry of a table that does not exist yet.
INSERT INTO dagapp.data_objects (object_id, name, scope, job_id, task_id, location, plan, sql)
VALUES (:object_id, :name, :scope::dagapp.data_scope, :job_id, :task_id, :location, :plan::jsonb, :sql);

-- complete_data_object --
-- The table has its rows; others of the same name in the same scope expire.
WITH completed AS (
    UPDATE dagapp.data_objects
    SET state = 'ready', row_count = :row_count, size_bytes = :size_bytes, columns = :columns::jsonb
    WHERE object_id = :object_id AND state <> 'expired'
    RETURNING object_id, name, scope, job_id, location
)
UPDATE dagapp.data_objects AS other
SET state = 'expired'
FROM completed
WHERE other.name = completed.name
    AND other.scope = completed.scope
    AND (other.scope = 'global' OR other.job_id IS NOT DISTINCT FROM completed.job_id)
    AND other.location = completed.location
    AND other.object_id <> completed.object_id
    AND other.state = 'ready';

-- find_data_object --
-- The newest ready table of this name: global, or of this job.
SELECT object_id
FROM dagapp.data_objects
WHERE name = :name
    AND scope = :scope::dagapp.data_scope
    AND (scope = 'global' OR job_id IS NOT DISTINCT FROM :job_id::bigint)
    AND location = :location
    AND state = 'ready'
ORDER BY object_id DESC
LIMIT 1;

-- keep_data_objects --
-- Temporary tables that a task passes on become tables of its job.
UPDATE dagapp.data_objects
SET scope = 'job'
WHERE object_id = ANY(:object_ids::bigint[]) AND scope IN ('temp', 'job') AND state = 'ready';

-- expire_data_objects --
-- These are to be dropped.
UPDATE dagapp.data_objects
SET state = 'expired'
WHERE object_id = ANY(:object_ids::bigint[]) AND state <> 'expired';

-- expire_ended_data_objects --
-- Temporary tables whose task no longer runs, and tables of jobs that ended long enough ago or were removed.
UPDATE dagapp.data_objects AS object
SET state = 'expired'
WHERE object.state <> 'expired'
    AND object.job_id IS NOT NULL
    AND CASE object.scope
        WHEN 'temp' THEN NOT EXISTS (SELECT FROM dagapp.dag_tasks_running AS task WHERE task.task_id = object.task_id)
            AND object.created_at < now() - make_interval(secs => :grace_seconds::float8)
        WHEN 'job' THEN NOT EXISTS (
            SELECT FROM dagapp.dag_jobs AS job
            WHERE job.job_id = object.job_id
                AND NOT (
                    job.status = ANY(:terminal::dagapp.job_status[])
                    AND job.completed_at < now() - make_interval(secs => :retention_seconds::float8)
                )
        )
        ELSE false
    END;

-- expired_data_objects --
-- Tables of an engine that are to be dropped, the oldest first.
SELECT object_id
FROM dagapp.data_objects
WHERE state = 'expired' AND location = :location
ORDER BY object_id
LIMIT :limit;

-- forget_data_objects --
-- Their tables are dropped.
DELETE FROM dagapp.data_objects WHERE object_id = ANY(:object_ids::bigint[]) AND state = 'expired';

-- list_data_objects --
-- The newest first; of one scope or job, if these are not null.
SELECT object_id, name, scope, state, job_id, task_id, location, row_count, size_bytes, columns, plan, sql, created_at
FROM dagapp.data_objects
WHERE (:scope::dagapp.data_scope IS NULL OR scope = :scope) AND (:job_id::bigint IS NULL OR job_id = :job_id)
ORDER BY object_id DESC
LIMIT :limit;

-- get_data_object --
-- By its id, or by the name of a global one.
SELECT object_id, name, scope, state, job_id, task_id, location, row_count, size_bytes, columns, plan, sql, created_at
FROM dagapp.data_objects
WHERE object_id = :object_id OR (name = :name AND scope = 'global' AND state = 'ready')
ORDER BY object_id DESC
LIMIT 1;
