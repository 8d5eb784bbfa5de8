"""Liveness, readiness and health."""

from importlib.metadata import version

from fastapi import APIRouter, Request, Response
from fastapi.responses import RedirectResponse

from dagmaster.errors import Forbidden, Unauthorized, Unavailable
from dagmaster.http.errors import documented
from dagmaster.schemas.system import Alive, CheckReply, HealthReply, Welcome
from dagmaster.web.access import EVERYBODY, caller_of
from dagmaster.web.checks import Check, Health, Verdict, examine, get_check, overall
from dagmaster.web.services import Services, ServicesDep

router = APIRouter(tags=["health"])

LINKS = {"ui": "/ui/", "openapi": "/openapi.json", "health": "/health", "metrics": "/metrics", "jobs": "/api/v1/jobs"}
READY = ("database", "schema")


@router.get("/", response_model=Welcome, dependencies=[EVERYBODY])
async def welcome(request: Request) -> Welcome | RedirectResponse:
    """Show the service name, version and links. Browsers are redirected to the web UI."""
    if "text/html" in request.headers.get("accept", ""):
        return RedirectResponse("/ui/", 307)
    return Welcome(name="dagmaster", version=version("dagmaster"), links=LINKS)


@router.get("/livez", dependencies=[EVERYBODY])
async def livez() -> Alive:
    """Return 200 while the process responds."""
    return Alive(status="alive")


@router.get("/readyz", responses=documented(503), dependencies=[EVERYBODY])
async def readyz(request: Request, services: ServicesDep) -> Alive:
    """Return 200 if ready: the database responds, its schema is current, and no shutdown is in progress."""
    if request.app.state.is_stopping:
        raise Unavailable("the server is stopping")
    for check, verdict in (await examine(services, READY)).items():
        if verdict.health is not Health.HEALTHY:
            raise Unavailable(f"not ready: {check.name}: {verdict.message}")
    return Alive(status="ready")


@router.get("/health", responses={503: {"model": HealthReply}}, dependencies=[EVERYBODY])
async def health(request: Request, services: ServicesDep, response: Response) -> HealthReply:
    """Run every health check; 503 if a check reports that nothing can work. Details require a key."""
    verdicts = await examine(services)
    worst = overall(list(verdicts.values()))
    response.status_code = 503 if worst is Health.UNHEALTHY else 200
    is_known = await _is_known(request, services, verdicts)
    return HealthReply(status=worst, checks=[_reply(*entry, has_details=is_known) for entry in verdicts.items()])


@router.get("/health/{check}", responses={503: {"model": CheckReply}, **documented(404)}, dependencies=[EVERYBODY])
async def health_of(check: str, request: Request, services: ServicesDep, response: Response) -> CheckReply:
    """Run one health check."""
    verdicts = await examine(services, [get_check(check).name])
    [(examined, verdict)] = verdicts.items()
    response.status_code = 503 if verdict.health is Health.UNHEALTHY else 200
    return _reply(examined, verdict, has_details=await _is_known(request, services, verdicts))


def _reply(check: Check, verdict: Verdict, *, has_details: bool) -> CheckReply:
    reply = CheckReply(name=check.name, category=check.category, status=verdict.health)
    if has_details:
        reply.message, reply.details = verdict.message, dict(verdict.details)
    return reply


async def _is_known(request: Request, services: Services, verdicts: dict[Check, Verdict]) -> bool:
    """Without the database no key can be looked up, so every caller counts as anonymous."""
    if any(verdict.health is Health.UNHEALTHY and check.name == "database" for check, verdict in verdicts.items()):
        return False
    try:
        caller = await caller_of(request, services)
    except (Unauthorized, Forbidden):
        return False
    return caller.token is None
