-- register_orchestrator --
-- The first heartbeat of an instance.
INSERT INTO dagapp.dag_orchestrators (orchestrator_id, hostname, pid, host_key, status)
VALUES (:instance_id, :hostname, :pid, :host_key, 'running')
ON CONFLICT (orchestrator_id) DO UPDATE SET status = 'running', heartbeat_at = clock_timestamp();

-- beat_orchestrator --
-- Renew the lease; returns the database's clock, or no row if the instance was declared lost.
UPDATE dagapp.dag_orchestrators SET heartbeat_at = clock_timestamp(), jobs_owned = :jobs_owned, stats = :stats::jsonb
WHERE orchestrator_id = :instance_id AND status = 'running'
RETURNING clock_timestamp() AS now;

-- stop_orchestrator --
-- An orderly shutdown.
UPDATE dagapp.dag_orchestrators SET status = 'stopped', jobs_owned = 0, stats = :stats::jsonb WHERE orchestrator_id = :instance_id;

-- stall_orchestrator --
-- It makes no progress, and gets no new jobs until it does.
UPDATE dagapp.dag_orchestrators
SET status = 'stalled', heartbeat_at = clock_timestamp(), jobs_owned = 0, stats = :stats::jsonb
WHERE orchestrator_id = :instance_id;

-- take_over_jobs --
-- Adopt live jobs without an owner, or whose owner has lost its lease. Exactly one instance wins each job.
WITH alive AS MATERIALIZED (
    SELECT orchestrator_id FROM dagapp.dag_orchestrators
    WHERE status = 'running' AND heartbeat_at > clock_timestamp() - make_interval(secs => :threshold_seconds)
), orphans AS MATERIALIZED (
    SELECT job_id, owner_id FROM dagapp.dag_jobs
    WHERE status IN ('pending', 'running')
        AND (owner_id IS NULL OR owner_id <> ALL (SELECT orchestrator_id FROM alive))
    ORDER BY created_at LIMIT :limit
    FOR UPDATE SKIP LOCKED
), reopening AS MATERIALIZED ( -- Only a job to be reopened is both ended and owned.
    SELECT job_id, owner_id FROM dagapp.dag_jobs
    WHERE owner_id IS NOT NULL AND status IN ('completed', 'failed', 'cancelled')
        AND owner_id <> ALL (SELECT orchestrator_id FROM alive)
    LIMIT :limit
    FOR UPDATE SKIP LOCKED
), taken AS (
    UPDATE dagapp.dag_jobs j
    SET owner_id = :instance_id, owner_epoch = j.owner_epoch + 1, owner_heartbeat_at = clock_timestamp()
    FROM (SELECT * FROM orphans UNION ALL SELECT * FROM reopening) o WHERE j.job_id = o.job_id
    RETURNING j.job_id, j.owner_epoch, o.owner_id AS former_owner
), noted AS (
    INSERT INTO dagapp.dag_job_events (job_id, event_type, event_status, event_data, created_at, source_app)
    SELECT job_id, 'job_taken_over', 'warning',
        jsonb_build_object('from', former_owner, 'to', :instance_id, 'epoch', owner_epoch),
        clock_timestamp(), 'orchestrator'
    FROM taken
)
SELECT job_id FROM taken;

-- hand_over_jobs --
-- Distribute this instance's jobs over the other live ones, or release them; mail informs the new owners.
WITH heirs AS MATERIALIZED (
    SELECT orchestrator_id, row_number() OVER (ORDER BY orchestrator_id) - 1 AS place, count(*) OVER () AS heads
    FROM dagapp.dag_orchestrators
    WHERE status = 'running' AND orchestrator_id <> :instance_id
        AND heartbeat_at > clock_timestamp() - make_interval(secs => :threshold_seconds)
), mine AS MATERIALIZED (
    SELECT job_id FROM dagapp.dag_jobs
    WHERE owner_id = :instance_id FOR UPDATE
), numbered AS (
    SELECT job_id, row_number() OVER (ORDER BY job_id) AS place FROM mine
), given AS (
    UPDATE dagapp.dag_jobs j
    SET owner_epoch = j.owner_epoch + 1, owner_heartbeat_at = clock_timestamp(),
        owner_id = (SELECT orchestrator_id FROM heirs h WHERE h.place = n.place % h.heads)
    FROM numbered n WHERE j.job_id = n.job_id
    RETURNING j.job_id
)
INSERT INTO dagapp.dag_mailbox (job_id, kind) SELECT job_id, 'adopted' FROM given
RETURNING job_id;

