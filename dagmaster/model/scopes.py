"""The names that expressions may refer to, by their place in the workflow."""

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from dagmaster.model.conditions import Condition, compile_condition
from dagmaster.model.expressions import Template, compile_template, walk_strings
from dagmaster.model.problems import Path, Problem, Severity, did_you_mean
from dagmaster.model.references import Reference
from dagmaster.model.sandbox import ExpressionSyntax
from dagmaster.model.workflow import (
    Aggregation,
    ApprovalNode,
    ConditionalNode,
    FanInNode,
    FanOutNode,
    Node,
    TaskNode,
    WaitNode,
    Workflow,
    WorkflowNode,
)

IsBefore = Callable[[str, str], bool]

_NODE_FIELDS: Final = ("output", "status")
_METHODS: Final = ("items", "keys", "values", "get")
_GATHERED: Final = {
    Aggregation.COLLECT: ("results",),
    Aggregation.CONCAT: ("results",),
    Aggregation.SUM: ("total",),
    Aggregation.FIRST: ("result",),
    Aggregation.LAST: ("result",),
    Aggregation.MERGE: ("result",),
}
_FAN_OUT_FIELDS: Final = ("item", "index", "total")
_JOB_FIELDS: Final = ("status", "error", "failed_node")


def find_expression_problems(
    workflow: Workflow, is_before: IsBefore, *, finalizers: Collection[str] = ()
) -> Iterator[Problem]:
    """Syntax errors, and references that cannot be resolved. `is_before(a, b)`: a is an ancestor of b.

    Nodes in `finalizers` may refer to the result of the job.
    """
    for use in _find_all(workflow):
        if isinstance(use, Problem):
            yield use
        elif message := _find_fault(use, workflow, is_before, finalizers):
            severity: Severity = "warning" if use.is_guarded and use.reference.root == "inputs" else "error"
            yield Problem(message, use.place.path, severity=severity)


def find_undeclared_inputs(workflow: Workflow) -> Iterator[Problem]:
    """Warn if a workflow declares no inputs but uses some: any input is accepted unchecked."""
    uses = [use for use in _find_all(workflow) if isinstance(use, _Use) and use.reference.root == "inputs"]
    names = sorted({str(use.reference.path[0]) for use in uses if use.reference.path})
    if names:
        message = (
            f"the workflow declares no inputs and uses {', '.join(names)}: any input is accepted, and a node fails "
            "when one that it needs is missing; declare them under 'inputs'"
        )
        yield Problem(message, uses[0].place.path, severity="warning")


def _fault_of_secret(use: "_Use", workflow: Workflow) -> str | None:
    """Only workers open a secret: the engine sees a sealed reference."""
    reference, path = use.reference, use.place.path
    spec = workflow.inputs.get(str(reference.path[0])) if reference.path else None
    if spec is None or not spec.secret or path[0] == "globals" or {"params", "inputs"} & set(path[2:4]):
        return None
    return f"input {reference.path[0]!r} is secret: it can only be used in the parameters of tasks"


@dataclass(frozen=True, slots=True)
class _Place:
    """The place of an expression. `node_id` is None in the globals, which every task shares."""

    path: Path
    node_id: str | None
    has_item: bool = False

    def at(self, *keys: str | int, has_item: bool = False) -> "_Place":
        return _Place((*self.path, *keys), self.node_id, has_item or self.has_item)


@dataclass(frozen=True, slots=True)
class _Use:
    reference: Reference
    is_guarded: bool
    place: _Place


Uses = Iterator[_Use | Problem]


# Collecting references


def _find_all(workflow: Workflow) -> Uses:
    yield from _in_value(dict(workflow.globals), _Place(("globals",), None))
    for node_id, node in workflow.nodes.items():
        yield from _in_node(node, _Place(("nodes", node_id), node_id))


def _in_node(node: Node, place: _Place) -> Uses:
    match node:
        case TaskNode():
            yield from _in_value(node.params, place.at("params"))
        case FanOutNode():
            yield from _in_value(node.source, place.at("source"))
            yield from _in_value(node.task.params, place.at("task", "params", has_item=True))
        case ConditionalNode():
            yield from _in_conditional(node, place)
        case WaitNode():
            yield from _in_value(node.until, place.at("until"))
            yield from _in_value(node.seconds, place.at("seconds"))
        case ApprovalNode():
            yield from _in_value(node.message, place.at("message"))
        case WorkflowNode():
            yield from _in_value(node.inputs, place.at("inputs"))


def _in_value(raw: Any, place: _Place) -> Uses:
    """Compile each string by itself, so that every problem is found at its place."""
    uses = [
        use for path, text in walk_strings(raw) for use in _in_text(partial(compile_template, text), place.at(*path))
    ]
    yield from uses
    if not any(isinstance(use, Problem) for use in uses):
        yield from _wrong_shape(raw, place)


