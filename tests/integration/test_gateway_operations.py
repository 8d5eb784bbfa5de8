"""Operators read jobs through the gateway and send what the allow-list permits; other roles cannot."""

import asyncio
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from fastapi.routing import APIRoute
from gateway import SECONDS, STEP, Gateway, Site, gateway, site

from dagmaster.gateway.access import Allow
from dagmaster.gateway.app import ROUTERS
from dagmaster.http.access import check_decisions, find_decision
from dagmaster.model.access import Role

ALL, SUBMIT, READ, REVIEW, OPERATE = (
    "everybody",
    {"admin", "operator", "partner"},
    {"admin", "operator", "reviewer", "partner"},
    {"admin", "operator", "reviewer"},
    {"admin", "operator"},
)
# Roles of each route: a new route fails its tests until it is listed here.
DECIDED: dict[str, Any] = {
    "GET /api/livez": ALL,
    "GET /api/readyz": ALL,
    "POST /api/platform/submit": SUBMIT,
    "GET /api/platform/status/{request_id}": READ,
    "POST /api/platform/approve": REVIEW,
    "POST /api/platform/reject": REVIEW,
    "POST /api/platform/unpublish": READ,
    "GET /api/assets": READ,
    "GET /api/assets/platforms": READ,
    "GET /api/assets/{asset_id}": READ,
    "GET /api/assets/{asset_id}/versions": READ,
    "GET /api/assets/{asset_id}/versions/latest": READ,
    "GET /api/assets/{asset_id}/versions/{ordinal}": READ,
    "POST /api/assets/{asset_id}/approve": REVIEW,
    "POST /api/assets/{asset_id}/versions/{ordinal}/approve": REVIEW,
    "POST /api/assets/{asset_id}/reject": REVIEW,
    "POST /api/assets/{asset_id}/versions/{ordinal}/reject": REVIEW,
    "POST /api/assets/{asset_id}/clearance/cleared": REVIEW,
    "POST /api/assets/{asset_id}/clearance/public": REVIEW,
    "DELETE /api/assets/{asset_id}": OPERATE,
    "DELETE /api/assets/{asset_id}/versions/{ordinal}": READ,
    "POST /api/gateway/submit": OPERATE,
    "POST /api/gateway/submit/batch": OPERATE,
    "GET /api/gateway/health": OPERATE,
    "GET /api/status/job/{job_id}": OPERATE,
    "GET /api/status/jobs": OPERATE,
    "GET /api/status/job/{job_id}/nodes": OPERATE,
    "GET /api/status/job/{job_id}/events": OPERATE,
    "GET /api/status/stats": OPERATE,
    "GET /api/status/lookup": OPERATE,
    "GET /api/admin/health": OPERATE,
    "GET /api/admin/config": OPERATE,
    "GET /api/admin/active-jobs": OPERATE,
    "GET /api/admin/recent-events": OPERATE,
    "GET /api/admin/workflows": OPERATE,
    "GET /api/admin/orphans": OPERATE,
    "GET /api/admin/running-nodes": OPERATE,
    "GET /api/admin/failed-nodes": OPERATE,
    "GET /api/admin/layer-metadata": OPERATE,
    "POST /api/admin/layer-metadata": OPERATE,
    "GET /api/admin/layer-metadata/{asset_id}": OPERATE,
    "PUT /api/admin/layer-metadata/{asset_id}": OPERATE,
    "DELETE /api/admin/layer-metadata/{asset_id}": OPERATE,
    "POST /api/admin/layer-metadata/{asset_id}/publish-external": OPERATE,
    "GET /api/admin/layer-catalog": OPERATE,
    "GET /api/admin/layer-catalog/{table_name}": OPERATE,
    "GET /api/proxy/health": OPERATE,
    "GET /api/proxy/{target}/{path:path}": OPERATE,
    "POST /api/proxy/{target}/{path:path}": OPERATE,
}
ROLES = ("admin", "operator", "reviewer", "partner", "viewer", "worker")


@pytest.fixture(scope="module")
def installed(shared_dsn: str) -> Iterator[Site]:
    with tempfile.TemporaryDirectory() as folder, site(shared_dsn, Path(folder)) as installation:
        yield installation


@pytest.fixture
async def api(installed: Site) -> AsyncIterator[Gateway]:
    async with gateway(installed) as site:
        yield site


async def operator_gets(api: Gateway, path: str, status: int = 200) -> Any:
    return await api.get(path, status, "operator")


# Roles.


