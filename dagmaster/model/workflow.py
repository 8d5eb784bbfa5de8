"""A workflow, independent of the notation it was written in. Frozen, and pinned with each job."""

from collections.abc import Iterator, Mapping
from enum import StrEnum
from functools import cached_property
from hashlib import sha256
from typing import Annotated, Any, Literal, Self

import orjson
from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    SerializerFunctionWrapHandler,
    field_validator,
    model_serializer,
    model_validator,
)

from dagmaster.model.durations import read_time
from dagmaster.model.retry import RetryPolicy
from dagmaster.model.schedule import Schedule

NODE_ID_PATTERN = r"^[A-Za-z][A-Za-z0-9_-]{0,47}$"  # and no "__", which is reserved for children of fan-outs
CHILD_SEPARATOR = "__"
SIGNAL_PATTERN = r"^[A-Za-z][A-Za-z0-9_.-]{0,63}$"
DEFAULT_TIMEOUT_SECONDS = 3600
MAX_RETENTION_DAYS = 36_500
MAX_WAIT_SECONDS = 366 * 86_400


class Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class InputType(StrEnum):
    STRING = "string"
    INTEGER = "integer"
    NUMBER = "number"
    BOOLEAN = "boolean"
    ARRAY = "array"
    OBJECT = "object"


class InputFormat(StrEnum):
    """The strings that an input accepts. A `file` must be in the storage; submission checks that it exists."""

    DATE = "date"
    TIME = "time"
    DATE_TIME = "date-time"
    UUID = "uuid"
    URI = "uri"
    CRS = "crs"
    FILE = "file"


