"""Workflows that can be started."""

from typing import Literal

from pydantic import Field

from dagmaster.schemas.common import Json, Reply


class ProblemReply(Reply):
    """Where in a file something is wrong."""

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
    """`problems` are of files that could not be loaded, and warnings of those that could."""

    workflows: list[WorkflowSummary]
    problems: list[ProblemReply] = Field(default_factory=list)


class WorkflowNode(Reply):
    node_id: str
    type: str
    description: str
    handler: str | None
    queue: str | None
    timeout_seconds: float | None
    runs_last: str | None = Field(description="on_failure or finally, if it begins such a chain")


class WorkflowEdge(Reply):
    """`rule`: the target waits for all of its `all_of` edges, and for one of its `any_of` edges."""

    source: str
    target: str
    branch: str | None
    rule: Literal["all_of", "any_of"] = "all_of"


class WorkflowReply(WorkflowSummary):
    """`inputs` is a JSON Schema of what a job may be started with.

    An input that goes to a handler as it is has the description that the handler registered, unless it has one of its
    own. `warnings` are what a submission would warn of.
    """

    workflow_hash: str
    inputs: Json
    nodes: list[WorkflowNode]
    edges: list[WorkflowEdge]
    warnings: list[str] = Field(default_factory=list)
