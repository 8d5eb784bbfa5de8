-- {incoming_jobs} --
incoming AS MATERIALIZED (
    SELECT * FROM json_to_recordset(:jobs::json) AS r(
        job_id bigint, workflow_id text, workflow_version int, workflow_hash text, priority int, input_params jsonb,
        input_bytes bigint, metadata jsonb, submitted_by text, correlation_id text, idempotency_key text, request_hash text,
        callback_url text, asset_id text, version_ordinal int, trace_parent text, shown_params jsonb, actor text,
        schedule_id text, scheduled_for timestamptz, parent_job_id bigint, parent_node_id text, parent_task_id text
    )
), alive AS MATERIALIZED (
    SELECT orchestrator_id FROM dagapp.dag_orchestrators
    WHERE status = 'running' AND heartbeat_at > clock_timestamp() - make_interval(secs => :threshold_seconds)
    ORDER BY random() LIMIT 1
)

-- {new_job} --
    INSERT INTO dagapp.dag_jobs (
        job_id, workflow_id, workflow_version, workflow_hash, status, priority, input_params, input_bytes,
        metadata, submitted_by, correlation_id, idempotency_key, request_hash, callback_url, asset_id, version_ordinal,
        trace_parent, schedule_id, scheduled_for,
        parent_job_id, parent_node_id, parent_task_id,
        owner_id, owner_epoch, owner_heartbeat_at, created_at
    )
    SELECT i.job_id, i.workflow_id, i.workflow_version, i.workflow_hash, 'pending', i.priority, i.input_params,
        i.input_bytes, coalesce(i.metadata, '{}'), coalesce(i.submitted_by, ''), i.correlation_id, i.idempotency_key,
        i.request_hash, i.callback_url, i.asset_id, i.version_ordinal, i.trace_parent, i.schedule_id, i.scheduled_for,
        i.parent_job_id, i.parent_node_id, i.parent_task_id,
        coalesce(:owner_id, (SELECT orchestrator_id FROM alive)), 1, clock_timestamp(), clock_timestamp()
    FROM incoming i
    WHERE (i.parent_job_id IS NULL OR EXISTS ( -- An ended attempt starts no child job.
        SELECT FROM dagapp.dag_node_states n
        WHERE n.job_id = i.parent_job_id AND n.node_id = i.parent_node_id AND n.task_id = i.parent_task_id
            AND n.status = 'running'
    ))

-- {stored_jobs} --
-- With nodes, events and mail, in a fixed order, so that concurrent submissions do not deadlock.
    ORDER BY i.submitted_by, i.idempotency_key, i.job_id
    ON CONFLICT (submitted_by, idempotency_key) WHERE idempotency_key IS NOT NULL DO NOTHING
    RETURNING *
), nodes AS (
    INSERT INTO dagapp.dag_node_states (job_id, node_id, status, max_retries, created_at)
    SELECT a.job_id, n.node_id, 'pending', n.max_retries, a.created_at
    FROM added a
    JOIN json_to_recordset(:nodes::json) AS n(workflow_hash text, node_id text, max_retries int) USING (workflow_hash)
), events AS ( -- One insert for both kinds: its setup costs more than its rows.
    INSERT INTO dagapp.dag_job_events (job_id, event_type, event_status, created_at, event_data, source_app)
    SELECT i.job_id, 'job_created'::dagapp.event_type, 'info'::dagapp.event_status,
        (SELECT min(created_at) FROM added), jsonb_build_object(
            'workflow_id', i.workflow_id, 'workflow_version', i.workflow_version, 'workflow_hash', i.workflow_hash,
            'input_params', i.shown_params, 'submitted_by', nullif(i.submitted_by, ''), 'actor', i.actor,
            'correlation_id', i.correlation_id, 'priority', i.priority
        ), :source_app
    FROM incoming i WHERE i.job_id IN (SELECT job_id FROM added)
    UNION ALL
    SELECT a.job_id, 'job_warning', 'warning', a.created_at, jsonb_build_object(
        'warning', 'the workflow has other content than an earlier job of the same version',
        'workflow_id', a.workflow_id, 'workflow_version', a.workflow_version
    ), :source_app
    FROM added a
    WHERE EXISTS (
        SELECT FROM dagapp.dag_workflows w
        WHERE w.workflow_id = a.workflow_id AND w.version = a.workflow_version AND w.workflow_hash <> a.workflow_hash
    )
), mail AS (
    INSERT INTO dagapp.dag_mailbox (job_id, kind) SELECT job_id, 'submitted' FROM added ORDER BY job_id
    RETURNING mail_id
), told AS ( -- The notification of a single job carries it.
    SELECT CASE WHEN j.input_bytes <= {max_payload_bytes} / 2 AND :is_single::boolean THEN {new_job_payload} ELSE '' END
        AS payload
    FROM added j CROSS JOIN mail m LIMIT 1
)
SELECT job_id, owner_id, owner_epoch, created_at, (
    SELECT pg_notify('dagmaster_mail', CASE WHEN octet_length(payload) <= {max_payload_bytes} THEN payload ELSE '' END)
    FROM told WHERE :notifies::boolean
)
FROM added

-- submit_jobs --
-- Store jobs with their definitions and nodes, owned by :owner_id or by a live orchestrator, which gets mail. A job
-- whose idempotency key is taken is neither stored nor returned.
WITH {incoming_jobs}, pinned AS (
    INSERT INTO dagapp.dag_workflows (workflow_hash, workflow_id, version, definition)
    SELECT r.workflow_hash, r.workflow_id, r.version, r.definition
    FROM json_to_recordset(:workflows::json) AS r(workflow_hash text, workflow_id text, version int, definition jsonb)
    ORDER BY r.workflow_hash
    ON CONFLICT (workflow_hash) DO NOTHING
), added AS (
{new_job}
{stored_jobs};

-- submit_pinned_jobs --
-- The same if all definitions exist; otherwise nothing is stored. A lock that conflicts only with deletes keeps the
-- definitions from being removed meanwhile.
WITH {incoming_jobs}, pinned AS (
    DELETE FROM dagapp.dag_workflows WHERE false
), added AS (
{new_job} AND NOT EXISTS (
        SELECT FROM incoming u
        WHERE NOT EXISTS (SELECT FROM dagapp.dag_workflows w WHERE w.workflow_hash = u.workflow_hash)
    )
{stored_jobs};

-- find_by_idempotency_key --
-- The job that a submitter has stored with this key.
SELECT job_id, request_hash, status FROM dagapp.dag_jobs
WHERE submitted_by = :submitted_by AND idempotency_key = :idempotency_key;

-- use_tables_of_inputs --
-- Jobs use the tables of their inputs until they end.
INSERT INTO dagapp.data_object_uses (object_id, job_id, node_id, is_passed_on)
SELECT object_id, job_id, '', true
FROM json_to_recordset(:uses::json) AS r(object_id bigint, job_id bigint)
WHERE EXISTS (SELECT FROM dagapp.data_objects AS object WHERE object.object_id = r.object_id AND object.state <> 'expired')
ON CONFLICT DO NOTHING;
