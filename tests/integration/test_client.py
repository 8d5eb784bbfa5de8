import asyncio
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import orjson
import pytest
from command_line import write_workflow
from fleet import SOON
from serving import Server, server

from dagmaster import AsyncClient, Client
from dagmaster.client import ClientError, JobCancelled, JobFailed, TimedOut
from dagmaster.errors import (
    Conflict,
    IdempotencyConflict,
    Invalid,
    JobEnded,
    Misconfigured,
    Unauthorized,
    Unavailable,
    UnknownJob,
    UnknownWorkflow,
)
from dagmaster.handlers import HandlerContext

GREETING = """\
workflow_id: greeting
inputs: {name: {type: string, required: true}, times: {type: integer, default: 1}}
nodes:
  greet: {handler: echo, queue: q, params: {name: "{{ inputs.name }}"}}
"""
GATED = """\
workflow_id: gated
nodes:
  first: {handler: echo, queue: q, next: gate}
  gate: {handler: gate, queue: q}
"""
BROKEN = """\
workflow_id: broken
nodes:
  work: {handler: broken, queue: q, retry: {max_attempts: 0}}
"""


class Gate:
    """A handler that waits for the test, and one that fails until allowed to succeed."""

    def __init__(self) -> None:
        self.open = threading.Event()
        self.is_mended = False

    def gate(self, ctx: HandlerContext) -> None:
        while not self.open.wait(0.01) and not ctx.cancelled.is_set():
            pass

    def broken(self, ctx: HandlerContext) -> dict[str, str]:
        if not self.is_mended:
            raise ValueError("no luck")
        return {"luck": "some"}


@pytest.fixture
def gate() -> Gate:
    return Gate()


@pytest.fixture
def running(dsn: str, tmp_path: Path, gate: Gate) -> Iterator[Server]:
    for name, text in {"greeting": GREETING, "gated": GATED, "broken": BROKEN}.items():
        write_workflow(tmp_path, text, f"{name}.yaml")
    with server(dsn, tmp_path, gate=gate.gate, broken=gate.broken) as host:
        yield host
        gate.open.set()


@pytest.fixture
def client(running: Server) -> Iterator[Client]:
    with Client(running.url) as client:
        while not client.workers().items:  # The worker registers itself after the server has started.
            time.sleep(0.01)
        yield client


# Against a real server.


def test_the_client_submits_waits_and_reads_the_result(client: Client) -> None:
    created = client.submit("greeting", {"name": "Ada"}, priority=3, correlation_id="c", metadata={"a": 1})
    assert (created.is_new, created.workflow_id, created.warnings) == (True, "greeting", [])
    assert client.result(created.job_id)["greet"]["echoed_params"] == {"name": "Ada"}
    job = client.job(created.job_id)
    assert (job.status, job.priority, job.correlation_id, job.metadata) == ("completed", 3, "c", {"a": 1})
    assert client.jobs(status="completed").items[0].job_id == created.job_id
    assert client.jobs(workflow_id="gated").items == []


def test_the_stream_is_the_timeline(client: Client) -> None:
    job_id = client.submit("greeting", {"name": "Ada"}).job_id
    streamed = [event.event_id for event in client.stream(job_id)]
    timeline = client.timeline(job_id)
    assert streamed == [event.event_id for event in timeline.events]
    assert [event.event_type for event in timeline.events][-1] == "job_completed"
    assert [event.event_id for event in client.stream(job_id, after=streamed[2])] == streamed[3:]
    assert list(client.stream(job_id, after=streamed[-1])) == []


def test_waiting_for_a_failed_job_raises_its_error(client: Client) -> None:
    job_id = client.submit("broken").job_id
    with pytest.raises(JobFailed, match="no luck") as failed:
        client.result(job_id)
    assert failed.value.job.job_id == job_id


def test_a_failed_job_can_be_retried(client: Client, gate: Gate) -> None:
    job_id = client.submit("broken").job_id
    assert client.wait(job_id).status == "failed"
    gate.is_mended = True
    assert client.retry(job_id, "work").is_done
    assert client.result(job_id)["work"] == {"luck": "some"}
    assert [event.event_type for event in client.stream(job_id)][-1] == "job_completed"
    with pytest.raises(JobEnded):
        client.retry(job_id)


def test_a_job_can_be_paused_resumed_and_cancelled(client: Client) -> None:
    job_id = client.submit("gated").job_id
    assert client.pause(job_id).is_paused
    with pytest.raises(Conflict, match="paused already"):
        client.pause(job_id)
    assert not client.resume(job_id).is_paused
    assert client.cancel(job_id, reason="enough").status == "cancelled"
    with pytest.raises(JobCancelled, match="enough"):
        client.result(job_id)


def test_the_client_explains_why_a_job_waits(client: Client) -> None:
    job_id = client.submit("gated").job_id
    client.pause(job_id)
    explanation = client.explain(job_id)
    assert explanation.job_id == job_id
    assert "paused" in str(explanation)
    assert client.explain(job_id, "gate").node_id == "gate"


