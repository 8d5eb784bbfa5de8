"""Responses when the orchestrator or the database fails, and when the gateway is ready."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import psycopg
import pytest
from gateway import Gateway
from reading import dropped_after, make_reader, new_role
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response

from dagmaster.errors import RateLimited
from dagmaster.gateway import health
from dagmaster.gateway.app import create_app
from dagmaster.gateway.rate_limit import MAX_BUCKETS, RateLimiter
from dagmaster.http.errors import reply
from dagmaster.model.access import Role
from dagmaster.settings import load_settings
from dagmaster.store.connect import opened
from dagmaster.store.keys import new_key
from dagmaster.web.server import bind, served, url_of

SUBMIT = {"workflow_id": "ingest"}
ASSET = "a9234e9e7b1ae7c5151568522b54db33"


@pytest.fixture(scope="module")
def reader(shared_dsn: str) -> Iterator[str]:
    with dropped_after(shared_dsn, new_role()) as role:
        yield asyncio.run(make_reader(shared_dsn, role))


@pytest.fixture(scope="module")
def keys(shared_dsn: str) -> dict[str, str]:
    async def make() -> dict[str, str]:
        async with opened(shared_dsn, application="test") as conn:
            partner = await new_key(conn, name="partner", role=Role.PARTNER, created_by="test", platform_id="ddh")
            operator = await new_key(conn, name="operator", role=Role.OPERATOR, created_by="test")
            await conn.execute(
                "INSERT INTO dagapp.geospatial_assets (asset_id, platform_id, platform_refs, data_type) "
                f"VALUES ('{ASSET}', 'ddh', '{{}}', 'vector')"
            )
        return {"partner": partner.text, "operator": operator.text}

    return asyncio.run(make())


class Orchestrator:
    """Returns the response that a test chooses, and records the requests."""

    def __init__(self, answer: Callable[[Request], Any]) -> None:
        self.requests: list[Request] = []
        self._answer = answer
        self.app = Starlette()
        self.app.add_route("/{path:path}", self._serve, methods=["GET", "POST", "DELETE", "PUT"])

    async def _serve(self, request: Request) -> Response:
        self.requests.append(request)
        answer = self._answer(request)
        return await answer if asyncio.iscoroutine(answer) else answer


@asynccontextmanager
async def gateway_to(url: str | None, dsn: str | None, keys: dict[str, str], **changes: Any) -> AsyncIterator[Any]:
    settings = load_settings(**{"url": url, "gateway_database_url": dsn, "api_key": "dm_the_gateways_own", **changes})
    app = create_app(settings)
    async with app.router.lifespan_context(app):
        transport = httpx.ASGITransport(app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://gateway") as client:
            site: Any = type("Site", (), {"keys": keys})
            yield Gateway(site, app, client)


@asynccontextmanager
async def answering(
    answer: Callable[[Request], Any], dsn: str, keys: dict[str, str], **changes: Any
) -> AsyncIterator[tuple[Gateway, Orchestrator]]:
    orchestrator = Orchestrator(answer)
    listener = bind("127.0.0.1", 0)
    async with served(orchestrator.app, listener), gateway_to(url_of(listener), dsn, keys, **changes) as api:
        yield api, orchestrator


# The orchestrator.


@pytest.mark.parametrize("status", [500, 502, 503, 504])
async def test_an_orchestrator_error_is_a_bad_gateway(reader: str, keys: dict[str, str], status: int) -> None:
    def fail(_: Request) -> Response:
        return reply(status, "internal_error", "node load failed on vm-7: SELECT x FROM dagapp.dag_jobs")

    async with answering(fail, reader, keys) as (api, _):
        refused = await api.post("/api/platform/submit", SUBMIT, 502)
        assert refused["error"]["code"] == "bad_gateway"
        assert refused["error"]["message"] == "the processing service failed; try again later"


async def test_an_unreachable_orchestrator_is_a_bad_gateway(reader: str, keys: dict[str, str]) -> None:
    async with gateway_to("http://127.0.0.1:1", reader, keys) as api:
        refused = await api.post("/api/platform/submit", SUBMIT, 502)
        assert refused["error"]["message"] == "the processing service cannot be reached at the moment; try again later"
        assert (await api.get("/api/assets"))["items"], "reading needs no orchestrator"
        health = await api.get("/api/gateway/health", 503, "operator")
        assert health["checks"][-1] == {
            "name": "orchestrator",
            "status": "unhealthy",
            "message": "it cannot be reached",
        }


async def test_an_orchestrator_that_does_not_respond_is_a_gateway_timeout(reader: str, keys: dict[str, str]) -> None:
    is_over = asyncio.Event()

    async def hang(_: Request) -> Response:
        await is_over.wait()
        return Response()

    async with answering(hang, reader, keys, gateway_timeout_seconds=0.2) as (api, _):
        assert (await api.post("/api/platform/submit", SUBMIT, 504))["error"]["code"] == "gateway_timeout"
        path = "/api/proxy/orchestrator/api/v1/jobs"
        assert (await api.get(path, 504, "operator"))["error"]["code"] == "gateway_timeout"
        is_over.set()


@pytest.mark.parametrize(
    ("method", "path", "times"),
    [
        ("POST", "/api/gateway/submit", 3),
        ("DELETE", f"/api/assets/{ASSET}", 3),
        ("POST", f"/api/assets/{ASSET}/approve", 1),
        ("POST", f"/api/assets/{ASSET}/clearance/public", 1),
    ],
)
async def test_only_idempotent_requests_are_retried(
    reader: str, keys: dict[str, str], method: str, path: str, times: int
) -> None:
    async with answering(lambda _: reply(502, "bad_gateway", "busy"), reader, keys) as (api, orchestrator):
        body = SUBMIT if path.endswith("submit") else {} if method == "POST" else None
        await api.ask(method, path, 502, "operator", json=body)
        assert len(orchestrator.requests) == times


async def test_a_retried_submission_has_the_same_request_id(reader: str, keys: dict[str, str]) -> None:
    bodies: list[Any] = []

    async def fail_once(request: Request) -> Response:
        bodies.append(await request.json())
        if len(bodies) == 1:
            return reply(502, "bad_gateway", "busy")
        created = {"job_id": "1", "workflow_id": "ingest", "workflow_version": 1, "status": "pending", "is_new": True}
        return JSONResponse({**created, "request_id": bodies[-1]["request_id"]}, 201)

    async with answering(fail_once, reader, keys) as (api, orchestrator):
        accepted = await api.post("/api/platform/submit", SUBMIT, 202)
    assert [body["request_id"] for body in bodies] == [accepted["request_id"]] * 2
    assert bodies[0]["correlation_id"] == accepted["request_id"]
    assert bodies[0]["submitted_by"] == "partner"
    headers = orchestrator.requests[0].headers
    assert headers["authorization"] == "Bearer dm_the_gateways_own"
    assert headers["x-dagmaster-platform"] == "ddh"


async def test_a_refusal_by_the_orchestrator_is_passed_on_without_internals(reader: str, keys: dict[str, str]) -> None:
    def refuse(_: Request) -> Response:
        message = "job 248428104432461490 of /srv/data/in.tif is in the way"
        return reply(409, "conflict", message, [{"message": "task 248428104432461490_load_0"}])

    async with answering(refuse, reader, keys) as (api, _):
        refused = (await api.post("/api/platform/submit", SUBMIT, 409))["error"]
    assert (refused["code"], refused["message"]) == ("conflict", "job *** of *** is in the way")
    assert refused["details"] == [{"message": "task ***"}]


async def test_a_refused_gateway_key_is_not_reported_as_the_partners_error(reader: str, keys: dict[str, str]) -> None:
    async with answering(lambda _: reply(401, "unauthorized", "who?"), reader, keys) as (api, _):
        assert (await api.post("/api/platform/submit", SUBMIT, 502))["error"]["code"] == "bad_gateway"
        await api.get("/api/proxy/orchestrator/api/v1/jobs", 502, "operator")


async def test_a_response_that_is_not_from_dagmaster_is_a_bad_gateway(reader: str, keys: dict[str, str]) -> None:
    async with answering(lambda _: Response("<html>", media_type="text/html"), reader, keys) as (api, _):
        await api.post("/api/platform/submit", SUBMIT, 502)
        await api.get("/api/proxy/orchestrator/api/v1/jobs", 502, "operator")


async def test_the_proxy_follows_no_redirects_and_forwards_few_headers(reader: str, keys: dict[str, str]) -> None:
    def answer(request: Request) -> Response:
        if request.url.path.endswith("/tasks"):
            return RedirectResponse("/api/v1/keys")
        headers = {"Set-Cookie": "a=b", "Server": "vm-7", "Location": "/api/v1/jobs/1", "X-Other": "x"}
        return JSONResponse({"query": str(request.url.query), "owner_id": "7"}, headers=headers)

    async with answering(answer, reader, keys) as (api, orchestrator):
        await api.get("/api/proxy/orchestrator/api/v1/tasks", 502, "operator")
        assert len(orchestrator.requests) == 1
        sent = {"Cookie": "session=1", "X-Forwarded-For": "1.2.3.4", "X-Request-ID": "abc"}
        response = await api.send(
            "GET", "/api/proxy/orchestrator/api/v1/jobs?limit=1&limit=2", "operator", headers=sent
        )
        assert response.json() == {"query": "limit=1&limit=2"}
        assert not {"set-cookie", "server", "location", "x-other"} & set(response.headers)
        received = orchestrator.requests[-1].headers
        assert received["x-request-id"] == "abc"
        assert received["authorization"] == "Bearer dm_the_gateways_own"
        assert not {"cookie", "x-forwarded-for", "x-api-key"} & set(received)


async def test_requests_to_a_worker_do_not_carry_the_gateway_key(reader: str, keys: dict[str, str]) -> None:
    worker = Orchestrator(lambda _: JSONResponse({"status": "ready", "worker_id": "7", "hostname": "vm-7"}))
    listener = bind("127.0.0.1", 0)
    to_worker = gateway_to("http://127.0.0.1:1", reader, keys, worker_url=url_of(listener))
    async with served(worker.app, listener), to_worker as api:
        assert await api.get("/api/proxy/worker/readyz", key="operator") == {"status": "ready"}
        await api.get("/api/proxy/worker/api/v1/jobs", 404, "operator")
    assert len(worker.requests) == 1
    assert "authorization" not in worker.requests[0].headers


async def test_a_response_that_is_too_large_is_not_passed_on(
    reader: str, keys: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dagmaster.gateway.proxy.MAX_RESPONSE_BYTES", 100)
    async with answering(lambda _: JSONResponse(["x" * 200]), reader, keys) as (api, _):
        refused = await api.get("/api/proxy/orchestrator/api/v1/jobs", 502, "operator")
        assert "larger than" in refused["error"]["message"]


# Start-up.


async def not_ready(api: Gateway) -> dict[str, str]:
    """The failed checks; only the probes are served."""
    error = (await api.get("/api/readyz", 503, None))["error"]
    assert (await api.get("/api/livez", key=None)) == {"status": "alive"}
    for path in ("/api/assets", "/api/status/stats", "/api/nothing"):
        response = await api.send("GET", path)
        assert (response.status_code, response.json()["error"]["code"]) == (503, "unavailable"), path
    return {detail["check"]: detail["message"] for detail in error["details"]}


async def test_missing_settings_are_named() -> None:
    async with gateway_to(None, None, {}, api_key=None) as api:
        assert await not_ready(api) == {
            "env_vars": "not set: DAGMASTER_GATEWAY_DATABASE_URL, DAGMASTER_URL, DAGMASTER_API_KEY",
            "database": "no database is configured",
        }


async def test_a_database_role_that_can_write_is_refused(shared_dsn: str) -> None:
    async with gateway_to("http://127.0.0.1:1", shared_dsn, {}) as api:
        assert "can do more than read" in (await not_ready(api))["database"]


async def test_a_database_without_the_schema_is_reported(databases: Any, pg_server: Any, reader: str) -> None:
    elsewhere = reader.replace(reader.partition("@/")[2].partition("?")[0], "postgres")
    async with gateway_to("http://127.0.0.1:1", elsewhere, {}) as api:
        assert "run `dagmaster migrate`" in (await not_ready(api))["database"]


async def test_an_unreachable_database_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health, "REACH_SECONDS", 0.2)
    monkeypatch.setattr(health, "AGAIN_SECONDS", 60.0)
    async with gateway_to("http://127.0.0.1:1", "postgresql://reader:secret@127.0.0.1:1/nothing", {}) as api:
        assert await not_ready(api) == {"database": "it cannot be reached"}


async def test_the_gateway_is_ready_when_the_database_returns(dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health, "AGAIN_SECONDS", 0.0)
    with dropped_after(dsn, new_role()) as role, psycopg.connect(dsn, autocommit=True) as conn:
        address = await make_reader(dsn, role)
        conn.execute(f"REVOKE USAGE ON SCHEMA gateway FROM {role}")
        async with gateway_to("http://127.0.0.1:1", address, {}) as api:
            assert "run `dagmaster db create-reader` again" in (await not_ready(api))["database"]
            conn.execute(f"GRANT USAGE ON SCHEMA gateway TO {role}")
            assert (await api.get("/api/readyz", key=None)) == {"status": "ready"}
            await api.get("/api/assets", 401, None)
            conn.execute(f"REVOKE USAGE ON SCHEMA gateway FROM {role}")
            assert "database" in await not_ready(api)


# The rate limit.


def test_a_token_bucket_refills_at_its_rate() -> None:
    now = 0.0
    limiter = RateLimiter(2.0, 3, clock=lambda: now)
    for _ in range(3):
        limiter.take("a")
    with pytest.raises(RateLimited, match="2 requests a second") as refused:
        limiter.take("a")
    assert refused.value.retry_after_seconds == 1
    limiter.take("b")
    now = 0.5
    limiter.take("a")
    with pytest.raises(RateLimited):
        limiter.take("a")
    now = 100.0
    for _ in range(3):
        limiter.take("a")
    with pytest.raises(RateLimited):
        limiter.take("a")


def test_the_number_of_buckets_is_bounded() -> None:
    limiter = RateLimiter(1.0, 1)
    for number in range(MAX_BUCKETS + 10):
        limiter.take(str(number))
    assert len(limiter._buckets) == MAX_BUCKETS