def routes() -> dict[str, Allow | None]:
    return {
        f"{method} {route.path}": find_decision(route, Allow)
        for router in ROUTERS
        for route in router.routes
        if isinstance(route, APIRoute)
        for method in route.methods or ()
    }


def test_every_route_declares_its_roles() -> None:
    check_decisions(ROUTERS, Allow)
    assert {
        name: ALL
        if allow is not None and allow.roles is None
        else {*(allow.roles or ())}
        if allow is not None
        else None
        for name, allow in routes().items()
    } == DECIDED


async def test_every_role_is_checked_against_every_route(api: Gateway) -> None:
    wrong = []
    for name, allowed in DECIDED.items():
        method, path = name.split()
        path = path.replace("{target}/{path:path}", "worker/nowhere").replace("{ordinal}", "0")
        for role in ROLES if allowed != ALL else ():
            response = await api.send(method, path, role, json={} if method in ("POST", "PUT") else None)
            is_refused = response.status_code == 403 and "a key of role" in response.text
            if is_refused is (role in allowed):
                wrong.append(f"{role} {name}: {response.status_code}")
    assert not wrong


async def test_without_a_valid_key_nothing_is_revealed(api: Gateway) -> None:
    key = api.site.keys["partner"]
    for name, allowed in DECIDED.items():
        if allowed == ALL:
            continue
        method, path = name.split()
        for presented in (None, "nonsense", key[:-1] + ("a" if key[-1] != "a" else "b")):
            response = await api.send(method, path, presented)
            assert response.status_code == 401, name
            assert response.headers["www-authenticate"] == "Bearer"
    assert (await api.client.get("/api/assets", headers={"X-API-Key": key})).status_code == 200


async def test_a_revoked_key_is_refused(api: Gateway) -> None:
    name = str(uuid4())
    await api.site.key(name, Role.PARTNER, "ddh")
    api.site.rows("UPDATE dagapp.dag_api_keys SET revoked_at = now() WHERE name = %s", name)
    await api.get("/api/assets", 401, name)
    await api.site.key(name, Role.PARTNER, "ddh")
    api.site.rows("UPDATE dagapp.dag_api_keys SET expires_at = now() WHERE name = %s", name)
    await api.get("/api/assets", 401, name)


async def test_a_partner_key_without_a_platform_is_refused(api: Gateway) -> None:
    refused = await api.get("/api/assets", 403, "homeless")
    assert "not bound to a platform" in refused["error"]["message"]


async def test_the_key_is_checked_before_the_body_is_read(api: Gateway) -> None:
    read = []

    async def body() -> AsyncIterator[bytes]:
        read.append(True)
        yield b"{}"

    response = await api.client.post("/api/platform/submit", content=body())
    assert (response.status_code, read) == (401, [])


async def test_a_large_body_is_refused(installed: Site) -> None:
    async with gateway(installed, max_body_bytes=100) as api:
        body = {"workflow_id": "ingest", "input_params": {"source": "x" * 200}}
        assert (await api.post("/api/platform/submit", body, 413))["error"]["code"] == "too_large"


async def test_each_key_has_its_own_rate_limit(installed: Site) -> None:
    async with gateway(installed, gateway_rate_per_second=0.01, gateway_burst=2) as api:
        for _ in range(2):
            await api.get("/api/assets")
        response = await api.send("GET", "/api/assets")
        assert response.status_code == 429
        assert response.json()["error"]["code"] == "rate_limited"
        assert 1 <= int(response.headers["retry-after"]) <= 100
        await api.get("/api/assets", key="other")
        # A request with a body counts once.
        await api.post("/api/platform/submit", {"workflow_id": "ingest"}, 202, "operator")
        await api.get("/api/assets", key="operator")
        await api.get("/api/assets", 429, "operator")


async def test_the_openapi_document_requires_a_key(api: Gateway) -> None:
    for path in ("/openapi.json", "/api/openapi.json", "/docs", "/api/nothing"):
        assert (await api.get(path, 404, None))["error"]["code"] == "not_found"


# Submissions of operators.


async def test_an_operator_can_submit_for_any_platform(api: Gateway) -> None:
    refs = {"item_id": str(uuid4())}
    body = {"workflow_id": "ingest", "platform_refs": refs, "data_type": "raster", "priority": 5, "metadata": {"a": 1}}
    assert "platform_id is needed" in (await api.post("/api/gateway/submit", body, 422, "operator"))["detail"]
    accepted = await api.post("/api/gateway/submit", {**body, "platform_id": "arcgis"}, 202, "operator")
    assert (await api.until(accepted["request_id"], "completed", key="other"))["workflow_id"] == "ingest"
    [job] = api.site.rows("SELECT * FROM dagapp.dag_jobs WHERE job_id = %s", api.job_of(accepted["request_id"]))
    assert (job["priority"], job["metadata"]["a"], job["submitted_by"]) == (5, 1, "operator")


