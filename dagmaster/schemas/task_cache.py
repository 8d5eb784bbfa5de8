"""Results of tasks that stand for other tasks with the same parameters."""

from typing import Annotated

from pydantic import Field

from dagmaster.model.cache_policy import MAX_CACHE_SECONDS, MAX_VERSION_CHARS
from dagmaster.schemas.callbacks import TaskId
from dagmaster.schemas.common import Body, Id, Json, Reply, Time

Version = Annotated[str, Field(max_length=MAX_VERSION_CHARS, pattern=r"^[^\x00]*$")]


class RecallResult(Body):
    """Results of another `version` are not given."""

    task_id: TaskId
    version: Version = ""


class RecalledResult(Reply):
    """What a task with the same handler and parameters has given, of which job, and when."""

    output: Json
    job_id: Id
    stored_at: Time


class ResultRecalled(Reply):
    """Null when there is none that still counts: the task has to be done."""

    result: RecalledResult | None


class RememberResult(Body):
    """The output that a task gives counts for others with the same handler and parameters; null for ever."""

    task_id: TaskId
    version: Version = ""
    output: Json
    seconds: Annotated[float, Field(gt=0, le=MAX_CACHE_SECONDS)] | None = None


class CacheCleared(Reply):
    """`removed` is how many results there were, of the `handler` or of all."""

    handler: str | None
    removed: int
