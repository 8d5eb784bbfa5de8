"""The gateway as an Azure Function responds as it does under a web server."""

import asyncio
import importlib.util
import json
from collections.abc import AsyncIterator, Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import azure.functions as func
import httpx
import psycopg
import pytest
from reading import dropped_after, make_reader, new_role

from dagmaster.gateway import services
from dagmaster.gateway.app import create_app
from dagmaster.model.access import Role
from dagmaster.settings import load_settings
from dagmaster.store.connect import opened
from dagmaster.store.keys import new_key
from dagmaster.web.server import bind, served, url_of

FOLDER = Path(__file__).parents[2] / "deploy" / "function"
REQUEST_ID = str(uuid4())
# Set by the server that owns the socket: uvicorn here, the Functions host there. A generated request id
# differs for each request, too.
OF_THE_SERVER = {"date", "server", "connection", "transfer-encoding"}


@pytest.fixture(scope="module")
def reader(shared_dsn: str) -> Iterator[str]:
    with dropped_after(shared_dsn, new_role()) as role:
        yield asyncio.run(make_reader(shared_dsn, role))


@pytest.fixture(scope="module")
def key(shared_dsn: str) -> str:
    with psycopg.connect(shared_dsn) as conn:
        conn.execute(
            "INSERT INTO dagapp.dag_api_requests (request_id, platform_id, workflow_id, request_hash, status) "
            "VALUES (%s, 'ddh', 'ingest', 'h', 'failed')",
            [REQUEST_ID],
        )

    async def make() -> str:
        async with opened(shared_dsn, application="test") as conn:
            partner = await new_key(conn, name="partner", role=Role.PARTNER, created_by="test", platform_id="ddh")
            return partner.text

    return asyncio.run(make())


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch, reader: str) -> None:
    monkeypatch.setenv("DAGMASTER_GATEWAY_DATABASE_URL", reader)
    monkeypatch.setenv("DAGMASTER_URL", "http://127.0.0.1:1")
    monkeypatch.setenv("DAGMASTER_API_KEY", "dm_the_gateways_own")


@pytest.fixture
async def function(environment: None) -> AsyncIterator[Any]:
    """The function app as the host loads it."""
    spec = importlib.util.spec_from_file_location("function_app", FOLDER / "function_app.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    [registered] = module.app.get_functions()
    yield registered
    if module.app.startup_task_done:
        await module.app.middleware.notify_shutdown()
        module.app.startup_task_done = False  # Otherwise it would do so again, in its own loop, when it is collected.


async def call(
    function: Any,
    method: str,
    path: str,
    headers: dict[str, str],
    body: bytes = b"",
    base: str = "https://gateway.example.com",
) -> func.HttpResponse:
    request = func.HttpRequest(method, base + path, headers=headers, body=body)
    context = SimpleNamespace(
        function_directory="",
        function_name="gateway",
        invocation_id="1",
        thread_local_storage=None,
        trace_context=None,
        retry_context=None,
    )
    response = await function.get_user_function()(request, context)
    assert isinstance(response, func.HttpResponse)
    return response


def test_the_function_host_passes_every_path_and_requires_no_key() -> None:
    host = json.loads((FOLDER / "host.json").read_text())
    assert host["extensions"]["http"]["routePrefix"] == ""


async def test_one_function_serves_all_routes(function: Any) -> None:
    trigger = function.get_trigger()
    assert trigger.route == "/{*route}"
    assert trigger.auth_level is func.AuthLevel.ANONYMOUS
    assert {method.value for method in trigger.methods} >= {"GET", "POST", "PUT", "DELETE"}


@pytest.fixture
async def uvicorn_client(environment: None) -> AsyncIterator[httpx.AsyncClient]:
    """A client of the same application as served by `dagmaster gateway`."""
    app = create_app(load_settings())
    listener = bind("127.0.0.1", 0)
    client = httpx.AsyncClient(base_url=url_of(listener))
    async with app.router.lifespan_context(app), served(app, listener), client:
        yield client


async def test_responses_are_the_same_as_under_uvicorn(
    function: Any, uvicorn_client: httpx.AsyncClient, key: str
) -> None:
    authorized = {"Authorization": f"Bearer {key}", "X-Request-ID": "abc"}
    sends_json = {**authorized, "Content-Type": "application/json"}
    requests = [
        ("GET", "/api/livez", {}, b""),
        ("GET", "/api/readyz", {}, b""),
        ("GET", "/api/assets", {}, b""),
        ("GET", "/api/assets?limit=1", authorized, b""),
        ("GET", "/api/assets?refs=%7B%22dataset_id%22%3A%20%22%C3%A4%20%26%22%7D", authorized, b""),
        ("GET", "/api/assets?limit=0", authorized, b""),
        ("GET", "/api/assets/platforms", authorized, b""),
        ("GET", "/api/assets/a%20b%2Fc/versions", authorized, b""),
        ("GET", f"/api/platform/status/{REQUEST_ID}", authorized, b""),
        ("GET", "/api/platform/status/nobody", authorized, b""),
        ("GET", "/api/status/stats", authorized, b""),
        ("POST", "/api/platform/submit", sends_json, b'{"workflow_id": "ingest"}'),
        ("POST", "/api/platform/submit", sends_json, b'{"colour": "red"}'),
        ("POST", "/api/platform/submit", sends_json, '{"colour": "grün"'.encode()),
        ("POST", "/api/platform/submit", authorized, b"workflow_id=ingest"),
        ("PUT", "/api/assets", authorized, b""),
        ("GET", "/api/assets/", authorized, b""),
        ("GET", "/elsewhere", {}, b""),
    ]
    for method, path, headers, body in requests:
        over_socket = await uvicorn_client.request(method, path, headers=headers, content=body)
        answered = await call(function, method, path, headers, body, base=str(uvicorn_client.base_url))
        name = f"{method} {path}"
        assert (answered.status_code, answered.get_body()) == (over_socket.status_code, over_socket.content), name
        varying = OF_THE_SERVER if "X-Request-ID" in headers else {*OF_THE_SERVER, "x-request-id"}
        assert _but(answered.headers, varying) == _but(over_socket.headers, varying), name
        assert {*_but(answered.headers, OF_THE_SERVER)} == {*_but(over_socket.headers, OF_THE_SERVER)}, name


def _but(headers: Mapping[str, str], left_out: set[str]) -> dict[str, str]:
    return {name.lower(): value for name, value in headers.items() if name.lower() not in left_out}


async def test_concurrent_first_requests_start_the_application_once(
    environment: None, function: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    started = []
    opened_services = services.opened_services

    def counted(settings: Any) -> Any:
        started.append(True)
        return opened_services(settings)

    monkeypatch.setattr("dagmaster.gateway.app.opened_services", counted)
    answers = await asyncio.gather(*(call(function, "GET", "/api/readyz", {}) for _ in range(5)))
    assert [answer.status_code for answer in answers] == [200] * 5
    assert len(started) == 1
