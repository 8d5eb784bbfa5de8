"""Workflows."""

from typing import Literal

from pydantic import Field

from dagmaster.schemas.common import Json, Reply


class ProblemReply(Reply):
    """A problem in a workflow file."""

    file: str
    message: str
    severity: str
    path: str
    line: int | None
    column: int | None


class WorkflowSummary(Reply):
    workflow_id: str
    name: str
    version: int
    description: str
    is_active: bool
    node_count: int
    source: str


class WorkflowList(Reply):
    """`problems` are the errors of files that could not be loaded and the warnings of those that could."""

    workflows: list[WorkflowSummary]
    problems: list[ProblemReply] = Field(default_factory=list)


class WorkflowNode(Reply):
    node_id: str
    type: str
    description: str
    handler: str | None
    queue: str | None
    timeout_seconds: float | None
    runs_last: str | None = Field(description="on_failure or finally, if the node starts such a chain")


class WorkflowEdge(Reply):
    """The target waits for all edges with the `rule` `all_of`, and for one with the `rule` `any_of`."""

    source: str
    target: str
    branch: str | None
    rule: Literal["all_of", "any_of"] = "all_of"


class WorkflowReply(WorkflowSummary):
    """`inputs` is a JSON Schema of the job's inputs.

    An input that is passed unchanged to a handler has the handler's description, unless it has its own. `warnings` are
    those that a submission would give.
    """

    workflow_hash: str
    inputs: Json
    nodes: list[WorkflowNode]
    edges: list[WorkflowEdge]
    warnings: list[str] = Field(default_factory=list)