def test_the_client_reads_the_progress_of_a_job(client: Client) -> None:
    job_id = client.submit("gated").job_id
    next(event for event in client.stream(job_id) if (event.event_type, event.node_id) == ("node_completed", "first"))
    progress = client.progress(job_id)
    assert progress.job_id == job_id
    assert 0.0 < progress.overall_percent < 100.0
    assert (progress.nodes.total, progress.estimate_basis) == (4, "so_far")


def test_waiting_times_out(client: Client) -> None:
    job_id = client.submit("gated").job_id
    with pytest.raises(TimedOut, match=f"job {job_id} is (pending|running) after 0.3 s"):
        client.wait(job_id, timeout_seconds=0.3)


def test_waiting_survives_a_server_restart(running: Server, client: Client, gate: Gate) -> None:
    job_id = client.submit("gated").job_id
    ended: list[str] = []
    waiting = threading.Thread(target=lambda: ended.append(client.wait(job_id).status))
    waiting.start()
    for event in client.stream(job_id):
        if event.event_type == "node_started" and event.node_id == "gate":
            break
    running.stop()
    gate.open.set()
    running.start()
    waiting.join(SOON)
    assert ended == ["completed"]


def test_server_errors_are_raised_by_the_client(client: Client) -> None:
    with pytest.raises(UnknownJob, match="there is no job 12345"):
        client.job(12345)
    with pytest.raises(UnknownWorkflow):
        client.submit("none")
    with pytest.raises(Invalid, match="input 'name' is required"):
        client.submit("greeting", {})
    with pytest.raises(Invalid) as invalid:
        client.jobs(limit=5000)
    assert invalid.value.details[0]["field"] == "query.limit"  # type: ignore[attr-defined]
    client.submit("greeting", {"name": "Ada"}, idempotency_key="k")
    with pytest.raises(IdempotencyConflict):
        client.submit("greeting", {"name": "Bob"}, idempotency_key="k")
    with (
        pytest.raises(Unauthorized, match="unknown, revoked or expired"),
        Client(str(client._transport.http.base_url), "x") as bad,
    ):
        bad.jobs()


def test_invalid_values_are_refused_before_sending(client: Client) -> None:
    with pytest.raises(Invalid, match="priority"):
        client.submit("greeting", {"name": "Ada"}, priority=10**6)
    with pytest.raises(Misconfigured, match="the url should look like"):
        Client("localhost:8080")


def test_the_client_lists_jobs_workflows_and_workers(client: Client) -> None:
    assert [workflow.workflow_id for workflow in client.workflows().workflows] == ["broken", "gated", "greeting"]
    assert client.workflow("greeting").inputs["required"] == ["name"]
    [worker] = client.workers().items
    assert (worker.queues, worker.status) == (["q"], "active")
    assert [queue.queue for queue in client.queues()] == ["q"]
    [orchestrator] = client.orchestrators().instances
    assert orchestrator.is_running


async def test_the_async_client_does_the_same(running: Server, gate: Gate) -> None:
    async with AsyncClient(running.url) as client:
        created = await client.submit("gated")
        with pytest.raises(TimedOut):
            await client.wait(created.job_id, timeout_seconds=0.1)
        waiting = asyncio.create_task(client.result(created.job_id))
        gate.open.set()
        assert {"first", "gate"} <= set(await waiting)
        streamed = [event.event_id async for event in client.stream(created.job_id)]
        assert streamed == [event.event_id for event in (await client.timeline(created.job_id)).events]
        with pytest.raises(JobEnded):
            await client.cancel(created.job_id)
        with pytest.raises(UnknownJob):
            await client.job(1)


# Against a scripted server.

Answer = Callable[[httpx.Request], httpx.Response]
JOB = {
    "job_id": "7",
    "workflow_id": "w",
    "workflow_version": 1,
    "status": "running",
    "priority": 0,
    "workflow_hash": "h",
    "input_params": {},
    "metadata": {},
    "created_at": "2026-01-01T00:00:00Z",
    "updated_at": "2026-01-01T00:00:00Z",
    "summary": {},
    "nodes": [],
    **dict.fromkeys(("error_message", "submitted_by", "correlation_id", "owner_id", "paused_at", "paused_by")),
    **dict.fromkeys(("started_at", "completed_at", "duration_seconds", "result_data")),
    **dict.fromkeys(("idempotency_key", "callback_url", "asset_id")),
}
CREATED = {"job_id": "7", "workflow_id": "w", "workflow_version": 1, "status": "pending", "is_new": True}


def scripted(*answers: Answer | int | dict[str, object]) -> tuple[Client, list[httpx.Request]]:
    """A client of a server that returns these responses in turn."""
    waiting, requests = list(answers), []

    def answer(request: httpx.Request) -> httpx.Response:
        requests.append(request)
        canned = waiting.pop(0)
        if isinstance(canned, int):
            return httpx.Response(canned, headers={"Retry-After": "0"})
        return httpx.Response(200, json=canned) if isinstance(canned, dict) else canned(request)

    client = Client("http://server")
    client._transport.http = httpx.Client(transport=httpx.MockTransport(answer), base_url="http://server")
    return client, requests


