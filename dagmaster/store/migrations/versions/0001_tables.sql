-- The types, tables and indexes of the first release.

CREATE TYPE dagapp.job_status AS ENUM ('pending', 'running', 'completed', 'failed', 'cancelled');
CREATE TYPE dagapp.event_type AS ENUM (
    'job_created', 'job_started', 'job_completed', 'job_failed', 'job_cancelled', 'job_warning', 'node_ready',
    'node_dispatched', 'node_started', 'node_completed', 'node_failed', 'node_retrying', 'node_skipped',
    'node_checkpoint', 'node_warning', 'result_ignored', 'orchestrator_cycle', 'orchestrator_error',
    'orchestrator_stall', 'orchestrator_backpressure', 'job_taken_over', 'command', 'job_paused', 'job_resumed',
    'job_reopened', 'node_reopened', 'callback_delivered', 'callback_failed', 'tasks_added', 'signal_received',
    'approval_requested', 'approval_decided', 'schedule_fired', 'schedule_missed'
);
CREATE TYPE dagapp.event_status AS ENUM ('success', 'failure', 'warning', 'info');
CREATE TYPE dagapp.node_status AS ENUM ('pending', 'ready', 'dispatched', 'running', 'completed', 'failed', 'skipped');
CREATE TYPE dagapp.ended_by AS ENUM (
    'result', 'failure', 'timeout', 'lost', 'given_back', 'revoked', 'cancelled', 'skipped'
);
CREATE TYPE dagapp.job_ended_by AS ENUM (
    'result', 'failure', 'deadline', 'no_progress', 'unprocessable', 'cancelled'
);
CREATE TYPE dagapp.task_status AS ENUM ('received', 'running', 'completed', 'failed');

CREATE TABLE dagapp.dag_api_keys (
    key_id varchar(16) PRIMARY KEY,
    name varchar(128) NOT NULL,
    role varchar(16) NOT NULL,
    key_hash varchar(64) NOT NULL,
    platform_id varchar(64),
    created_at timestamptz NOT NULL DEFAULT now(),
    created_by varchar(128) NOT NULL DEFAULT '',
    expires_at timestamptz,
    revoked_at timestamptz,
    last_used_at timestamptz,
    CONSTRAINT ck_dag_api_keys_role CHECK (role IN ('admin', 'operator', 'worker', 'partner', 'viewer', 'reviewer'))
);
CREATE UNIQUE INDEX uq_dag_api_keys_name ON dagapp.dag_api_keys (name) WHERE revoked_at IS NULL;

CREATE TABLE dagapp.dag_callbacks (
    callback_id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    job_id bigint NOT NULL,
    url text NOT NULL,
    job_status dagapp.job_status NOT NULL,
    status varchar(16) NOT NULL DEFAULT 'waiting',
    attempts integer NOT NULL DEFAULT 0,
    next_attempt_at timestamptz NOT NULL DEFAULT now(),
    last_attempt_at timestamptz,
    last_error varchar(2000),
    response_status integer,
    created_at timestamptz NOT NULL DEFAULT now(),
    delivered_at timestamptz
);
CREATE INDEX ix_dag_callbacks_due ON dagapp.dag_callbacks (next_attempt_at) WHERE status = 'waiting';
CREATE INDEX ix_dag_callbacks_failed ON dagapp.dag_callbacks (created_at) WHERE status = 'failed';
CREATE INDEX ix_dag_callbacks_job ON dagapp.dag_callbacks (job_id);

CREATE TABLE dagapp.dag_checkpoints (
    checkpoint_id bigint PRIMARY KEY,
    job_id bigint NOT NULL,
    node_id varchar(64) NOT NULL,
    task_id varchar(128) NOT NULL,
    phase_name varchar(128) NOT NULL,
    phase_index integer,
    phase_total integer,
    progress_current double precision,
    progress_total double precision,
    progress_message varchar(2000),
    state_data jsonb,
    artifacts_completed jsonb,
    artifacts_total integer,
    memory_bytes bigint,
    disk_bytes bigint,
    error_count integer NOT NULL DEFAULT 0,
    is_final boolean NOT NULL DEFAULT false,
    is_valid boolean NOT NULL DEFAULT true,
    created_at timestamptz NOT NULL DEFAULT now()
);
CREATE INDEX ix_dag_checkpoints_node ON dagapp.dag_checkpoints (job_id, node_id, checkpoint_id);