def _wrong_shape(raw: Any, place: _Place) -> Iterator[Problem]:
    try:
        compile_template(raw)
    except ExpressionSyntax as error:
        yield Problem(str(error), place.at(*error.path).path)


def _in_conditional(node: ConditionalNode, place: _Place) -> Uses:
    """Report problems of the subject once, not for every branch."""
    subject, of_subject = node.subject, frozenset[Reference]()
    if subject is not None:
        uses = list(_in_text(partial(compile_condition, "is_null()", subject=subject), place.at("subject")))
        yield from uses
        subject = "{{ inputs }}" if any(isinstance(part, Problem) for part in uses) else subject
        of_subject = compile_condition("is_null()", subject=subject).references
    for number, branch in enumerate(node.branches):
        if branch.when is not None:
            compile_branch = partial(compile_condition, branch.when, subject=subject)
            yield from _in_text(compile_branch, place.at("branches", number, "when"), of_subject)


def _in_text(
    compile_text: Callable[[], Template | Condition], place: _Place, seen: frozenset[Reference] = frozenset()
) -> Uses:
    try:
        compiled = compile_text()
    except ExpressionSyntax as error:
        yield Problem(str(error), place.path)
        return
    for reference in sorted(compiled.references - seen, key=str):
        yield _Use(reference, reference in compiled.guarded, place)


# Checking references


def _find_fault(use: _Use, workflow: Workflow, is_before: IsBefore, finalizers: Collection[str]) -> str | None:
    reference, place = use.reference, use.place
    match reference.root:
        case "inputs":
            return _fault_of_input(reference, workflow) or _fault_of_secret(use, workflow)
        case "nodes":
            return _fault_of_node(reference, place, workflow, is_before) or _fault_of_key(use, workflow)
        case "env" if not reference.path:
            return "env cannot be read as a whole; name a variable, such as env.HOME"
        case "item" | "index" | "fan_out" if not place.has_item:
            return f"{reference} is only known in the task of a fan_out"
        case "fan_out" if not reference.path or reference.path[0] not in _FAN_OUT_FIELDS:
            return f"{reference} is unknown: fan_out has {', '.join(_FAN_OUT_FIELDS)}"
        case "job" if place.node_id not in finalizers:
            return (
                f"{reference} is only known in the nodes of on_failure and finally: before them, the job has not ended"
            )
        case "job" if not reference.path or reference.path[0] not in _JOB_FIELDS:
            return f"{reference} is unknown: job has {', '.join(_JOB_FIELDS)}"
        case _:
            return None


def _fault_of_input(reference: Reference, workflow: Workflow) -> str | None:
    if not reference.path or workflow.additional_inputs or reference.path[0] in workflow.inputs:
        return None
    name = str(reference.path[0])
    known = f"; inputs are: {', '.join(workflow.inputs) or 'none'}"
    return f"{reference} refers to an unknown input{did_you_mean(name, workflow.inputs) or known}"


def _fault_of_node(reference: Reference, place: _Place, workflow: Workflow, is_before: IsBefore) -> str | None:
    if place.node_id is None:
        return f"{reference} cannot be used in globals: they are shared by all nodes, so only inputs and env are known"
    name = str(reference.path[0]) if reference.path else ""
    if len(reference.path) < 2 or reference.path[1] not in _NODE_FIELDS:
        return f"{reference} is incomplete: write nodes.{name or '<id>'}.output or nodes.{name or '<id>'}.status"
    if name not in workflow.nodes:
        return f"{reference} refers to an unknown node{did_you_mean(name, workflow.nodes)}"
    if not is_before(name, place.node_id):
        return f"{reference} is not known here: node {name!r} does not lead to node {place.node_id!r}"
    return None


def _fault_of_key(use: _Use, workflow: Workflow) -> str | None:
    """A key of an output whose keys are known in advance; a guarded reference may be missing."""
    node_id, field, *keys = use.reference.path
    if field != "output" or not keys or use.is_guarded:
        return None
    known = _keys_of(workflow.nodes[str(node_id)])
    if known is None or keys[0] in known or keys[0] in _METHODS:
        return None
    return f"{use.reference} is unknown: the output of {node_id!r} has {', '.join(known)}"


def _keys_of(node: Node) -> tuple[str, ...] | None:
    match node:
        case FanInNode():
            return (*_GATHERED[node.aggregation], "count", "failed")
        case FanOutNode():
            return ("fan_out_count", "child_node_ids", "child_node_ids_truncated")
        case ConditionalNode():
            return ("condition_result", "taken", "taken_branch", "skipped_branches")
        case _:
            return None
