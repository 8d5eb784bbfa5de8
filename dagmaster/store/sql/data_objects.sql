-- {no_task_needs_it} --
-- For `object`: the nodes that use it have ended, and so have the jobs in which it was passed on.
NOT EXISTS (
    SELECT FROM dagapp.data_object_uses AS use
    WHERE use.object_id = object.object_id AND (
        EXISTS (
            SELECT FROM dagapp.dag_node_states AS node
            WHERE node.job_id = use.job_id AND node.node_id = use.node_id
                AND node.status <> ALL(:terminal_nodes::dagapp.node_status[])
        )
        OR (use.is_passed_on AND EXISTS (
            SELECT FROM dagapp.dag_jobs AS job
            WHERE job.job_id = use.job_id AND job.status <> ALL(:terminal::dagapp.job_status[])
        ))
    )
)

-- {may_have_another} --
-- Whether the job has fewer than :max_tables.
:max_tables::int IS NULL
    OR :job_id::bigint IS NULL
    OR (SELECT count(*) FROM dagapp.data_objects WHERE job_id = :job_id) < :max_tables

-- announce_data_object --
-- The entry of a table that does not exist yet, unless its job already has :max_tables.
INSERT INTO dagapp.data_objects (object_id, name, scope, job_id, task_id, program_id, location, plan, sql, inputs)
SELECT :object_id, :name, :scope::dagapp.data_scope, :job_id, :task_id, :program_id, :location, :plan::jsonb, :sql, :inputs::bigint[]
WHERE {may_have_another};

-- {replace_others} --
-- Older tables with the name of `completed` in the same scope expire.
UPDATE dagapp.data_objects AS other SET state = 'expired'
FROM completed
WHERE other.name = completed.name AND other.scope = completed.scope
    AND (other.scope = 'global' OR other.job_id IS NOT DISTINCT FROM completed.job_id)
    AND other.location = completed.location AND other.object_id <> completed.object_id AND other.state = 'ready'

-- add_inline_data_object --
-- The entry of a small table with its rows, unless its job already has :max_tables.
WITH completed AS (
    INSERT INTO dagapp.data_objects (
        object_id, name, scope, state, job_id, task_id, program_id, location, inputs, row_count, size_bytes, columns,
        inline_rows, has_table
    )
    SELECT :object_id, :name, :scope::dagapp.data_scope, 'ready', :job_id, :task_id, :program_id, :location,
        :inputs::bigint[], :row_count, :size_bytes, :columns::jsonb, :inline_rows::bytea, false
    WHERE {may_have_another}
    RETURNING object_id, name, scope, job_id, location
), replaced AS ({replace_others})
SELECT object_id FROM completed;

-- find_inline_data_objects --
-- Entries without a table.
SELECT object_id, inline_rows, columns FROM dagapp.data_objects
WHERE object_id = ANY(:object_ids::bigint[]) AND inline_rows IS NOT NULL AND state <> 'creating';

-- expect_table --
-- A table is about to be created from the rows; from now on a drop looks for it.
UPDATE dagapp.data_objects SET has_table = true WHERE object_id = :object_id AND NOT has_table;

-- lock_entry --
-- Keeps the entry from expiring until the end of the transaction.
SELECT state FROM dagapp.data_objects WHERE object_id = :object_id FOR NO KEY UPDATE;

-- clear_inline_rows --
-- The rows are in the table now.
UPDATE dagapp.data_objects SET inline_rows = NULL WHERE object_id = :object_id;

