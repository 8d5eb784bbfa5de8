"""The gateway as a process: its start, and outages of the orchestrator and the database."""

import asyncio
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import psutil
import psycopg
import pytest
from processes import ORCHESTRATOR, PATIENCE_SECONDS, POLL_SECONDS, WORKER, Process, Stage
from reading import as_role, make_reader
from test_api_process import first_line

from dagmaster.model.access import Role
from dagmaster.store.connect import opened
from dagmaster.store.embedded import EmbeddedServer
from dagmaster.store.keys import new_key
from dagmaster.store.migrate import upgrade

pytestmark = [pytest.mark.acceptance, pytest.mark.timeout(240)]

READER = "gateway_reader"
START_CPU_SECONDS = 4.0  # It takes 0.9; on a busy machine a second of work may count as two.
SLEEPY = "workflow_id: sleepy\nnodes:\n  only: {type: task, handler: sleep, params: {seconds: 0}}\n"
NOWHERE = "http://127.0.0.1:1"


@pytest.fixture(scope="module")
def server() -> Iterator[EmbeddedServer]:
    """A separate server, because it is stopped."""
    folder = Path(tempfile.mkdtemp(prefix="dagmaster-test-"))
    with EmbeddedServer.start(folder) as server:
        upgrade(server.dsn)
        asyncio.run(make_reader(server.dsn, READER))
        yield server
    shutil.rmtree(folder)


@pytest.fixture(scope="module")
def keys(server: EmbeddedServer) -> dict[str, str]:
    async def make() -> dict[str, str]:
        async with opened(server.dsn, application="test") as conn:
            gateway = await new_key(conn, name="gateway", role=Role.OPERATOR, created_by="test")
            partner = await new_key(conn, name="partner", role=Role.PARTNER, created_by="test", platform_id="ddh")
        return {"gateway": gateway.text, "partner": partner.text}

    return asyncio.run(make())


@pytest.fixture
def stage(server: EmbeddedServer, tmp_path: Path) -> Iterator[Stage]:
    with psycopg.connect(server.dsn, autocommit=True) as conn:
        conn.execute("DROP TABLE IF EXISTS acceptance_ledger")
    (tmp_path / "sleepy.yaml").write_text(SLEEPY)
    stage = Stage(server.dsn, tmp_path, forgetful=False)
    yield stage
    sys.stderr.write(stage.close())


class Gateway:
    def __init__(self, process: Process, key: str) -> None:
        self.process = process
        self._url = first_line(process, "serving").split()[-1]
        self._options: dict[str, Any] = {"headers": {"Authorization": f"Bearer {key}"}, "timeout": 30}

    def get(self, path: str) -> httpx.Response:
        return httpx.get(f"{self._url}{path}", **self._options)

    def submit(self) -> httpx.Response:
        return httpx.post(f"{self._url}/api/platform/submit", json={"workflow_id": "sleepy"}, **self._options)

    def until(self, path: str, status: int) -> Any:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while (response := self.get(path)).status_code != status:
            assert time.monotonic() < deadline, f"{path}: {response.status_code}: {response.text}"
            assert not self.process.has_ended(), self.process.last_words()
            time.sleep(POLL_SECONDS)
        return response.json()


def start(stage: Stage, keys: dict[str, str], *, url: str = NOWHERE, **settings: Any) -> Gateway:
    chosen = {"gateway_database_url": as_role(stage.dsn, READER), "url": url, "api_key": keys["gateway"], **settings}
    process = stage.start("gateway", "--port", "0", **chosen)
    return Gateway(process, keys["partner"])


def test_the_gateway_starts_without_a_database_and_serves_only_probes(stage: Stage, keys: dict[str, str]) -> None:
    gateway = start(stage, keys, gateway_database_url="postgresql://reader:hidden-word@127.0.0.1:1/nothing")
    assert gateway.get("/api/livez").json() == {"status": "alive"}
    ready = gateway.get("/api/readyz")
    assert ready.status_code == 503
    assert ready.json()["error"]["details"] == [{"check": "database", "message": "it cannot be reached"}]
    assert (gateway.get("/api/assets").status_code, gateway.submit().status_code) == (503, 503)
    gateway.process.terminate()
    assert gateway.process.wait() == 0
    assert "hidden-word" not in gateway.process.log.read_text()


def test_the_gateway_waits_for_an_unreachable_orchestrator(
    stage: Stage, keys: dict[str, str], tmp_path: Path, port: str
) -> None:
    gateway = start(stage, keys, url=f"http://127.0.0.1:{port}")
    gateway.until("/api/readyz", 200)
    refused = gateway.submit()
    assert (refused.status_code, refused.json()["error"]["code"]) == (502, "bad_gateway")
    assert gateway.get("/api/assets").status_code == 200
    stage.launch(ORCHESTRATOR, WORKER)
    first_line(stage.start("api", "--port", port, workflows_dir=tmp_path), "serving")
    accepted = gateway.submit()
    assert accepted.status_code == 202, accepted.text
    path = f"/api/platform/status/{accepted.json()['request_id']}"
    deadline = time.monotonic() + PATIENCE_SECONDS
    while (status := gateway.get(path).json()["status"]) not in ("completed", "failed"):
        assert time.monotonic() < deadline
        time.sleep(POLL_SECONDS)
    assert status == "completed"


def test_the_gateway_recovers_with_the_database(stage: Stage, keys: dict[str, str], server: EmbeddedServer) -> None:
    gateway = start(stage, keys)
    gateway.until("/api/readyz", 200)
    assert gateway.get("/api/assets").status_code == 200
    stage.database.close()
    os.kill(int((server.pgdata / "postmaster.pid").read_text().split()[0]), signal.SIGQUIT)
    failed = gateway.until("/api/readyz", 503)
    assert [detail["check"] for detail in failed["error"]["details"]] == ["database"]
    assert gateway.get("/api/assets").status_code == 503
    assert gateway.get("/api/livez").status_code == 200
    server.restart(immediate=True)
    gateway.until("/api/readyz", 200)
    gateway.until("/api/assets", 200)


def test_the_gateway_starts_quickly(stage: Stage, keys: dict[str, str]) -> None:
    stage.is_real = True
    gateway = start(stage, keys)
    assert gateway.get("/api/livez").status_code == 200
    spent = psutil.Process(gateway.process.pid).cpu_times()
    assert spent.user + spent.system < START_CPU_SECONDS
