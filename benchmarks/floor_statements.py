"""The floor's SQL: the least rows that the promise needs, in the product's own tables, with no engine around them."""

from typing import LiteralString

# A job under way whose first step is running: what the bare steps begin with.
SEED_CHAIN: LiteralString = """
WITH job AS (
    INSERT INTO dagapp.dag_jobs (job_id, workflow_id, workflow_version, workflow_hash, status, priority)
    VALUES ($1, 'floor', 1, '', 'running', 0)
), running AS (
    INSERT INTO dagapp.dag_tasks_running (
        task_id, job_id, node_id, retry_count, queue, priority, job_started_at, handler, timeout_seconds, dispatched_at,
        worker_id
    )
    VALUES ($1 || '_n0_0', $1, 'n0', 0, 'bench', 0, now(), 'echo', 3600, now(), '1')
)
INSERT INTO dagapp.dag_node_states (job_id, node_id, status)
SELECT $1, 'n' || n, 'pending' FROM generate_series(0, $2) AS n
"""

# One step of a chain: its result is kept, it ends, the next one runs, four lines go into the timeline.
STEP = b"""
WITH ended AS (
    UPDATE dagapp.dag_node_states
    SET status = 'completed', output = $7::jsonb, completed_at = now(), version = version + 1
    WHERE job_id = $1 AND node_id = $2
), begun AS (
    UPDATE dagapp.dag_node_states
    SET status = 'running', task_id = $5, input_params = $6::jsonb, dispatched_at = now(),
        started_at = now(), version = version + 1
    WHERE job_id = $1 AND node_id = $4
), kept AS (
    INSERT INTO dagapp.dag_task_results (
        task_id, job_id, node_id, status, output, worker_id, execution_duration_ms, processed
    )
    VALUES ($3, $1, $2, 'completed', $7::jsonb, '1', 0, true)
), closed AS (
    DELETE FROM dagapp.dag_tasks_running WHERE task_id = $3
), held AS (
    INSERT INTO dagapp.dag_tasks_running (
        task_id, job_id, node_id, retry_count, queue, priority, job_started_at, handler, timeout_seconds, dispatched_at,
        worker_id
    )
    VALUES ($5, $1, $4, 0, 'bench', 0, now(), 'echo', 3600, now(), '1')
)
INSERT INTO dagapp.dag_job_events (
    job_id, node_id, task_id, event_type, event_status, event_data, duration_ms, created_at, source_app
)
VALUES
    ($1, $2, $3, 'node_completed', 'success', '{"output_keys": ["echoed_params"]}', 0, now(), ''),
    ($1, $4, NULL, 'node_ready', 'info', NULL, NULL, now(), ''),
    ($1, $4, $5, 'node_dispatched', 'info', '{"queue": "bench"}', NULL, now(), ''),
    ($1, $4, $5, 'node_started', 'info', '{"worker_id": "1"}', NULL, now(), '')
"""
STEP_EVENTS = 4

# The emptiest commit that is worth the name, for comparison.
ONE_ROW = b"INSERT INTO dagapp.dag_mailbox (job_id, kind) VALUES ($1, 'floor')"

LISTEN: LiteralString = "LISTEN dagmaster_floor"
NOTIFY: LiteralString = "NOTIFY dagmaster_floor"

# The jobs of W4, from here on: START -> n0 -> n1 -> n2 -> END, many jobs in each commit.
SUBMIT: LiteralString = """
WITH given AS MATERIALIZED (
    SELECT * FROM json_to_recordset($1::json) AS r(job_id bigint, input_params jsonb)
), jobs AS (
    INSERT INTO dagapp.dag_jobs (job_id, workflow_id, workflow_version, workflow_hash, status, priority, input_params)
    SELECT job_id, 'floor', 1, '', 'pending', 0, input_params FROM given
), nodes AS (
    INSERT INTO dagapp.dag_node_states (job_id, node_id, status)
    SELECT job_id, node_id, 'pending'
    FROM given CROSS JOIN unnest(ARRAY['START', 'n0', 'n1', 'n2', 'END']) AS n(node_id)
)
INSERT INTO dagapp.dag_job_events (job_id, event_type, event_status, event_data, source_app)
SELECT job_id, 'job_created', 'info', jsonb_build_object('workflow_id', 'floor', 'input_params', input_params), ''
FROM given
"""

