"""A case: a workflow, its inputs, and the planned outcome of each of its tasks."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any, NamedTuple

from dagmaster.model.added_nodes import AddedNode
from dagmaster.model.retry import RetryPolicy
from dagmaster.model.workflow import (
    CHILD_SEPARATOR,
    Aggregation,
    ApprovalNode,
    FanInNode,
    FanOutNode,
    MayFail,
    TaskNode,
    WaitNode,
    Workflow,
    WorkflowNode,
)
from simulation.dynamic_nodes import Addition, adder_of, by_id, random_additions
from simulation.graphs import Blueprint, Shape

ENDLESS = 1_000
"""More failures than any retry policy allows."""

# Errors as workers report them: the class first, then its bases.
REFUSED = ("ConnectionRefusedError", "ConnectionError", "OSError", "Exception")
WRONG = ("ValueError", "Exception")
EXHAUSTED = ("MemoryError", "Exception")
MISNAMED = ("NameError", "Exception")
ERRORS: Sequence[tuple[str, ...]] = (REFUSED, WRONG, EXHAUSTED, MISNAMED)

LATE = ("TimeoutError", "OSError", "Exception")
UNRESOLVED = ("ExpressionFailed", "Exception")

ITEMS: Sequence[Any] = (1, 2.5, "text", None, True, {"key": {"deep": [1]}}, [1, [2]], "", {})


class Plan(NamedTuple):
    """The outcome of a task: a number of failing attempts, then an output of this shape around this value."""

    value: int
    shape: Shape = "object"
    failures: int = 0
    permanent: bool = False
    retry_after_seconds: float | None = None
    error: tuple[str, ...] = ()

    @property
    def is_doomed(self) -> bool:
        return self.permanent or self.failures >= ENDLESS


@dataclass(frozen=True, slots=True)
class Case:
    """`plans` are by task, child and added node, `items` by fan-out, `additions` by the node that adds them.

    `broken` nodes fail before they reach a worker. `answers` are by step: the number of rejected attempts.
    """

    blueprint: Blueprint
    inputs: Mapping[str, Any]
    items: Mapping[str, list[Any]]
    plans: Mapping[str, Plan]
    broken: frozenset[str]
    additions: Mapping[str, Addition] = field(default_factory=dict)
    added: Mapping[str, AddedNode] = field(default_factory=dict)
    answers: Mapping[str, int] = field(default_factory=dict)


def random_case(blueprint: Blueprint, rng: Random) -> Case:
    """Most cases can complete; some are doomed by a task or an expression that always fails."""
    inputs: dict[str, Any] = {"object": {"present": 1}}
    for switch in blueprint.switches.values():
        if not switch.ref.is_node:
            inputs[switch.ref.source] = rng.randrange(switch.branches)
    items = {}
    for node_id, fan in blueprint.fans.items():
        items[node_id] = fan.written
        if fan.list_input is not None:
            items[node_id] = inputs[fan.list_input] = rng.choices(ITEMS, k=rng.choice((0, 1, 2, 3, 4, 5, 7, 9)))
    plans = {
        node_id: _with_error(plan, policy_of(node_id, blueprint), rng)
        for node_id, plan in _plans(blueprint, items, rng)
    }
    broken = {node_id for node_id in blueprint.workflow.nodes if _is_broken(node_id, blueprint, items)}
    additions = random_additions(blueprint, items, rng)
    added = by_id(additions)
    for node in added.values():
        if node.type == "task" and node.retry:
            plans[node.node_id] = _with_error(_plan("object", node.retry.max_attempts, rng), node.retry, rng)
    answers = random_answers(blueprint.workflow, rng)
    broken |= {node_id for node_id in answers if is_doomed(node_id, blueprint.workflow, answers)}
    return Case(blueprint, inputs, items, plans, frozenset(broken), additions, added, answers)


def _plans(blueprint: Blueprint, items: Mapping[str, list[Any]], rng: Random) -> Iterator[tuple[str, Plan]]:
    for node_id, node in blueprint.workflow.nodes.items():
        if isinstance(node, TaskNode) and node.retry:
            yield node_id, _plan("object", node.retry.max_attempts, rng)
        if isinstance(node, FanOutNode) and node.task.retry:
            for index in range(len(items[node_id])):
                child = f"{node_id}{CHILD_SEPARATOR}{index}"
                yield child, _plan(blueprint.fans[node_id].shape, node.task.retry.max_attempts, rng)


def _plan(shape: Shape, max_retries: int, rng: Random) -> Plan:
    value, roll = rng.randrange(3), rng.random()
    if roll < 0.8:
        return Plan(value, shape)
    if roll < 0.985:
        return Plan(value, shape, rng.randint(0, max_retries), retry_after_seconds=rng.choice((None, None, 0.0, 3.0)))
    return Plan(value, shape, ENDLESS) if roll < 0.992 else Plan(value, shape, ENDLESS, permanent=True)


def _with_error(plan: Plan, policy: RetryPolicy, rng: Random) -> Plan:
    """Choose its error; if the policy forbids a retry after it, later attempts cannot help."""
    if not plan.failures:
        return plan
    error = rng.choice(ERRORS)
    is_final = not forgives(policy, error, is_asked_for=plan.retry_after_seconds is not None)
    return plan._replace(error=error, failures=ENDLESS if is_final else plan.failures)


def _is_broken(node_id: str, blueprint: Blueprint, items: Mapping[str, list[Any]]) -> bool:
    """Whether one of its expressions fails, or it merges outputs that are no objects."""
    node = blueprint.workflow.nodes[node_id]
    if not isinstance(node, FanInNode) or node.aggregation is not Aggregation.MERGE:
        return node_id in blueprint.faulty
    fan_out = source_of(node_id, blueprint)
    return bool(items[fan_out]) and blueprint.fans[fan_out].shape in ("list", "number")


def source_of(fan_in: str, blueprint: Blueprint) -> str:
    """Its fan-out: the one it names, or the one right before it."""
    node = blueprint.workflow.nodes[fan_in]
    assert isinstance(node, FanInNode)
    if node.source_node:
        return node.source_node
    named = node.depends_on.all_of if node.depends_on else ()
    return next(
        node_id
        for node_id, other in blueprint.workflow.nodes.items()
        if isinstance(other, FanOutNode) and (fan_in in other.next or node_id in named)
    )


def output_of(plan: Plan, params: Any) -> Any:
    """The worker's result; it echoes the parameters, so that wrong ones are detected."""
    match plan.shape:
        case "object":
            return {"value": plan.value, "is_real": True, "echo": params}
        case "rows":
            return {"rows": [plan.value, [plan.value]], "more": ["x"], "echo": params}
        case "list":
            return [plan.value, 0.5, "text", True]
        case "number":
            return plan.value


