"""Several orchestrators share the jobs, and a suspended one does no harm when it resumes."""

from typing import Any

import pytest
from processes import BOTH, ORCHESTRATOR, WORKER, Process, Stage
from promise import assert_promise_kept
from shapes import CHAIN, DOOMED, FAN, FLAKY, FORK, NARROW_FAN, Shape

pytestmark = [pytest.mark.acceptance, pytest.mark.timeout(240)]

ENDED_BY_BOTH = """
    SELECT count(*) = 2, sum((stats ->> 'jobs_ended')::int) = 60 FROM dagapp.dag_orchestrators
    WHERE (stats ->> 'jobs_ended')::int > 0
"""
DONE = "SELECT count(*) >= %s FROM dagapp.dag_node_states WHERE status = 'completed' AND parent_node_id IS NOT NULL"
TAKEN_OVER_BY = """
    SELECT count(*) > 0 FROM dagapp.dag_job_events e
    JOIN dagapp.dag_orchestrators o ON o.orchestrator_id = e.event_data ->> 'to'
    WHERE e.event_type = 'job_taken_over' AND e.job_id = %s AND o.pid = %s
"""
BEATS_AGAIN = """
    SELECT heartbeat_at > clock_timestamp() - interval '1 second' AND status = 'running' AND jobs_owned = 0
    FROM dagapp.dag_orchestrators WHERE pid = %s
"""


def test_two_orchestrators_share_sixty_jobs(stage: Stage) -> None:
    stage.launch(ORCHESTRATOR, ORCHESTRATOR, WORKER, WORKER)
    kinds: list[tuple[Shape, dict[str, Any]]] = [
        (CHAIN, {"n": 7}),
        (FORK, {"weight": 3}),
        (FORK, {"weight": 30}),
        (FLAKY, {}),
        (DOOMED, {}),
        (FAN, {"items": list(range(9))}),
    ]
    stage.submit_all(kinds * 10)
    stage.until_ended()
    stage.until(ENDED_BY_BOTH)
    assert_promise_kept(stage.dsn)


IMPATIENT = {"heartbeat_interval_seconds": 0.2, "orphan_threshold_seconds": 2}


def stop_the_owner(stage: Stage, first: Process, second: Process) -> tuple[Process, Process]:
    """The owner is stopped in mid-work for so long that the other takes over: the former and the present owner.

    The job keeps its owner so busy that it is stopped, more likely than not, between reading its mail and committing.
    """
    stage.hold("total")  # The job has an owner until it is taken over.
    job_id = stage.submit(FAN, items=list(range(500)), seconds=0.005)
    stage.submit_all([(NARROW_FAN, {"items": list(range(20)), "seconds": 0.1})] * 3)
    stage.until(DONE, 30)
    former = stage.owner_of(job_id)
    present = first if former is second else second
    former.stop()
    stage.until(TAKEN_OVER_BY, job_id, present.pid)
    stage.release()
    return former, present


def test_a_suspended_owner_that_resumes_during_the_job_changes_nothing(stage: Stage) -> None:
    first, second, _ = stage.launch(ORCHESTRATOR, ORCHESTRATOR, WORKER, **IMPATIENT)
    former, _ = stop_the_owner(stage, first, second)
    former.go_on()
    stage.until_ended()
    stage.until(BEATS_AGAIN, former.pid)
    assert_promise_kept(stage.dsn)


def test_a_suspended_owner_that_resumes_after_the_end_owns_new_jobs(stage: Stage) -> None:
    first, second, _ = stage.launch(ORCHESTRATOR, ORCHESTRATOR, WORKER, **IMPATIENT)
    former, present = stop_the_owner(stage, first, second)
    stage.until_ended()
    former.go_on()
    stage.until(BEATS_AGAIN, former.pid)
    present.terminate()
    assert present.wait() == 0
    stage.hold("join")  # An ended job has no owner.
    next_job_id = stage.submit(FORK, weight=30)
    assert stage.owner_of(next_job_id) is former
    stage.release()
    stage.until_ended()
    assert_promise_kept(stage.dsn)


def test_a_suspended_owner_with_a_worker_resumes_both_roles(stage: Stage) -> None:
    first, second = stage.launch(BOTH, BOTH, **IMPATIENT, worker_lost_after_seconds=2)
    former, present = stop_the_owner(stage, first, second)
    stage.killed.add(former.pid)
    former.go_on()
    stage.until_ended()
    stage.until(BEATS_AGAIN, former.pid)
    stage.kill(present)
    stage.submit(FORK, weight=30)
    stage.until_ended()
    assert_promise_kept(stage.dsn, killed=stage.killed)
