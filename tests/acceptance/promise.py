"""The guarantees as database queries: no job lost, nothing doubled, every change in the timeline."""

import time
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import psycopg
from psycopg.rows import dict_row
from shapes import SHAPES, Outcome, Shape

SWEEP_SECONDS = 90.0

# Each finds rows that break the claim.
CLAIMS: Mapping[str, str] = {
    "every job has ended and nobody owns it": """
        SELECT job_id, status, owner_id, started_at, completed_at FROM dagapp.dag_jobs
        WHERE status NOT IN ('completed', 'failed', 'cancelled')
            OR owner_id IS NOT NULL OR completed_at IS NULL OR (started_at IS NULL AND status <> 'cancelled')
    """,
    "a job is created, started and ended once": """
        SELECT j.job_id, j.status, array_agg(e.event_type::text ORDER BY e.event_id) AS timeline
        FROM dagapp.dag_jobs j LEFT JOIN dagapp.dag_job_events e ON e.job_id = j.job_id
            AND e.event_type IN ('job_created', 'job_started', 'job_completed', 'job_failed', 'job_cancelled')
        GROUP BY j.job_id
        HAVING array_agg(e.event_type::text ORDER BY e.event_id) IS DISTINCT FROM CASE
            WHEN j.started_at IS NULL THEN ARRAY['job_created', 'job_' || j.status]
            ELSE ARRAY['job_created', 'job_started', 'job_' || j.status] END
    """,
    "each completed node has one node_completed, and no other node has one": """
        SELECT n.job_id, n.node_id, n.status, count(e.event_id) AS completions
        FROM dagapp.dag_node_states n LEFT JOIN dagapp.dag_job_events e
            ON e.job_id = n.job_id AND e.node_id = n.node_id AND e.event_type = 'node_completed'
        GROUP BY n.job_id, n.node_id
        HAVING count(e.event_id) <> CASE n.status WHEN 'completed' THEN 1 ELSE 0 END
    """,
    "each attempt is dispatched, started, completed and failed at most once": """
        SELECT job_id, node_id, task_id, event_type, count(*) AS times FROM dagapp.dag_job_events
        WHERE event_type IN ('node_dispatched', 'node_started', 'node_completed', 'node_failed') AND task_id IS NOT NULL
        GROUP BY job_id, node_id, task_id, event_type HAVING count(*) > 1
    """,
    "a completed task has one completed result, which is the node's": """
        SELECT n.job_id, n.node_id, n.task_id, n.output, (
            SELECT json_agg(r) FROM dagapp.dag_task_results r WHERE r.job_id = n.job_id AND r.node_id = n.node_id
        ) AS results
        FROM dagapp.dag_node_states n
        WHERE n.status = 'completed' AND n.input_params IS NOT NULL AND 1 <> (
            SELECT count(*) FROM dagapp.dag_task_results r
            WHERE r.job_id = n.job_id AND r.node_id = n.node_id AND r.task_id = n.task_id
                AND r.status = 'completed' AND r.output = n.output AND r.processed
        )
    """,
    "a completed result of another attempt was ignored": """
        SELECT r.task_id, r.node_id, n.task_id AS accepted
        FROM dagapp.dag_task_results r LEFT JOIN dagapp.dag_node_states n USING (job_id, node_id)
        WHERE r.status = 'completed' AND r.task_id IS DISTINCT FROM n.task_id AND NOT EXISTS (
            SELECT FROM dagapp.dag_job_events e
            WHERE e.job_id = r.job_id AND e.event_type = 'result_ignored'
                AND coalesce(e.event_data ->> 'reported_task_id', e.task_id) = r.task_id
        )
    """,
    "no more attempts than the policy allows, and each retry in the timeline": """
        SELECT n.job_id, n.node_id, n.retry_count, n.max_retries, count(e.event_id) AS retries
        FROM dagapp.dag_node_states n LEFT JOIN dagapp.dag_job_events e
            ON e.job_id = n.job_id AND e.node_id = n.node_id AND e.event_type = 'node_retrying'
        GROUP BY n.job_id, n.node_id
        HAVING n.retry_count > n.max_retries OR n.retry_count <> count(e.event_id)
    """,
    "an attempt fails only if its handler says so, its worker is killed or gives it back, or its job fails": """
        SELECT e.job_id, e.node_id, e.task_id, e.error_message, w.pid, w.status
        FROM dagapp.dag_job_events e LEFT JOIN dagapp.dag_workers w
            ON w.worker_id = e.event_data ->> 'worker_id'
        WHERE e.event_type = 'node_failed' AND NOT coalesce(
            (e.event_data ->> 'ended_by' = 'failure' AND e.error_message LIKE '%%as requested')
            OR e.event_data ->> 'ended_by' IN ('revoked', 'cancelled')
            OR e.error_message = 'timed out after 1 s' -- Only what is meant to has so little time.
            OR (e.event_data ->> 'ended_by' = 'lost' AND w.status = 'lost'
                AND (%(killed)s::int[] IS NULL OR w.pid = ANY(%(killed)s::int[])))
            OR (e.event_data ->> 'ended_by' = 'given_back' AND w.status = 'stopped'), false)
    """,
    "what was accepted was executed to its end": """
        SELECT n.job_id, n.node_id, n.task_id FROM dagapp.dag_node_states n
        WHERE n.status = 'completed' AND n.input_params IS NOT NULL
            AND NOT EXISTS (SELECT FROM acceptance_ledger l WHERE l.task_id = n.task_id AND l.event = 'end')
    """,
    "what was executed was dispatched": """
        SELECT * FROM acceptance_ledger l WHERE NOT EXISTS (
            SELECT FROM dagapp.dag_job_events e WHERE e.task_id = l.task_id AND e.event_type = 'node_dispatched'
        )
    """,
    "no attempt was executed that the policy does not allow": """
        SELECT l.*, n.retry_count, n.max_retries
        FROM acceptance_ledger l LEFT JOIN dagapp.dag_node_states n USING (job_id, node_id)
        WHERE n.job_id IS NULL OR l.attempt > n.retry_count OR l.attempt > n.max_retries
    """,
    "nothing starts after its job was cancelled": """
        SELECT l.job_id, l.node_id, l.task_id, l.pid, l.at AS started_at, c.at AS cancelled_at, l.at - c.at AS late
        FROM acceptance_ledger l JOIN dagapp.dag_jobs j USING (job_id)
        -- When others could know: an owner that is cut off may have decided so seconds before it is written.
        CROSS JOIN LATERAL (SELECT greatest(j.completed_at, CASE
            WHEN current_setting('track_commit_timestamp')::boolean THEN (
                SELECT max(pg_xact_commit_timestamp(e.xmin)) FROM dagapp.dag_job_events e
                WHERE e.job_id = j.job_id AND e.event_type = 'job_cancelled'
            )
        END) AS at) c
        WHERE l.event = 'start' AND j.status = 'cancelled' AND l.at > c.at + interval '1 second'
    """,
    "what failed permanently was not tried again": """
        SELECT l.job_id, l.node_id, r.task_id AS failed, l.task_id AS executed
        FROM dagapp.dag_task_results r JOIN acceptance_ledger p
            ON p.task_id = r.task_id AND p.event = 'fail for good'
        JOIN acceptance_ledger l ON l.job_id = p.job_id AND l.node_id = p.node_id AND l.attempt > p.attempt
        WHERE r.status = 'failed' AND NOT EXISTS (
            SELECT FROM dagapp.dag_job_events e
            WHERE e.job_id = r.job_id AND e.event_type = 'result_ignored'
                AND coalesce(e.event_data ->> 'reported_task_id', e.task_id) = r.task_id
        )
    """,
    "what was saved was not done again by a later attempt": """
        SELECT s.job_id, s.node_id, s.task_id AS saved_by, s.event, l.task_id AS begun_by, s.at AS saved_at,
            l.at AS begun_at
        FROM acceptance_ledger s JOIN acceptance_ledger l
            ON l.job_id = s.job_id AND l.node_id = s.node_id AND l.attempt > s.attempt
                AND l.event = replace(s.event, 'saved ', 'begin ')
        WHERE s.event LIKE 'saved %%'
    """,
    "every result was taken in": "SELECT task_id FROM dagapp.dag_task_results WHERE NOT processed",
}
NO_TASK_TWICE = """
    SELECT task_id, count(*) AS executions, array_agg(pid) AS pids FROM acceptance_ledger
    WHERE event = 'start' GROUP BY task_id HAVING count(*) > 1
"""
LEFTOVERS = """
    SELECT 'waiting' AS place, task_id AS what FROM dagapp.dag_tasks_waiting
    UNION ALL SELECT 'running', task_id FROM dagapp.dag_tasks_running
    UNION ALL SELECT 'mailbox', concat_ws(' ', kind, task_id, job_id) FROM dagapp.dag_mailbox
"""
HISTORY = """
    SELECT at, 'ledger' AS kind, concat_ws(' ', pid, task_id, left(execution_id, 6), event) AS what
    FROM acceptance_ledger WHERE job_id = %(job_id)s AND node_id = %(node_id)s
    UNION ALL SELECT created_at, 'event', concat_ws(' ', task_id, event_type, event_data ->> 'worker_id')
    FROM dagapp.dag_job_events WHERE job_id = %(job_id)s AND node_id = %(node_id)s
    UNION ALL SELECT created_at, 'checkpoint', concat_ws(' ', task_id, phase_name, checkpoint_id)
    FROM dagapp.dag_checkpoints WHERE job_id = %(job_id)s AND node_id = %(node_id)s
    UNION ALL SELECT started_at, 'worker', concat_ws(' ', pid, worker_id, status, last_heartbeat)
    FROM dagapp.dag_workers
    ORDER BY 1
"""
MOVES = {
    "node_ready": ({"pending"}, "ready"),
    "node_dispatched": ({"ready"}, "dispatched"),
    "node_started": ({"dispatched"}, "running"),
    "node_completed": ({"running"}, "completed"),
    "node_failed": ({"ready", "dispatched", "running"}, "failed"),
    "node_retrying": ({"failed"}, "ready"),
    "node_skipped": ({"pending", "ready"}, "skipped"),
}

