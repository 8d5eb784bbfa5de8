"""The server behaves as the OpenAPI document says, for generated requests."""

import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, given, settings
from processes import PATIENCE_SECONDS, POLL_SECONDS, Stage
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

CHECKS = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]
WORKFLOWS = Path(__file__).parents[2] / "workflows"
REQUESTS = 8


@dataclass(frozen=True)
class Server:
    url: str
    key: str


@pytest.fixture(scope="module")
def server(shared_dsn: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Everything in one process, with a completed and a failed job and an admin's key."""
    stage = Stage(shared_dsn, tmp_path_factory.mktemp("openapi"))
    created = subprocess.run(
        [sys.executable, "-m", "dagmaster", "keys", "create", "--name", "tester", "--role", "admin"],
        env=stage.environment,
        capture_output=True,
        text=True,
        check=True,
    )
    process = stage.start("dev", "--port", "0", workflows_dir=WORKFLOWS)
    deadline = time.monotonic() + PATIENCE_SECONDS
    while "ready" not in process.out.read_text():
        assert not process.has_ended() and time.monotonic() < deadline, process.last_words()
        time.sleep(POLL_SECONDS)
    [url] = [line.split()[1] for line in process.out.read_text().splitlines() if line.startswith("api ")]
    server = Server(url, created.stdout.strip())
    with httpx.Client(base_url=url, headers=authorized(server), timeout=90) as http:
        for workflow_id in ("hello_world", "fan_out_fan_in"):
            http.post("/api/v1/jobs", json={"workflow_id": workflow_id}).raise_for_status()
    yield server
    sys.stderr.write(stage.close())


def authorized(server: Server) -> dict[str, str]:
    return {"Authorization": f"Bearer {server.key}"}


def operations(document: Any) -> list[schemathesis.APIOperation[Any, Any, Any, Any]]:
    return [operation.ok() for operation in document.get_all_operations()]


@pytest.mark.timeout(400)
def test_every_response_matches_the_openapi_document(server: Server) -> None:
    document = schemathesis.openapi.from_url(f"{server.url}/openapi.json", timeout=90)
    with requests.Session() as session:  # One connection for all requests.
        session.trust_env = False  # No proxy lookup before each of them.
        broken = [problem for operation in operations(document) if (problem := examine(operation, server, session))]
    assert not broken, "\n\n".join(broken)


def examine(
    operation: schemathesis.APIOperation[Any, Any, Any, Any], server: Server, session: requests.Session | None = None
) -> str | None:
    """The failures of this operation, if any."""

    @settings(max_examples=REQUESTS, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
    @given(case=operation.as_strategy())
    def request(case: schemathesis.Case[Any]) -> None:
        case.call_and_validate(
            base_url=server.url, headers=authorized(server), checks=CHECKS, timeout=90, session=session
        )

    try:
        request()
    except BaseExceptionGroup as failures:  # All are reported at once.
        problems = "; ".join(str(problem) for problem in failures.exceptions)
        return f"{operation.method.upper()} {operation.path}: {problems}"
    return None


def test_the_document_describes_every_operation(server: Server) -> None:
    described = httpx.get(f"{server.url}/openapi.json", timeout=90).json()
    names = []
    for path, operations in described["paths"].items():
        for method, operation in operations.items():
            assert operation.get("summary") or operation.get("description"), f"{method} {path} is not described"
            assert set(operation["responses"]) >= {"401", "403"} or "/api/" not in path, f"{method} {path}"
            names.append(operation["operationId"])
    assert len(names) == len(set(names))


def test_an_undocumented_status_is_detected(server: Server) -> None:
    described = httpx.get(f"{server.url}/openapi.json", timeout=90).json()
    path = "/api/v1/jobs/{job_id}"
    del described["paths"][path]["get"]["responses"]["404"]
    document = schemathesis.openapi.from_dict({**described, "paths": {path: {"get": described["paths"][path]["get"]}}})
    [operation] = operations(document)
    problem = examine(operation, server)
    assert problem is not None
    assert "404" in problem
