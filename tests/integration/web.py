"""The HTTP API on a fresh database, in the test's event loop, with or without a fleet."""

from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any

import httpx
from fastapi import FastAPI
from fleet import Fleet, OrchestratorRole, fleet, wait_until

from dagmaster.authoring.catalog import Catalog
from dagmaster.model.access import Role
from dagmaster.model.graph import Graph
from dagmaster.settings import load_settings
from dagmaster.store.connect import opened
from dagmaster.store.keys import new_key
from dagmaster.store.notifications import Notifier
from dagmaster.web.app import create_app
from dagmaster.web.server import bind, served, url_of
from dagmaster.web.services import Services, opened_services


@dataclass
class Web:
    dsn: str
    app: FastAPI
    services: Services
    client: httpx.AsyncClient
    fleet: Fleet

    async def key(self, name: str, role: Role = Role.ADMIN, *, platform_id: str | None = None) -> dict[str, str]:
        """Create a key; return its header."""
        async with opened(self.dsn, application="test") as conn:
            new = await new_key(conn, name=name, role=role, created_by="test", platform_id=platform_id)
        self.app.state.keyring._any = (0.0, True)
        return {"Authorization": f"Bearer {new.text}"}

    async def get(self, path: str, status: int = 200, **options: Any) -> Any:
        return await self.ask("GET", path, status, **options)

    async def post(self, path: str, body: Any = None, status: int = 200, **options: Any) -> Any:
        return await self.ask("POST", path, status, json=body, **options)

    async def ask(self, method: str, path: str, status: int, **options: Any) -> Any:
        answer = await self.client.request(method, path, **options)
        assert answer.status_code == status, f"{method} {path} with {options}: {answer.status_code}: {answer.text}"
        is_json = answer.headers.get("content-type", "").startswith(("application/json", "application/geo+json"))
        return answer.json() if is_json else answer.text

    async def until_counted(self, jobs: int) -> None:
        """Until the orchestrator in this process has counted so many ended jobs, which it does after their commit."""
        [role] = [role for role in self.fleet.roles if isinstance(role, OrchestratorRole)]
        await wait_until(lambda: role.instance.stats.jobs_ended == jobs)

    @asynccontextmanager
    async def real_server(self) -> AsyncIterator[str]:
        """Listen on a port: streams cannot be read through ASGI alone."""
        listener = bind("127.0.0.1", 0)
        async with served(self.app, listener):
            yield url_of(listener)


@asynccontextmanager
async def web(
    dsn: str,
    *graphs: Graph,
    runs: bool = False,
    is_local: bool = True,
    functions: dict[str, Callable[..., Any]] | None = None,
    **settings: Any,
) -> AsyncIterator[Web]:
    """`runs` adds an orchestrator and a worker."""
    catalog = Catalog()
    for graph in graphs:
        catalog.register(graph.workflow)
    async with AsyncExitStack() as stack:
        crew = await stack.enter_async_context(fleet(dsn, **(functions or {})))
        owner = None
        if runs:
            owner = await crew.orchestrator()
            await crew.worker(owner=owner)
        services = await stack.enter_async_context(
            opened_services(
                dsn,
                load_settings(**{"orphan_threshold_seconds": 31, **settings}),
                notifier=owner.notifier if owner else Notifier(dsn),
                catalog=catalog,
                registry=crew.known,
                is_local=is_local,
                orchestrator=owner.instance if owner else None,
            )
        )
        app = create_app(services)
        transport = httpx.ASGITransport(app, raise_app_exceptions=False)
        client = await stack.enter_async_context(httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1"))
        yield Web(dsn, app, services, client, crew)