BEGIN: LiteralString = """
WITH given AS MATERIALIZED (
    SELECT * FROM json_to_recordset($1::json) AS r(job_id bigint, input_params jsonb)
), jobs AS (
    UPDATE dagapp.dag_jobs j SET status = 'running', started_at = now(), version = version + 1
    FROM given g WHERE j.job_id = g.job_id
), roots AS (
    UPDATE dagapp.dag_node_states n
    SET status = 'completed', dispatched_at = now(), started_at = now(), completed_at = now(), version = version + 1
    FROM given g WHERE n.job_id = g.job_id AND n.node_id = 'START'
), nodes AS (
    UPDATE dagapp.dag_node_states n
    SET status = 'dispatched', task_id = g.job_id || '_n0_0', input_params = g.input_params, dispatched_at = now(),
        version = version + 1
    FROM given g WHERE n.job_id = g.job_id AND n.node_id = 'n0'
), waiting AS (
    INSERT INTO dagapp.dag_tasks_waiting (
        task_id, job_id, node_id, retry_count, queue, priority, job_started_at, handler, timeout_seconds, dispatched_at
    )
    SELECT job_id || '_n0_0', job_id, 'n0', 0, $2, 0, now(), 'echo', 3600, now() FROM given
)
INSERT INTO dagapp.dag_job_events (
    job_id, node_id, task_id, event_type, event_status, event_data, created_at, source_app
)
SELECT job_id, e.node_id, CASE WHEN e.has_task THEN job_id || '_' || e.node_id || '_0' END,
    e.event_type::dagapp.event_type, e.event_status::dagapp.event_status, e.event_data::jsonb, now(), ''
FROM given CROSS JOIN (VALUES
    ('START', false, 'node_ready', 'info', NULL),
    (NULL, false, 'job_started', 'info', '{"first_node": "START"}'),
    ('START', true, 'node_dispatched', 'info', NULL),
    ('START', true, 'node_started', 'info', NULL),
    ('START', true, 'node_completed', 'success', NULL),
    ('n0', false, 'node_ready', 'info', '{"dependencies": ["START"]}'),
    ('n0', true, 'node_dispatched', 'info', '{"queue": "bench", "handler": "echo"}')
) AS e(node_id, has_task, event_type, event_status, event_data)
"""

CLAIM: LiteralString = """
WITH picked AS MATERIALIZED (
    SELECT task_id FROM dagapp.dag_tasks_waiting WHERE queue = $1
    ORDER BY priority DESC, job_started_at, seq LIMIT $2 FOR UPDATE SKIP LOCKED
), taken AS (
    DELETE FROM dagapp.dag_tasks_waiting t USING picked p WHERE t.task_id = p.task_id RETURNING t.*
), held AS (
    INSERT INTO dagapp.dag_tasks_running (
        task_id, job_id, node_id, retry_count, queue, priority, job_started_at, handler, timeout_seconds, dispatched_at,
        worker_id
    )
    SELECT task_id, job_id, node_id, retry_count, queue, priority, job_started_at, handler, timeout_seconds,
        dispatched_at, '1'
    FROM taken
)
SELECT t.task_id, t.job_id, t.node_id, n.input_params
FROM taken t JOIN dagapp.dag_node_states n ON n.job_id = t.job_id AND n.node_id = t.node_id
"""

# The worker's half of the end of a task.
REPORT: LiteralString = """
WITH given AS MATERIALIZED (
    SELECT * FROM json_to_recordset($1::json) AS r(task_id text, job_id bigint, node_id text, output jsonb)
), closed AS (
    DELETE FROM dagapp.dag_tasks_running t USING given g WHERE t.task_id = g.task_id
)
INSERT INTO dagapp.dag_task_results (
    task_id, job_id, node_id, status, output, worker_id, execution_duration_ms, processed
)
SELECT task_id, job_id, node_id, 'completed', output, '1', 0, true FROM given
"""

