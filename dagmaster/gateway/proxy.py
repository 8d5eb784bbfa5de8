"""The operators' proxy: an allow-list of methods and paths, and few headers in both directions."""

import asyncio
import logging
import re
from enum import StrEnum
from typing import Final

import httpx
import orjson
from fastapi import Request, Response

from dagmaster.errors import BadGateway, GatewayTimeout, NotFound
from dagmaster.gateway.services import Services
from dagmaster.gateway.upstream import FAILED, LATE, UNREACHABLE
from dagmaster.store.gateway import KeyHolder

log = logging.getLogger(__name__)


class ProxyTarget(StrEnum):
    ORCHESTRATOR = "orchestrator"
    WORKER = "worker"


# Only unreserved characters: no parent folders, escapes or parameters.
_SEGMENT = r"(?!\.{1,2}(?:/|$))[A-Za-z0-9._~-]+"
_NOUNS = "jobs|nodes|tasks|workflows|schedules|queues|handlers|metrics|assets|requests|review|platforms|status"
_PROBES = re.compile(r"livez|readyz|health(?:/[a-z_]+)?")
# Methods and paths that are forwarded.
RULES: Final = {
    ProxyTarget.ORCHESTRATOR: (
        ("GET", _PROBES),
        # Streams never end, and logs are not scrubbed.
        ("GET", re.compile(rf"api/v1/(?:{_NOUNS})(?:/(?!(?:stream|logs)(?:/|$)){_SEGMENT}){{0,5}}")),
        ("POST", re.compile(r"api/v1/jobs/\d{1,19}/(?:cancel|pause|resume|retry)")),
        ("POST", re.compile(rf"api/v1/jobs/\d{{1,19}}/nodes/{_SEGMENT}/retry")),
    ),
    ProxyTarget.WORKER: (("GET", _PROBES),),
}
REQUEST_HEADERS: Final = ("accept-language", "content-type", "x-request-id")
RESPONSE_HEADERS: Final = ("content-type", "retry-after")
MAX_RESPONSE_BYTES: Final = 16 * 1024 * 1024


async def forward(services: Services, caller: KeyHolder, target: ProxyTarget, path: str, request: Request) -> Response:
    """Raises NotFound for a path that is not in the allow-list, BadGateway and GatewayTimeout."""
    url = target_urls(services)[target]
    is_allowed = any(method == request.method and pattern.fullmatch(path) for method, pattern in RULES[target])
    if url is None or not is_allowed:
        raise NotFound(f"{request.method} {path[:100]!r} is not in the proxy's allow-list for {target}")
    log.info("%s forwards %s %s to %s", caller.name, request.method, path, target)
    headers = {name: request.headers[name] for name in REQUEST_HEADERS if name in request.headers}
    headers["accept"] = "application/json"
    key = services.settings.api_key
    if target is ProxyTarget.ORCHESTRATOR and key is not None:
        headers["authorization"] = f"Bearer {key.get_secret_value()}"
    outgoing = services.http.build_request(
        request.method,
        f"{url}/{path}",
        params=httpx.QueryParams(request.url.query),
        content=await request.body(),
        headers=headers,
    )
    try:
        async with asyncio.timeout(services.settings.gateway_timeout_seconds):
            return await _send(services, outgoing)
    except (TimeoutError, httpx.TimeoutException) as error:
        raise GatewayTimeout(LATE) from error
    except httpx.TransportError as error:
        raise BadGateway(UNREACHABLE) from error


def target_urls(services: Services) -> dict[ProxyTarget, str | None]:
    return {ProxyTarget.ORCHESTRATOR: services.settings.url, ProxyTarget.WORKER: services.settings.worker_url}


async def _send(services: Services, outgoing: httpx.Request) -> Response:
    """Does not follow redirects. Rejects responses that are too large or not JSON."""
    response = await services.http.send(outgoing, stream=True)
    try:
        if response.status_code >= 500 or response.status_code == 401 or response.is_redirect:
            log.warning("%s %s was answered with %s", outgoing.method, outgoing.url.path, response.status_code)
            raise BadGateway(FAILED)
        content = bytearray()
        async for piece in response.aiter_bytes():
            content += piece
            if len(content) > MAX_RESPONSE_BYTES:
                raise BadGateway(f"the response is larger than {MAX_RESPONSE_BYTES} bytes; ask for less")
    finally:
        await response.aclose()
    headers = {name: response.headers[name] for name in RESPONSE_HEADERS if name in response.headers}
    return Response(await asyncio.to_thread(_scrubbed, services, bytes(content)), response.status_code, headers)


def _scrubbed(services: Services, content: bytes) -> bytes:
    if not content:
        return content
    try:
        return orjson.dumps(services.operations.value(orjson.loads(content)))
    except orjson.JSONDecodeError as error:
        raise BadGateway(FAILED) from error
