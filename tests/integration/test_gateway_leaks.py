"""No internals leave through the gateway: every endpoint, in every state of a job."""

import re
import tempfile
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx
import pytest
from gateway import STEP, Gateway, Site, gateway, site
from test_gateway_operations import ALL, DECIDED

STATES = ("pending", "running", "completed", "failed", "cancelled", "removed", "without a job")
OWNER, HOST = "leaky-owner-1", "leaky-host-1"
# Routes of partners and reviewers. Operators may see jobs and nodes.
OUTSIDE = ("/api/livez", "/api/readyz", "/api/platform/", "/api/assets")
CODE = re.compile(r"SELECT |INSERT |dagapp\.|dag_jobs|Traceback|File \"|postgresql://|psycopg")
IDS = re.compile(r"(?<![\w.])\d{15,19}(?!\w)|\"(?:job|node|task|owner|correlation)_ids?\"|/var/lib")


@dataclass(frozen=True)
class Request:
    """The internals of a request, known to the test."""

    request_id: str
    asset_id: str
    job_id: int | None


@pytest.fixture(scope="module")
def installed(shared_dsn: str) -> Iterator[Site]:
    with tempfile.TemporaryDirectory() as folder, site(shared_dsn, Path(folder)) as api:
        api.rows(
            "INSERT INTO dagapp.dag_orchestrators (orchestrator_id, hostname, pid, host_key, status, heartbeat_at) "
            "VALUES (%s, %s, 4242424, 'leaky-key', 'stopped', now())",
            OWNER,
            HOST,
        )
        yield api


@pytest.fixture
async def api(installed: Site) -> AsyncIterator[Gateway]:
    async with gateway(installed, worker_url="http://127.0.0.1:1") as site:
        yield site


async def submit(api: Gateway, source: str) -> Request:
    refs = {"dataset_id": str(uuid4()), "resource_id": "r"}
    body = {"workflow_id": "ingest", "input_params": {"source": source}, "platform_refs": refs, "data_type": "vector"}
    accepted = await api.post("/api/platform/submit", body, 202)
    return Request(accepted["request_id"], accepted["asset_id"], api.job_of(accepted["request_id"]))


async def prepare(api: Gateway, state: str) -> Request:
    match state:
        case "completed" | "removed":
            request = await submit(api, "good")
            await api.until(request.request_id, "completed")
            if state == "removed":
                for table in ("dag_jobs", "dag_node_states", "dag_job_events", "dag_task_results"):
                    api.site.rows(f"DELETE FROM dagapp.{table} WHERE job_id = %s", request.job_id)
        case "failed":
            request = await submit(api, "bad")
            await api.until(request.request_id, "failed")
        case "running" | "cancelled":
            request = await submit(api, "slow")
            await api.until(request.request_id, "running")
            if state == "cancelled":
                path = f"/api/proxy/orchestrator/api/v1/jobs/{request.job_id}/cancel"
                await api.post(path, None, 200, "operator")
                await api.until(request.request_id, "failed")
        case _:
            request = await submit(api, "good")
            await api.until(request.request_id, "completed")
            hold_back(api.site, request, has_job=state == "pending")
    return request


def hold_back(site: Site, request: Request, *, has_job: bool) -> None:
    """Put the request back to the state before it was picked up."""
    site.rows(
        "UPDATE dagapp.dag_jobs SET status = 'pending', owner_id = %s, started_at = NULL, completed_at = NULL, "
        "result_data = NULL WHERE job_id = %s",
        OWNER,
        request.job_id,
    )
    site.rows(
        "UPDATE dagapp.dag_api_requests SET status = 'pending', completed_at = NULL, job_id = %s WHERE request_id = %s",
        request.job_id if has_job else None,
        request.request_id,
    )


