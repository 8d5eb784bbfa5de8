"""Stopped processes hand over their work at once and lose nothing."""

import pytest
from processes import BOTH, ORCHESTRATOR, WORKER, Stage
from promise import assert_promise_kept
from shapes import CHAIN, LONG, NARROW_FAN

pytestmark = [pytest.mark.acceptance, pytest.mark.timeout(240)]

HAND_OVER_SECONDS = 40.0  # Less than the time between two scans for orphans.
STARTED = "SELECT count(DISTINCT task_id) >= %s FROM acceptance_ledger WHERE event = 'start'"
# Of jobs that have not ended.
ALL_OWNED_BY = """
    SELECT count(*) = 0 FROM dagapp.dag_jobs j LEFT JOIN dagapp.dag_orchestrators o ON o.orchestrator_id = j.owner_id
    WHERE j.status IN ('pending', 'running') AND o.pid IS DISTINCT FROM %s
"""
RETRIES = "SELECT retry_count, max_retries FROM dagapp.dag_node_states WHERE job_id = %s AND node_id = 'toil'"


def test_a_terminated_orchestrator_hands_over_its_jobs(stage: Stage) -> None:
    first, second, _ = stage.launch(ORCHESTRATOR, ORCHESTRATOR, WORKER, orphan_scan_interval_seconds=60)
    stage.hold("c")  # No job ends before it is handed over.
    jobs = stage.submit_all([(CHAIN, {"n": n, "seconds": 0.8}) for n in range(12)])
    stage.until("SELECT count(*) = 0 FROM dagapp.dag_jobs WHERE status = 'pending'")
    stage.until(STARTED, 8)
    leaving = stage.owner_of(jobs[-1])
    staying = second if leaving is first else first
    leaving.terminate()
    assert stage.until(ALL_OWNED_BY, staying.pid) < HAND_OVER_SECONDS
    assert stage.database.value("SELECT count(*) > 0 FROM dagapp.dag_jobs WHERE owner_id IS NOT NULL")
    stage.release()
    assert leaving.wait() == 0
    stage.until_ended()
    assert_promise_kept(stage.dsn)


def test_the_only_orchestrator_leaves_its_jobs_to_the_next_one(stage: Stage) -> None:
    only, _ = stage.launch(ORCHESTRATOR, WORKER)
    stage.hold("total", "c")  # Neither job ends before the orchestrator does.
    stage.submit_all([(NARROW_FAN, {"items": list(range(30)), "seconds": 0.25}), (CHAIN, {"n": 1, "seconds": 0.8})])
    stage.until("SELECT count(*) = 0 FROM dagapp.dag_jobs WHERE status = 'pending'")
    stage.until(STARTED, 3)
    only.terminate()
    assert only.wait() == 0
    assert stage.database.value(
        "SELECT count(*) = 2 FROM dagapp.dag_jobs WHERE owner_id IS NULL AND status = 'running'"
    )
    stage.release()
    stage.launch(ORCHESTRATOR)
    stage.until_ended()
    assert_promise_kept(stage.dsn)


def test_an_orchestrator_with_a_worker_hands_over_jobs_and_tasks(stage: Stage) -> None:
    leaving, _ = stage.launch(BOTH, ORCHESTRATOR, shutdown_grace_seconds=0)
    stage.submit(NARROW_FAN, items=list(range(40)), seconds=0.1)
    stage.until(STARTED, 8)
    leaving.terminate()
    assert leaving.wait() == 0
    stage.launch(WORKER)
    stage.until_ended()
    assert_promise_kept(stage.dsn)


def test_a_terminated_worker_returns_long_tasks(stage: Stage) -> None:
    _, leaving = stage.launch(ORCHESTRATOR, WORKER, shutdown_grace_seconds=0.5)
    job_id = stage.submit(LONG, first_seconds=120)
    stage.until(STARTED, 1)
    stage.start(*WORKER)
    leaving.terminate()
    assert leaving.wait() == 0
    stage.until_ended()
    # As many retries are left as before.
    assert stage.database.row(RETRIES, job_id) == {"retry_count": 1, "max_retries": 4}
    assert_promise_kept(stage.dsn)


def test_a_terminated_worker_finishes_short_tasks(stage: Stage) -> None:
    _, leaving = stage.launch(ORCHESTRATOR, WORKER, shutdown_grace_seconds=60)
    job_id = stage.submit(LONG, first_seconds=1.5)
    stage.until(STARTED, 1)
    leaving.terminate()
    assert leaving.wait() == 0
    stage.until_ended()
    assert stage.database.row(RETRIES, job_id) == {"retry_count": 0, "max_retries": 3}
    assert_promise_kept(stage.dsn)
