"""Errors of the server, raised again in the client."""

import re
from typing import Any

import httpx
from pydantic import ValidationError

from dagmaster import errors
from dagmaster.errors import DagmasterError, Forbidden, Invalid, NotFound, TooLarge, Unauthorized, Unavailable
from dagmaster.schemas.common import ErrorReply
from dagmaster.schemas.jobs import JobReply

SHOWN = 200

BY_STATUS: dict[int, type[DagmasterError]] = {
    400: Invalid,
    401: Unauthorized,
    403: Forbidden,
    404: NotFound,
    409: errors.Conflict,
    413: TooLarge,
    422: Invalid,
    502: Unavailable,
    503: Unavailable,
    504: Unavailable,
}
# `unknown_job` is `UnknownJob`.
BY_CODE = {
    re.sub(r"\B(?=[A-Z])", "_", name).lower(): kind
    for name, kind in vars(errors).items()
    if isinstance(kind, type) and issubclass(kind, DagmasterError)
}


class ClientError(DagmasterError):
    """The response of the server could not be read."""


class TimedOut(ClientError):
    """The job has not ended in time; it is still running."""


class JobFailed(ClientError):
    """The job has failed."""

    def __init__(self, job: JobReply) -> None:
        super().__init__(f"job {job.job_id} failed: {job.error_message or 'without a message'}")
        self.job = job


class JobCancelled(ClientError):
    """The job was cancelled."""

    def __init__(self, job: JobReply) -> None:
        super().__init__(f"job {job.job_id} was cancelled" + (f": {job.error_message}" if job.error_message else ""))
        self.job = job


def error_of(response: httpx.Response) -> DagmasterError:
    """With `details`, and `request_id` to find it in the server's log."""
    status = response.status_code
    try:
        problem = ErrorReply.model_validate_json(response.content).error
        kind = BY_CODE.get(problem.code) or BY_STATUS.get(status, ClientError)
        message, details = problem.message, problem.details
    except ValidationError:  # an error page of a proxy
        kind, details = BY_STATUS.get(status, ClientError), []
        message = f"{response.request.url.host} returned {status}: {response.text[:SHOWN].strip()}"
    error: Any = kind(message)
    error.details, error.request_id = details, response.headers.get("X-Request-ID")
    if details and all(set(detail) == {"message"} for detail in details):
        error.problems = [detail["message"] for detail in details]
    explained: DagmasterError = error
    return explained


def unreachable(url: httpx.URL, error: httpx.TransportError) -> Unavailable:
    reason = str(error) or type(error).__name__
    return Unavailable(f"{url.scheme}://{url.netloc.decode()} cannot be reached: {reason}")
