"""A compiled workflow, as the engine executes it: all references resolved, all expressions parsed."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from dagmaster.model.conditions import Condition
from dagmaster.model.expressions import Template
from dagmaster.model.finalizers import Phase
from dagmaster.model.retry import RetryPolicy
from dagmaster.model.workflow import Aggregation, Workflow


class NodeType(StrEnum):
    START = "start"
    END = "end"
    TASK = "task"
    CONDITIONAL = "conditional"
    FAN_OUT = "fan_out"
    FAN_IN = "fan_in"
    GATE = "gate"  # only among added nodes: joins the edges of a group
    WAIT = "wait"
    APPROVAL = "approval"
    WORKFLOW = "workflow"


@dataclass(frozen=True, slots=True)
class TaskSpec:
    """The task that a worker executes, with its timeout and retries."""

    handler: str
    queue: str
    params: Template
    timeout_seconds: float
    retry: RetryPolicy


@dataclass(frozen=True, slots=True)
class BranchSpec:
    """`condition` is None for the default branch."""

    name: str
    condition: Condition | None
    targets: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class FanOutSpec:
    source: Template
    child: TaskSpec
    max_parallel: int | None


@dataclass(frozen=True, slots=True)
class FanInSpec:
    fan_out: str
    aggregation: Aggregation


@dataclass(frozen=True, slots=True)
class WaitSpec:
    """One of `until`, `seconds` and `signal`."""

    until: Template | None
    seconds: Template | None
    signal: str | None
    timeout_seconds: float | None


@dataclass(frozen=True, slots=True)
class ApprovalSpec:
    message: Template
    approvers: tuple[str, ...]
    timeout_seconds: float | None


@dataclass(frozen=True, slots=True)
class ChildJobSpec:
    """`workflow_hash` is None only in a workflow that is not prepared for a job."""

    workflow_id: str
    workflow_hash: str | None
    inputs: Template
    timeout_seconds: float | None


@dataclass(frozen=True, slots=True)
class GraphNode:
    """A node with its edges: one from each member of `all_of` and `any_of`, one to each of `targets`."""

    node_id: str
    type: NodeType
    all_of: tuple[str, ...]
    any_of: tuple[str, ...]
    targets: tuple[str, ...]
    retry: RetryPolicy
    task: TaskSpec | None = None
    branches: tuple[BranchSpec, ...] = ()
    fan_out: FanOutSpec | None = None
    fan_in: FanInSpec | None = None
    wait: WaitSpec | None = None
    approval: ApprovalSpec | None = None
    child_job: ChildJobSpec | None = None
    allow_failure: bool = False
    phase: Phase = Phase.MAIN

    @property
    def sources(self) -> tuple[str, ...]:
        return (*self.all_of, *self.any_of)


@dataclass(frozen=True, slots=True)
class Graph:
    """`nodes` is in topological order, the finalizers last. `roots` are the nodes without inbound edges.

    `heads` are the first nodes of the finalizers. `called` are the graphs of all child workflows, nested ones included.
    """

    workflow: Workflow
    nodes: Mapping[str, GraphNode]
    roots: tuple[str, ...]
    heads: Mapping[Phase, tuple[str, ...]] = field(default_factory=dict)
    called: tuple["Graph", ...] = ()