-- use_data_objects --
-- The tables among these that a job may read: global ones, and those of its parent and child jobs.
WITH RECURSIVE ancestry AS (
    SELECT job_id AS start_id, job_id, parent_job_id FROM dagapp.dag_jobs
    WHERE job_id = :job_id
        OR job_id IN (SELECT object.job_id FROM dagapp.data_objects AS object WHERE object_id = ANY(:object_ids::bigint[]))
    UNION ALL
    SELECT ancestry.start_id, parent.job_id, parent.parent_job_id
    FROM ancestry JOIN dagapp.dag_jobs AS parent ON parent.job_id = ancestry.parent_job_id
), family AS (
    SELECT other.start_id AS job_id
    FROM ancestry AS own JOIN ancestry AS other ON other.job_id = own.job_id
    WHERE own.start_id = :job_id
), allowed AS (
    SELECT object.object_id FROM dagapp.data_objects AS object
    WHERE object.object_id = ANY(:object_ids::bigint[])
        AND object.state IN ('ready', 'expired')
        AND (object.scope = 'global' OR object.job_id IN (SELECT job_id FROM family))
        AND (object.state = 'ready' OR EXISTS (
            SELECT FROM dagapp.data_object_uses AS use
            WHERE use.object_id = object.object_id AND use.job_id = :job_id
        ))
), used AS (
    INSERT INTO dagapp.data_object_uses (object_id, job_id, node_id)
    SELECT object_id, :job_id, :node_id FROM allowed
    ON CONFLICT DO NOTHING
)
SELECT object_id FROM allowed;

-- complete_data_object --
-- The table has its rows; older tables with the same name in the same scope expire.
WITH completed AS (
    UPDATE dagapp.data_objects
    SET state = 'ready', row_count = :row_count, size_bytes = :size_bytes, columns = :columns::jsonb
    WHERE object_id = :object_id AND state <> 'expired'
    RETURNING object_id, name, scope, job_id, location
)
{replace_others};

-- find_data_object --
-- The newest ready table of this name: global, or of this job.
SELECT object_id FROM dagapp.data_objects
WHERE name = :name AND scope = :scope::dagapp.data_scope AND location = :location AND state = 'ready'
    AND (scope = 'global' OR job_id IS NOT DISTINCT FROM :job_id::bigint)
ORDER BY object_id DESC LIMIT 1;

-- lock_data_object --
-- One transaction at a time may append.
SELECT pg_advisory_xact_lock(hashtextextended('dagmaster append', :object_id::bigint));

-- keep_data_objects --
-- Temporary tables that a task passes on become tables of its job.
UPDATE dagapp.data_objects SET scope = 'job'
WHERE object_id = ANY(:object_ids::bigint[]) AND scope IN ('temp', 'job') AND state = 'ready';

-- expire_data_objects --
-- Mark these tables to be dropped.
UPDATE dagapp.data_objects SET state = 'expired' WHERE object_id = ANY(:object_ids::bigint[])
RETURNING object_id, has_table;

-- expire_ended_data_objects --
-- Expire temporary and unfinished tables whose task no longer runs or whose program has lost its lease, and tables of
-- jobs that ended long enough ago or were removed, unless an open task uses them.
UPDATE dagapp.data_objects AS object SET state = 'expired'
WHERE object.state <> 'expired'
    AND CASE
        WHEN object.scope = 'global' AND object.state = 'ready' THEN false
        WHEN object.job_id IS NULL THEN NOT EXISTS (
            SELECT FROM dagapp.data_programs AS program
            WHERE program.program_id = object.program_id
                AND program.heartbeat_at > now() - make_interval(secs => :lease_seconds::float8)
        )
        WHEN object.scope = 'temp' OR object.state = 'creating'
            THEN NOT EXISTS (SELECT FROM dagapp.dag_tasks_running AS task WHERE task.task_id = object.task_id)
            AND object.created_at < now() - make_interval(secs => :grace_seconds::float8)
        ELSE NOT EXISTS (
            WITH RECURSIVE ancestry AS (
                SELECT job.job_id, job.parent_job_id, job.status, job.completed_at
                FROM dagapp.dag_jobs AS job WHERE job.job_id = object.job_id
                UNION ALL
                SELECT parent.job_id, parent.parent_job_id, parent.status, parent.completed_at
                FROM ancestry JOIN dagapp.dag_jobs AS parent ON parent.job_id = ancestry.parent_job_id
            )
            SELECT FROM ancestry
            WHERE NOT (
                status = ANY(:terminal::dagapp.job_status[])
                AND completed_at < now() - make_interval(secs => :retention_seconds::float8)
            )
        )
    END
    AND {no_task_needs_it};

-- beat_data_program --
-- Renew the lease of a program that has tables open.
INSERT INTO dagapp.data_programs (program_id) VALUES (:program_id)
ON CONFLICT (program_id) DO UPDATE SET heartbeat_at = now();

-- end_data_program --
-- The program has dropped its temporary tables.
DELETE FROM dagapp.data_programs WHERE program_id = :program_id;

