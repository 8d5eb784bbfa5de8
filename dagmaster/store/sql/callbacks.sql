-- claim_callbacks --
-- Claim due callbacks under a lease: if the claimer dies they become due again.
WITH due AS MATERIALIZED (
    SELECT callback_id FROM dagapp.dag_callbacks
    WHERE status = 'waiting' AND next_attempt_at <= clock_timestamp()
    ORDER BY next_attempt_at LIMIT :limit
    FOR UPDATE SKIP LOCKED
)
UPDATE dagapp.dag_callbacks c
SET attempts = c.attempts + 1, last_attempt_at = clock_timestamp(),
    next_attempt_at = clock_timestamp() + make_interval(secs => :lease_seconds)
FROM due WHERE c.callback_id = due.callback_id
RETURNING c.callback_id, c.job_id, c.url, c.job_status, c.attempts,
    (SELECT r.request_id FROM dagapp.dag_api_requests r WHERE r.job_id = c.job_id LIMIT 1) AS request_id;

-- close_callback --
-- The callback was delivered or is given up, unless another claim has superseded this one.
WITH closed AS (
    UPDATE dagapp.dag_callbacks
    SET status = :status::text, last_error = left(:error, 2000), response_status = :response_status,
        delivered_at = CASE WHEN :status::text = 'delivered' THEN clock_timestamp() END
    WHERE callback_id = :callback_id AND status = 'waiting' AND attempts = :attempts
    RETURNING *
)
INSERT INTO dagapp.dag_job_events (job_id, event_type, event_status, event_data, error_message, created_at, source_app)
SELECT job_id, CASE status WHEN 'delivered' THEN 'callback_delivered' ELSE 'callback_failed' END::dagapp.event_type,
    CASE status WHEN 'delivered' THEN 'success' ELSE 'failure' END::dagapp.event_status,
    jsonb_build_object(
        'callback_id', callback_id, 'host', :host::text, 'attempts', attempts, 'response_status', response_status
    ), last_error, clock_timestamp(), 'orchestrator'
FROM closed
RETURNING job_id;

-- postpone_callback --
-- Schedule a retry, unless another claim has superseded this one.
UPDATE dagapp.dag_callbacks
SET last_error = left(:error, 2000), response_status = :response_status,
    next_attempt_at = clock_timestamp() + make_interval(secs => :delay_seconds)
WHERE callback_id = :callback_id AND status = 'waiting' AND attempts = :attempts;