Connection = psycopg.Connection[dict[str, Any]]


@dataclass(frozen=True)
class Fates:
    """What was done to the jobs and their processes, and so explains what else would be wrong.

    `killed` are the pids of workers that were killed or stopped, None when any may have been given up; `poisoned` are
    jobs that were made unreadable, `cancelled` those that somebody wanted to be cancelled. `may_repeat` allows that a
    task was executed more than once.
    """

    killed: Collection[int] | None = ()
    poisoned: Collection[int] = ()
    cancelled: Collection[int] = ()
    may_repeat: bool = False


def assert_promise_kept(dsn: str, *, shapes: Mapping[str, Shape] = SHAPES, **fates: Any) -> None:
    """For all jobs of the database, which have ended."""
    with psycopg.connect(dsn, autocommit=True, row_factory=dict_row) as conn:
        await_sweep(conn)
        assert_records_agree(conn, Fates(**fates), shapes)


def assert_records_agree(conn: Connection, fates: Fates, shapes: Mapping[str, Shape] = SHAPES) -> None:
    killed = None if fates.killed is None else list(fates.killed)
    for claim, query in CLAIMS.items():
        _assert_none(conn, claim, query, killed=killed)
    if not fates.may_repeat:
        _assert_none(conn, "no task was executed twice", NO_TASK_TWICE)
    _assert_timelines(conn)
    for job in conn.execute("SELECT * FROM dagapp.dag_jobs").fetchall():
        if job["job_id"] in fates.poisoned:
            assert job["status"] == "failed" and job["error_message"], job
        else:
            _assert_outcome(conn, job, shapes[job["workflow_id"]], may_be_cancelled=job["job_id"] in fates.cancelled)