def calls(request: Request) -> Iterator[tuple[str, str, str, Any]]:
    """Method, path, key and body of each route: reads first, deletions last."""
    order = {"GET": 0, "POST": 1, "PUT": 2, "DELETE": 3}
    for name in sorted(DECIDED, key=lambda name: order[name.split()[0]]):
        method, template = name.split()
        path = (
            template.replace("{request_id}", request.request_id)
            .replace("{asset_id}", request.asset_id)
            .replace("{ordinal}", "0")
            .replace("{job_id}", str(request.job_id))
            .replace("{table_name}", "geo.roads")
        )
        is_outside = template.startswith(OUTSIDE)
        key = "partner" if is_outside and (DECIDED[name] == ALL or "partner" in DECIDED[name]) else "reviewer"
        if not is_outside or (method == "DELETE" and "partner" not in DECIDED[name]):
            key = "operator"
        if "{path:path}" in path:
            job = f"api/v1/jobs/{request.job_id}"
            paths = ["health", "readyz", "api/v1/jobs", job, f"{job}/nodes", f"{job}/timeline", "api/v1/queues/status"]
            for inner in paths if method == "GET" else [f"{job}/retry"]:
                yield method, f"/api/proxy/orchestrator/{inner}", key, None
            continue
        if path.endswith("/lookup"):
            path += f"?correlation_id={request.request_id}"
        yield method, path, key, body_of(path, request) if method in ("POST", "PUT") else None


def body_of(path: str, request: Request) -> Any:
    if "layer-metadata" in path:
        return {"asset_id": request.asset_id, "display_name": "x"}
    if path.endswith("batch"):
        return {"items": [{"workflow_id": "ingest", "platform_id": "ddh"}, {"workflow_id": "nothing"}]}
    if path.endswith("submit"):
        return {"workflow_id": "ingest", "input_params": {"nothing": 1}}
    target = {"request_id": request.request_id} if path.startswith("/api/platform") else {}
    return {**target, "reason": "x"} if path.endswith(("reject", "unpublish")) or "clearance" in path else target


def seen_in(response: httpx.Response) -> str:
    headers = [f"{name}: {value}" for name, value in response.headers.items() if name != "x-request-id"]
    return "\n".join([*headers, response.text])


def machines(site: Site) -> set[str]:
    """The names of processes and hosts."""
    rows = site.rows(
        "SELECT orchestrator_id AS id, hostname, host_key FROM dagapp.dag_orchestrators "
        "UNION ALL SELECT worker_id, hostname, host_key FROM dagapp.dag_workers"
    )
    return {str(value) for row in rows for value in row.values()}


@pytest.mark.parametrize("state", STATES)
async def test_no_endpoint_leaks_internals(api: Gateway, state: str) -> None:
    request = await prepare(api, state)
    hidden = machines(api.site)
    assert len(hidden) >= 6
    statuses: set[int] = set()
    leaks = []
    for method, path, key, body in calls(request):
        response = await api.send(method, path, key, json=body)
        statuses.add(response.status_code)
        assert response.status_code < 500 or path.endswith(("health", "publish-external")), f"{path}: {response.text}"
        words = set(hidden)
        if path.startswith(OUTSIDE):
            words |= {STEP, *([str(request.job_id)] if request.job_id is not None else ())}
        seen = seen_in(response)
        leaked = [word for word in words if re.search(rf"(?<![\w-]){re.escape(word)}(?![\w-])", seen)]
        leaked += CODE.findall(seen)
        if path.startswith(OUTSIDE):
            leaked += IDS.findall(seen)
        leaks += [f"{key} {method} {path}: {leaked} in {seen}"] if leaked else []
    assert not leaks, "\n\n".join(leaks)
    assert statuses >= {200, 202}


async def test_errors_before_routing_leak_no_internals(api: Gateway) -> None:
    for method, path in (
        ("GET", "/api/nothing"),
        ("PUT", "/api/assets"),
        ("GET", "/api/assets/%00"),
        ("POST", "/api/x"),
    ):
        response = await api.send(method, path)
        assert response.status_code in (404, 405, 422), f"{path}: {response.text}"
        assert not CODE.search(seen_in(response))
        assert response.json()["error"]["code"]
    broken = await api.client.post(
        "/api/platform/submit", content=b"{", headers={"Authorization": f"Bearer {api.site.keys['partner']}"}
    )
    assert broken.status_code == 422
    assert not CODE.search(seen_in(broken))
