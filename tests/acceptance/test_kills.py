"""Orchestrators and workers are killed while they work; nothing is lost and nothing is doubled."""

import pytest
from processes import BOTH, ORCHESTRATOR, WORKER, Process, Stage
from promise import assert_promise_kept
from shapes import FAN, FORK, LONG

pytestmark = [pytest.mark.acceptance, pytest.mark.timeout(240)]

CHILDREN = "SELECT count(*) >= %s FROM dagapp.dag_node_states WHERE job_id = %s AND parent_node_id IS NOT NULL"
CHILDREN_DONE = f"{CHILDREN} AND status = 'completed'"
TAKEN_OVER = "SELECT count(*) FROM dagapp.dag_job_events WHERE job_id = %s AND event_type = 'job_taken_over'"


@pytest.mark.parametrize(("moment", "children"), [(CHILDREN, 1), (CHILDREN_DONE, 170)], ids=["at the start", "later"])
def test_killing_the_owner_of_a_fan_out_of_500_loses_nothing(stage: Stage, moment: str, children: int) -> None:
    stage.launch(ORCHESTRATOR, ORCHESTRATOR, WORKER)
    stage.hold("total")  # The job has an owner until it is killed.
    job_id = stage.submit(FAN, items=list(range(500)))
    stage.until(moment, children, job_id)
    stage.owner_of(job_id).kill()
    stage.release()
    stage.until_ended()
    assert stage.database.value(TAKEN_OVER, job_id) == 1
    assert_promise_kept(stage.dsn)


def test_killing_and_restarting_the_only_orchestrator_during_a_fan_out_loses_nothing(stage: Stage) -> None:
    only, _ = stage.launch(ORCHESTRATOR, WORKER)
    stage.hold("total")  # The job does not end before the kill.
    job_id = stage.submit(FAN, items=list(range(500)))
    stage.until(CHILDREN_DONE, 170, job_id)
    only.kill()
    stage.release()
    stage.launch(ORCHESTRATOR)
    stage.until_ended()
    assert stage.database.value(TAKEN_OVER, job_id) == 1
    assert_promise_kept(stage.dsn)


def test_killing_an_orchestrator_with_its_local_worker_loses_nothing(stage: Stage) -> None:
    both, _ = stage.launch(BOTH, ORCHESTRATOR)
    job_id = stage.submit(FAN, items=list(range(100)))
    stage.until(CHILDREN_DONE, 30, job_id)
    stage.kill(both)
    stage.launch(WORKER)
    stage.until_ended()
    assert_promise_kept(stage.dsn, killed=stage.killed)


# Moments at which the owner is killed, from the first task to the taken branch.
WEIGHS = "SELECT count(*) > 0 FROM acceptance_ledger WHERE task_id = %s || '_weigh_0'"
MOMENTS = {
    "the task runs": WEIGHS,
    "the task has ended": f"{WEIGHS} AND event = 'end'",
    "its report is in the mailbox": (
        "SELECT count(*) > 0 FROM dagapp.dag_mailbox WHERE kind = 'completed' AND task_id = %s || '_weigh_0'"
    ),
    "its result is accepted": "SELECT count(*) > 0 FROM dagapp.dag_task_results WHERE task_id = %s || '_weigh_0'",
    "the branch runs": "SELECT count(*) > 0 FROM acceptance_ledger WHERE task_id = %s || '_heavy_0'",
}


def test_killing_the_owner_around_a_conditional_loses_nothing(stage: Stage) -> None:
    stage.launch(ORCHESTRATOR, ORCHESTRATOR, WORKER)
    for moment, question in MOMENTS.items():
        is_mailed = moment == "its report is in the mailbox"
        stage.hold("weigh" if is_mailed else "join")  # The job does not end before the kill.
        job_id = stage.submit(FORK, weight=12, seconds=0.3)
        owner = stage.owner_of(job_id)
        stage.until(WEIGHS, str(job_id))
        if is_mailed:
            owner.stop()  # Otherwise the mail would be processed at once.
            stage.release()
        stage.until(question, str(job_id))
        owner.kill()
        stage.release()
        stage.start(*ORCHESTRATOR)
        stage.until_ended(job_id)
        assert stage.database.value(TAKEN_OVER, job_id) == 1, moment
    assert_promise_kept(stage.dsn)


TOILS = "SELECT count(*) > 0 FROM acceptance_ledger WHERE task_id = %s || '_toil_0'"
# Not the holder of the task: a worker that was slow for as long as its lease has lost it again.
HOLDER = "SELECT pid FROM acceptance_ledger WHERE task_id = %s || '_toil_0' AND event = 'start'"


def holder_of(stage: Stage, job_id: int) -> Process:
    """The worker that runs the first attempt of the only task of this job."""
    stage.until(TOILS, str(job_id))
    pid = stage.database.value(HOLDER, str(job_id))
    return next(process for process in stage.processes if process.pid == pid)


def test_a_killed_workers_task_is_finished_by_another(stage: Stage) -> None:
    stage.launch(ORCHESTRATOR, WORKER, WORKER)
    job_id = stage.submit(LONG, first_seconds=120)
    stage.kill(holder_of(stage, job_id))
    stage.until_ended()
    node = stage.database.row("SELECT * FROM dagapp.dag_node_states WHERE job_id = %s AND node_id = 'toil'", job_id)
    assert (node["retry_count"], node["max_retries"]) == (1, 3)
    assert_promise_kept(stage.dsn, killed=stage.killed)


def test_a_worker_suspended_past_its_lease_loses_its_task_and_continues(stage: Stage) -> None:
    _, first, second = stage.launch(ORCHESTRATOR, WORKER, WORKER, worker_lost_after_seconds=2)
    stage.hold("toil")  # The task does not end before its worker is stopped.
    job_id = stage.submit(LONG, first_seconds=3)
    late = holder_of(stage, job_id)
    late.stop()
    stage.release()
    stage.killed.add(late.pid)
    stage.until_ended()
    stage.kill(second if late is first else first)
    late.go_on()
    # It has registered under a new name, and again if it was slow for as long as the lease.
    stage.until("SELECT count(*) >= 2 FROM dagapp.dag_workers WHERE pid = %s", late.pid)
    stage.submit(FORK, weight=3)
    stage.until_ended()
    assert_promise_kept(stage.dsn, killed=stage.killed)


def test_killing_and_restarting_all_processes_loses_nothing(stage: Stage) -> None:
    everybody = stage.launch(ORCHESTRATOR, BOTH, WORKER)
    jobs = [stage.submit(FAN, items=list(range(40))) for _ in range(4)]
    stage.until("SELECT count(*) >= 20 FROM dagapp.dag_job_events WHERE event_type = 'node_completed'")
    for process in everybody:
        stage.kill(process)
    stage.launch(ORCHESTRATOR, WORKER)
    stage.until_ended(*jobs)
    assert_promise_kept(stage.dsn, killed=stage.killed)
