"""Sign in with an API key, and sign out."""

from urllib.parse import parse_qsl

from fastapi import APIRouter, Request
from fastapi.responses import RedirectResponse, Response

from dagmaster.errors import Forbidden, Unauthorized
from dagmaster.model.access import Role
from dagmaster.web.access import EVERYBODY, Caller, Keyring, caller_of
from dagmaster.web.services import ServicesDep
from dagmaster.web.sessions import forget, new_session, remember
from dagmaster.web.ui.navigation import places_for
from dagmaster.web.ui.pages import Page

router = APIRouter(prefix="/ui", include_in_schema=False)

UNKNOWN = "This key is unknown, revoked or expired."
NOT_FOR_PAGES = "This is a worker key. Sign in with a viewer or operator key."


@router.get("/login", dependencies=[EVERYBODY])
async def show_login(request: Request, services: ServicesDep, next: str = "/ui/") -> Response:
    keyring: Keyring = request.app.state.keyring
    try:
        await caller_of(request, services)
    except Unauthorized as refused:
        return _form(request, services, next, None if await keyring.has_any() else str(refused))
    return RedirectResponse(_inside(next), 303)


@router.post("/login", dependencies=[EVERYBODY])
async def sign_in(request: Request, services: ServicesDep) -> Response:
    if _is_from_elsewhere(request):
        raise Forbidden("this request did not come from the sign-in page of this server")
    form = dict(parse_qsl((await request.body()).decode(errors="replace")))
    key, next = form.get("key", ""), form.get("next", "/ui/")
    keyring: Keyring = request.app.state.keyring
    caller = await keyring.find(key.strip())
    if caller is None or caller.key_id is None:
        return _form(request, services, next, UNKNOWN, status=401)
    if caller.role is Role.WORKER:
        return _form(request, services, next, NOT_FOR_PAGES, status=403)
    answer = RedirectResponse(_inside(next, caller), 303)
    secret = await keyring.session_secret(services.settings.chosen_secret())
    remember(request, answer, new_session(caller.key_id), secret)
    return answer


@router.get("/logout", dependencies=[EVERYBODY])
async def sign_out() -> Response:
    """Another site can link here; the only effect is that users sign in again."""
    answer = RedirectResponse("/ui/login", 303)
    forget(answer)
    return answer


def _form(request: Request, services: ServicesDep, next: str, error: str | None, *, status: int = 200) -> Response:
    page = Page(request, services, Caller("", Role.WORKER))
    return page.render("login.html", {"next": _inside(next), "error": error}, status=status)


def _is_from_elsewhere(request: Request) -> bool:
    """Another site must not sign users in with its own key. Old browsers send only the origin."""
    if (site := request.headers.get("sec-fetch-site")) is not None:
        return site not in ("same-origin", "none")
    origin = request.headers.get("origin")
    return origin is not None and origin.partition("//")[2] != request.headers.get("host")


def _inside(path: str, caller: Caller | None = None) -> str:
    """A path on this server, never another site. Users without a dashboard start at their first page."""
    page = path.partition("?")[0]
    is_ours = page.startswith("/ui/") and "\\" not in path and page not in ("/ui/login", "/ui/logout")
    target = path if is_ours else "/ui/"
    places = [place.path for place in places_for(caller)] if caller else []
    return places[0] if places and target == "/ui/" else target
