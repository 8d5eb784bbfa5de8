"""Random workflows of all node types: chains, joins, branches within branches, fan-outs with and without fan-ins."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from random import Random
from typing import Any, Literal, NamedTuple

from dagmaster.model.compile import compile_graph
from dagmaster.model.graph import Graph
from dagmaster.model.retry import Backoff, RetryPolicy
from dagmaster.model.workflow import (
    Aggregation,
    ApprovalNode,
    Branch,
    ChildTask,
    ConditionalNode,
    DependsOn,
    EndNode,
    FanInNode,
    FanOutNode,
    InputSpec,
    InputType,
    Node,
    StartNode,
    TaskNode,
    WaitNode,
    Workflow,
    WorkflowNode,
)

MAX_NODES = 14
MAX_DEPTH = 3
QUEUE = "tasks"
HEAVY = "heavy"
MISSING = "{{ inputs.object.missing }}"

RULES: Sequence[dict[str, Any]] = (
    {"on": ("OSError",)},
    {"on": ("ValueError", "TimeoutError"), "on_oom": HEAVY},
    {"never": ("ConnectionError", "TimeoutError")},
    {"never": ("MemoryError",), "on_oom": HEAVY},
    *({"on_oom": HEAVY} for _ in range(4)),
)

Shape = Literal["object", "rows", "list", "number"]
SHAPES: Sequence[Shape] = ("object", "rows", "list", "number")


class ValueRef(NamedTuple):
    """A value that an expression refers to: an input, or the value of a node's output, 0 if it was skipped."""

    source: str
    is_node: bool = False


class Switch(NamedTuple):
    """The switch of a conditional: branch `b<i>` is for the value i, the last branch for all other values."""

    ref: ValueRef
    branches: int


class Fan(NamedTuple):
    """The shape of the children's outputs, and the input that holds the items, unless they are literal."""

    shape: Shape
    list_input: str | None
    written: list[Any]


@dataclass(frozen=True, slots=True)
class Blueprint:
    """A workflow with facts about its expressions. Each of the `faulty` nodes has one that always fails."""

    workflow: Workflow
    graph: Graph
    switches: Mapping[str, Switch]
    params: Mapping[str, Mapping[str, ValueRef]]
    fans: Mapping[str, Fan]
    faulty: frozenset[str]


class Hook(NamedTuple):
    """The source of an edge: a node, or one branch of it."""

    node_id: str
    branch: int | None = None


@dataclass(slots=True)
class _Draft:
    """A node before its type is instantiated."""

    kind: type[Node]
    fields: dict[str, Any] = field(default_factory=dict)
    next: list[str] = field(default_factory=list)
    all_of: list[str] = field(default_factory=list)
    any_of: list[str] = field(default_factory=list)
    linked: list[str] = field(default_factory=list)
    branches: list[list[str]] = field(default_factory=list)


def random_blueprint(rng: Random) -> Blueprint:
    """A random workflow that compiles."""
    sketch = _Sketch(rng)
    start = sketch.add(StartNode, "start", [])
    sketch.finish(sketch.block(start, MAX_DEPTH))
    return sketch.blueprint()


