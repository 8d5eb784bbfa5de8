import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import psycopg
import pytest
from command_line import write_workflow
from fleet import fleet, graph, retry, single, task
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from serving import server

from dagmaster import Client, tracing
from dagmaster.handlers import HandlerContext

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
GREETING = """\
workflow_id: greeting
nodes:
  greet: {handler: own_span, queue: q}
"""


@pytest.fixture
def spans() -> Iterator[InMemorySpanExporter]:
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    tracing.use(provider)
    yield exporter
    tracing.use(None)


def own_span(ctx: HandlerContext) -> None:
    """Create a span in a thread with the global provider, as a handler does."""
    assert tracing._provider is not None
    with tracing._provider.get_tracer("mine").start_as_current_span("inner"):
        pass


async def stumbling(ctx: HandlerContext) -> None:
    if ctx.retry_count == 0:
        raise ValueError("not at first")


def by_name(exporter: InMemorySpanExporter) -> dict[str, list[ReadableSpan]]:
    grouped: dict[str, list[ReadableSpan]] = {}
    for span in exporter.get_finished_spans():
        grouped.setdefault(span.name, []).append(span)
    return grouped


def attempt_of(span: ReadableSpan) -> Any:
    return span.attributes["dagmaster.attempt"]


def is_child(child: ReadableSpan, parent: ReadableSpan) -> bool:
    assert child.parent is not None
    return child.parent.span_id == parent.context.span_id and child.context.trace_id == parent.context.trace_id


def test_one_trace_spans_the_request_and_the_handlers_own_span(
    dsn: str, tmp_path: Path, spans: InMemorySpanExporter
) -> None:
    write_workflow(tmp_path, GREETING)
    with server(dsn, tmp_path, own_span=own_span) as host, Client(host.url) as client:
        with tracing.coming_from(PARENT):
            job_id = client.submit("greeting").job_id
        assert client.wait(job_id).status == "completed"
    grouped = by_name(spans)
    [submit], [dispatch], [execute], [inner], [process] = (
        grouped[name] for name in ("submit_job", "dispatch_node", "execute_own_span", "inner", "process_job")
    )
    assert f"{submit.parent.span_id:016x}" == PARENT.split("-")[2]
    assert is_child(dispatch, submit)
    assert is_child(execute, dispatch)
    assert is_child(inner, execute)
    assert is_child(process, submit)
    assert {f"{span.context.trace_id:032x}" for span in spans.get_finished_spans()} == {PARENT.split("-")[1]}
    assert execute.attributes["dagmaster.task_id"] == f"{job_id}_greet_0"
    assert dispatch.attributes["dagmaster.queue"] == "q"
    assert submit.attributes["dagmaster.job_id"] == job_id


async def test_each_attempt_has_its_own_dispatch_span(dsn: str, spans: InMemorySpanExporter) -> None:
    async with fleet(dsn, stumbling=stumbling) as running:
        await running.orchestrator()
        await running.worker()  # As if in its own process.
        job = await running.run(single("stumbling", retry=retry(1)), trace_parent=PARENT)
    assert job["status"] == "completed"
    grouped = by_name(spans)
    first, second = sorted(grouped["execute_stumbling"], key=attempt_of)
    dispatches = {span.context.span_id: span for span in grouped["dispatch_node"]}
    assert len(dispatches) == 2
    for execution in (first, second):
        dispatch = dispatches[execution.parent.span_id]
        assert dispatch.attributes["dagmaster.task_id"] == execution.attributes["dagmaster.task_id"]
        assert f"{dispatch.parent.span_id:016x}" == PARENT.split("-")[2]
    assert (first.status.status_code, second.status.status_code) == (trace.StatusCode.ERROR, trace.StatusCode.UNSET)
    assert first.events[0].attributes["exception.type"] == "ValueError"
    [process] = grouped["process_job"]
    assert process.status.status_code is trace.StatusCode.UNSET
    assert process.end_time - process.start_time >= (first.end_time - first.start_time)


async def test_a_job_without_a_trace_gets_its_own(dsn: str, spans: InMemorySpanExporter) -> None:
    async with fleet(dsn) as running:
        owner = await running.orchestrator()
        await running.worker(owner=owner)
        job = await running.run(graph({"a": task("echo", "b"), "b": task("fail", "END")}, start="a"))
    assert job["status"] == "failed"
    assert len({span.context.trace_id for span in spans.get_finished_spans()}) == 1
    [process] = by_name(spans)["process_job"]
    assert process.status.status_code is trace.StatusCode.ERROR
    assert process.start_time // 1000 == round(job["started_at"].timestamp() * 1_000_000)


async def test_without_an_exporter_the_trace_still_reaches_the_handler(dsn: str) -> None:
    seen: list[str | None] = []

    def look(ctx: HandlerContext) -> None:
        seen.append(tracing.current_trace_parent())

    async with fleet(dsn, look=look) as running:
        await running.orchestrator()
        await running.worker()
        await running.run(single("look"), trace_parent=PARENT)
    assert seen == [PARENT]


# Requests.


def test_a_request_has_an_id_a_trace_and_a_log_line(dsn: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    write_workflow(tmp_path, GREETING)
    caplog.set_level(logging.DEBUG, "dagmaster.http.request_log")
    with (
        server(dsn, tmp_path, works=False, own_span=own_span) as host,
        httpx.Client(base_url=host.url, timeout=60) as client,
    ):
        response = client.get("/api/v1/jobs?status=failed", headers={"X-Request-ID": "mine-1"})
        refused = client.get("/api/v1/jobs/77", headers={"X-Request-ID": "not\tmine"})
        body = {"workflow_id": "greeting"}
        created = client.post("/api/v1/jobs", json=body, headers={"traceparent": PARENT})
        stored = _trace_parent(dsn, created.json()["job_id"])
    assert response.headers["X-Request-ID"] == "mine-1"
    assert refused.status_code == 404
    assert len(refused.headers["X-Request-ID"]) == 16
    assert stored == PARENT
    lines = [record.getMessage() for record in caplog.records if record.name == "dagmaster.http.request_log"]
    assert lines[0].startswith("GET /api/v1/jobs 200 ")
    assert lines[1].startswith("GET /api/v1/jobs/77 404 ")


def _trace_parent(dsn: str, job_id: str) -> Any:
    with psycopg.connect(dsn) as conn:
        [value] = conn.execute("SELECT trace_parent FROM dagapp.dag_jobs WHERE job_id = %s", [int(job_id)]).fetchone()
    return value
