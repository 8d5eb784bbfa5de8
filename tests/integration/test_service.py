"""The application layer, on the database and through the same interface over HTTP."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import cast

import pytest
from fleet import SOON, fleet, graph, rows, single
from web import web

from dagmaster.client import AsyncClient
from dagmaster.client.service import HttpService
from dagmaster.errors import Conflict, Invalid, JobEnded, UnknownJob, UnknownSchedule, UnknownWorkflow
from dagmaster.ids import JobId
from dagmaster.model.workflow import ApprovalNode, Workflow
from dagmaster.service.context import KnownFleet, ServiceContext
from dagmaster.service.contract import (
    BackfillRequest,
    Cancel,
    Decide,
    Pause,
    Resume,
    Retry,
    Service,
    Signal,
    SubmitRequest,
)
from dagmaster.service.database import DatabaseService
from dagmaster.service.definitions import Definitions
from dagmaster.service.submission import idle_warnings
from dagmaster.settings import load_settings
from dagmaster.store.connect import opened
from dagmaster.store.workers import WorkerRow

ASKS = graph({"ask": ApprovalNode(message="Go on?", next=("END",))}, "asks", start="ask")
GRAPHS = {"single": single("echo"), "asks": ASKS}
WORKFLOWS = {graph.workflow.workflow_id: graph.workflow for graph in GRAPHS.values()}


def find(name: str) -> Workflow:
    if name not in WORKFLOWS:
        raise UnknownWorkflow(f"no workflow is named {name!r}")
    return WORKFLOWS[name]


@asynccontextmanager
async def over_the_database(dsn: str, *, runs: bool) -> AsyncIterator[Service]:
    async with fleet(dsn) as crew, opened(dsn, application="test") as conn:
        if runs:
            owner = await crew.orchestrator()
            await crew.worker(owner=owner)
        settings = load_settings(database_url=dsn)
        definitions = Definitions(settings, crew.known.contracts(), find)
        yield DatabaseService(ServiceContext(conn, settings, actor="ada", wait_seconds=SOON), definitions)


@asynccontextmanager
async def over_http(dsn: str, *, runs: bool) -> AsyncIterator[Service]:
    async with (
        web(dsn, *GRAPHS.values(), runs=runs) as api,
        api.real_server() as url,
        AsyncClient(url) as client,
    ):
        yield HttpService(client)


WAYS = pytest.mark.parametrize("way", [over_the_database, over_http])


@WAYS
async def test_a_key_submits_a_job_only_once(dsn: str, way: type) -> None:
    async with way(dsn, runs=False) as service:
        request = SubmitRequest("single", priority=3, idempotency_key="k", correlation_id="c", submitted_by="ada")
        first, second = await service.submit(request), await service.submit(request)
    assert (first.is_new, second.is_new, second.job_id) == (True, False, first.job_id)
    assert (first.workflow_id, first.workflow_version, first.status) == ("single", 1, "pending")
    assert first.warnings == ("no orchestrator is running; the job waits until one starts (`dagmaster orchestrator`)",)
    assert second.warnings == ()
    [row] = await rows(dsn, "SELECT priority, correlation_id, submitted_by FROM dagapp.dag_jobs")
    assert row == {"priority": 3, "correlation_id": "c", "submitted_by": "ada"}


@WAYS
async def test_an_invalid_submission_is_not_stored(dsn: str, way: type) -> None:
    async with way(dsn, runs=False) as service:
        with pytest.raises(UnknownWorkflow):
            await service.submit(SubmitRequest("nothing"))
        with pytest.raises(Invalid):
            await service.submit(SubmitRequest("single", {"unknown": 1}))
        with pytest.raises(Invalid):
            await service.submit(SubmitRequest("single", callback_url="ftp://somewhere"))
    assert await rows(dsn, "SELECT 1 FROM dagapp.dag_jobs") == []


@WAYS
async def test_a_job_is_paused_resumed_and_cancelled_by_its_owner(dsn: str, way: type) -> None:
    async with way(dsn, runs=True) as service:
        job_id = (await service.submit(SubmitRequest("asks"))).job_id
        paused = await service.control_job(job_id, Pause("lunch"))
        assert (paused.is_done, paused.is_paused) == (True, True)
        with pytest.raises(Conflict):
            await service.control_job(job_id, Pause())
        resumed = await service.control_job(job_id, Resume())
        assert (resumed.is_done, resumed.is_paused) == (True, False)
        cancelled = await service.control_job(job_id, Cancel("enough"))
        assert (cancelled.status, cancelled.is_done) == ("cancelled", True)
        with pytest.raises(JobEnded):
            await service.control_job(job_id, Cancel())
        with pytest.raises(JobEnded):
            await service.control_job(job_id, Retry())


@WAYS
async def test_without_an_owner_commands_do_not_wait(dsn: str, way: type) -> None:
    async with way(dsn, runs=False) as service:
        job_id = (await service.submit(SubmitRequest("asks"))).job_id
        cancelled = await service.control_job(job_id, Cancel())
        assert (cancelled.status, cancelled.is_done) == ("pending", False)
        signalled = await service.control_job(job_id, Signal("go", {"rows": 17}))
        assert (signalled.status, signalled.is_done) == ("pending", False)
        with pytest.raises(UnknownJob):
            await service.control_job(1, Pause())
    kinds = await rows(dsn, "SELECT kind FROM dagapp.dag_mailbox WHERE kind IN ('cancel', 'signal') ORDER BY kind")
    assert [row["kind"] for row in kinds] == ["cancel", "signal"]


@WAYS
@pytest.mark.parametrize(("is_approved", "status"), [(True, "completed"), (False, "failed")])
async def test_a_decision_completes_the_approval_node(dsn: str, way: type, is_approved: bool, status: str) -> None:
    async with way(dsn, runs=True) as service:
        job_id = (await service.submit(SubmitRequest("asks"))).job_id
        await _asked(service, job_id)
        decided = await service.control_job(job_id, Decide("ask", is_approved, "because"))
        assert (decided.status, decided.is_done) == (status, True)


async def _asked(service: Service, job_id: JobId) -> None:
    """A finished pause and its end come after the job's start, so the approval node waits by then."""
    await service.control_job(job_id, Pause())
    await service.control_job(job_id, Resume())