async def test_each_item_of_a_batch_has_its_own_outcome(api: Gateway) -> None:
    good = {"workflow_id": "ingest"}
    items = [good, {"workflow_id": "nothing"}, {"colour": "red"}, good]
    reply = await api.post("/api/gateway/submit/batch", {"items": items}, 202, "operator")
    assert (reply["accepted"], reply["rejected"]) == (2, 2)
    assert [item["status"] for item in reply["items"]] == ["accepted", "rejected", "rejected", "accepted"]
    assert [item["index"] for item in reply["items"]] == [0, 1, 2, 3]
    assert reply["items"][1]["error"]["code"] == "unknown_workflow"
    assert "colour" in reply["items"][2]["error"]["message"]
    assert "workflow_id" in reply["items"][2]["error"]["message"]
    for index in (0, 3):
        await api.until(reply["items"][index]["request_id"], "completed", key="operator")


@pytest.mark.parametrize("number", [0, 101])
async def test_a_batch_has_1_to_100_items(api: Gateway, number: int) -> None:
    items = [{"workflow_id": "ingest"}] * number
    assert "items" in (await api.post("/api/gateway/submit/batch", {"items": items}, 422, "operator"))["detail"]


# Status.


async def test_jobs_nodes_and_events_are_shown_to_operators(api: Gateway) -> None:
    request_id = await api.submit("bad")
    await api.until(request_id, "failed")
    job_id = str(api.job_of(request_id))
    job = await operator_gets(api, f"/api/status/job/{job_id}?include_nodes=true")
    assert (job["job_id"], job["status"], job["failed_node"], job["correlation_id"]) == (
        job_id,
        "failed",
        STEP,
        request_id,
    )
    assert STEP in [node["node_id"] for node in job["nodes"]]
    nodes = await operator_gets(api, f"/api/status/job/{job_id}/nodes")
    assert {node["node_id"]: node["status"] for node in nodes["items"]}[STEP] == "failed"
    events = await operator_gets(api, f"/api/status/job/{job_id}/events")
    assert [event["event_type"] for event in events["items"]][-1] == "job_failed"
    matches = await operator_gets(api, f"/api/status/lookup?correlation_id={request_id}")
    assert [job["job_id"] for job in matches] == [job_id]
    for path in ("1", "x", "0", "9" * 30):
        assert (await operator_gets(api, f"/api/status/job/{path}", 404))["error"]["code"] == "unknown_job"
        await operator_gets(api, f"/api/status/job/{path}/nodes", 404)
        await operator_gets(api, f"/api/status/job/{path}/events", 404)


async def test_jobs_are_listed_by_status_and_workflow(api: Gateway) -> None:
    await api.until(await api.submit(), "completed")
    listed = await operator_gets(api, "/api/status/jobs?status=completed&workflow_id=ingest&limit=1&include_nodes=true")
    assert [(job["status"], job["workflow_id"]) for job in listed["items"]] == [("completed", "ingest")]
    assert STEP in [node["node_id"] for node in listed["items"][0]["nodes"]]
    assert (await operator_gets(api, "/api/status/jobs?workflow_id=other"))["items"] == []
    for query in ("limit=0", "limit=501", "offset=-1", "status=odd"):
        await operator_gets(api, f"/api/status/jobs?{query}", 422)
    await operator_gets(api, "/api/status/jobs?limit=500")


async def test_jobs_are_looked_up_by_one_of_two_keys(api: Gateway) -> None:
    key = str(uuid4())
    accepted = await api.post("/api/platform/submit", {"workflow_id": "ingest", "idempotency_key": key}, 202)
    [job] = await operator_gets(api, f"/api/status/lookup?correlation_id={accepted['request_id']}")
    assert job["submitted_by"] == "partner"
    assert [job["job_id"] for job in await operator_gets(api, f"/api/status/lookup?idempotency_key={key}")] == [
        job["job_id"]
    ]
    for query in ("", "?correlation_id=a&idempotency_key=b"):
        await operator_gets(api, f"/api/status/lookup{query}", 422)
    assert (await operator_gets(api, "/api/status/lookup?correlation_id=nobody", 404))["error"]["code"] == "unknown_job"


