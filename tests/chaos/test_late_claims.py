"""A worker that receives its claim too late starts no revoked task."""

import pytest
from database_proxies import Proxies
from persistent_client import PersistentClient
from plans import PlannedJob
from processes import ORCHESTRATOR, WORKER, Stage
from promise import assert_promise_kept
from storm_workflows import KINDS, PATIENT_CHAIN

pytestmark = [pytest.mark.acceptance, pytest.mark.timeout(240)]

CLAIMED = "SELECT count(*) = 1 FROM dagapp.dag_tasks_running WHERE job_id = %s"
CANCELLED_LONG_AGO = """
    SELECT status = 'cancelled' AND completed_at < clock_timestamp() - interval '1.5 seconds' AS is_over
    FROM dagapp.dag_jobs WHERE job_id = %s
"""
ANSWER_SECONDS = 1.0


def test_a_claim_answered_after_the_cancellation_is_not_started(stage: Stage) -> None:
    client = PersistentClient(stage.dsn, "late")
    with Proxies(stage.dsn) as proxies:
        proxy = proxies.add()
        stage.launch(ORCHESTRATOR)
        stage.launch(WORKER, database_url=proxy.dsn)
        proxy.slow_down(ANSWER_SECONDS)
        job_id = client.submit(PlannedJob(0, 0, PATIENT_CHAIN, {"n": 1, "seconds": 0.02}))
        stage.until(CLAIMED, job_id)
        proxy.withhold()  # The response is on its way.
        client.cancel(job_id)
        stage.until(CANCELLED_LONG_AGO, job_id)
        proxy.open()
        later = client.submit(PlannedJob(1, 0, PATIENT_CHAIN, {"n": 1, "seconds": 0.02}))
        stage.until_ended(later)  # So the worker receives its responses and works.
        assert_promise_kept(stage.dsn, shapes=KINDS, cancelled=client.cancelled)
