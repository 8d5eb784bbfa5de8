"""The responses to errors: a page for people, a body for programs."""

from urllib.parse import quote

from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse, RedirectResponse, Response

from dagmaster.errors import NotFound
from dagmaster.http.errors import Details, ErrorResponses, reply
from dagmaster.logs import current_request_id
from dagmaster.model.access import Role
from dagmaster.web.access import READERS_OF_OWN, Caller
from dagmaster.web.ui.headers import HEADERS
from dagmaster.web.ui.pages import Page

router = APIRouter(prefix="/ui", include_in_schema=False)

TITLES = {
    403: "You don't have permission",
    404: "Not found",
    405: "Method not allowed",
    409: "Not possible right now",
    413: "Too large",
    422: "Invalid request",
    500: "Something went wrong",
    503: "Database unavailable",
}
NOBODY = Caller("", Role.WORKER)


def answer(request: Request, status: int, code: str, message: str, details: Details = ()) -> Response:
    if request.url.path == "/ui" or request.url.path.startswith("/ui/"):
        return failure_page(request, status, message)
    return reply(status, code, message, details)


ERRORS = ErrorResponses(answer)


@router.get("/{path:path}", dependencies=[READERS_OF_OWN])
async def find_nothing(path: str) -> None:
    """Registered after all other pages. Anonymous users sign in first."""
    raise NotFound(f"there is no page /ui/{path[:200]}")


def failure_page(request: Request, status: int, message: str) -> Response:
    """Rendered without the database, which may be the cause of the failure."""
    if status == 401:
        return _to_login(request)
    caller = getattr(request.state, "caller", NOBODY)
    page = Page(request, request.app.state.services, caller)
    values = {
        "status": status,
        "title": TITLES.get(status, "Something went wrong"),
        "message": message[:1].upper() + message[1:],
        "request_id": current_request_id() if status >= 500 else None,
    }
    answer = page.render("failure.html", values, status=status)
    # Unexpected errors bypass the middleware that adds these headers.
    for name, value in HEADERS.items():
        answer.headers.setdefault(name, value)
    return answer


def _to_login(request: Request) -> Response:
    target = request.url.path + (f"?{request.url.query}" if request.url.query else "")
    address = f"/ui/login?next={quote(target)}"
    if "hx-request" in request.headers or request.headers.get("x-live"):
        return HTMLResponse("", 401, headers={"HX-Redirect": address, "X-Login": address})
    return RedirectResponse(address, 303)
