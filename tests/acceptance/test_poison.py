"""A job that nobody can process ends by itself and does not stop the others."""

import pytest
from processes import ORCHESTRATOR, WORKER, Stage
from promise import assert_promise_kept
from shapes import CHAIN, FAN, FORK, NARROW_FAN

pytestmark = [pytest.mark.acceptance, pytest.mark.timeout(240)]

GOOD = [(CHAIN, {"n": 1}), (FORK, {"weight": 3})] * 5
DEFINITION = """
    UPDATE dagapp.dag_workflows w SET definition = {} FROM dagapp.dag_jobs j
    WHERE w.workflow_hash = j.workflow_hash AND j.job_id = %s
"""
# Each makes something unreadable that a job stands on; both kinds of fan are used by poisoned jobs alone.
POISONS = {
    "a definition that is none": DEFINITION.format("""'{"nodes": 5}'"""),
    "a definition without its nodes": DEFINITION.format("""jsonb_set(w.definition, '{nodes}', '{}')"""),
    "a definition with a cycle": DEFINITION.format("""jsonb_set(w.definition, '{nodes,gather,next}', '["spread"]')"""),
    "a definition with other nodes": DEFINITION.format(
        """replace(w.definition::text, '"gather"', '"collect"')::jsonb"""
    ),
    "inputs that are none": "UPDATE dagapp.dag_jobs SET input_params = '[1, 2]' WHERE job_id = %s",
    "a node that is missing": "DELETE FROM dagapp.dag_node_states WHERE job_id = %s AND node_id = 'gather'",
}
FAILED = "SELECT status = 'failed' AND error_message IS NOT NULL FROM dagapp.dag_jobs WHERE job_id = %s"


@pytest.mark.parametrize("poison", POISONS.values(), ids=POISONS)
def test_a_job_that_was_poisoned_before_it_began_fails_beside_ten_good_ones(stage: Stage, poison: str) -> None:
    bad = stage.submit(FAN, items=list(range(5)))
    stage.submit_all(GOOD)
    stage.database.rows(poison, bad)
    stage.launch(ORCHESTRATOR, WORKER)
    stage.until_ended()
    assert stage.database.value(FAILED, bad)
    assert_promise_kept(stage.dsn, poisoned=[bad])


@pytest.mark.parametrize("poison", POISONS.values(), ids=POISONS)
def test_a_job_that_was_poisoned_in_mid_work_fails_beside_ten_good_ones(stage: Stage, poison: str) -> None:
    first, _ = stage.launch(ORCHESTRATOR, WORKER)
    bad = stage.submit(NARROW_FAN, items=list(range(40)), seconds=0.05)
    stage.until("SELECT count(*) > 5 FROM acceptance_ledger WHERE event = 'end'")
    first.kill()
    stage.submit_all(GOOD)
    stage.database.rows(poison, bad)
    stage.launch(ORCHESTRATOR)
    stage.until_ended()
    assert stage.database.value(FAILED, bad)
    assert_promise_kept(stage.dsn, poisoned=[bad])
