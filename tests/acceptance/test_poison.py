"""A job that cannot be processed fails alone and does not stop the others."""

from collections.abc import Mapping
from dataclasses import replace

import pytest
from processes import ORCHESTRATOR, WORKER, Stage
from promise import assert_promise_kept
from shapes import CHAIN, FORK, NARROW_FAN, Shape

pytestmark = [pytest.mark.acceptance, pytest.mark.timeout(240)]

GOOD = [(CHAIN, {"n": 1}), (FORK, {"weight": 3})] * 5
DEFINITION = """
    UPDATE dagapp.dag_workflows w SET definition = {} FROM dagapp.dag_jobs j
    WHERE w.workflow_hash = j.workflow_hash AND j.job_id = %s
"""
# Each makes data unreadable that a job depends on.
POISONS = {
    "a definition that is none": DEFINITION.format("""'{"nodes": 5}'"""),
    "a definition without nodes": DEFINITION.format("""jsonb_set(w.definition, '{nodes}', '{}')"""),
    "a definition with a cycle": DEFINITION.format("""jsonb_set(w.definition, '{nodes,gather,next}', '["spread"]')"""),
    "a definition with other nodes": DEFINITION.format("""replace(w.definition::text, 'gather', 'collect')::jsonb"""),
    "a node that is missing": "DELETE FROM dagapp.dag_node_states WHERE job_id = %s AND node_id = 'gather'",
}
POISONS_IN_MID_WORK = POISONS | {
    "an output that is none": (
        "UPDATE dagapp.dag_node_states SET output = '5' WHERE job_id = %s AND node_id = 'spread'"
    ),
    "a child of nobody": (
        "UPDATE dagapp.dag_node_states SET parent_node_id = 'nobody' WHERE job_id = %s AND node_id = 'spread__39'"
    ),
    "a child without an item": (
        "UPDATE dagapp.dag_node_states SET fan_out_index = 1000 WHERE job_id = %s AND node_id = 'spread__39'"
    ),
}


def submit_poisonous(stage: Stage, poisons: Mapping[str, str]) -> dict[int, str]:
    """One job per poison, each with its own definition."""
    submitted = {}
    for number, poison in enumerate(poisons.values()):
        text = NARROW_FAN.text.replace("workflow_id: narrow_fan", f"workflow_id: poison_{number}")
        shape: Shape = replace(NARROW_FAN, workflow_id=f"poison_{number}", text=text)
        submitted[stage.submit(shape, items=list(range(40)), seconds=0.1)] = poison
    return submitted


def test_jobs_poisoned_before_they_start_fail_alone(stage: Stage) -> None:
    bad = submit_poisonous(stage, POISONS)
    stage.submit_all(GOOD)
    for job_id, poison in bad.items():
        stage.database.rows(poison, job_id)
    stage.launch(ORCHESTRATOR, WORKER)
    stage.until_ended()
    assert_promise_kept(stage.dsn, poisoned=bad)


def test_jobs_poisoned_while_they_run_fail_alone(stage: Stage) -> None:
    first, _ = stage.launch(ORCHESTRATOR, WORKER)
    stage.hold("total")  # No bad job ends before it is poisoned.
    bad = submit_poisonous(stage, POISONS_IN_MID_WORK)
    stage.submit_all(GOOD)
    stage.until("SELECT count(*) = 0 FROM dagapp.dag_jobs WHERE status = 'pending'")
    first.kill()
    running = "SELECT count(*) FROM dagapp.dag_jobs WHERE status = 'running' AND job_id = ANY(%s)"
    assert stage.database.value(running, list(bad)) == len(bad)
    for job_id, poison in bad.items():
        stage.database.rows(poison, job_id)
    stage.release()
    stage.launch(ORCHESTRATOR)
    stage.until_ended()
    assert_promise_kept(stage.dsn, poisoned=bad)
