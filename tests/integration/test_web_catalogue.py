"""Every required endpoint responds with its documented fields."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, cast

import pytest
from fleet import chain, fan, retry, single
from web import Web, web

from dagmaster.web.app import ROUTERS

JOB = {"job_id", "workflow_id", "status", "nodes", "summary", "input_params", "result_data", "created_at"}
ENTRY = {"event_id", "timestamp", "event_type", "node_id", "task_id", "status", "message", "duration_ms", "data"}
BUCKETS = {"total", "pending", "ready", "dispatched", "running", "completed", "failed", "skipped"}


@dataclass(frozen=True)
class Asked:
    """`{done}`, `{failed}` and `{waits}` in the path are jobs; `fields` are in the response or its first item."""

    name: str
    path: str
    fields: set[str]
    body: Any = None
    status: int = 200
    within: str = ""


READS = [
    Asked("GET /api/v1/jobs", "/api/v1/jobs", {"job_id", "workflow_id", "status"}, within="items"),
    Asked("GET /api/v1/jobs/{job_id}", "/api/v1/jobs/{done}", JOB),
    Asked("GET /api/v1/jobs/{job_id}/timeline", "/api/v1/jobs/{done}/timeline?limit=1000", ENTRY, within="events"),
    Asked(
        "GET /api/v1/jobs/{job_id}/timeline",
        "/api/v1/jobs/{failed}/timeline?event_types=node_retry,node_failed&limit=1",
        {"total_events", "first_event", "last_event", "duration_seconds", "event_counts", "nodes_with_retries"},
        within="summary",
    ),
    Asked("GET /api/v1/jobs/{job_id}/graph", "/api/v1/jobs/{done}/graph", {"nodes", "edges"}),
    Asked(
        "GET /api/v1/jobs/{job_id}/progress",
        "/api/v1/jobs/{waits}/progress",
        {
            "overall_percent",
            "current_tasks",
            "job_status",
            "workflow_id",
            "nodes",
            "estimated_completion",
            "estimate_basis",
        },
    ),
    Asked("GET /api/v1/jobs/{job_id}/progress", "/api/v1/jobs/{done}/progress", BUCKETS, within="nodes"),
    Asked(
        "GET /api/v1/jobs/{job_id}/nodes/{node_id}/progress",
        "/api/v1/jobs/{failed}/nodes/work/progress",
        {"status", "retry_count", "max_retries", "progress_percent", "checkpoint_phase", "checkpoint_saved_at"},
    ),
    Asked(
        "GET /api/v1/jobs/{job_id}/nodes/{node_id}/timeline",
        "/api/v1/jobs/{failed}/nodes/work/timeline",
        ENTRY,
        within="events",
    ),
    Asked(
        "GET /api/v1/jobs/{job_id}/nodes/{node_id}/events",
        "/api/v1/jobs/{failed}/nodes/work/events",
        ENTRY,
        within="events",
    ),
    Asked("GET /api/v1/nodes", "/api/v1/nodes", {"job_id", "node_id", "status"}, within="items"),
    Asked("GET /api/v1/tasks", "/api/v1/tasks", {"task_id", "queue", "handler"}, within="items"),
    Asked("GET /api/v1/queues/status", "/api/v1/queues/status", {"queue", "depth", "running"}, within="queues"),
    Asked("GET /api/v1/workflows", "/api/v1/workflows", {"workflow_id", "version"}, within="workflows"),
    Asked(
        "GET /api/v1/workflows/{workflow_id}",
        "/api/v1/workflows/fan",
        {"workflow_id", "version", "inputs", "nodes", "edges"},
    ),
    Asked(
        "GET /api/v1/orchestrator/status",
        "/api/v1/orchestrator/status",
        {
            "status",
            "is_running",
            "instance_id",
            "started_at",
            "uptime_seconds",
            "current_phase",
            "active_jobs",
            "pending_results",
            "last_cycle_at",
            "tasks_dispatched",
            "results_processed",
            "errors",
            "last_error",
        },
    ),
    Asked(
        "GET /api/v1/orchestrator/stats",
        "/api/v1/orchestrator/stats",
        {"cycles", "throughput", "cycle_duration_avg_ms", "error_rate"},
    ),
    Asked(
        "GET /api/v1/orchestrator/activity",
        "/api/v1/orchestrator/activity",
        {"current_cycle_id", "cycle_started_at", "phase", "processing_job_id", "processing_node_id"},
    ),
    Asked(
        "GET /api/v1/metrics/workflows",
        "/api/v1/metrics/workflows?days=1",
        {"workflow_id", "total", "completed", "failed", "cancelled", "success_rate", "common_failures"},
        within="items",
    ),
    Asked(
        "GET /api/v1/metrics/workflows/{workflow_id}/nodes",
        "/api/v1/metrics/workflows/single/nodes",
        {"node_id", "executions", "completed", "failed", "success_rate", "total_retries"},
        within="items",
    ),
    Asked("GET /api/v1/metrics/failures", "/api/v1/metrics/failures", {"error_message", "occurrences"}, within="items"),
    Asked(
        "GET /api/v1/metrics/throughput",
        "/api/v1/metrics/throughput?hours=1&bucket_minutes=5",
        {"jobs_completed", "avg_duration_seconds"},
        within="items",
    ),
    Asked("GET /api/v1/status/job/{job_id}", "/api/v1/status/job/{done}", JOB),
    Asked("GET /api/v1/status/job/{job_id}/nodes", "/api/v1/status/job/{done}/nodes", {"node_id"}, within="items"),
    Asked("GET /api/v1/status/job/{job_id}/events", "/api/v1/status/job/{done}/events", ENTRY, within="events"),
    Asked("GET /api/v1/bootstrap/status", "/api/v1/bootstrap/status", set()),
    Asked("GET /api/v1/bootstrap/tables", "/api/v1/bootstrap/tables", set()),
    Asked("GET /api/v1/bootstrap/ddl", "/api/v1/bootstrap/ddl", set()),
    Asked("GET /api/dag/jobs/{job_id}", "/api/dag/jobs/{done}", JOB),
    Asked("GET /api/dag/jobs/{job_id}/nodes", "/api/dag/jobs/{done}/nodes", {"node_id"}, within="items"),
    Asked("GET /health", "/health", {"status", "checks"}),
    Asked("GET /health/{check}", "/health/database", {"status", "name"}),
    Asked("GET /livez", "/livez", {"status"}),
    Asked("GET /readyz", "/readyz", {"status"}),
    Asked("GET /", "/", {"name", "version"}),
]
CHANGES = [
    Asked("POST /api/v1/jobs", "/api/v1/jobs", {"job_id", "is_new"}, {"workflow_id": "single"}, 201),
    Asked("POST /api/v1/jobs", "/api/v1/jobs", {"job_id"}, {"workflow_id": "fan", "input_data": {"items": []}}, 201),
    Asked("POST /api/v1/jobs/{job_id}/cancel", "/api/v1/jobs/{waits}/cancel", {"job_id", "status"}),
    Asked("POST /api/v1/jobs/{job_id}/nodes/{node_id}/retry", "/api/v1/jobs/{failed}/nodes/work/retry", {"status"}),
    Asked("POST /api/v1/submit", "/api/v1/submit", {"job_id"}, {"workflow_id": "single"}, 201),
    Asked("POST /api/dag/submit", "/api/dag/submit", {"job_id"}, {"workflow_id": "single"}, 201),
    Asked("POST /api/dag/jobs/{job_id}/cancel", "/api/dag/jobs/{waits}/cancel", {"job_id", "status"}),
    Asked("POST /api/v1/commands/{name}", "/api/v1/commands/cache.invalidate", {"command", "result"}, {}),
    Asked("POST /api/v1/bootstrap/deploy", "/api/v1/bootstrap/deploy", set(), {"dry_run": True}),
    Asked("POST /api/v1/bootstrap/migrate", "/api/v1/bootstrap/migrate", set(), {"dry_run": True}),
]


@asynccontextmanager
async def stage(dsn: str) -> AsyncIterator[tuple[Web, dict[str, str]]]:
    """A completed job, a failed one, and one that waits for a missing worker."""
    waits = single(workflow_id="waits", queue="nobody")
    async with web(dsn, single(handler="fail", retry=retry(1)), fan(), chain(2), waits, runs=True) as api:
        jobs = {}
        for name, body in (
            ("done", {"workflow_id": "fan", "input_params": {"items": [1, 2]}}),
            ("failed", {"workflow_id": "single"}),
            ("waits", {"workflow_id": "waits"}),
        ):
            jobs[name] = (await api.post("/api/v1/jobs", body, 201))["job_id"]
        await api.fleet.ended(int(jobs["done"]), int(jobs["failed"]))
        await api.fleet.until("SELECT count(*) = 1 AS ok FROM dagapp.dag_tasks_waiting WHERE queue = 'nobody'")
        yield api, jobs


def check(call: Asked, answer: Any) -> None:
    inner = answer[call.within] if call.within else answer
    if isinstance(inner, list):
        assert inner, f"{call.path} gives an empty list"
        inner = inner[0]
    missing = call.fields - set(inner) if call.fields else set()
    assert not missing, f"{call.path} lacks {missing}"


def test_the_role_table_names_existing_routes() -> None:
    routes = {
        f"{method} {route.path}"
        for router in ROUTERS
        for route in cast("list[Any]", router.routes)
        for method in getattr(route, "methods", None) or ()
    }
    assert {call.name for call in (*READS, *CHANGES)} <= routes


async def test_every_read_of_the_catalogue_responds_as_documented(dsn: str) -> None:
    async with stage(dsn) as (api, jobs):
        for call in READS:
            check(call, await api.get(call.path.format(**jobs), call.status))


# Commands need a job that was not changed before.
OF_JOBS = [call for call in CHANGES if "{" in call.path]


@pytest.mark.parametrize("call", OF_JOBS, ids=[call.path for call in OF_JOBS])
async def test_every_job_command_responds_as_documented(dsn: str, call: Asked) -> None:
    async with stage(dsn) as (api, jobs):
        check(call, await api.post(call.path.format(**jobs), call.body, call.status))


async def test_every_other_change_responds_as_documented(dsn: str) -> None:
    async with stage(dsn) as (api, _):
        for call in CHANGES:
            if call not in OF_JOBS:
                check(call, await api.post(call.path, call.body, call.status))


async def test_unknown_resources_are_404(dsn: str) -> None:
    async with stage(dsn) as (api, jobs):
        for name in sorted({call.name for call in (*READS, *CHANGES)} | {"GET /api/v1/jobs/{job_id}/explain"}):
            method, path = name.split(" ")
            if "{" not in path:
                continue
            for unknown in ("247845805292758904", "nonsense"):
                url = path.replace("{job_id}", unknown).replace("{node_id}", "work")
                url = url.replace("{workflow_id}", unknown).replace("{name}", unknown).replace("{check}", unknown)
                if "metrics" in path:
                    continue  # A workflow without jobs has no statistics.
                refusal = await api.ask(method, url, 404, json={} if method == "POST" else None)
                assert refusal["error"]["code"] and refusal["error"]["message"]
        refusal = await api.get(f"/api/v1/jobs/{jobs['done']}/nodes/nope/progress", 404)
        assert "nope" in refusal["error"]["message"]


async def test_conflicting_states_are_409(dsn: str) -> None:
    async with stage(dsn) as (api, jobs):
        for job, act in (("done", "cancel"), ("failed", "cancel"), ("done", "retry"), ("waits", "resume")):
            refusal = await api.post(f"/api/v1/jobs/{jobs[job]}/{act}", status=409)
            assert jobs[job] in refusal["error"]["message"]
        await api.post(f"/api/v1/jobs/{jobs['done']}/nodes/spread/retry", status=409)
        body = {"workflow_id": "fan", "input_params": {"items": []}, "idempotency_key": "k"}
        first = await api.post("/api/v1/jobs", body, 201)
        again = await api.post("/api/v1/jobs", body, 200)
        assert (again["job_id"], again["is_new"]) == (first["job_id"], False)
        refusal = await api.post("/api/v1/jobs", {**body, "input_params": {"items": [1]}}, 409)
        assert first["job_id"] in refusal["error"]["message"]


BAD = [
    ("POST", "/api/v1/jobs", {}, "workflow_id"),
    ("POST", "/api/v1/jobs", {"workflow_id": "fan", "inputs": {}}, "inputs"),
    ("POST", "/api/v1/jobs", {"workflow_id": "fan"}, "items"),
    ("POST", "/api/v1/jobs", {"workflow_id": "fan", "input_params": {"items": "x"}}, "items"),
    ("POST", "/api/v1/jobs", {"workflow_id": "single", "priority": 10**6}, "priority"),
    ("POST", "/api/v1/jobs", {"workflow_id": "single", "idempotency_key": "k" * 129}, "idempotency_key"),
    ("POST", "/api/v1/submit", {"workflow_id": "single", "platform_id": "ddh"}, "platform_id"),
    ("GET", "/api/v1/jobs?status=lost", None, "lost"),
    ("GET", "/api/v1/jobs?limit=0", None, "limit"),
    ("GET", "/api/v1/jobs/{done}/timeline?limit=1001", None, "limit"),
    ("GET", "/api/v1/jobs/{done}/timeline?event_types=nope", None, "nope"),
    ("GET", "/api/v1/metrics/workflows?days=91", None, "days"),
    ("GET", "/api/v1/metrics/failures?limit=101", None, "limit"),
    ("GET", "/api/v1/metrics/throughput?hours=169", None, "hours"),
    ("POST", "/api/v1/callbacks/task-result", {"task_id": "x"}, "status"),
    ("POST", "/api/v1/bootstrap/deploy", {}, "confirm"),
]


async def test_invalid_input_is_422_and_names_the_field(dsn: str) -> None:
    async with stage(dsn) as (api, jobs):
        for method, path, body, field in BAD:
            refusal = await api.ask(method, path.format(**jobs), 422, json=body)
            assert field in refusal["error"]["message"], f"{method} {path} with {body}"


async def test_unready_services_are_503(dsn: str) -> None:
    async with web(dsn, single()) as api:
        refusal = await api.get("/api/v1/orchestrator/status", 503)
        assert "orchestrator" in refusal["error"]["message"]
        job = await api.post("/api/v1/jobs", {"workflow_id": "single"}, 201)
        assert job["warnings"] == [
            "no orchestrator is running; the job waits until one starts (`dagmaster orchestrator`)"
        ]
        api.app.state.is_stopping = True
        await api.get("/readyz", 503)
        await api.get("/livez", 200)


async def test_during_a_database_outage_requests_are_503_and_the_process_survives(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("dagmaster.web.checks.REACH_SECONDS", 0.2)
    async with web("postgresql://nobody@127.0.0.1:1/none?connect_timeout=1", single()) as api:
        api.services.pool.timeout = 0.2
        for path in ("/readyz", "/api/v1/jobs"):
            answer = await api.client.get(path)
            assert answer.status_code == 503
            assert answer.headers["retry-after"]
            assert "127.0.0.1" not in answer.text
        await api.get("/livez")
        await api.get("/health", 503)