CREATE TABLE dagapp.dag_dependencies (
    job_id bigint NOT NULL,
    previous_id bigint NOT NULL,
    previous_type varchar(8) NOT NULL,
    next_id bigint NOT NULL,
    next_type varchar(8) NOT NULL,
    PRIMARY KEY (job_id, previous_id, previous_type, next_id, next_type)
);

CREATE TABLE dagapp.dag_groups (
    group_id bigint PRIMARY KEY,
    job_id bigint NOT NULL,
    parent_group_id bigint,
    name varchar(128) NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now()
);
CREATE INDEX ix_dag_groups_job ON dagapp.dag_groups (job_id);

CREATE TABLE dagapp.dag_handlers (
    name varchar(128) PRIMARY KEY,
    queue varchar(128),
    timeout_seconds double precision,
    retry jsonb,
    params json,
    documentation text NOT NULL DEFAULT '',
    registered_by varchar(32),
    registered_at timestamptz NOT NULL DEFAULT now()
);

CREATE TABLE dagapp.dag_job_events (
    job_id bigint NOT NULL,
    event_id bigint GENERATED ALWAYS AS IDENTITY,
    created_at timestamptz NOT NULL DEFAULT now(),
    node_id varchar(64),
    task_id varchar(128),
    event_type dagapp.event_type NOT NULL,
    event_status dagapp.event_status NOT NULL,
    checkpoint_name varchar(128),
    event_data jsonb,
    error_message varchar(2000),
    duration_ms bigint,
    source_app varchar(64) NOT NULL,
    PRIMARY KEY (job_id, event_id, created_at)
) PARTITION BY RANGE (created_at);

CREATE TABLE dagapp.dag_jobs (
    job_id bigint PRIMARY KEY,
    workflow_id varchar(64) NOT NULL,
    workflow_version integer NOT NULL,
    workflow_hash varchar(64) NOT NULL,
    status dagapp.job_status NOT NULL,
    priority integer NOT NULL,
    input_params jsonb NOT NULL DEFAULT '{}',
    input_bytes bigint,
    result_data jsonb,
    error_message varchar(2000),
    failed_node varchar(64),
    ended_by dagapp.job_ended_by,
    deadline_at timestamptz,
    metadata jsonb NOT NULL DEFAULT '{}',
    submitted_by varchar(128) NOT NULL DEFAULT '',
    correlation_id varchar(128),
    idempotency_key varchar(128),
    request_hash varchar(64),
    callback_url text,
    asset_id varchar(64),
    version_ordinal integer,
    trace_parent varchar(64),
    parent_job_id bigint,
    parent_node_id varchar(64),
    parent_task_id varchar(128),
    schedule_id varchar(64),
    scheduled_for timestamptz,
    signals jsonb,
    paused_at timestamptz,
    paused_by varchar(128),
    resumed_at timestamptz,
    idle_seconds double precision NOT NULL DEFAULT 0,
    owner_id varchar(32),
    owner_epoch bigint NOT NULL DEFAULT 0,
    owner_heartbeat_at timestamptz,
    created_at timestamptz NOT NULL DEFAULT now(),
    started_at timestamptz,
    completed_at timestamptz,
    updated_at timestamptz NOT NULL DEFAULT now(),
    version integer NOT NULL DEFAULT 0
);
CREATE INDEX ix_dag_jobs_asset_id ON dagapp.dag_jobs (asset_id) WHERE asset_id IS NOT NULL;
CREATE INDEX ix_dag_jobs_completed_at ON dagapp.dag_jobs (completed_at) WHERE completed_at IS NOT NULL;
CREATE INDEX ix_dag_jobs_correlation_id ON dagapp.dag_jobs (correlation_id) WHERE correlation_id IS NOT NULL;
CREATE INDEX ix_dag_jobs_created_at ON dagapp.dag_jobs (created_at);
CREATE INDEX ix_dag_jobs_failed ON dagapp.dag_jobs (completed_at) WHERE status = 'failed';
CREATE INDEX ix_dag_jobs_live ON dagapp.dag_jobs (status) WHERE status IN ('pending', 'running');
CREATE INDEX ix_dag_jobs_owner ON dagapp.dag_jobs (owner_id, owner_heartbeat_at) WHERE owner_id IS NOT NULL;
CREATE INDEX ix_dag_jobs_parent ON dagapp.dag_jobs (parent_job_id) WHERE parent_job_id IS NOT NULL;
CREATE INDEX ix_dag_jobs_schedule ON dagapp.dag_jobs (schedule_id, scheduled_for) WHERE schedule_id IS NOT NULL;
CREATE INDEX ix_dag_jobs_workflow_id ON dagapp.dag_jobs (workflow_id, created_at);
CREATE UNIQUE INDEX uq_dag_jobs_idempotency_key ON dagapp.dag_jobs (submitted_by, idempotency_key)
    WHERE idempotency_key IS NOT NULL;