class InputSpec(Frozen):
    """`required` is resolved when the file is read: true unless there is a default or the file says otherwise.

    A `secret` is stored sealed and never displayed; only the handlers that receive it see its value. `enum`, `minimum`,
    `maximum` and `format` are as in JSON Schema. `extensions` apply to files, and are in lower case.
    """

    type: InputType = InputType.STRING
    required: bool = True
    default: Any = None
    description: str = ""
    secret: bool = False
    enum: tuple[Any, ...] = ()
    minimum: int | float | None = None
    maximum: int | float | None = None
    format: InputFormat | None = None
    extensions: tuple[str, ...] = ()

    @model_serializer(mode="wrap")
    def _without_unset(self, write: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """A definition without these fields keeps its hash."""
        written: dict[str, Any] = write(self)
        for name in ("secret", "enum", "minimum", "maximum", "format", "extensions"):
            if any(getattr(self, name) is unset for unset in (False, None, ())):
                written.pop(name, None)
        return written


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
    """The task that a worker executes."""

    handler: str = Field(min_length=1, max_length=128)
    queue: str | None = Field(default=None, max_length=128)
    params: dict[str, Any] = {}
    timeout_seconds: float | None = Field(default=None, ge=1, le=86_400)
    retry: RetryPolicy | None = None


class MayFail(Frozen):
    """With `allow_failure` the job continues after a permanent failure of the node, as if it had completed."""

    allow_failure: bool = False

    @model_serializer(mode="wrap")
    def _without_unset(self, serialize: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Definitions pinned before this field existed keep their hash."""
        written: dict[str, Any] = serialize(self)
        return {key: value for key, value in written.items() if value or key != "allow_failure"}


class TaskNode(NodeBase, ChildTask, MayFail):
    type: Literal["task"] = "task"


class Branch(Frozen):
    """`when` is None for the default branch. A comparison without a left side refers to `condition_field`."""

    name: str
    when: str | None = None
    next: tuple[str, ...] = ()


class ConditionalNode(NodeBase):
    """The common form of three dialects: ordered branches, of which the first matching one is taken.

    `condition` + `on_true`/`on_false` or `branches: {true:, false:}` gives the branches `true` (when=condition) and
    `false` (when=None). `condition_field` + `branches` list gives `subject` and conditions such as `> 10`.
    """

    type: Literal["conditional"] = "conditional"
    subject: str | None = None
    branches: tuple[Branch, ...] = ()
    retry: RetryPolicy | None = None


class FanOutNode(NodeBase, MayFail):
    """The common form of two dialects: a `child_node` template becomes `task` and is not a node of its own."""

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


class WaitNode(NodeBase, MayFail):
    """Exactly one of `until`, `seconds` and `signal`; a string in `until` or `seconds` may be a template."""

    type: Literal["wait"] = "wait"
    until: str | None = Field(default=None, min_length=1)
    seconds: float | str | None = None
    signal: str | None = Field(default=None, pattern=SIGNAL_PATTERN)
    timeout_seconds: float | None = Field(default=None, gt=0, le=MAX_WAIT_SECONDS)

    @field_validator("until")
    @classmethod
    def _a_time(cls, value: str | None) -> str | None:
        if value is not None and "{{" not in value:
            read_time(value)
        return value

    @field_validator("seconds")
    @classmethod
    def _a_number(cls, value: float | str | None) -> float | str | None:
        if isinstance(value, str) and "{{" not in value:
            raise ValueError("it must be a number, or an expression that evaluates to one")
        if isinstance(value, float) and not 0 <= value <= MAX_WAIT_SECONDS:
            raise ValueError(f"it must be from 0 to {MAX_WAIT_SECONDS}")
        return value

    @model_validator(mode="after")
    def _one_of_three(self) -> Self:
        if sum(value is not None for value in (self.until, self.seconds, self.signal)) != 1:
            raise ValueError("a wait needs exactly one of 'until', 'seconds' and 'signal'")
        if self.timeout_seconds is not None and self.signal is None:
            raise ValueError("'timeout_seconds' is only for a wait for a signal")
        return self


class ApprovalNode(NodeBase, MayFail):
    """A decision by a person. `approvers` are names of API keys; without them, admins and operators may decide."""

    type: Literal["approval"] = "approval"
    message: str = Field(default="", max_length=4000)
    approvers: tuple[str, ...] = ()
    timeout_seconds: float | None = Field(default=None, gt=0, le=MAX_WAIT_SECONDS)


class WorkflowNode(NodeBase, MayFail):
    """A child job. `workflow_hash` is resolved when the job is submitted, and never changes afterwards."""

    type: Literal["workflow"] = "workflow"
    workflow: str = Field(min_length=1, max_length=64)
    inputs: dict[str, Any] = {}
    workflow_hash: str | None = None
    timeout_seconds: float | None = Field(default=None, gt=0, le=MAX_WAIT_SECONDS)
    retry: RetryPolicy | None = None


Node = Annotated[
    StartNode | EndNode | TaskNode | ConditionalNode | FanOutNode | FanInNode | WaitNode | ApprovalNode | WorkflowNode,
    Field(discriminator="type"),
]


# Fields added after the first definitions were pinned.
_LATER_FIELDS = ("retention_days", "timeout_seconds", "schedule", "on_failure", "finally_", "returns")


class Workflow(Frozen):
    """`on_failure` and `finally` name the first nodes of the finalizer chains.

    `returns` is the return value of a workflow in Python, with expressions in place of results. `timeout_seconds`
    limits the duration of a job.
    """

    model_config = ConfigDict(populate_by_name=True, serialize_by_alias=True)

    workflow_id: str = Field(min_length=1, max_length=64)
    name: str = Field(max_length=128)
    version: int = 1
    description: str = ""
    inputs: Mapping[str, InputSpec] = {}
    additional_inputs: bool = False
    is_active: bool = True
    globals: Mapping[str, Any] = {}
    retention_days: float | None = Field(default=None, gt=0, le=MAX_RETENTION_DAYS)
    timeout_seconds: float | None = Field(default=None, gt=0, le=MAX_WAIT_SECONDS)
    schedule: Schedule | None = None
    on_failure: tuple[str, ...] = ()
    finally_: tuple[str, ...] = Field(default=(), alias="finally")
    returns: Any = None
    nodes: Mapping[str, Node]

    def tasks(self) -> Iterator[tuple[tuple[str, ...], ChildTask]]:
        """The tasks that workers execute, with their place in the definition: `nodes`, the node's id, ..."""
        for node_id, node in self.nodes.items():
            match node:
                case TaskNode():
                    yield ("nodes", node_id), node
                case FanOutNode():
                    yield ("nodes", node_id, "task"), node.task

    @cached_property
    def json_definition(self) -> bytes:
        """The pinned form. Cached, because every submission carries it."""
        # Unset fields are left out: definitions pinned before these fields existed keep their hash.
        unset = {name for name in _LATER_FIELDS if not getattr(self, name)}
        return orjson.dumps(self.model_dump(mode="json", exclude=unset), option=orjson.OPT_SORT_KEYS)

    @cached_property
    def content_hash(self) -> str:
        """The key under which the definition is pinned."""
        return sha256(self.json_definition).hexdigest()

    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Self:
        copied = super().model_copy(update=update, deep=deep)
        for name in ("json_definition", "content_hash"):  # The copy inherits the cached values of the original.
            copied.__dict__.pop(name, None)
        return copied
