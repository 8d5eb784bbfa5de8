"""Nodes added to a running job."""

from typing import Annotated, Any

from pydantic import Field

from dagmaster.schemas.callbacks import TaskId
from dagmaster.schemas.common import Body, Id, Json, Reply

MAX_TASKS = 1000


class NewTask(Body):
    """A task for a running job. It waits for all of `after`; `{"$result": "node"}` in `params` is a node's result."""

    handler: Annotated[str, Field(min_length=1, max_length=128)]
    params: Json = Field(default_factory=dict)
    after: list[str] = Field(default_factory=list)
    queue: Annotated[str, Field(min_length=1, max_length=128)] | None = None
    timeout_seconds: Annotated[float, Field(ge=1, le=86_400)] | None = None
    retry: Json | None = None
    label: Annotated[str, Field(max_length=128)] | None = None


class AddTasks(Body):
    tasks: Annotated[list[NewTask], Field(min_length=1, max_length=MAX_TASKS)]


class TasksAccepted(Reply):
    """`is_done` means that the owner of the job has added the nodes."""

    job_id: Id
    node_ids: list[str]
    is_done: bool


class AddedByWorker(Body):
    """Nodes that a task adds to its own job, in slices (see the documentation of `dagmaster.model.dynamic_nodes`)."""

    task_id: TaskId
    slices: Annotated[list[dict[str, Any]], Field(min_length=1, max_length=1000)]


class AddedTaken(Reply):
    slices: int
