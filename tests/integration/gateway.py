"""A gateway in the test's event loop, in front of a whole installation in a thread."""

import asyncio
import socket
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import psycopg
from command_line import write_workflow
from fastapi import FastAPI
from psycopg.rows import dict_row
from reading import dropped_after, make_reader, new_role
from serving import Server, server

from dagmaster.gateway.app import create_app
from dagmaster.handlers import HandlerContext
from dagmaster.model.access import Role
from dagmaster.settings import Settings, load_settings
from dagmaster.store.connect import opened
from dagmaster.store.keys import new_key

REFS = {"dataset_id": "0038272", "resource_id": "shapefile"}
STEP = "hidden_step"
INGEST = f"""\
workflow_id: ingest
inputs: {{source: {{type: string, default: good}}}}
nodes:
  {STEP}: {{handler: ingest, queue: q, retry: {{max_attempts: 0}}, params: {{source: "{{{{ inputs.source }}}}"}}}}
"""
OUTPUTS = {"blob_path": "silver/ddh/0038272.tif", "table_name": "geo.ddh_0038272", "content_hash": "sha256:abc"}
SECONDS = 60.0


class Processing:
    """The input `source` selects the outcome. All its messages contain internals."""

    def __init__(self) -> None:
        self.goes_on = threading.Event()

    def ingest(self, ctx: HandlerContext) -> dict[str, Any]:
        inside = f"task {ctx.task_id} of job {ctx.job_id} by worker {ctx.worker_id} on {socket.gethostname()}"
        if ctx.params["source"] == "slow":
            while not (self.goes_on.wait(0.02) or ctx.cancelled.is_set()):
                pass
        if ctx.params["source"] == "bad":
            raise ValueError(
                f"band 4 is missing: {inside} in /var/lib/dagmaster/in.tif, SELECT x FROM dagapp.dag_jobs WHERE x = 1"
            )
        place = {"owner_id": ctx.worker_id, "hostname": socket.gethostname(), "note": inside}
        return {**OUTPUTS, "job_id": ctx.job_id, "rows": 7, "echo": [{"task_id": ctx.task_id, "place": place}]}


@dataclass
class Site:
    """`owner_dsn` has all privileges; the gateway's settings name the reader."""

    owner_dsn: str
    reader_dsn: str
    server: Server
    processing: Processing
    keys: dict[str, str] = field(default_factory=dict)

    def settings(self, **changes: Any) -> Settings:
        defaults = {
            "gateway_database_url": self.reader_dsn,
            "url": self.server.url,
            "api_key": self.keys["gateway"],
            "gateway_rate_per_second": 1000,
            "gateway_burst": 1000,
        }
        return load_settings(**{**defaults, **changes})

    def rows(self, query: str, *values: Any) -> list[dict[str, Any]]:
        with psycopg.connect(self.owner_dsn, autocommit=True, row_factory=dict_row) as conn:
            cursor = conn.execute(query, values or None)
            return cursor.fetchall() if cursor.description else []

    async def key(self, name: str, role: Role, platform_id: str | None = None) -> str:
        async with opened(self.owner_dsn, application="test") as conn:
            new = await new_key(conn, name=name, role=role, created_by="test", platform_id=platform_id)
        self.keys[name] = new.text
        return new.text


@dataclass
class Gateway:
    site: Site
    app: FastAPI
    client: httpx.AsyncClient

    async def send(self, method: str, path: str, key: str | None = "partner", **options: Any) -> httpx.Response:
        headers = dict(options.pop("headers", {}))
        if key is not None:
            headers["Authorization"] = f"Bearer {self.site.keys.get(key, key)}"
        return await self.client.request(method, path, headers=headers, **options)

    async def ask(self, method: str, path: str, status: int = 200, key: str | None = "partner", **options: Any) -> Any:
        response = await self.send(method, path, key, **options)
        assert response.status_code == status, f"{method} {path}: {response.status_code}: {response.text}"
        return response.json() if response.content else None

    async def get(self, path: str, status: int = 200, key: str | None = "partner", **options: Any) -> Any:
        return await self.ask("GET", path, status, key, **options)

    async def post(self, path: str, body: Any = None, status: int = 200, key: str | None = "partner") -> Any:
        return await self.ask("POST", path, status, key, json=body)

    async def submit(self, source: str = "good", key: str = "partner", **fields: Any) -> str:
        body = {"workflow_id": "ingest", "input_params": {"source": source}, **fields}
        request_id: str = (await self.post("/api/platform/submit", body, 202, key))["request_id"]
        return request_id

    async def until(self, request_id: str, *statuses: str, key: str = "partner") -> Any:
        async with asyncio.timeout(SECONDS):
            while True:
                request_status = await self.get(f"/api/platform/status/{request_id}", key=key)
                if request_status["status"] in statuses:
                    return request_status
                await asyncio.sleep(0.02)

    def job_of(self, request_id: str) -> int:
        [row] = self.site.rows("SELECT job_id FROM dagapp.dag_api_requests WHERE request_id = %s", request_id)
        job_id: int = row["job_id"]
        return job_id


@contextmanager
def site(dsn: str, folder: Path) -> Iterator[Site]:
    """An orchestrator, a worker and the API, with keys of every role."""
    write_workflow(folder, INGEST, "ingest.yaml")
    processing = Processing()
    with dropped_after(dsn, new_role()) as role:
        reader_dsn = asyncio.run(make_reader(dsn, role))
        with server(dsn, folder, ingest=processing.ingest) as running:
            installed = Site(dsn, reader_dsn, running, processing)
            asyncio.run(_make_keys(installed))
            try:
                yield installed
            finally:
                processing.goes_on.set()


async def _make_keys(installed: Site) -> None:
    await installed.key("admin", Role.ADMIN)
    await installed.key("gateway", Role.OPERATOR)
    await installed.key("operator", Role.OPERATOR)
    await installed.key("reviewer", Role.REVIEWER)
    await installed.key("ddh reviewer", Role.REVIEWER, "ddh")
    await installed.key("arcgis reviewer", Role.REVIEWER, "arcgis")
    await installed.key("partner", Role.PARTNER, "ddh")
    await installed.key("other", Role.PARTNER, "arcgis")
    await installed.key("homeless", Role.PARTNER)
    await installed.key("viewer", Role.VIEWER)
    await installed.key("worker", Role.WORKER)


@asynccontextmanager
async def gateway(installed: Site, **settings: Any) -> AsyncIterator[Gateway]:
    app = create_app(installed.settings(**settings))
    async with app.router.lifespan_context(app):
        transport = httpx.ASGITransport(app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://gateway") as client:
            yield Gateway(installed, app, client)