def refuse(request: httpx.Request) -> httpx.Response:
    raise httpx.ConnectError("refused", request=request)


def events(*ids: int, last: str = "node_ready", broken: bool = False) -> Answer:
    def lines(request: httpx.Request) -> Iterator[bytes]:
        yield b": watching\n\n"
        for number in ids:
            kind = last if number == ids[-1] else "node_ready"
            entry = {"event_id": str(number), "timestamp": "2026-01-01T00:00:00Z", "event_type": kind, "status": "info"}
            entry |= dict.fromkeys(("node_id", "task_id", "duration_ms", "error_message", "data"))
            entry |= {"message": "", "source_app": "t"}
            yield b"id: %d\ndata: %s\n\n" % (number, orjson.dumps(entry))
        if broken:
            raise httpx.ReadError("broken", request=request)

    return lambda request: httpx.Response(
        200, content=lines(request), headers={"Content-Type": "text/event-stream"}, request=request
    )


def test_a_read_is_retried_until_the_server_is_up() -> None:
    client, requests = scripted(refuse, 503, 502, JOB)
    assert client.job(7).status == "running"
    assert len(requests) == 4


def test_all_handlers_are_read_page_by_page() -> None:
    handler = {"documentation": "", "workers": [], "is_uniform": False, "registered_at": "2026-01-01T00:00:00Z"}
    handler |= dict.fromkeys(("queue", "timeout_seconds", "retry", "params"))
    pages = [
        {"items": [{"name": name, **handler}], "limit": 1000, "offset": 0, "has_more": name == "a"} for name in "ab"
    ]
    client, requests = scripted(*pages)
    assert [known.name for known in client.handlers()] == ["a", "b"]
    assert [request.url.params["offset"] for request in requests] == ["0", "1"]


def test_retries_are_limited() -> None:
    client, requests = scripted(refuse, refuse, refuse, refuse)
    with pytest.raises(Unavailable, match="http://server cannot be reached: refused"):
        client.job(7)
    assert len(requests) == 4


def test_a_submission_is_retried_with_the_same_key() -> None:
    client, requests = scripted(refuse, 503, CREATED)
    assert client.submit("w").job_id == "7"
    keys = {orjson.loads(request.content)["idempotency_key"] for request in requests}
    assert len(requests) == 3
    assert len(keys) == 1


def test_requests_that_are_not_idempotent_are_sent_once() -> None:
    client, requests = scripted(refuse)
    with pytest.raises(Unavailable):
        client.cancel(7)
    assert len(requests) == 1


def test_a_reason_that_is_too_long_is_an_error_of_the_caller() -> None:
    client, requests = scripted()
    with pytest.raises(Invalid, match="reason: String should have at most 2000 characters"):
        client.cancel(7, "x" * 2001)
    with pytest.raises(Invalid, match="comment: String should have at most 2000 characters"):
        client.approve(7, "release", "x" * 2001)
    assert not requests


def test_a_broken_stream_resumes_after_the_last_event() -> None:
    client, requests = scripted(events(1, 2, broken=True), refuse, events(3, last="job_completed"))
    assert [event.event_id for event in client.stream(7)] == ["1", "2", "3"]
    assert [request.headers.get("Last-Event-ID") for request in requests] == [None, "2", "2"]


def test_a_stream_that_ends_early_is_reopened() -> None:
    client, requests = scripted(events(1), JOB, events(2, last="job_failed"))
    assert [event.event_id for event in client.stream(7)] == ["1", "2"]
    assert requests[1].url.path == "/api/v1/jobs/7"


def test_a_stream_that_never_opens_is_given_up() -> None:
    client, _ = scripted(refuse, refuse, refuse, refuse)
    with pytest.raises(Unavailable):
        list(client.stream(7))


def test_without_a_stream_the_client_polls_the_job() -> None:
    client, requests = scripted(JOB, 404, JOB, 404, {**JOB, "status": "completed"})
    assert client.wait(7).status == "completed"
    assert [request.url.path.rpartition("/")[2] for request in requests] == ["7", "stream", "7", "stream", "7"]


def test_a_server_that_is_not_dagmaster_is_reported_as_such() -> None:
    client, _ = scripted({"hello": "world"}, lambda _: httpx.Response(418, text="teapot"))
    with pytest.raises(ClientError, match="is this a dagmaster server"):
        client.job(7)
    with pytest.raises(ClientError, match="server returned 418: teapot"):
        client.job(7)


def test_the_client_imports_neither_the_database_nor_the_server() -> None:
    code = (
        "import sys, dagmaster; dagmaster.Client('http://x'); "
        "print([m for m in ('fastapi', 'psycopg', 'dagmaster.store', 'opentelemetry', 'sqlmodel') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