@WAYS
async def test_an_unknown_schedule_is_an_error(dsn: str, way: type) -> None:
    day = datetime(2026, 1, 1, tzinfo=UTC)
    async with way(dsn, runs=False) as service:
        with pytest.raises(UnknownSchedule):
            await service.control_schedule("nightly", "pause")
        with pytest.raises(UnknownSchedule):
            await service.trigger_schedule("nightly")
        with pytest.raises(UnknownSchedule):
            await service.backfill_schedule("nightly", BackfillRequest(day, day))
        assert await service.clear_cache(None) == 0


async def test_without_definitions_nothing_can_be_submitted(dsn: str) -> None:
    async with opened(dsn, application="test") as conn:
        service = DatabaseService(ServiceContext(conn, load_settings(database_url=dsn)))
        with pytest.raises(Invalid, match="no workflows are loaded here"):
            await service.submit(SubmitRequest("single"))


def _worker(queue: str, handlers: list[str] | None) -> WorkerRow:
    """The part of a worker that decides which tasks it claims."""
    return cast(WorkerRow, {"queues": [queue], "handlers": handlers})


def test_the_no_worker_warning_has_one_wording() -> None:
    workflow = single("dig").workflow
    contracts: dict[str, object] = {"dig": object()}
    away, idle = KnownFleet(False, []), KnownFleet(True, [_worker("other", None)])
    unable, able = KnownFleet(True, [_worker("q", ["echo"])]), KnownFleet(True, [_worker("q", None)])

    def warning(fleet: KnownFleet, known: dict[str, object] = contracts) -> str:
        return "; ".join(idle_warnings(workflow, fleet, known))  # type: ignore[arg-type]

    assert warning(away).startswith("no orchestrator is running")
    assert warning(idle) == "no worker takes tasks from queue 'q'; start one with `dagmaster worker --queues q`"
    assert warning(unable) == "no worker of queue 'q' has the handler 'dig'; its tasks wait for one that has it"
    assert warning(idle, {"digs": object()}) == "no worker has registered the handler 'dig'; did you mean 'digs'?"
    assert warning(able) == ""
