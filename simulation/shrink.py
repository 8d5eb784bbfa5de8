"""Find a smaller failing world, with fewer faults, planned failures and steps, and describe it."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from random import Random

from dagmaster.model.added_nodes import AddedNode, awaited
from dagmaster.model.workflow import ConditionalNode, FanInNode, FanOutNode, Node
from simulation.cases import Case, Plan
from simulation.ground import Violation
from simulation.world import Weather, World

LUCKS = 4
ROUNDS = 30
SHOWN_STEPS = 30
SHOWN_CHARS = 200


@dataclass(frozen=True, slots=True)
class Trial:
    """Everything that determines a world."""

    case: Case
    weather: Weather
    luck: int

    def build(self) -> World:
        return World(self.case, self.weather, Random(f"world {self.luck}"))


def shrink(trial: Trial, world: World, violation: Violation) -> tuple[World, Violation]:
    """The smallest failing world found, after its failure, and the violation."""
    smallest = trial, world, violation
    for _ in range(ROUNDS):
        smaller = next(_failing(smallest[0], smallest[1].ground.step), None)
        if smaller is None:
            break
        smallest = smaller
    return smallest[1], smallest[2]


def _failing(trial: Trial, steps: int) -> Iterator[tuple[Trial, World, Violation]]:
    """Trials that are simpler than this one, or equally simple and fail sooner."""
    for simpler in _simpler(trial):
        for luck in range(LUCKS):
            tried = replace(simpler, luck=luck)
            world = tried.build()
            violation = _fails(world)
            if violation is not None and (simpler is not trial or world.ground.step < steps):
                yield tried, world, violation


def _simpler(trial: Trial) -> Iterator[Trial]:
    plain = {node_id: Plan(plan.value, plan.shape) for node_id, plan in trial.case.plans.items()}
    if plain != trial.case.plans:
        yield replace(trial, case=replace(trial.case, plans=plain))
    if trial.case.additions:
        yield replace(trial, case=replace(trial.case, additions={}, added={}))
    for fault in sorted(trial.weather.faults):
        yield replace(trial, weather=replace(trial.weather, faults=trial.weather.faults - {fault}))
    if trial.weather.local_workers:
        yield replace(trial, weather=replace(trial.weather, local_workers=False))
    if trial.weather.steps:
        yield replace(trial, weather=replace(trial.weather, steps=trial.weather.steps // 2))
    yield trial


def _fails(world: World) -> Violation | None:
    try:
        world.run()
    except Violation as violation:
        return violation
    return None


def explain(seed: int, first: Violation, world: World, violation: Violation) -> str:
    ground = world.ground
    steps = list(ground.trace)[-SHOWN_STEPS:]
    return "\n".join(
        [
            f"seed {seed}: {first}",
            f"the smallest world that fails, in step {ground.step}: {violation}",
            f"its faults: {', '.join(sorted(ground.faults)) or 'none'}; slices of {ground.rules.slice_size}",
            "its workflow:",
            *(f"  {line}" for line in describe_case(ground.case)),
            "its last steps:",
            *(f"  {step:4} {at:%H:%M:%S.%f} {_shorten(text)}" for step, at, text in steps),
        ]
    )


def describe_case(case: Case) -> Iterator[str]:
    """One line per node, with the plans of its tasks; then the inputs."""
    for node_id, node in case.blueprint.workflow.nodes.items():
        yield " ".join([f"{node_id}: {node.type}", *_details(node), *_plans(case, node_id)])
    for adder, addition in case.additions.items():
        for part in addition.slices:
            yield f"{adder} adds {', '.join(_added(node) for node in part)}"
        if addition.result_of is not None:
            yield f"{adder} returns the result of {addition.result_of}"
    yield f"inputs: {_shorten(str(dict(case.inputs)))}"


def _added(node: AddedNode) -> str:
    return f"{node.node_id} ({node.type}){' after ' + ' and '.join(awaited(node)) if awaited(node) else ''}"


def _details(node: Node) -> Iterator[str]:
    if node.depends_on and node.depends_on.all_of:
        yield f"all_of({', '.join(node.depends_on.all_of)})"
    if node.depends_on and node.depends_on.any_of:
        yield f"any_of({', '.join(node.depends_on.any_of)})"
    if isinstance(node, FanOutNode):
        yield f"over {node.source} max_parallel={node.max_parallel}"
    if isinstance(node, FanInNode):
        yield f"{node.aggregation} of {node.source_node or 'the fan-out before'}"
    if isinstance(node, ConditionalNode):
        yield f"on {node.subject}"
        yield from (f"[{branch.when or 'else'} -> {', '.join(branch.next) or 'nothing'}]" for branch in node.branches)
    if node.next:
        yield f"-> {', '.join(node.next)}"


def _plans(case: Case, node_id: str) -> Iterator[str]:
    if node_id in case.broken:
        yield "(always fails before it reaches a worker)"
    for task, plan in case.plans.items():
        if plan.failures and (task == node_id or task.startswith(f"{node_id}__")):
            yield f"({task} fails {'always' if plan.is_doomed else plan.failures} with {plan.error[0]})"


def _shorten(text: str) -> str:
    return text if len(text) <= SHOWN_CHARS else f"{text[:SHOWN_CHARS]}..."
