"""The values that a node needs before it can run and that are not in memory."""

from collections.abc import Iterable, Iterator

from dagmaster.engine.change_set import ChangeSet, Rules
from dagmaster.engine.messages import Expand, Message
from dagmaster.engine.state import JobState, NodeState, is_executed
from dagmaster.engine.values import INPUTS, LoadedValues, StoredValue, size_of, spell_size
from dagmaster.errors import ValuesTooLarge
from dagmaster.model.added_nodes import references
from dagmaster.model.conditions import Condition
from dagmaster.model.expressions import Template
from dagmaster.model.graph import FanInSpec
from dagmaster.model.references import Reference
from dagmaster.model.states import NodeStatus
from dagmaster.model.workflow import Aggregation

LOADED_NOTHING = LoadedValues()


class ValuesNotLoaded(Exception):
    """The node is postponed: its values must be loaded, or this batch has no room for it."""


def require_values(changes: ChangeSet, node: NodeState) -> None:
    """Raise ValuesNotLoaded, or ValuesTooLarge, before any expression of the node is evaluated."""
    if changes.bytes >= changes.rules.max_change_set_bytes:
        raise ValuesNotLoaded
    if node.spec.fan_in is not None:
        _check_fan_in(changes, node.spec.fan_in)
    needed = needs_of(changes.job, node, changes.loaded)
    check_size(f"the values that {node.node_id} refers to", sum(needed.values()), changes.rules)
    if needed:
        raise ValuesNotLoaded


def check_size(label: str, size: int, rules: Rules) -> None:
    """Raise ValuesTooLarge if a node would use too much memory."""
    if size > rules.max_fan_in_bytes:
        raise ValuesTooLarge(
            f"{label} are {spell_size(size)} together, and the limit is {spell_size(rules.max_fan_in_bytes)} "
            "(max_fan_in_bytes); pass a reference to the data, not the data itself, or raise the limit"
        )


def _check_fan_in(changes: ChangeSet, spec: FanInSpec) -> None:
    total = sum(size_of(child.output) for child in gathered(changes.job, spec))
    if total > changes.rules.max_fan_in_bytes:
        raise ValuesTooLarge(
            f"the outputs of {spec.fan_out} are {spell_size(total)} together, and a fan-in may gather "
            f"{spell_size(changes.rules.max_fan_in_bytes)} (max_fan_in_bytes); let each task return a reference to its "
            "data, not the data itself, or raise the limit"
        )


def gathered(job: JobState, spec: FanInSpec) -> list[NodeState]:
    """The children whose outputs are read."""
    children = counted(job, spec)
    match spec.aggregation:
        case Aggregation.FIRST:
            return children[:1]
        case Aggregation.LAST:
            return children[-1:]
        case _:
            return children


def counted(job: JobState, spec: FanInSpec) -> list[NodeState]:
    """Failed children count only for `collect`, where each item keeps its position."""
    with_failed, children = spec.aggregation is Aggregation.COLLECT, job.children(spec.fan_out)
    return [child for child in children if with_failed or child.status is not NodeStatus.FAILED]


def values_needed(job: JobState, messages: Iterable[Message], rules: Rules) -> list[str]:
    """The values to load for the next change set: for the waiting nodes, in order, up to the size limit."""
    if not job.has_stored:
        return []
    sizes: dict[str, int] = {}
    waiting = [*job.postponed][: rules.slice_size]
    waiting += [message.node_id for message in messages if isinstance(message, Expand)]
    for node_id in waiting:
        both = sizes | needs_of(job, job.nodes[node_id])
        total = sum(both.values())
        if total > (rules.max_change_set_bytes if sizes else rules.max_fan_in_bytes):
            break
        sizes = both
    return list(sizes)


def needs_of(job: JobState, node: NodeState, loaded: LoadedValues = LOADED_NOTHING) -> dict[str, int]:
    """The sizes of the values by node; the inputs are listed under INPUTS."""
    if not job.has_stored:
        return {}
    needed: dict[str, int] = {}
    for name in _named(job, node):
        if name == INPUTS:
            if isinstance(job.inputs, StoredValue) and loaded.inputs is None:
                needed[INPUTS] = job.inputs.size
        elif isinstance(output := job.nodes[name].output, StoredValue) and name not in loaded.outputs:
            needed[name] = output.size
    return needed


def is_from_stored(job: JobState, referred: Iterable[Reference]) -> bool:
    """Whether any referenced value is not kept in memory."""
    if not job.has_stored:
        return False
    names = set(_names(job, referred))
    return any(isinstance(job.inputs if name == INPUTS else job.nodes[name].output, StoredValue) for name in names)


def _named(job: JobState, node: NodeState) -> Iterator[str]:
    if node.spec.fan_in is not None:
        yield from (child.node_id for child in gathered(job, node.spec.fan_in))
    elif node.is_added and is_executed(node):
        yield from references(node.task.params.raw)
    else:
        yield from _names(job, _references(job, node))


def _references(job: JobState, node: NodeState) -> Iterator[Reference]:
    """The references of every expression that is evaluated when the node runs."""
    spec, fan = node.spec, job.fans.get(node.parent or node.node_id)
    expressions: list[Template | Condition | None] = [branch.condition for branch in spec.branches]
    if is_executed(node):
        expressions.append(node.task.params)
    if spec.fan_out is not None and (fan is None or fan.items is None):
        expressions.append(spec.fan_out.source)
    if spec.wait is not None:
        expressions += (spec.wait.until, spec.wait.seconds)
    if spec.approval is not None:
        expressions.append(spec.approval.message)
    if spec.child_job is not None:
        expressions.append(spec.child_job.inputs)
    return (reference for expression in expressions if expression for reference in expression.references)


def _names(job: JobState, referred: Iterable[Reference]) -> Iterator[str]:
    for reference in referred:
        if reference.root == "inputs":
            yield INPUTS
        elif reference.root == "nodes":
            if not reference.path:
                yield from job.graph.nodes
            elif reference.path[1:2] != ("status",) and reference.path[0] in job.nodes:
                yield str(reference.path[0])
