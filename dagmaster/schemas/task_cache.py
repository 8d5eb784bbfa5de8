"""The cache of task results."""

from typing import Annotated

from pydantic import Field

from dagmaster.model.cache_policy import MAX_CACHE_SECONDS, MAX_VERSION_CHARS
from dagmaster.schemas.callbacks import TaskId
from dagmaster.schemas.common import Body, Id, Json, Reply, Time

Version = Annotated[str, Field(max_length=MAX_VERSION_CHARS, pattern=r"^[^\x00]*$")]


class RecallResult(Body):
    """Only results of the same `version` match."""

    task_id: TaskId
    version: Version = ""


class RecalledResult(Reply):
    """The result of an earlier task with the same handler and parameters, its job and its time."""

    output: Json
    job_id: Id
    stored_at: Time


class ResultRecalled(Reply):
    """Null if there is no valid result: the task must run."""

    result: RecalledResult | None


class RememberResult(Body):
    """The output to cache for tasks with the same handler and parameters; without `seconds` it never expires."""

    task_id: TaskId
    version: Version = ""
    output: Json
    seconds: Annotated[float, Field(gt=0, le=MAX_CACHE_SECONDS)] | None = None


class CacheCleared(Reply):
    """`removed` is the number of removed results, of the `handler` or of all."""

    handler: str | None
    removed: int