def parent_of(node_id: str) -> str | None:
    """The fan-out of a child; a node that a child has added has none."""
    parent, separator, _ = node_id.rpartition(CHILD_SEPARATOR)
    return parent if separator and adder_of(node_id) is None else None


def policy_of(node_id: str, blueprint: Blueprint) -> RetryPolicy:
    node = blueprint.workflow.nodes[parent_of(node_id) or node_id]
    if isinstance(node, FanOutNode) and parent_of(node_id):
        return node.task.retry or RetryPolicy()
    if isinstance(node, WaitNode | ApprovalNode):
        return RetryPolicy(max_attempts=0)
    return getattr(node, "retry", None) or RetryPolicy()


# Written independently of the engine.


def forgives(policy: RetryPolicy, error: Sequence[str], *, is_asked_for: bool = False) -> bool:
    """Whether the rules allow another attempt after this error; `is_asked_for`: the worker requested it."""
    named = set(error)
    if named & set(policy.never):
        return False
    if is_asked_for:
        return True
    if not policy.on:
        return not named & {"NameError", "ExpressionFailed"}
    return bool(named & set(policy.on)) or moves(policy, error)


def moves(policy: RetryPolicy, error: Sequence[str]) -> bool:
    """Whether the next attempt goes to the queue with more memory."""
    return policy.on_oom is not None and "MemoryError" in error


def random_answers(workflow: Workflow, rng: Random) -> dict[str, int]:
    """How many attempts of each step are rejected before one succeeds."""
    answers = {}
    for node_id, node in workflow.nodes.items():
        if isinstance(node, ApprovalNode):
            answers[node_id] = 1_000 if rng.random() < 0.1 else 0
        if isinstance(node, WorkflowNode):
            most = node.retry.max_attempts if node.retry else 0
            answers[node_id] = rng.choice((0, 0, 0, rng.randint(0, most), 1_000 if rng.random() < 0.2 else 0))
    return answers


def is_doomed(node_id: str, workflow: Workflow, answers: Mapping[str, int]) -> bool:
    node = workflow.nodes[node_id]
    most = node.retry.max_attempts if isinstance(node, WorkflowNode) and node.retry else 0
    return answers.get(node_id, 0) > most


def may_fail(node_id: str, workflow: Workflow) -> bool:
    """Whether the node, or the fan-out of the child, is allowed to fail."""
    node = workflow.nodes.get(parent_of(node_id) or node_id)
    return isinstance(node, MayFail) and node.allow_failure
