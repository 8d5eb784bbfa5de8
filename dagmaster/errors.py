"""What can go wrong, by kind. The docstring of each is its default message."""


class DagmasterError(Exception):
    """Something went wrong."""

    def __init__(self, message: str = "") -> None:
        super().__init__(message or (self.__doc__ or "").strip())


class NotFound(DagmasterError):
    """There is no such thing."""


class Conflict(DagmasterError):
    """The present state does not allow this."""


class Invalid(DagmasterError):
    """The input is not valid."""


class Unavailable(DagmasterError):
    """Something that is needed is not reachable."""


class MissingQueue(Unavailable):
    """Nothing says which queue a task goes to."""


class UnknownWorkflow(NotFound):
    """No workflow has this id."""


class UnknownJob(NotFound):
    """No job has this id."""


class UnknownHandler(NotFound):
    """No handler has this name."""


class UnknownNode(NotFound):
    """The job has no node of this id."""


class UnknownTask(NotFound):
    """No task has this id."""


class UnknownWorker(NotFound):
    """No worker has this id."""


class UnknownSchedule(NotFound):
    """No schedule has this id."""


class UnknownKey(NotFound):
    """There is no such API key."""


class UnknownCommand(NotFound):
    """No command has this name."""


class Unauthorized(DagmasterError):
    """An API key is needed: send it as `Authorization: Bearer dm_...`."""


class Forbidden(DagmasterError):
    """This API key may not do that."""


class TooLarge(DagmasterError):
    """That is more than is allowed."""


class WorkerGone(DagmasterError):
    """The worker has left or was given up; it has to register anew."""


class TaskOver(Conflict):
    """The attempt has ended: it was reported before, withdrawn, or another one has begun."""


class IdempotencyConflict(Conflict):
    """The idempotency key was used before with other content."""


class JobEnded(Conflict):
    """The job has ended already."""


class InvalidInputs(Invalid):
    """The inputs do not fit the workflow."""


class ExpressionFailed(Invalid):
    """An expression could not be evaluated."""


class ValuesTooLarge(ExpressionFailed):
    """The values are larger than can be gathered."""


class IllegalMove(Conflict):
    """The state machine does not allow this move."""


class DatabaseUnavailable(Unavailable):
    """The database cannot be reached."""


class TooManyConnections(DatabaseUnavailable):
    """The database has no connection left."""


class SchemaMissing(Unavailable):
    """The database has no dagmaster schema, or an old one; run `dagmaster migrate`."""


class EmbeddedServerFailed(Unavailable):
    """The embedded PostgreSQL could not be started."""


class Misconfigured(DagmasterError):
    """A setting is missing or wrong."""
