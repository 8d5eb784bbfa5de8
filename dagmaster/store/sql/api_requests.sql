-- add_request --
-- No row if the id, or the submitter's idempotency key, was used before.
INSERT INTO dagapp.dag_api_requests (
    request_id, platform_id, workflow_id, asset_id, submitted_by, idempotency_key, request_hash
)
VALUES (:request_id, :platform_id, :workflow_id, :asset_id, :submitted_by, :idempotency_key, :request_hash)
ON CONFLICT DO NOTHING
RETURNING request_id;

-- answer_request --
-- Record the job and the version that the request created.
UPDATE dagapp.dag_api_requests SET job_id = :job_id, version_ordinal = :version_ordinal
WHERE request_id = :request_id;

-- {requests} --
SELECT request_id, platform_id, workflow_id, asset_id, version_ordinal, job_id, status, error_message, submitted_by,
    idempotency_key, request_hash, created_at, completed_at
FROM dagapp.dag_api_requests

-- find_request --
-- By id, or by the submitter's idempotency key.
{requests}
WHERE request_id = :request_id OR (submitted_by = :submitted_by AND idempotency_key = :idempotency_key)
ORDER BY request_id = :request_id DESC LIMIT 1;

-- list_requests --
-- The newest first. :text is a request id, an idempotency key or a job's correlation id.
{requests}
WHERE (:platform_id::text IS NULL OR platform_id = :platform_id)
    AND (:status::text IS NULL OR status = :status::dagapp.job_status)
    AND (:asset_id::text IS NULL OR asset_id = :asset_id)
    AND (:text::text IS NULL OR request_id = ANY (ARRAY(
        SELECT r.request_id FROM dagapp.dag_api_requests r WHERE r.request_id = :text
        UNION
        SELECT r.request_id FROM dagapp.dag_api_requests r WHERE r.idempotency_key = :text
        UNION
        SELECT r.request_id FROM dagapp.dag_jobs j JOIN dagapp.dag_api_requests r USING (job_id)
        WHERE j.correlation_id = :text
    )))
ORDER BY created_at DESC, request_id
LIMIT :limit OFFSET :offset;
