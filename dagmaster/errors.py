"""The exceptions of dagmaster. The docstring of each is its default message."""


class DagmasterError(Exception):
    """Something went wrong."""

    def __init__(self, message: str = "") -> None:
        super().__init__(message or (self.__doc__ or "").strip())


class NotFound(DagmasterError):
    """It does not exist."""


class Conflict(DagmasterError):
    """The current state does not allow this."""


class Invalid(DagmasterError):
    """The input is not valid."""


class Unavailable(DagmasterError):
    """A required service is not available."""


class MissingQueue(Unavailable):
    """A task has no queue."""


class UnknownWorkflow(NotFound):
    """No workflow has this id."""


class UnknownJob(NotFound):
    """No job has this id."""


class UnknownHandler(NotFound):
    """No handler has this name."""


class UnknownNode(NotFound):
    """The job has no node with this id."""


class UnknownTask(NotFound):
    """No task has this id."""


class UnknownWorker(NotFound):
    """No worker has this id."""


class UnknownSchedule(NotFound):
    """No schedule has this id."""


class UnknownAsset(NotFound):
    """No asset has this id."""


class UnknownVersion(NotFound):
    """The asset has no such version."""


class UnknownRequest(NotFound):
    """No request has this id."""


class UnknownKey(NotFound):
    """No API key has this id or name."""


class UnknownPlatform(NotFound):
    """No platform has this id."""


class UnknownLayer(NotFound):
    """The asset has no layer metadata, or the layer is not published."""


class UnknownTable(NotFound):
    """No table has this id or name."""


class UnknownCommand(NotFound):
    """No command has this name."""


class Unauthorized(DagmasterError):
    """An API key is needed: send it as `Authorization: Bearer dm_...`."""


class Forbidden(DagmasterError):
    """The role of this API key does not allow that."""


class RateLimited(DagmasterError):
    """Too many requests; try again later."""

    def __init__(self, message: str = "", *, retry_after_seconds: int = 1) -> None:
        super().__init__(message)
        self.retry_after_seconds = retry_after_seconds


class BadGateway(DagmasterError):
    """The server behind this gateway failed or cannot be reached; try again later."""


class GatewayTimeout(DagmasterError):
    """The server behind this gateway did not answer in time; try again later."""


class TooLarge(DagmasterError):
    """The request is too large."""


class WorkerGone(DagmasterError):
    """The worker has left or was declared lost; it must register again."""


class TaskOver(Conflict):
    """The attempt has ended: it was already reported, was revoked, or another attempt has started."""


class IdempotencyConflict(Conflict):
    """The idempotency key was already used with different content."""


class JobEnded(Conflict):
    """The job has already ended."""


class InvalidInputs(Invalid):
    """The inputs do not match the workflow."""


class ExpressionFailed(Invalid):
    """An expression could not be evaluated."""


class ValuesTooLarge(ExpressionFailed):
    """The values are too large to be combined."""


class IllegalMove(Conflict):
    """The state machine does not allow this move."""


class DatabaseUnavailable(Unavailable):
    """The database cannot be reached."""


class TooManyConnections(DatabaseUnavailable):
    """The database has no free connection."""


class SchemaMissing(Unavailable):
    """The database has no dagmaster schema, or an outdated one; run `dagmaster migrate`."""


class EmbeddedServerFailed(Unavailable):
    """The embedded PostgreSQL could not be started."""


class QueryFailed(DagmasterError):
    """ClickHouse could not run the query."""


class QueryCancelled(DagmasterError):
    """The query was cancelled with its task."""


class EngineLost(Unavailable):
    """The engine of the tables does not answer."""


class Misconfigured(DagmasterError):
    """A setting is missing or invalid."""
