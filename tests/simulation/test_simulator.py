"""The simulator: worlds are reproducible and cover everything, and a failure explains itself."""

from collections import Counter

import orjson
import pytest

from dagmaster.engine import edges
from dagmaster.engine.state import NodeState
from dagmaster.model.workflow import Aggregation, ConditionalNode, FanInNode, FanOutNode
from simulation import __main__ as command
from simulation import store
from simulation.cases import forgives, moves, policy_of
from simulation.ground import Fault
from simulation.run import Report, SimulationFailed, fresh_seeds, prepare, run_many, simulate


def test_the_same_seed_gives_the_same_world() -> None:
    first, second = prepare(5).build(), prepare(5).build()
    first.run()
    second.run()
    assert first.ground.trace == second.ground.trace
    assert first.ground.store.nodes == second.ground.store.nodes
    assert first.ground.store.events == second.ground.store.events


def test_other_seeds_give_other_worlds() -> None:
    assert len({prepare(seed).case.blueprint.workflow.content_hash for seed in range(0, 40, 2)}) == 20
    assert prepare(0).case != prepare(1).case


def test_progress_is_reported_after_each_run() -> None:
    counts: list[int] = []
    report = run_many(range(3), on_progress=lambda report: counts.append(report.runs))
    assert counts == [1, 2, 3]
    assert isinstance(report, Report) and report.steps > 0


def test_fresh_seeds_differ_from_the_fixed_ones_and_from_each_other() -> None:
    assert fresh_seeds(10).start > 2_000
    assert fresh_seeds(10) != fresh_seeds(10)


def starts_early(node: NodeState) -> bool:
    """A mutant: a node starts with its first edge."""
    return node.live > 0


@pytest.fixture(scope="module")
def failure() -> SimulationFailed:
    """Finding it and shrinking its world takes a second."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(edges, "is_ready", starts_early)
        return _first_failure()


def test_a_failure_names_its_seed_and_shows_the_last_steps(failure: SimulationFailed) -> None:
    text = str(failure)
    assert text.startswith(f"seed {failure.seed}: ")
    for part in ("the smallest world that fails", "its workflow:", "start: start", "inputs:", "its last steps:"):
        assert part in text
    assert "decides on" in text
    assert len(text.splitlines()) < 80


def test_a_failure_is_reproduced_by_its_seed(failure: SimulationFailed, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(edges, "is_ready", starts_early)
    with pytest.raises(SimulationFailed) as again:
        simulate(failure.seed)
    assert str(again.value) == str(failure)
    assert again.value.step == failure.step


def test_irrelevant_faults_are_left_out_of_the_explanation(failure: SimulationFailed) -> None:
    assert "its faults: none" in str(failure)


def test_a_lease_without_fencing_is_detected_with_the_fault_that_shows_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store.Store, "fence", lambda self, owner_id, epoch: None)
    assert Fault.TAKE_OVER in str(_first_failure()) or Fault.OWNER_DEATH in str(_first_failure())


def _first_failure() -> SimulationFailed:
    with pytest.raises(SimulationFailed) as caught:
        run_many(range(300))
    return caught.value


def test_the_generated_workflows_cover_every_feature() -> None:
    features: Counter[str] = Counter()
    for seed in range(200):
        case = prepare(seed).case
        for node in case.blueprint.workflow.nodes.values():
            features[node.type] += 1
            features["any_of"] += bool(node.depends_on and node.depends_on.any_of)
            features["all_of"] += bool(node.depends_on and node.depends_on.all_of)
            if isinstance(node, ConditionalNode):
                features[f"{len(node.branches)} branches"] += 1
                features["branch to nowhere"] += any(not branch.next for branch in node.branches)
            if isinstance(node, FanOutNode):
                features["held back"] += node.max_parallel is not None
            if isinstance(node, FanInNode):
                features[node.aggregation] += 1
        features.update(f"list of {len(items)}" for items in case.items.values())
        features["broken"] += bool(case.broken)
        for task, plan in case.plans.items():
            policy = case.added[task].retry if task in case.added else policy_of(task, case.blueprint)
            features["forgiven"] += bool(plan.failures and (policy.on or policy.never) and not plan.is_doomed)
            features["unforgiven"] += bool(plan.failures and plan.is_doomed and not forgives(policy, plan.error))
            features["out of memory"] += bool(plan.failures and moves(policy, plan.error))
        features["adds"] += bool(case.additions)
        features["gives the result of another"] += any(addition.result_of for addition in case.additions.values())
        features["gate"] += any(node.type == "gate" for node in case.added.values())
        features["is told to wait for more"] += any(node.label == "more" for node in case.added.values())
        features["doomed"] += any(plan.is_doomed for plan in case.plans.values())
    types = {"start", "end", "task", "conditional", "fan_out", "fan_in", "any_of", "all_of", "held back"}
    shapes = {
        "2 branches",
        "3 branches",
        "branch to nowhere",
        "list of 0",
        "list of 1",
        "list of 9",
        "broken",
        "doomed",
        "forgiven",
        "unforgiven",
        "out of memory",
        "adds",
        "gives the result of another",
        "gate",
        "is told to wait for more",
    }
    assert {name for name, count in features.items() if count >= 5} >= types | shapes | set(Aggregation)


def test_the_command_runs_worlds_by_seed(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["--seed", "7", "--runs", "3", "--json"]) == 0
    summary = orjson.loads(capsys.readouterr().out)
    assert (summary["ok"], summary["first_seed"], summary["runs"]) == (True, "7", 3)
    assert command.main(["--seed", "7"]) == 0
    assert capsys.readouterr().out.startswith("runs 1, steps ")


def test_the_command_names_the_seed_of_a_failure(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(edges, "is_ready", lambda node: node.live > 0)
    assert command.main(["--seed", "0", "--runs", "200"]) == 1
    assert "reproduce: python -m simulation --seed " in capsys.readouterr().err
