"""A workflow as its author means it, whatever dialect it was written in. Frozen, and pinned with each job."""

from collections.abc import Mapping
from enum import StrEnum
from functools import cached_property
from hashlib import sha256
from typing import Annotated, Any, Literal, Self

import orjson
from pydantic import BaseModel, ConfigDict, Field

from dagmaster.model.retry import RetryPolicy

NODE_ID_PATTERN = r"^[A-Za-z][A-Za-z0-9_-]{0,47}$"  # and no "__", which is kept for fan-out children
CHILD_SEPARATOR = "__"
DEFAULT_TIMEOUT_SECONDS = 3600
MAX_RETENTION_DAYS = 36_500


class Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class InputType(StrEnum):
    STRING = "string"
    INTEGER = "integer"
    NUMBER = "number"
    BOOLEAN = "boolean"
    ARRAY = "array"
    OBJECT = "object"


class InputSpec(Frozen):
    """`required` is settled when the file is read: true unless it has a default or says otherwise."""

    type: InputType = InputType.STRING
    required: bool = True
    default: Any = None
    description: str = ""


class DependsOn(Frozen):
    all_of: tuple[str, ...] = ()
    any_of: tuple[str, ...] = ()


class NodeBase(Frozen):
    description: str = ""
    next: tuple[str, ...] = ()
    depends_on: DependsOn | None = None


class StartNode(NodeBase):
    type: Literal["start"] = "start"


class EndNode(NodeBase):
    type: Literal["end"] = "end"


class ChildTask(Frozen):
    """What a worker is asked to do."""

    handler: str = Field(min_length=1, max_length=128)
    queue: str | None = Field(default=None, max_length=128)
    params: dict[str, Any] = {}
    timeout_seconds: float | None = Field(default=None, ge=1, le=86_400)
    retry: RetryPolicy | None = None


class TaskNode(NodeBase, ChildTask):
    type: Literal["task"] = "task"


class Branch(Frozen):
    """`when` is None for the default branch. A comparison with the left side missing refers to `condition_field`."""

    name: str
    when: str | None = None
    next: tuple[str, ...] = ()


class ConditionalNode(NodeBase):
    """All three dialects end here: ordered branches, the first whose condition holds is taken.

    `condition` + `on_true`/`on_false` or `branches: {true:, false:}` gives the branches `true` (when=condition) and
    `false` (when=None). `condition_field` + `branches` list gives `subject` and conditions such as `> 10`.
    """

    type: Literal["conditional"] = "conditional"
    subject: str | None = None
    branches: tuple[Branch, ...] = ()
    retry: RetryPolicy | None = None


class FanOutNode(NodeBase):
    """Both dialects end here: a `child_node` template is folded into `task` and leaves the list of nodes."""

    type: Literal["fan_out"] = "fan_out"
    source: Any
    task: ChildTask
    max_parallel: int | None = Field(default=None, ge=1)
    retry: RetryPolicy | None = None


class Aggregation(StrEnum):
    COLLECT = "collect"
    CONCAT = "concat"
    SUM = "sum"
    FIRST = "first"
    LAST = "last"
    MERGE = "merge"


class FanInNode(NodeBase):
    type: Literal["fan_in"] = "fan_in"
    source_node: str | None = None
    aggregation: Aggregation = Aggregation.COLLECT
    retry: RetryPolicy | None = None


Node = Annotated[StartNode | EndNode | TaskNode | ConditionalNode | FanOutNode | FanInNode, Field(discriminator="type")]


class Workflow(Frozen):
    workflow_id: str = Field(min_length=1, max_length=64)
    name: str = Field(max_length=128)
    version: int = 1
    description: str = ""
    inputs: Mapping[str, InputSpec] = {}
    additional_inputs: bool = False
    is_active: bool = True
    globals: Mapping[str, Any] = {}
    retention_days: float | None = Field(default=None, gt=0, le=MAX_RETENTION_DAYS)
    nodes: Mapping[str, Node]

    def to_json(self) -> bytes:
        # Left out where it is not set: definitions that were pinned before it existed keep their hash.
        unset = {"retention_days"} if self.retention_days is None else None
        return orjson.dumps(self.model_dump(mode="json", exclude=unset), option=orjson.OPT_SORT_KEYS)

    @cached_property
    def content_hash(self) -> str:
        """The key under which the definition is pinned."""
        return sha256(self.to_json()).hexdigest()

    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Self:
        copied = super().model_copy(update=update, deep=deep)
        copied.__dict__.pop("content_hash", None)  # a copy would keep the hash of the original
        return copied
