"""The responses to errors: a page for people, a body for programs."""

from fastapi import Request
from fastapi.responses import Response

from dagmaster.http.errors import CODES, STATUS, Details, ErrorResponses, code_of, documented, reply, status_of
from dagmaster.web.ui.failures import failure_page, is_page

__all__ = ["CODES", "ERRORS", "STATUS", "answer", "code_of", "documented", "reply", "status_of"]


def answer(request: Request, status: int, code: str, message: str, details: Details = ()) -> Response:
    if is_page(request):
        return failure_page(request, status, message)
    return reply(status, code, message, details)


ERRORS = ErrorResponses(answer)