def add_orchestrator(api: Gateway, orchestrator_id: str, heartbeat: str) -> None:
    api.site.rows(
        "INSERT INTO dagapp.dag_orchestrators (orchestrator_id, hostname, pid, host_key, status, heartbeat_at) "
        "VALUES (%s, 'h', 1, 'k', 'running', now() + %s::interval)",
        orchestrator_id,
        heartbeat,
    )


async def test_orphans_are_jobs_of_a_silent_owner(installed: Site) -> None:
    async with gateway(installed, heartbeat_interval_seconds=1, orphan_threshold_seconds=60) as api:
        request_id = await api.submit("slow")
        await api.until(request_id, "running")
        job_id = str(api.job_of(request_id))
        assert job_id in {job["job_id"] for job in (await operator_gets(api, "/api/admin/active-jobs"))["items"]}
        async with asyncio.timeout(SECONDS):  # A node starts after its job.
            while job_id not in str(await operator_gets(api, "/api/admin/running-nodes")):
                pass
        assert (await operator_gets(api, "/api/admin/orphans"))["items"] == []
        # Silent for the gateway's threshold, not for that of the orchestrator, which would adopt the job.
        add_orchestrator(api, "silent", "-61 seconds")
        api.site.rows(
            "INSERT INTO dagapp.dag_jobs (job_id, workflow_id, workflow_version, workflow_hash, status, priority, "
            "owner_id) VALUES (77, 'lost', 1, 'h', 'running', 0, 'silent')"
        )
        orphans = (await operator_gets(api, "/api/admin/orphans"))["items"]
        assert [(job["job_id"], job["is_orphaned"]) for job in orphans] == [("77", True)]
        api.site.rows("DELETE FROM dagapp.dag_jobs WHERE job_id = 77")
        api.site.rows("DELETE FROM dagapp.dag_orchestrators WHERE orchestrator_id = 'silent'")
        api.site.processing.goes_on.set()
        await api.until(request_id, "completed")
        api.site.processing.goes_on.clear()


async def test_operators_see_the_installation(api: Gateway) -> None:
    await api.until(await api.submit("bad"), "failed")
    stats = await operator_gets(api, "/api/status/stats")
    assert stats["jobs"]["failed"] >= 1
    assert stats["requests"] >= 1
    assert 0 <= stats["orchestrator_silent_seconds"] < 60
    # A heartbeat may be stored after the transaction that reads it began.
    add_orchestrator(api, "newer", "60 seconds")
    assert (await operator_gets(api, "/api/status/stats"))["orchestrator_silent_seconds"] == 0
    api.site.rows("DELETE FROM dagapp.dag_orchestrators WHERE orchestrator_id = 'newer'")
    assert (await operator_gets(api, "/api/admin/workflows"))["items"][0]["workflow_id"] == "ingest"
    assert (await operator_gets(api, "/api/admin/recent-events?limit=1"))["has_more"]
    assert (await operator_gets(api, "/api/admin/failed-nodes"))["items"][0]["node_id"] == STEP
    config = await operator_gets(api, "/api/admin/config")
    assert (config["has_orchestrator"], config["has_worker"], config["timeout_seconds"]) == (True, False, 30)
    for path in ("/api/gateway/health", "/api/admin/health"):
        health = await operator_gets(api, path)
        assert {check["name"]: check["status"] for check in health["checks"]} == {
            "env_vars": "healthy",
            "database": "healthy",
            "orchestrator": "healthy",
        }


async def test_layers_can_be_described_and_read(api: Gateway) -> None:
    body = {"workflow_id": "ingest", "platform_refs": {"item_id": str(uuid4())}, "data_type": "vector"}
    accepted = await api.post("/api/gateway/submit", {**body, "platform_id": "arcgis"}, 202, "operator")
    asset_id = accepted["asset_id"]
    path = "/api/admin/layer-metadata"
    assert (await operator_gets(api, f"{path}/{asset_id}", 404))["error"]["code"] == "unknown_layer"
    added = await api.post(path, {"asset_id": asset_id, "display_name": "Roads"}, 201, "operator")
    assert (added["display_name"], added["version"], added["platform_id"]) == ("Roads", 1, "arcgis")
    replaced = {"display_name": "Streets", "version": 1}
    changed = await api.ask("PUT", f"{path}/{asset_id}", 200, "operator", json=replaced)
    assert (changed["display_name"], changed["version"]) == ("Streets", 2)
    assert (await api.ask("PUT", f"{path}/{asset_id}", 409, "operator", json=replaced))["error"]["code"] == "conflict"
    assert await operator_gets(api, f"{path}/{asset_id}") == changed
    assert asset_id in {layer["asset_id"] for layer in (await operator_gets(api, path))["items"]}
    refused = await api.send("POST", f"{path}/{asset_id}/publish-external", "operator")
    assert refused.status_code in (409, 502), refused.text
    await api.ask("DELETE", f"{path}/{asset_id}", 204, "operator")
    await operator_gets(api, f"{path}/{asset_id}", 404)


