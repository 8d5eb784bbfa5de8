"""A storm is reproducible by its seed and complete."""

from plans import FAULTS, LEASE_SECONDS, make_plan
from shapes import SHAPES
from storm import ROLES
from storm_workflows import KINDS, MEETING


def test_the_same_seed_gives_the_same_storm() -> None:
    assert make_plan(7, seconds=30, jobs=50, roles=ROLES) == make_plan(7, seconds=30, jobs=50, roles=ROLES)
    assert make_plan(7, seconds=30, jobs=50, roles=ROLES) != make_plan(8, seconds=30, jobs=50, roles=ROLES)


def test_even_a_short_storm_has_every_fault_and_every_kind_of_job() -> None:
    for seed in range(50):
        plan = make_plan(seed, seconds=5, jobs=36, roles=ROLES)
        assert {fault.kind for fault in plan.faults} == set(FAULTS)
        assert {job.shape.workflow_id for job in plan.jobs} == set(KINDS) - {MEETING.workflow_id}
        assert all(0 <= fault.at <= 5 for fault in plan.faults)


def test_faults_have_valid_targets_and_outlast_the_leases() -> None:
    for fault in make_plan(3, seconds=600, jobs=1, roles=ROLES).faults:
        role = None if fault.place is None else ROLES[fault.place]
        assert fault.kind.role in (role, "any")
        assert fault.kind.name not in ("stop", "partition", "withhold") or fault.seconds > LEASE_SECONDS


def test_endless_jobs_are_cancelled_and_paused_ones_resumed() -> None:
    for job in make_plan(4, seconds=60, jobs=600, roles=ROLES).jobs:
        assert job.shape.outcome(job.inputs).status != "cancelled" or job.cancel_at is not None
        assert (job.pause_at is None) == (job.resume_at is None)


def test_every_outcome_names_exactly_the_nodes_of_its_definition() -> None:
    """The expected outcomes are written by hand, and could omit a node."""
    for job in make_plan(5, seconds=60, jobs=200, roles=ROLES).jobs:
        demanded = {node.partition("__")[0] for node in job.shape.outcome(job.inputs).nodes}
        assert demanded == set(job.shape.graph.nodes), job.shape.workflow_id
    assert set(SHAPES) - {"long"} <= set(KINDS)
