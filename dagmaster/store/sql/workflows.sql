-- load_definitions --
-- Pinned definitions by hash.
SELECT workflow_hash, definition FROM dagapp.dag_workflows WHERE workflow_hash = ANY(:hashes);

-- workflow_names --
-- The names of pinned definitions, as they were given.
SELECT workflow_hash, definition ->> 'name' AS name FROM dagapp.dag_workflows WHERE workflow_hash = ANY(:hashes);

-- newest_definition --
-- The last pinned definition of a workflow.
SELECT definition::text AS definition FROM dagapp.dag_workflows WHERE workflow_id = :workflow_id
ORDER BY created_at DESC, version DESC LIMIT 1;

-- newest_versions --
-- The newest definitions of workflows that have jobs.
SELECT DISTINCT ON (workflow_id) workflow_id, version, definition ->> 'name' AS name,
    definition ->> 'description' AS description
FROM dagapp.dag_workflows WHERE workflow_id = ANY(:workflow_ids)
ORDER BY workflow_id, created_at DESC;

-- workflow_versions --
-- The pinned definitions of a workflow, newest first, with their number of runs among its newest jobs.
WITH jobs AS (
    SELECT workflow_hash, count(*)::int AS runs, min(created_at) AS first_at, max(created_at) AS last_at
    FROM (
        SELECT workflow_hash, created_at FROM dagapp.dag_jobs WHERE workflow_id = :workflow_id
        ORDER BY created_at DESC LIMIT :scan
    ) newest
    GROUP BY workflow_hash
)
SELECT w.workflow_hash, w.version, w.created_at, coalesce(j.runs, 0) AS runs, j.first_at, j.last_at
FROM dagapp.dag_workflows w LEFT JOIN jobs j ON j.workflow_hash = w.workflow_hash
WHERE w.workflow_id = :workflow_id
ORDER BY coalesce(j.last_at, w.created_at) DESC LIMIT :limit;

-- nodes_of_definitions --
-- The names of the nodes of these definitions.
SELECT DISTINCT jsonb_object_keys(definition -> 'nodes') AS node_id
FROM dagapp.dag_workflows WHERE workflow_hash = ANY(:hashes);

-- workflow_runs --
-- The newest jobs of workflows, newest first; without an id, of the workflows that ran last. Names are found by index
-- skips, without reading every job. BETWEEN, not `=`, so that the index by workflow is used: by time alone, a workflow
-- that has not run for long would be searched in all jobs.
WITH RECURSIVE names AS (
    (
        SELECT workflow_id FROM dagapp.dag_jobs WHERE :workflow_id::text IS NULL OR workflow_id = :workflow_id
        ORDER BY workflow_id LIMIT 1
    )
    UNION ALL
    SELECT (SELECT j.workflow_id FROM dagapp.dag_jobs j WHERE j.workflow_id > n.workflow_id ORDER BY j.workflow_id LIMIT 1)
    FROM names n WHERE n.workflow_id IS NOT NULL AND :workflow_id::text IS NULL
), lately AS (
    SELECT n.workflow_id, last.created_at AS last_at
    FROM names n CROSS JOIN LATERAL (
        SELECT created_at FROM dagapp.dag_jobs WHERE workflow_id = n.workflow_id ORDER BY created_at DESC LIMIT 1
    ) last
    ORDER BY last.created_at DESC LIMIT :workflows
)
SELECT l.workflow_id, j.job_id, j.workflow_version, j.workflow_hash, j.status, j.paused_at, j.idle_seconds, j.error_message,
    j.created_at, j.started_at, j.completed_at
FROM lately l CROSS JOIN LATERAL (
    SELECT * FROM dagapp.dag_jobs WHERE workflow_id BETWEEN l.workflow_id AND l.workflow_id
    ORDER BY workflow_id DESC, created_at DESC LIMIT :runs
) j
ORDER BY l.last_at DESC, l.workflow_id, j.created_at DESC, j.job_id DESC;

-- last_reload --
-- The last request to reload the workflows.
SELECT max(event_id) AS event_id FROM dagapp.dag_job_events
WHERE job_id = 0 AND event_type = 'command' AND created_at > clock_timestamp() - interval '1 day'
    AND event_data ->> 'command' IN ('workflows.reload', 'cache.invalidate');