class _Sketch:
    """Nodes in order of creation, each after its sources."""

    def __init__(self, rng: Random) -> None:
        self._rng = rng
        self._drafts: dict[str, _Draft] = {}
        self._inputs: dict[str, InputType] = {"object": InputType.OBJECT}
        self._switches: dict[str, Switch] = {}
        self._params: dict[str, dict[str, ValueRef]] = {}
        self._fans: dict[str, Fan] = {}
        self._faulty: set[str] = set()
        self._trusting: set[str] = set()

    # Nodes and their edges.

    def add(self, kind: Any, name: str, hooks: Sequence[Hook], **fields: Any) -> list[Hook]:
        node_id = name if name in ("start", "end") else f"{name}{len(self._drafts)}"
        self._drafts[node_id] = _Draft(kind, fields)
        self._attach(node_id, hooks)
        return [Hook(node_id)]

    def _attach(self, node_id: str, hooks: Sequence[Hook]) -> None:
        """By `next`, by `depends_on`, or by a branch; some joins need only one of their sources."""
        draft = self._drafts[node_id]
        plain = list(dict.fromkeys(hook.node_id for hook in hooks if hook.branch is None))
        for hook in hooks:
            if hook.branch is not None:
                self._drafts[hook.node_id].branches[hook.branch].append(node_id)
        if plain and self._chance(0.5):
            draft.any_of = self._some(plain) if len(plain) > 1 and self._chance(0.6) else []
            both = self._chance(0.2)
            draft.all_of = [source for source in plain if both or source not in draft.any_of]
            self._choose_branch(draft, hooks)
            return
        draft.linked = plain
        for source in plain:
            self._drafts[source].next.append(node_id)

    def _choose_branch(self, draft: _Draft, hooks: Sequence[Hook]) -> None:
        """A conditional may be a member of `any_of`: it counts if its branch leads here."""
        branching = {hook.node_id for hook in hooks if hook.branch is not None}
        if draft.any_of and branching and self._chance(0.5):
            draft.any_of.append(min(branching))

    def _solid(self, node_id: str) -> list[str]:
        """Tasks that have certainly ended when this node becomes ready."""
        draft = self._drafts[node_id]
        return [source for source in (*draft.all_of, *draft.linked) if self._drafts[source].kind is TaskNode]

    def _sole(self, node_id: str) -> str | None:
        """The task that has certainly completed when this node becomes ready."""
        draft = self._drafts[node_id]
        sources = [*draft.all_of, *draft.any_of, *draft.linked]
        branched = any(node_id in branch for other in self._drafts.values() for branch in other.branches)
        return sources[0] if len(sources) == 1 and not branched and self._solid(node_id) else None

    # Blocks: each takes the hooks where it starts, and returns those where it ends.

    def block(self, hooks: list[Hook], depth: int) -> list[Hook]:
        if depth == 0 or len(self._drafts) >= MAX_NODES:
            return self.step(hooks) if self._chance(0.2) else self.task(hooks)
        build: Callable[[list[Hook], int], list[Hook]] = self._rng.choice(
            (self.chain, self.chain, self.parallel, self.conditional, self.conditional, self.fan)
        )
        return build(hooks, depth)

    def task(self, hooks: list[Hook]) -> list[Hook]:
        hook = self.add(TaskNode, "t", hooks, handler="work", queue=QUEUE, retry=self._policy())
        node_id = hook[0].node_id
        fields = self._drafts[node_id].fields
        fields["timeout_seconds"] = self._rng.choice((None, 20, 100))
        fields["params"] = self._task_params(node_id)
        return hook

    def step(self, hooks: list[Hook]) -> list[Hook]:
        """A long-running node without a worker; a signal has the name of the node that waits for it."""
        match self._rng.choice(("time", "signal", "approval", "call")):
            case "time":
                return self.add(WaitNode, "w", hooks, seconds=self._rng.choice((0, 2, 5, 500)))
            case "signal":
                name = f"w{len(self._drafts)}"
                return self.add(WaitNode, "w", hooks, signal=name, timeout_seconds=self._rng.choice((None, None, 60)))
            case "approval":
                return self.add(ApprovalNode, "p", hooks, message="May it?")
            case _:
                return self.add(WorkflowNode, "j", hooks, workflow="other", retry=self._short_policy())

    def last_chain(self) -> str:
        """A finalizer chain; returns its head."""
        chain: list[str] = []
        for _ in range(self._rng.randint(1, 3)):
            fields = {"handler": "work", "queue": QUEUE, "retry": self._policy(), "timeout_seconds": 100}
            fields |= {"params": {"status": "{{ job.status }}"}, "allow_failure": self._chance(0.3)}
            chain.append(f"z{len(self._drafts)}")
            self._drafts[chain[-1]] = _Draft(TaskNode, fields)
            self._params[chain[-1]] = {}
        for node_id, following in pairwise(chain):
            self._drafts[node_id].next.append(following)
        return chain[0]

    def chain(self, hooks: list[Hook], depth: int) -> list[Hook]:
        for _ in range(self._rng.randint(2, 3)):
            hooks = self.block(hooks, depth - 1)
        return hooks

    def parallel(self, hooks: list[Hook], depth: int) -> list[Hook]:
        exits = [hook for _ in range(self._rng.randint(2, 3)) for hook in self.block(hooks, depth - 1)]
        return self.task(exits) if self._chance(0.7) else exits

    def conditional(self, hooks: list[Hook], depth: int) -> list[Hook]:
        """Some branches lead straight to the join (an optional step), some lead nowhere."""
        count = self._rng.randint(2, 3)
        hook = self.add(ConditionalNode, "c", hooks, retry=self._policy())[0]
        self._drafts[hook.node_id].branches = [[] for _ in range(count)]
        self._switches[hook.node_id] = self._switch(hook.node_id, count)
        exits = [hook] if self._chance(0.1) else []
        for index in range(count):
            branch = Hook(hook.node_id, index)
            if index == 0 or self._chance(0.6):
                exits += self.block([branch], depth - 1)
            elif self._chance(0.8):
                exits.append(branch)
        return self.task(exits) if self._chance(0.6) else exits

    def fan(self, hooks: list[Hook], depth: int) -> list[Hook]:
        aggregation = self._rng.choice(list(Aggregation))
        needs_object = aggregation is Aggregation.MERGE and self._chance(0.95)
        fan_out = self._fan_out(hooks, "object" if needs_object else self._rng.choice(SHAPES))
        if self._chance(0.2):
            return fan_out
        direct = self._chance(0.7)
        before = fan_out if direct else self.task(fan_out)
        source = None if direct and self._chance(0.5) else fan_out[0].node_id
        retry = self._short_policy()
        return self.add(FanInNode, "in", before, aggregation=aggregation, source_node=source, retry=retry)

    def _fan_out(self, hooks: list[Hook], shape: Shape) -> list[Hook]:
        hook = self.add(FanOutNode, "f", hooks, max_parallel=self._rng.choice((None, None, 1, 2, 3)))
        node_id, fields = hook[0].node_id, self._drafts[hook[0].node_id].fields
        fields["retry"] = self._short_policy()
        fields["source"] = self._source(node_id, shape)
        params = {"item": "{{ item }}", "index": "{{ index }}", "total": "{{ fan_out.total }}"}
        fields["task"] = ChildTask(handler="work", queue=QUEUE, params=params, retry=self._policy(), timeout_seconds=30)
        return hook

    def _source(self, node_id: str, shape: Shape) -> Any:
        """A list from the inputs, literal, or echoed by the previous task; rarely not a list."""
        if self._chance(0.2):
            self._fans[node_id] = Fan(shape, None, ["written", {"out": 1}, None])
            return self._fans[node_id].written
        name = f"list_{node_id}"
        self._inputs[name] = InputType.ARRAY
        self._fans[node_id] = Fan(shape, name, [])
        if self._chance(0.02):
            self._faulty.add(node_id)
            return "{{ inputs.object }}"
        before = self._sole(node_id)
        if before is None or self._chance(0.5):
            return f"{{{{ inputs.{name} }}}}"
        self._drafts[before].fields["params"][name] = f"{{{{ inputs.{name} }}}}"
        self._params[before][name] = ValueRef(name)
        return f"{{{{ nodes.{before}.output.echo.{name} }}}}"

    def finish(self, exits: list[Hook]) -> None:
        """Extra edges across the blocks, then one end for all exits, or an early one for the first."""
        for _ in range(self._rng.choice((0, 0, 1, 2))):
            self._cross()
        if len(exits) > 1 and self._chance(0.2):
            self.add(EndNode, "early", exits[:1])
            exits = exits[1:]
        self.add(EndNode, "end", exits or [Hook(next(reversed(self._drafts)))])

    def _cross(self) -> None:
        """From anywhere to a later task, unless that relies on a single source."""
        tasks = [
            node_id
            for node_id, draft in self._drafts.items()
            if draft.kind is TaskNode and node_id not in self._trusting
        ]
        if not tasks:
            return
        places = list(self._drafts)
        target = self._rng.choice(tasks)
        source = self._rng.choice(places[: places.index(target)])
        draft = self._drafts[target]
        known = [*draft.all_of, *draft.any_of, *draft.linked]
        if source in known or any(target in branch for branch in self._drafts[source].branches):
            return
        if draft.all_of or draft.any_of:
            (draft.any_of if draft.any_of and self._chance(0.5) else draft.all_of).append(source)
        else:
            draft.linked.append(source)
            self._drafts[source].next.append(target)

    # Parameters and expressions.

    def _task_params(self, node_id: str) -> dict[str, Any]:
        """References to inputs and earlier outputs; a default is expensive to compile, and so it is rare."""
        refs: dict[str, ValueRef] = {}
        params: dict[str, Any] = {}
        if self._chance(0.3):
            refs["given"], params["given"] = ValueRef("object"), "{{ inputs.object }}"
        if (before := self._sole(node_id)) and self._chance(0.4):
            refs["before"], params["before"] = ValueRef(before, True), f"{{{{ nodes.{before}.output.value }}}}"
            self._trusting.add(node_id)
        elif (solid := self._solid(node_id)) and self._chance(0.15):
            refs["before"] = ValueRef(solid[0], True)
            params["before"] = f"{{{{ nodes.{solid[0]}.output.value | default(0) }}}}"
        self._params[node_id] = refs
        if self._chance(0.004):
            self._faulty.add(node_id)
            params["faulty"] = MISSING
        return params

    def _switch(self, node_id: str, count: int) -> Switch:
        if before := self._sole(node_id):
            ref = ValueRef(before, True)
            subject = f"nodes.{before}.output.value"
        else:
            ref = ValueRef(f"choice_{node_id}")
            self._inputs[ref.source] = InputType.INTEGER
            subject = f"inputs.{ref.source}"
        if self._chance(0.01):
            self._faulty.add(node_id)
            subject = "inputs.object.missing"
        self._drafts[node_id].fields["subject"] = subject
        return Switch(ref, count)

    def _policy(self) -> RetryPolicy:
        return RetryPolicy(
            max_attempts=self._rng.randint(0, 3),
            backoff=self._rng.choice(list(Backoff)),
            initial_delay_seconds=self._rng.choice((0, 1, 5)),
            max_delay_seconds=self._rng.choice((5, 8, 300)),
            jitter=self._rng.choice((0, 0, 0, 0.2)),
        )

    def _short_policy(self) -> RetryPolicy:
        return RetryPolicy(max_attempts=self._rng.randint(0, 2), initial_delay_seconds=1)

    # From drafts to the model.

    def blueprint(self) -> Blueprint:
        self._add_rules()
        self._add_leaves()
        chains = {
            key: tuple(self.last_chain() for _ in range(self._rng.randint(1, 2)))
            for key in ("on_failure", "finally")
            if self._chance(0.2)
        }
        workflow = Workflow(
            workflow_id="simulated",
            name="simulated",
            timeout_seconds=self._rng.choice((90, 700)) if self._chance(0.04) else None,
            inputs={name: InputSpec(type=kind) for name, kind in self._inputs.items()},
            nodes={node_id: self._node(draft) for node_id, draft in self._drafts.items()},
            **chains,
        )
        graph = compile_graph(workflow)
        return Blueprint(workflow, graph, self._switches, self._params, self._fans, frozenset(self._faulty))

    def _add_rules(self) -> None:
        """Give some tasks and children retry rules, or another queue."""
        for draft in self._drafts.values():
            if draft.kind in (TaskNode, FanOutNode) and self._chance(0.3):
                draft.fields |= _with_rules(draft.fields, self._rng.choice(RULES))

    def _add_leaves(self) -> None:
        """Allow some nodes to fail, if no other node relies on their output."""
        needed = {ref.source for refs in self._params.values() for ref in refs.values()}
        needed |= {switch.ref.source for switch in self._switches.values()} | self._faulty
        needed |= {node_id for node_id, refs in self._params.items() if any(name.startswith("list_") for name in refs)}
        kinds: tuple[type[Node], ...] = (TaskNode, WaitNode, ApprovalNode, WorkflowNode)
        if not any(draft.kind is FanInNode for draft in self._drafts.values()):
            kinds = (*kinds, FanOutNode)
        for node_id, draft in self._drafts.items():
            if draft.kind in kinds and node_id not in needed and self._chance(0.12):
                draft.fields["allow_failure"] = True

    def _node(self, draft: _Draft) -> Node:
        fields = dict(draft.fields)
        if draft.all_of or draft.any_of:
            fields["depends_on"] = DependsOn(all_of=tuple(draft.all_of), any_of=tuple(draft.any_of))
        if draft.kind is ConditionalNode:
            last = len(draft.branches) - 1
            fields["branches"] = tuple(
                Branch(name=f"b{i}", when=f"== {i}" if i < last else None, next=tuple(dict.fromkeys(targets)))
                for i, targets in enumerate(draft.branches)
            )
        return draft.kind(next=tuple(draft.next), **fields)

    def _chance(self, probability: float) -> bool:
        return self._rng.random() < probability

    def _some(self, members: Sequence[str]) -> list[str]:
        return self._rng.sample(members, self._rng.randint(1, len(members)))


def _with_rules(fields: Mapping[str, Any], rules: Mapping[str, Any]) -> dict[str, Any]:
    if (child := fields.get("task")) is not None:
        return {"task": child.model_copy(update={"retry": _ruled(child.retry, rules)})}
    return {"retry": _ruled(fields["retry"], rules)}


def _ruled(policy: RetryPolicy, rules: Mapping[str, Any]) -> RetryPolicy:
    return RetryPolicy(**{**policy.model_dump(), **rules})
