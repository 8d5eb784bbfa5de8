-- handlers_stamp --
-- Changes whenever a contract does.
SELECT count(*) AS handlers, max(registered_at) AS changed_at FROM dagapp.dag_handlers;

-- list_contracts --
-- The columns that decide where and how tasks run, and their parameters. Schemas beyond the size limit are left out.
SELECT name, queue, timeout_seconds, retry,
    CASE WHEN sum(octet_length(params::text)) OVER (ORDER BY name) <= :max_schema_bytes THEN params END AS params
FROM dagapp.dag_handlers;

-- uniform_handlers --
-- The handlers among these whose registered contract all their workers share. Only changes are written: a worker that
-- registered after the last change has the same contract, an earlier one may have another.
SELECT h.name FROM dagapp.dag_handlers h
JOIN dagapp.dag_workers w ON w.status = 'active' AND (w.handlers IS NULL OR h.name = ANY(w.handlers))
    AND w.wanted = 'run' AND w.last_heartbeat > clock_timestamp() - make_interval(secs => :lost_after_seconds)
WHERE h.name = ANY(:names)
GROUP BY h.name, h.registered_at, h.registered_by
HAVING bool_and(w.started_at >= h.registered_at OR w.worker_id IS NOT DISTINCT FROM h.registered_by);

-- known_handlers --
-- The names among these that a worker has registered.
SELECT name FROM unnest(:names::text[]) AS n(name)
WHERE EXISTS (
    SELECT FROM dagapp.dag_handlers h WHERE h.name = n.name OR (strpos(h.name, ':') > 0 AND translate(h.name, ':', '.') = n.name)
);

-- view_handlers --
-- Every registered handler, with its current workers, and whether all of them share this contract (as in
-- uniform_handlers).
SELECT h.name, h.queue, h.timeout_seconds, h.retry, h.params, h.documentation, h.registered_at,
    coalesce(r.workers, '{}')::text[] AS workers, coalesce(r.is_uniform, false) AS is_uniform
FROM dagapp.dag_handlers h
CROSS JOIN LATERAL (
    SELECT array_agg(w.worker_id ORDER BY w.worker_id) AS workers,
        bool_and(w.started_at >= h.registered_at OR w.worker_id IS NOT DISTINCT FROM h.registered_by) AS is_uniform
    FROM dagapp.dag_workers w
    WHERE w.status = 'active' AND w.wanted = 'run' AND (w.handlers IS NULL OR h.name = ANY(w.handlers))
        AND w.last_heartbeat > clock_timestamp() - make_interval(secs => :lost_after_seconds)
) r
WHERE (:name::text IS NULL OR h.name = :name) AND (:pattern::text IS NULL OR h.name ILIKE '%' || :pattern || '%')
ORDER BY h.name LIMIT :limit OFFSET :offset;

-- register_handlers --
-- Register the contracts of a worker's handlers. Unchanged rows are not written: the time of the last change tells
-- readers whether to reload.
INSERT INTO dagapp.dag_handlers AS h (name, queue, timeout_seconds, retry, params, documentation, registered_by)
SELECT DISTINCT ON (name) name, queue, timeout_seconds, retry, params, documentation, :worker_id
FROM json_to_recordset(:contracts::json) AS r(
    name text, queue text, timeout_seconds float, retry jsonb, params json, documentation text
)
ORDER BY name -- In a fixed order: concurrent registrations must not deadlock.
ON CONFLICT (name) DO UPDATE
SET queue = excluded.queue, timeout_seconds = excluded.timeout_seconds, retry = excluded.retry,
    params = excluded.params, documentation = excluded.documentation, registered_by = excluded.registered_by,
    registered_at = clock_timestamp()
WHERE (h.queue, h.timeout_seconds, h.retry, h.params::text, h.documentation) IS DISTINCT FROM
    (excluded.queue, excluded.timeout_seconds, excluded.retry, excluded.params::text, excluded.documentation);