async def test_the_catalogue_is_read_from_its_view(api: Gateway) -> None:
    api.site.rows(
        "INSERT INTO dagapp.layer_catalog (table_name, source_asset_id, data_type, display_name, min_zoom, max_zoom, "
        "default_visible, sort_order) VALUES ('geo.roads', 'a', 'vector', 'Roads', 0, 24, true, 0)"
    )
    assert [row["table_name"] for row in (await operator_gets(api, "/api/admin/layer-catalog"))["items"]] == [
        "geo.roads"
    ]
    assert (await operator_gets(api, "/api/admin/layer-catalog?data_type=raster"))["items"] == []
    assert (await operator_gets(api, "/api/admin/layer-catalog/geo.roads"))["display_name"] == "Roads"
    assert (await operator_gets(api, "/api/admin/layer-catalog/none", 404))["error"]["code"] == "unknown_layer"


# The proxy.


async def test_the_proxy_reads_and_controls_jobs(api: Gateway) -> None:
    request_id = await api.submit("slow")
    await api.until(request_id, "running")
    job_id = api.job_of(request_id)
    job = await operator_gets(api, f"/api/proxy/orchestrator/api/v1/jobs/{job_id}")
    assert (job["job_id"], job["status"]) == (str(job_id), "running")
    assert "owner_id" not in job
    path = f"/api/proxy/orchestrator/api/v1/jobs/{job_id}/cancel"
    cancelled = await api.post(path, {"reason": "enough"}, 200, "operator")
    assert cancelled["job_id"] == str(job_id)
    assert (await api.post(path, None, 409, "operator"))["error"]["code"] == "job_ended"
    listed = await operator_gets(api, "/api/proxy/orchestrator/api/v1/jobs?limit=1&status=cancelled")
    assert listed["items"][0]["job_id"] == str(job_id)


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "orchestrator/api/v1/keys"),
        ("GET", "orchestrator/api/v1/audit"),
        ("GET", "orchestrator/api/v1/jobs/../keys"),
        ("GET", "orchestrator/api/v1/jobs/%2e%2e/keys"),
        ("GET", "orchestrator/api/v1/jobs//keys"),
        ("GET", "orchestrator/api/v1/jobs/1/stream"),
        ("GET", "orchestrator/api/v1/jobs/1/nodes/a/logs"),
        ("GET", "orchestrator/metrics"),
        ("GET", "orchestrator/ui/"),
        ("GET", "orchestrator//127.0.0.1:1/livez"),
        ("GET", "orchestrator/@127.0.0.1/livez"),
        ("POST", "orchestrator/api/v1/bootstrap/rebuild"),
        ("POST", "orchestrator/api/v1/jobs"),
        ("POST", "orchestrator/api/v1/keys"),
        ("POST", "worker/livez"),
        ("GET", "worker/livez"),  # No worker is configured.
    ],
)
async def test_the_proxy_refuses_paths_that_are_not_listed(api: Gateway, method: str, path: str) -> None:
    response = await api.send(method, f"/api/proxy/{path}", "admin")
    assert response.status_code == 404, response.text
    assert "allow-list" in response.json()["detail"]


async def test_the_proxy_knows_two_targets_and_two_methods(api: Gateway) -> None:
    assert (await api.send("GET", "/api/proxy/database/livez", "admin")).status_code == 422
    assert (await api.send("DELETE", "/api/proxy/orchestrator/api/v1/jobs/1", "admin")).status_code == 405


async def test_the_health_of_proxy_targets_is_reported(installed: Site) -> None:
    async with gateway(installed, worker_url="http://127.0.0.1:1") as api:
        health = await operator_gets(api, "/api/proxy/health", 503)
        assert {check["name"]: check["message"] for check in health["checks"]} == {
            "orchestrator": "ready",
            "worker": "it cannot be reached",
        }
        assert (await operator_gets(api, "/api/proxy/worker/livez", 502))["error"]["code"] == "bad_gateway"
    async with gateway(installed) as api:
        assert [check["name"] for check in (await operator_gets(api, "/api/proxy/health"))["checks"]] == [
            "orchestrator"
        ]