# The orchestrator's half: n0 and n1 are followed by the next task ...
ADVANCE: LiteralString = """
WITH given AS MATERIALIZED (
    SELECT * FROM json_to_recordset($1::json) AS r(
        job_id bigint, node_id text, task_id text, next_node text, next_task text, output jsonb, input_params jsonb
    )
), ended AS (
    UPDATE dagapp.dag_node_states n
    SET status = 'completed', output = g.output, started_at = now(), completed_at = now(), version = version + 1
    FROM given g WHERE n.job_id = g.job_id AND n.node_id = g.node_id
), nodes AS (
    UPDATE dagapp.dag_node_states n
    SET status = 'dispatched', task_id = g.next_task, input_params = g.input_params, dispatched_at = now(),
        version = version + 1
    FROM given g WHERE n.job_id = g.job_id AND n.node_id = g.next_node
), waiting AS (
    INSERT INTO dagapp.dag_tasks_waiting (
        task_id, job_id, node_id, retry_count, queue, priority, job_started_at, handler, timeout_seconds, dispatched_at
    )
    SELECT next_task, job_id, next_node, 0, $2, 0, now(), 'echo', 3600, now() FROM given
)
INSERT INTO dagapp.dag_job_events (
    job_id, node_id, task_id, event_type, event_status, event_data, duration_ms, created_at, source_app
)
SELECT job_id, e.node_id, e.task_id, e.event_type::dagapp.event_type, e.event_status::dagapp.event_status,
    e.event_data::jsonb, e.duration_ms, now(), ''
FROM given g CROSS JOIN LATERAL (VALUES
    (g.node_id, g.task_id, 'node_started', 'info', '{"worker_id": "1"}', NULL),
    (g.node_id, g.task_id, 'node_completed', 'success', '{"output_keys": ["echoed_params"]}', 0),
    (g.next_node, NULL, 'node_ready', 'info', '{"dependencies": ["n"]}', NULL),
    (g.next_node, g.next_task, 'node_dispatched', 'info', '{"queue": "bench", "handler": "echo"}', NULL)
) AS e(node_id, task_id, event_type, event_status, event_data, duration_ms)
"""

# ... and n2 by the end of the job.
END: LiteralString = """
WITH given AS MATERIALIZED (
    SELECT * FROM json_to_recordset($1::json) AS r(
        job_id bigint, node_id text, task_id text, output jsonb, result jsonb
    )
), jobs AS (
    UPDATE dagapp.dag_jobs j
    SET status = 'completed', completed_at = now(), result_data = g.result, version = version + 1
    FROM given g WHERE j.job_id = g.job_id
), ended AS (
    UPDATE dagapp.dag_node_states n
    SET status = 'completed', output = g.output, started_at = now(), completed_at = now(), version = version + 1
    FROM given g WHERE n.job_id = g.job_id AND n.node_id = g.node_id
), last AS (
    UPDATE dagapp.dag_node_states n
    SET status = 'completed', dispatched_at = now(), started_at = now(), completed_at = now(), version = version + 1
    FROM given g WHERE n.job_id = g.job_id AND n.node_id = 'END'
)
INSERT INTO dagapp.dag_job_events (
    job_id, node_id, task_id, event_type, event_status, event_data, duration_ms, created_at, source_app
)
SELECT job_id, e.node_id, e.task_id, e.event_type::dagapp.event_type, e.event_status::dagapp.event_status,
    e.event_data::jsonb, e.duration_ms, now(), ''
FROM given g CROSS JOIN LATERAL (VALUES
    (g.node_id, g.task_id, 'node_started', 'info', '{"worker_id": "1"}', NULL),
    (g.node_id, g.task_id, 'node_completed', 'success', '{"output_keys": ["echoed_params"]}', 0),
    ('END', NULL, 'node_ready', 'info', '{"dependencies": ["n2"]}', NULL),
    ('END', g.job_id || '_END_0', 'node_dispatched', 'info', NULL, NULL),
    ('END', g.job_id || '_END_0', 'node_started', 'info', NULL, NULL),
    ('END', g.job_id || '_END_0', 'node_completed', 'success', NULL, 0),
    (NULL, NULL, 'job_completed', 'success', '{"node_count": 5}', NULL)
) AS e(node_id, task_id, event_type, event_status, event_data, duration_ms)
"""

# Hand-over without a mailbox: whoever waits for these results asks for them by key.
ARRIVED: LiteralString = "SELECT task_id FROM dagapp.dag_task_results WHERE task_id = ANY($1)"

COUNT_EVENTS: LiteralString = "SELECT count(*) AS events FROM dagapp.dag_job_events"