CREATE TABLE dagapp.dag_mailbox (
    mail_id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    job_id bigint NOT NULL,
    kind varchar(32) NOT NULL,
    node_id varchar(64),
    task_id varchar(128),
    worker_id varchar(128),
    output json,
    output_bytes bigint GENERATED ALWAYS AS (octet_length(output::text)) STORED,
    data_bytes bigint
        GENERATED ALWAYS AS (coalesce(octet_length(data::text), 0) + coalesce(octet_length(error), 0)) STORED,
    error text,
    duration_ms bigint,
    data jsonb,
    created_at timestamptz NOT NULL DEFAULT clock_timestamp()
);

CREATE TABLE dagapp.dag_node_states (
    job_id bigint NOT NULL,
    node_id varchar(64) NOT NULL,
    status dagapp.node_status NOT NULL,
    task_id varchar(128),
    retry_count integer NOT NULL DEFAULT 0,
    max_retries integer NOT NULL DEFAULT 3,
    times_lost integer NOT NULL DEFAULT 0,
    parent_node_id varchar(64),
    fan_out_index integer,
    fan_out_item_key varchar(128),
    fan_out_item_box double precision[],
    queue varchar(128),
    definition jsonb,
    result_of varchar(64),
    input_params jsonb,
    output jsonb,
    output_bytes bigint,
    error_message varchar(2000),
    ended_by dagapp.ended_by,
    checkpoint_phase varchar(128),
    checkpoint_data jsonb,
    checkpoint_saved_at timestamptz,
    not_before timestamptz,
    created_at timestamptz NOT NULL DEFAULT now(),
    dispatched_at timestamptz,
    started_at timestamptz,
    completed_at timestamptz,
    updated_at timestamptz NOT NULL DEFAULT now(),
    version integer NOT NULL DEFAULT 0,
    PRIMARY KEY (job_id, node_id)
);
CREATE INDEX ix_dag_node_states_task ON dagapp.dag_node_states ((definition ->> 'task')) WHERE definition IS NOT NULL;

CREATE TABLE dagapp.dag_orchestrators (
    orchestrator_id varchar(32) PRIMARY KEY,
    hostname varchar(255) NOT NULL,
    pid integer NOT NULL,
    host_key varchar(128) NOT NULL,
    status varchar(16) NOT NULL,
    started_at timestamptz NOT NULL DEFAULT now(),
    heartbeat_at timestamptz NOT NULL DEFAULT now(),
    jobs_owned integer NOT NULL DEFAULT 0,
    stats jsonb NOT NULL DEFAULT '{}'
);

CREATE TABLE dagapp.dag_schedules (
    schedule_id varchar(64) PRIMARY KEY,
    workflow_id varchar(64) NOT NULL,
    workflow_hash varchar(64) NOT NULL,
    cron varchar(128),
    interval_seconds double precision,
    timezone varchar(64) NOT NULL DEFAULT 'UTC',
    catchup varchar(8) NOT NULL DEFAULT 'last',
    input_params jsonb NOT NULL DEFAULT '{}',
    paused_at timestamptz,
    paused_by varchar(128),
    next_at timestamptz,
    last_at timestamptz,
    created_at timestamptz NOT NULL DEFAULT now(),
    updated_at timestamptz NOT NULL DEFAULT now()
);
CREATE INDEX ix_dag_schedules_next_at ON dagapp.dag_schedules (next_at) WHERE paused_at IS NULL;

CREATE TABLE dagapp.dag_secrets (
    name varchar(64) PRIMARY KEY,
    value text NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now()
);

