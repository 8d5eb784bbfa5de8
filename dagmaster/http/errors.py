"""The table of errors and statuses, and the format of error responses."""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import psycopg
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from psycopg_pool import PoolClosed, PoolTimeout
from starlette.exceptions import HTTPException

from dagmaster.errors import (
    BadGateway,
    Conflict,
    DagmasterError,
    Forbidden,
    GatewayTimeout,
    Invalid,
    Misconfigured,
    NotFound,
    QueryFailed,
    RateLimited,
    TooLarge,
    Unauthorized,
    Unavailable,
    WorkerGone,
)
from dagmaster.logs import current_request_id
from dagmaster.model.redact import redact_text
from dagmaster.schemas.common import ErrorReply, Problem

log = logging.getLogger(__name__)

STATUS: dict[type[Exception], int] = {
    NotFound: 404,
    Conflict: 409,
    Invalid: 422,
    QueryFailed: 422,
    Unauthorized: 401,
    Forbidden: 403,
    WorkerGone: 410,
    TooLarge: 413,
    RateLimited: 429,
    BadGateway: 502,
    GatewayTimeout: 504,
    Unavailable: 503,
    Misconfigured: 503,
    PoolTimeout: 503,
    PoolClosed: 503,
    psycopg.OperationalError: 503,
    psycopg.InterfaceError: 503,
    psycopg.errors.ReadOnlySqlTransaction: 503,
    psycopg.errors.IdleInTransactionSessionTimeout: 503,
    psycopg.DataError: 422,
}
# Clients do not get the messages of the database or the pool.
PUBLIC_MESSAGES = {
    503: "the database cannot be reached at the moment; try again",
    422: "a value cannot be stored or compared, such as a string with a NUL character",
}
CODES = {400: "bad_request", 404: "not_found", 405: "method_not_allowed", 413: "too_large"}
RETRY_AFTER_SECONDS = 1

Details = Sequence[dict[str, Any]]


def documented(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """For a route's `responses`."""
    return {status: {"model": ErrorReply} for status in statuses}


def status_of(error: Exception) -> int:
    for kind in type(error).__mro__:
        if kind in STATUS:
            return STATUS[kind]
    return 500


def code_of(error: DagmasterError) -> str:
    """`UnknownJob` is `unknown_job`. An unknown class gets the code of its nearest base class in `dagmaster.errors`."""
    name = next(kind for kind in type(error).__mro__ if kind.__module__ == DagmasterError.__module__).__name__
    return "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in name).lstrip("_")


def reply(status: int, code: str, message: str, details: Details = ()) -> JSONResponse:
    problem = Problem(code=code, message=message, details=list(details))
    body = ErrorReply(error=problem, code=code, detail=message).model_dump(mode="json")
    headers = {}
    if status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    if status == 503:
        headers["Retry-After"] = str(RETRY_AFTER_SECONDS)
    return JSONResponse(body, status, headers)


def reply_to(_: Request, status: int, code: str, message: str, details: Details = ()) -> Response:
    """The JSON response to an error."""
    return reply(status, code, message, details)


@dataclass(frozen=True, slots=True)
class ErrorResponses:
    """The responses to errors; `form` renders them for the kind of request."""

    form: Callable[[Request, int, str, str, Details], Response] = reply_to

    def install(self, app: FastAPI) -> None:
        for kind in STATUS:
            app.add_exception_handler(kind, self._known)
        app.add_exception_handler(DagmasterError, self._unexpected)
        app.add_exception_handler(RequestValidationError, self._invalid_request)
        app.add_exception_handler(HTTPException, self._http)
        app.add_exception_handler(Exception, self._unexpected)

    async def answer_to(self, request: Request, error: Exception) -> Response:
        """The response to an error, as if a route had raised it."""
        return await (self._unexpected if status_of(error) == 500 else self._known)(request, error)

    async def _known(self, request: Request, error: Exception) -> Response:
        status = status_of(error)
        if not isinstance(error, DagmasterError):
            log.warning("%s %s: %s", request.method, request.url.path, redact_text(str(error)).partition("\n")[0])
            code = "unavailable" if status == 503 else "invalid_value"
            return self.form(request, status, code, PUBLIC_MESSAGES[status], ())
        details = [{"message": str(problem)} for problem in getattr(error, "problems", ())]
        response = self.form(request, status, code_of(error), str(error), details)
        if isinstance(error, RateLimited):
            response.headers["Retry-After"] = str(error.retry_after_seconds)
        return response

    async def _invalid_request(self, request: Request, error: Exception) -> Response:
        assert isinstance(error, RequestValidationError)
        details = [
            {"field": ".".join(str(part) for part in problem["loc"]), "message": problem["msg"]}
            for problem in error.errors()
        ]
        named = "; ".join(f"{detail['field']}: {detail['message']}" for detail in details)
        return self.form(request, 422, "invalid_request", named, details)

    async def _http(self, request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        code = CODES.get(error.status_code, "http_error")
        response = self.form(request, error.status_code, code, str(error.detail), ())
        response.headers.update(error.headers or {})
        return response

    async def _unexpected(self, request: Request, error: Exception) -> Response:
        """The response has no traceback; the log has it."""
        log.error("%s %s failed", request.method, request.url.path, exc_info=error)
        request_id = current_request_id()
        message = f"internal error; see the server's log (request {request_id})"
        response = self.form(request, 500, "internal_error", message, ())
        response.headers["X-Request-ID"] = request_id or ""
        return response
