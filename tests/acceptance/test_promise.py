"""The checks of the other scenarios detect damage."""

from typing import Any

import psycopg
import pytest
from processes import BOTH, Stage
from promise import Fates, assert_promise_kept, assert_records_agree, await_sweep
from psycopg.rows import dict_row
from shapes import CHAIN, DOOMED, FAN, FLAKY, FORK, Shape

pytestmark = [pytest.mark.acceptance, pytest.mark.timeout(240)]

EVENTS = "dagapp.dag_job_events (job_id, node_id, task_id, event_type, event_status, created_at, source_app)"
COPY_EVENT = f"""
    INSERT INTO {EVENTS} SELECT job_id, node_id, task_id, event_type, event_status, created_at, source_app
    FROM dagapp.dag_job_events WHERE event_type = '{{}}' AND node_id = 'a'
"""
NODE_A = "job_id IN (SELECT job_id FROM dagapp.dag_jobs WHERE workflow_id = 'chain') AND node_id = 'a'"
# Kinds of damage, and the claim that each breaks.
DAMAGES = [
    ("UPDATE dagapp.dag_jobs SET status = 'running' WHERE workflow_id = 'chain'", "every job has ended"),
    ("UPDATE dagapp.dag_jobs SET status = 'cancelled' WHERE workflow_id = 'chain'", "created, started and ended once"),
    ("UPDATE dagapp.dag_jobs SET owner_id = 'somebody'", "nobody owns it"),
    ("DELETE FROM dagapp.dag_job_events WHERE event_type = 'job_created'", "created, started and ended once"),
    (COPY_EVENT.format("node_completed"), "one node_completed"),
    (COPY_EVENT.format("node_started"), "at most once"),
    (COPY_EVENT.format("node_ready"), "not a legal move"),
    (
        "DELETE FROM dagapp.dag_job_events WHERE event_type = 'node_skipped' AND node_id = 'heavy'",
        "the timeline leads",
    ),
    (f"DELETE FROM dagapp.dag_task_results WHERE {NODE_A}", "one completed result"),
    (f"UPDATE dagapp.dag_task_results SET status = 'failed' WHERE {NODE_A}", "one completed result"),
    (f"""UPDATE dagapp.dag_task_results SET output = '{{"value": 0}}' WHERE {NODE_A}""", "one completed result"),
    (f"UPDATE dagapp.dag_node_states SET task_id = task_id || '0' WHERE {NODE_A}", "one completed result"),
    (
        "INSERT INTO dagapp.dag_task_results (task_id, job_id, node_id, status, processed) "
        f"SELECT task_id || '0', job_id, node_id, 'completed', true FROM dagapp.dag_task_results WHERE {NODE_A}",
        "result of another attempt",
    ),
    (f"UPDATE dagapp.dag_node_states SET retry_count = 1 WHERE {NODE_A}", "each retry in the timeline"),
    (f"UPDATE dagapp.dag_node_states SET max_retries = 51 WHERE {NODE_A}", "not the policy"),
    ("UPDATE dagapp.dag_node_states SET max_retries = 1 WHERE node_id = 'try'", "no more attempts"),
    (
        "UPDATE dagapp.dag_job_events SET error_message = 'x' WHERE event_type = 'node_failed'",
        "an attempt fails only if",
    ),
    ("UPDATE dagapp.dag_task_results SET processed = false", "result"),
    ("DELETE FROM acceptance_ledger WHERE event = 'end'", "executed to its end"),
    ("INSERT INTO acceptance_ledger VALUES ('x', 'start', '1_a_0', 1, 'a', 0, 1, now())", "was dispatched"),
    (
        "INSERT INTO acceptance_ledger SELECT execution_id || 'x', event, task_id, job_id, node_id, attempt, pid, at "
        "FROM acceptance_ledger WHERE task_id LIKE '%_a_0'",
        "executed twice",
    ),
    ("DELETE FROM dagapp.dag_node_states WHERE node_id = 'gather'", "not the nodes"),
    (
        """UPDATE dagapp.dag_jobs SET result_data = jsonb_set(result_data, '{gather,results,0}', '{"value": 1}')
        WHERE workflow_id = 'fan'""",
        "not the result",
    ),
]
TASK = "task_id, job_id, node_id, retry_count, queue, priority, handler, timeout_seconds, job_started_at, dispatched_at"
LEFTOVERS = [
    "INSERT INTO dagapp.dag_mailbox (job_id, kind) VALUES (1, 'started')",
    f"INSERT INTO dagapp.dag_tasks_waiting ({TASK}) VALUES ('1_a_0', 1, 'a', 0, 'work', 0, 'h', 1, now(), now())",
]


def test_each_kind_of_damage_is_detected(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    [both] = stage.launch(BOTH)
    kinds: list[tuple[Shape, dict[str, Any]]] = [
        (CHAIN, {"n": 1}),
        (FAN, {"items": [3, 1, 2]}),
        (FORK, {"weight": 1}),
        (FLAKY, {}),
        (DOOMED, {}),
    ]
    stage.submit_all(kinds)
    stage.until_ended()
    assert_promise_kept(stage.dsn)  # While late mail can be removed.
    both.kill()
    monkeypatch.setattr("promise.SWEEP_SECONDS", 0)
    with psycopg.connect(stage.dsn, row_factory=dict_row) as conn:
        for damage, claim in DAMAGES:
            conn.execute(damage)
            with pytest.raises(AssertionError, match=claim):
                assert_records_agree(conn, Fates())
                pytest.fail(f"not seen: {damage}")
            conn.rollback()
        for damage in LEFTOVERS:
            conn.execute(damage)
            with pytest.raises(AssertionError, match="left behind"):
                await_sweep(conn)
            conn.rollback()
