"""Describe a failure: the seed, the workflow, and the last steps before it."""

from collections.abc import Iterator

from dagmaster.model.added_nodes import AddedNode, awaited
from dagmaster.model.workflow import ConditionalNode, FanInNode, FanOutNode, Node
from simulation.cases import Case
from simulation.ground import Violation
from simulation.world import World

SHOWN_STEPS = 30
SHOWN_CHARS = 200


def explain(seed: int, first: Violation, world: World, violation: Violation) -> str:
    ground, weather = world.ground, world.weather
    steps = list(ground.trace)[-SHOWN_STEPS:]
    return "\n".join(
        [
            f"seed {seed}: {first}",
            f"the smallest world that fails, in step {ground.step}: {violation}",
            f"its faults: {', '.join(sorted(ground.faults)) or 'none'}; slices of {weather.slice_size}",
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