def await_sweep(conn: Connection) -> None:
    """Late mail is removed within seconds."""
    deadline = time.monotonic() + SWEEP_SECONDS
    while left := conn.execute(LEFTOVERS).fetchall():
        assert time.monotonic() < deadline, f"left behind: {left[:20]}"
        time.sleep(0.05)


def _assert_none(conn: Connection, claim: str, query: str, **values: Any) -> None:
    violations = conn.execute(query, values or None).fetchall()
    if violations:
        history = _tell_history(conn, violations[0])
        raise AssertionError(f"not true that {claim}: {len(violations)} times, such as {violations[:5]}\n{history}")


def _tell_history(conn: Connection, row: Mapping[str, Any]) -> str:
    """The history of the node that a claim names, in order of time."""
    key = {"job_id": row.get("job_id"), "node_id": row.get("node_id")}
    if None in key.values():
        return ""
    lines = [" ".join(map(str, event.values())) for event in conn.execute(HISTORY, key)]
    return "\n".join([f"the history of {key}:", *lines])


def _assert_timelines(conn: Connection) -> None:
    """Replayed from the beginning, the timeline leads by legal moves to each node's current state."""
    states: defaultdict[tuple[int, str], str] = defaultdict(lambda: "pending")
    events = conn.execute("SELECT job_id, node_id, event_type::text FROM dagapp.dag_job_events ORDER BY event_id")
    for event in events:
        if event["event_type"] not in MOVES:
            continue
        key = event["job_id"], event["node_id"]
        sources, target = MOVES[event["event_type"]]
        assert states[key] in sources, f"not a legal move: {event} comes while the node is {states[key]}"
        states[key] = target
    for node in conn.execute("SELECT job_id, node_id, status::text FROM dagapp.dag_node_states"):
        state = states[node["job_id"], node["node_id"]]
        assert state == node["status"], f"the timeline leads to {state}: {node}"