-- forget_data_programs --
-- Programs that lost their lease and have no tables left.
DELETE FROM dagapp.data_programs AS program
WHERE program.heartbeat_at < now() - make_interval(secs => :lease_seconds::float8)
    AND NOT EXISTS (SELECT FROM dagapp.data_objects AS object WHERE object.program_id = program.program_id);

-- expired_data_objects --
-- Tables of an engine to drop, oldest first. A table whose name was taken over may still be in use.
SELECT object.object_id FROM dagapp.data_objects AS object
WHERE object.state = 'expired' AND object.location = :location AND (object.name IS NULL OR {no_task_needs_it})
ORDER BY object.object_id LIMIT :limit;

-- forget_inline_data_objects --
-- Remove expired entries that never had a table.
WITH forgotten AS (
    DELETE FROM dagapp.data_objects AS object
    WHERE object.state = 'expired' AND NOT object.has_table AND {no_task_needs_it}
    RETURNING object_id
)
DELETE FROM dagapp.data_object_uses AS use USING forgotten WHERE use.object_id = forgotten.object_id;

-- forget_data_objects --
-- Remove entries whose tables were dropped.
WITH forgotten AS (
    DELETE FROM dagapp.data_objects
    WHERE object_id = ANY(:object_ids::bigint[]) AND state = 'expired'
    RETURNING object_id
)
DELETE FROM dagapp.data_object_uses AS use USING forgotten WHERE use.object_id = forgotten.object_id;

-- {shown_objects} --
SELECT object_id, name, scope, state, job_id, task_id, location, row_count, size_bytes, columns, plan, sql, inputs,
    created_at
FROM dagapp.data_objects

-- list_data_objects --
-- The newest first; of one scope or job, or with this id or text in the name, if these are not null.
{shown_objects}
WHERE (:scope::dagapp.data_scope IS NULL OR scope = :scope)
    AND (:job_id::bigint IS NULL OR job_id = :job_id)
    AND (:text::text IS NULL OR object_id = :object_id::bigint OR position(lower(:text) IN lower(name)) > 0)
ORDER BY object_id DESC LIMIT :limit OFFSET :offset;

-- find_queryable_data_objects --
-- Ready tables of an engine by id, by global name, or by job and name.
SELECT object_id, name, scope, job_id, columns FROM dagapp.data_objects
WHERE location = :location AND state = 'ready' AND scope IN ('job', 'global')
    AND (
        object_id = ANY(:object_ids::bigint[])
        OR (scope = 'global' AND name = ANY(:names::text[]))
        OR (scope = 'job' AND (job_id, name) IN (SELECT * FROM unnest(:job_ids::bigint[], :job_names::text[])))
    )
ORDER BY object_id;

-- list_queryable_data_objects --
-- Ready tables of one engine or all; named and new ones first.
SELECT object_id, name, scope, job_id FROM dagapp.data_objects
WHERE (:location::text IS NULL OR location = :location) AND state = 'ready' AND scope IN ('job', 'global')
ORDER BY name IS NULL, object_id DESC LIMIT :limit;

-- get_data_object --
-- By id, or by the name of a global table.
{shown_objects}
WHERE object_id = :object_id OR (name = :name AND scope = 'global' AND state = 'ready')
ORDER BY object_id DESC LIMIT 1;

-- data_lineage --
-- A table and all tables that it was computed from; of dropped ones only the id.
WITH RECURSIVE lineage AS (
    SELECT :object_id::bigint AS object_id
    UNION
    SELECT unnest(object.inputs)
    FROM lineage JOIN dagapp.data_objects AS object ON object.object_id = lineage.object_id
)
SELECT lineage.object_id, object.name, object.scope, object.state, object.job_id, job.workflow_id, object.task_id,
    object.row_count, object.columns, object.plan, object.sql, coalesce(object.inputs, '{}') AS inputs, object.created_at
FROM lineage
LEFT JOIN dagapp.data_objects AS object ON object.object_id = lineage.object_id
LEFT JOIN dagapp.dag_jobs AS job ON job.job_id = object.job_id
ORDER BY lineage.object_id = :object_id DESC, lineage.object_id DESC LIMIT :limit;
