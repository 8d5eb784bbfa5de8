"""Submitters and owners may be killed at any moment: there is a whole job or none, and it ends."""

import time
from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest
from processes import ORCHESTRATOR, WORKER, Stage
from promise import assert_promise_kept
from shapes import FORK

pytestmark = [pytest.mark.acceptance, pytest.mark.timeout(240)]

HALF_JOBS = """
    SELECT j.job_id, j.submitted_by FROM dagapp.dag_jobs j
    WHERE 7 <> (SELECT count(*) FROM dagapp.dag_node_states n WHERE n.job_id = j.job_id) OR 1 <> (
        SELECT count(*) FROM dagapp.dag_job_events e WHERE e.job_id = j.job_id AND e.event_type = 'job_created'
    )
"""
MORE_THAN_ONE = "SELECT submitted_by FROM dagapp.dag_jobs GROUP BY submitted_by HAVING count(*) > 1"
IS_CONNECTED = """
    SELECT count(*) > 0 FROM pg_stat_activity WHERE application_name = 'dagmaster cli' AND datname = current_database()
"""
IS_GONE = IS_CONNECTED.replace("count(*) > 0", "count(*) = 0")
BLOCKED = "SELECT count(*) = %s FROM pg_locks WHERE NOT granted AND relation = %s::regclass"


def test_a_submitter_killed_at_any_moment_leaves_no_partial_job(stage: Stage) -> None:
    file = stage.write_file(FORK)
    arguments = ["submit", file, "-i", "weight=12", "--submitted-by"]

    for number in range(4):  # From its start on.
        process = stage.start(*arguments, f"early {number}")
        time.sleep(number * 0.1)
        process.kill()
    for number in range(9):  # From its first query on.
        process = stage.start(*arguments, f"late {number}")
        while not process.has_ended() and not stage.database.value(IS_CONNECTED):
            time.sleep(0.002)
        time.sleep(number * 0.004)
        process.kill()
        stage.until(IS_GONE)
    for table in ("dagapp.dag_node_states", "dagapp.dag_mailbox"):  # Within the transaction.
        with psycopg.connect(stage.dsn) as conn:
            conn.execute(f"LOCK TABLE {table} IN SHARE MODE")
            process = stage.start(*arguments, table)
            stage.until(BLOCKED, 1, table)
            process.kill()

    stage.until(IS_GONE)
    assert stage.database.rows(HALF_JOBS) == []
    assert stage.database.rows(MORE_THAN_ONE) == []
    stage.launch(ORCHESTRATOR, WORKER)
    stage.submit(FORK, weight=1)
    stage.until_ended()
    assert_promise_kept(stage.dsn)


def test_killing_the_owner_during_submissions_loses_no_job(stage: Stage) -> None:
    first, _, _ = stage.launch(ORCHESTRATOR, ORCHESTRATOR, WORKER)
    with ThreadPoolExecutor(8) as threads:
        with psycopg.connect(stage.dsn) as conn:
            conn.execute("LOCK TABLE dagapp.dag_node_states IN SHARE MODE")
            creations = [threads.submit(stage.submit, FORK, weight=weight) for weight in range(6, 14)]
            stage.until(BLOCKED, 8, "dagapp.dag_node_states")  # Each has its owner, and is not visible yet.
            first.kill()
            stage.until("SELECT status = 'lost' FROM dagapp.dag_orchestrators WHERE pid = %s", first.pid)
        assert len({creation.result() for creation in creations}) == 8
    stage.until_ended()
    assert_promise_kept(stage.dsn)