def _assert_outcome(conn: Connection, job: Mapping[str, Any], shape: Shape, *, may_be_cancelled: bool) -> None:
    """The job ended as its definition requires, with every node and item, or as far as it got."""
    expected = shape.outcome(job["input_params"])
    nodes = conn.execute("SELECT * FROM dagapp.dag_node_states WHERE job_id = %s", [job["job_id"]]).fetchall()
    if job["status"] == "cancelled" and may_be_cancelled:
        _assert_part(nodes, expected)
    else:
        assert job["status"] == expected.status, f"{job['workflow_id']} {job['job_id']}: {job['error_message']}"
        assert {node["node_id"]: node["status"] for node in nodes} == expected.nodes, "not the nodes of the definition"
        results = job["result_data"] or {}
        assert {name: results.get(name) for name in expected.results} == expected.results, "not the result"
    given_back = _count_given_back(conn, job["job_id"])
    for node in nodes:
        if node["input_params"] is not None:
            allowed = shape.max_retries + given_back.get(node["node_id"], 0)
            assert node["max_retries"] == allowed, f"not the policy of the definition: {node}"


def _assert_part(nodes: Sequence[Mapping[str, Any]], expected: Outcome) -> None:
    """Nodes completed before the cancellation have the expected outputs; nothing is left open."""
    for node in nodes:
        assert node["status"] in ("completed", "failed", "skipped"), f"left open in a cancelled job: {node}"
        if node["status"] == "completed":
            assert expected.nodes.get(node["node_id"]) == "completed", f"not in the definition: {node}"
            output = expected.results.get(node["node_id"], node["output"])
            assert node["output"] == output, f"not the result that it would have: {node}"


def _count_given_back(conn: Connection, job_id: int) -> dict[str, int]:
    query = """
        SELECT node_id, count(*)::int AS times FROM dagapp.dag_job_events
        WHERE job_id = %s AND event_type = 'node_failed' AND event_data ->> 'ended_by' = 'given_back'
        GROUP BY node_id
    """
    return {row["node_id"]: row["times"] for row in conn.execute(query, [job_id])}