-- living_instances --
-- Orchestrators and workers of this machine that should be running.
SELECT orchestrator_id AS instance_id, pid FROM dagapp.dag_orchestrators
WHERE status IN ('running', 'stalled') AND host_key = :host_key
UNION ALL
SELECT worker_id, pid FROM dagapp.dag_workers WHERE status = 'active' AND host_key = :host_key;

-- mark_instances_lost --
-- These processes have certainly ended: no need to wait for their lease.
WITH orchestrators AS (
    UPDATE dagapp.dag_orchestrators SET status = 'lost' WHERE orchestrator_id = ANY(:instance_ids)
)
UPDATE dagapp.dag_workers SET status = 'lost' WHERE worker_id = ANY(:instance_ids);

-- register_worker --
INSERT INTO dagapp.dag_workers (worker_id, hostname, pid, host_key, status, queues, handlers, concurrency, key_id)
VALUES (:instance_id, :hostname, :pid, :host_key, 'active', :queues, :handlers, :concurrency, :key_id);

-- beat_worker --
-- Renew the lease; no row if the worker was declared lost.
UPDATE dagapp.dag_workers
SET last_heartbeat = clock_timestamp(), tasks_completed = :tasks_completed, tasks_failed = :tasks_failed,
    stats = :stats::jsonb
WHERE worker_id = :instance_id AND status = 'active'
RETURNING clock_timestamp() AS now;

-- stop_worker --
UPDATE dagapp.dag_workers
SET status = 'stopped', tasks_completed = :tasks_completed, tasks_failed = :tasks_failed, stats = :stats::jsonb
WHERE worker_id = :instance_id AND status = 'active';

-- set_desired_state --
-- The desired state: run, drain or stop.
UPDATE dagapp.dag_workers SET wanted = :wanted WHERE worker_id = :worker_id AND status = 'active' RETURNING worker_id;

-- silent_workers --
-- Workers whose lease has expired.
SELECT worker_id, last_heartbeat FROM dagapp.dag_workers
WHERE status = 'active' AND last_heartbeat < clock_timestamp() - make_interval(secs => :lost_after_seconds);

-- give_up_workers --
-- Declare them lost, unless they have sent a heartbeat since they were read.
UPDATE dagapp.dag_workers w SET status = 'lost'
FROM unnest(:worker_ids::text[], :heartbeats::timestamptz[]) AS silent(worker_id, last_heartbeat)
WHERE w.worker_id = silent.worker_id AND w.last_heartbeat = silent.last_heartbeat AND w.status = 'active';

-- forget_instances --
-- Remove instances that stopped long ago.
WITH workers AS (
    DELETE FROM dagapp.dag_workers w
    WHERE w.status <> 'active' AND w.last_heartbeat < now() - make_interval(days => :days)
)
DELETE FROM dagapp.dag_orchestrators o
WHERE o.status <> 'running' AND o.heartbeat_at < now() - make_interval(days => :days);

-- rescue_tasks --
-- Take back the tasks of lost workers, and inform the owners. Attempts outside of workers have no lease.
WITH gone AS (
    DELETE FROM dagapp.dag_tasks_running t
    WHERE t.worker_id IS NOT NULL AND NOT EXISTS (
        SELECT FROM dagapp.dag_workers w WHERE w.worker_id = t.worker_id AND w.status = 'active'
    )
    RETURNING t.*
)
INSERT INTO dagapp.dag_mailbox (job_id, kind, node_id, task_id, worker_id)
SELECT job_id, 'lost', node_id, task_id, worker_id FROM gone
RETURNING job_id;

-- forget_handlers --
-- Contracts of handlers that no known worker has.
DELETE FROM dagapp.dag_handlers h
WHERE h.registered_at < now() - make_interval(days => :days)
    AND NOT EXISTS (SELECT FROM dagapp.dag_workers w WHERE w.handlers IS NULL OR h.name = ANY(w.handlers));