CREATE TABLE dagapp.dag_task_cache (
    cache_key text PRIMARY KEY,
    handler text NOT NULL,
    output jsonb NOT NULL,
    job_id bigint NOT NULL,
    task_id text NOT NULL,
    stored_at timestamptz NOT NULL DEFAULT now(),
    expires_at timestamptz
);
CREATE INDEX ix_dag_task_cache_expires_at ON dagapp.dag_task_cache (expires_at);
CREATE INDEX ix_dag_task_cache_handler ON dagapp.dag_task_cache (translate(handler, ':', '.'));

CREATE TABLE dagapp.dag_task_results (
    task_id varchar(128) PRIMARY KEY,
    job_id bigint NOT NULL,
    node_id varchar(64) NOT NULL,
    status dagapp.task_status NOT NULL,
    output jsonb,
    error_message varchar(2000),
    worker_id varchar(128),
    execution_duration_ms bigint,
    progress_current double precision,
    progress_total double precision,
    progress_percent double precision,
    progress_message varchar(2000),
    error_type varchar(128),
    ended_by dagapp.ended_by,
    log_path text,
    peak_memory_bytes bigint,
    cpu_seconds double precision,
    metrics jsonb,
    reported_at timestamptz NOT NULL DEFAULT now(),
    processed boolean NOT NULL DEFAULT false
);
CREATE INDEX ix_dag_task_results_job ON dagapp.dag_task_results (job_id, node_id);
CREATE INDEX ix_dag_task_results_unprocessed ON dagapp.dag_task_results (reported_at) WHERE NOT processed;

CREATE TABLE dagapp.dag_tasks_running (
    task_id varchar(128) PRIMARY KEY,
    job_id bigint NOT NULL,
    node_id varchar(64) NOT NULL,
    retry_count integer NOT NULL,
    queue varchar(128) NOT NULL,
    priority integer NOT NULL,
    job_started_at timestamptz NOT NULL,
    handler varchar(128) NOT NULL,
    timeout_seconds double precision NOT NULL,
    correlation_id varchar(128),
    trace_parent varchar(64),
    dispatched_at timestamptz NOT NULL,
    worker_id varchar(32),
    claimed_at timestamptz NOT NULL DEFAULT now()
);
CREATE INDEX ix_dag_tasks_running_job ON dagapp.dag_tasks_running (job_id);
CREATE INDEX ix_dag_tasks_running_worker ON dagapp.dag_tasks_running (worker_id);

CREATE TABLE dagapp.dag_tasks_waiting (
    task_id varchar(128) PRIMARY KEY,
    seq bigint GENERATED ALWAYS AS IDENTITY,
    job_id bigint NOT NULL,
    node_id varchar(64) NOT NULL,
    retry_count integer NOT NULL,
    queue varchar(128) NOT NULL,
    priority integer NOT NULL,
    job_started_at timestamptz NOT NULL,
    handler varchar(128) NOT NULL,
    timeout_seconds double precision NOT NULL,
    correlation_id varchar(128),
    trace_parent varchar(64),
    dispatched_at timestamptz NOT NULL,
    held boolean NOT NULL DEFAULT false
);
CREATE INDEX ix_dag_tasks_waiting_job ON dagapp.dag_tasks_waiting (job_id);
CREATE INDEX ix_dag_tasks_waiting_order ON dagapp.dag_tasks_waiting (queue, priority DESC, job_started_at, seq)
    WHERE NOT held;

CREATE TABLE dagapp.dag_workers (
    worker_id varchar(32) PRIMARY KEY,
    hostname varchar(255) NOT NULL,
    pid integer NOT NULL,
    host_key varchar(128) NOT NULL,
    status varchar(16) NOT NULL,
    queues text[] NOT NULL,
    handlers text[],
    concurrency integer NOT NULL,
    last_heartbeat timestamptz NOT NULL DEFAULT now(),
    started_at timestamptz NOT NULL DEFAULT now(),
    tasks_completed bigint NOT NULL DEFAULT 0,
    tasks_failed bigint NOT NULL DEFAULT 0,
    stats jsonb NOT NULL DEFAULT '{}',
    wanted varchar(16) NOT NULL DEFAULT 'run',
    key_id varchar(16)
);

CREATE TABLE dagapp.dag_workflows (
    workflow_hash varchar(64) PRIMARY KEY,
    workflow_id varchar(64) NOT NULL,
    version integer NOT NULL,
    definition jsonb NOT NULL DEFAULT '{}',
    created_at timestamptz NOT NULL DEFAULT now()
);
CREATE INDEX ix_dagapp_dag_workflows_workflow_id ON dagapp.dag_workflows (workflow_id);
