"""Workers register the contracts of their handlers, and every way to submit applies them."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from command_line import call, write_workflow
from fleet import handlers, rows
from pydantic import BaseModel, Field
from web import Web, web

from dagmaster.authoring.catalog import Catalog
from dagmaster.authoring.implicit import QueueRules
from dagmaster.cli import local
from dagmaster.cli.backend import SubmitArguments
from dagmaster.handlers import Handler, Registry
from dagmaster.model.problems import InvalidWorkflow
from dagmaster.model.retry import RetryPolicy
from dagmaster.queues.contract import Registration
from dagmaster.queues.http import HttpTransport
from dagmaster.settings import load_settings
from dagmaster.store.connect import opened
from dagmaster.store.handlers import list_contracts

FAR = """
workflow_id: far
nodes:
  dig: {handler: dig, params: {depth: 3}}
"""


class Depth(BaseModel):
    depth: int
    tool: str = "spade"


def dig(ctx: Any) -> dict[str, int]:
    """Dig a hole.

    As deep as it is told.
    """
    return {"deep": ctx.params["depth"]}


def diggers() -> Registry:
    known = handlers()
    policy = RetryPolicy(max_attempts=1)
    known.register(Handler("dig", dig, queue="earth", timeout_seconds=7, params=Depth, retry=policy))
    return known


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "far.yaml").write_text(FAR)
    return tmp_path


@asynccontextmanager
async def far(dsn: str, folder: Path) -> AsyncIterator[Web]:
    """A server that has the workflow but not its handler."""
    async with web(dsn) as api:
        api.services.catalog = Catalog(folder, queues=QueueRules(None, None, is_open=True))
        yield api


async def pinned(dsn: str) -> list[dict[str, Any]]:
    return await rows(dsn, "SELECT workflow_hash, definition -> 'nodes' -> 'dig' AS dig FROM dagapp.dag_workflows")


async def test_a_registered_contract_applies_to_every_submission(dsn: str, folder: Path) -> None:
    async with far(dsn, folder) as api:
        await api.fleet.orchestrator()
        await api.fleet.worker(known=diggers(), queues=("earth",))
        submitted = await api.post("/api/v1/jobs", {"workflow_id": "far"}, 201)
        assert submitted["warnings"] == []
        await api.fleet.completed(int(submitted["job_id"]))
        settings = load_settings(database_url=dsn, workflows_dir=folder)
        arguments = SubmitArguments(str(folder / "far.yaml"))
        with local.opened(settings) as backend:
            await asyncio.to_thread(backend.submit, arguments, lambda _: None)
            names = [row["name"] for row in await asyncio.to_thread(backend.handlers)]
        assert "dig" in names
        [only] = await pinned(dsn)
        assert only["dig"]["queue"] == "earth"
        assert only["dig"]["timeout_seconds"] == 7
        assert only["dig"]["retry"]["max_attempts"] == 1
        assert await rows(dsn, "SELECT 1 FROM dagapp.dag_job_events WHERE event_type = 'job_warning'") == []


async def test_an_unregistered_handler_is_a_warning_and_explained(dsn: str, folder: Path) -> None:
    (folder / "typo.yaml").write_text(FAR.replace("far", "typo").replace("handler: dig", "handler: dgi, queue: earth"))
    async with far(dsn, folder) as api:
        await api.fleet.orchestrator()
        await api.fleet.worker(known=diggers(), queues=("earth",))
        submitted = await api.post("/api/v1/jobs", {"workflow_id": "typo"}, 201)
        assert submitted["warnings"] == ["no worker has registered the handler 'dgi'; did you mean 'dig'?"]
        await api.fleet.until("SELECT count(*) = 1 AS ok FROM dagapp.dag_tasks_waiting")
        reason = await api.get(f"/api/v1/jobs/{submitted['job_id']}/nodes/dig/explain")
        assert reason["sentence"].endswith(
            "its only worker does not have the handler `dgi`, which no worker has registered."
        )


async def test_a_missing_queue_is_unavailable_until_a_worker_registers_it(dsn: str, folder: Path) -> None:
    async with far(dsn, folder) as api:
        refused = await api.post("/api/v1/jobs", {"workflow_id": "far"}, 503)
        assert "node 'dig' of workflow 'far' has no queue" in refused["error"]["message"]
        await api.fleet.orchestrator()
        await api.fleet.worker(known=diggers(), queues=("earth",))
        api.services._contracts_at = 0
        await api.post("/api/v1/jobs", {"workflow_id": "far"}, 201)


async def test_handlers_are_listed_with_their_workers(dsn: str, folder: Path) -> None:
    async with far(dsn, folder) as api:
        worker = await api.fleet.worker(known=diggers(), queues=("earth",))
        [entry] = (await api.get("/api/v1/handlers?text=dig"))["items"]
        assert (entry["queue"], entry["timeout_seconds"], entry["workers"]) == ("earth", 7, [worker.id])
        assert list(entry["params"]["properties"]) == ["depth", "tool"]
        assert entry["documentation"].startswith("Dig a hole.")
        page = await api.get("/ui/handlers")
        assert "Dig a hole." in page and f"/ui/workers#worker-{worker.id}" in page and "depth: integer" in page
        await worker.stop()
        assert (await api.get("/api/v1/handlers/dig"))["workers"] == []
        assert "did you mean" in (await api.get("/api/v1/handlers/dgi", 404))["error"]["message"]


async def test_a_worker_over_http_registers_its_contracts_too(dsn: str) -> None:
    async with web(dsn) as api:
        contract = diggers().get("dig").contract()
        async with api.real_server() as url:
            transport = HttpTransport(url)
            async with transport.open(None) as link:
                await link.register(Registration("far", 7, ("earth",), ("dig",), 1, (contract,)))
            await transport.close()
        async with opened(dsn, application="test") as conn:
            known = await list_contracts(conn)
        assert (known["dig"].queue, known["dig"].timeout_seconds, known["dig"].retry) == (
            "earth",
            7,
            RetryPolicy(max_attempts=1),
        )


async def test_registering_the_same_contract_again_changes_nothing(dsn: str) -> None:
    async with web(dsn) as api:
        stamps = []
        for _ in range(2):
            worker = await api.fleet.worker(known=diggers())
            stamps.append(await rows(dsn, "SELECT max(registered_at) AS at FROM dagapp.dag_handlers"))
            await worker.stop()
        assert stamps[0] == stamps[1]


REFUSED = "node 'dig': handler 'dig' rejects the parameter 'depth': it must be an integer, not a string ('deep')"


def older_diggers() -> Registry:
    """An older contract in which the depth is a string."""

    class Word(BaseModel):
        depth: str

    known = handlers()
    known.register(Handler("dig", dig, queue="earth", params=Word))
    return known


async def submit_locally(dsn: str, folder: Path) -> list[str]:
    """The warnings of `dagmaster submit`."""
    warnings: list[str] = []
    arguments = SubmitArguments(str(folder / "far.yaml"))
    with local.opened(load_settings(database_url=dsn, workflows_dir=folder)) as backend:
        await asyncio.to_thread(backend.submit, arguments, lambda result: warnings.extend(result.warnings))
    return warnings


async def test_parameters_that_no_worker_accepts_are_refused_at_submission(dsn: str, folder: Path) -> None:
    (folder / "far.yaml").write_text(FAR.replace("depth: 3", "depth: deep"))
    async with far(dsn, folder) as api:
        await api.fleet.orchestrator()
        await api.fleet.worker(known=diggers(), queues=("earth",))
        refused = await api.post("/api/v1/jobs", {"workflow_id": "far"}, 422)
        assert REFUSED in refused["error"]["message"]
        with pytest.raises(InvalidWorkflow, match="rejects the parameter 'depth'"):
            await submit_locally(dsn, folder)
        assert await rows(dsn, "SELECT 1 FROM dagapp.dag_jobs") == []
        # A workflow that cannot be submitted can still be read, with the reason.
        assert REFUSED in (await api.get("/api/v1/workflows/far"))["warnings"]
        assert "rejects the parameter &#39;depth&#39;" in await api.get("/ui/submit?workflow=far")
        [problem] = (await api.get("/api/v1/workflows"))["problems"]
        assert (problem["message"], problem["severity"], problem["line"]) == (REFUSED, "warning", 4)


async def test_parameters_that_only_some_workers_accept_cause_a_warning(dsn: str, folder: Path) -> None:
    (folder / "far.yaml").write_text(FAR.replace("depth: 3", "depth: deep"))
    async with far(dsn, folder) as api:
        await api.fleet.orchestrator()
        older = await api.fleet.worker(known=older_diggers(), queues=("earth",))
        newer = await api.fleet.worker(known=diggers(), queues=("earth",))
        assert (await api.get("/api/v1/handlers/dig"))["is_uniform"] is False
        submitted = await api.post("/api/v1/jobs", {"workflow_id": "far"}, 201)
        assert submitted["warnings"] == [REFUSED]
        assert await submit_locally(dsn, folder) == [REFUSED]
        await older.stop()
        assert (await api.get("/api/v1/handlers/dig"))["is_uniform"] is True
        await api.post("/api/v1/jobs", {"workflow_id": "far"}, 422)
        await newer.stop()  # A worker that starts later may have any code.
        await api.post("/api/v1/jobs", {"workflow_id": "far"}, 201)


async def test_forms_and_the_api_describe_inputs_from_the_handlers_contract(dsn: str, folder: Path) -> None:
    class Described(BaseModel):
        depth: int = Field(description="In spades.")

    known = handlers()
    known.register(Handler("dig", dig, queue="earth", params=Described))
    text = FAR.replace("nodes:", "inputs: {n: integer}\nnodes:").replace("depth: 3", "depth: '{{ inputs.n }}'")
    (folder / "far.yaml").write_text(text)
    async with far(dsn, folder) as api:
        await api.fleet.worker(known=known, queues=("earth",))
        workflow = await api.get("/api/v1/workflows/far")
        assert workflow["inputs"]["properties"]["n"]["description"] == "In spades."
        assert "In spades." in await api.get("/ui/submit?workflow=far")


async def test_validate_checks_against_registered_contracts(dsn: str, folder: Path) -> None:
    wrong = write_workflow(folder, FAR.replace("depth: 3", "depth: deep"), "wrong.yaml")
    typo = write_workflow(folder, FAR.replace("handler: dig", "handler: dgi"), "typo.yaml")
    async with web(dsn) as api:
        await api.fleet.worker(known=diggers(), queues=("earth",))
        database = ("--database-url", dsn)
        good = await asyncio.to_thread(call, *database, "validate", str(folder / "far.yaml"))
        assert (good.code, good.err) == (0, "")  # The queue that the worker registered.
        checked = await asyncio.to_thread(call, *database, "validate", wrong, typo)
        assert checked.code == 2
        assert checked.out.splitlines() == [
            f"{wrong}:4:39: error: {REFUSED}",
            f"{typo}:4:18: warning: node 'dig' names an unknown handler 'dgi'; did you mean 'dig'?",
        ]
        unchecked = await asyncio.to_thread(call, *database, "validate", wrong, "--no-contracts")
        assert REFUSED not in unchecked.out
        async with api.real_server() as url:
            result = await asyncio.to_thread(call, "--url", url, "validate", wrong)
        assert f"{wrong}:4:39: error: {REFUSED}" in result.out
