import subprocess
import sys
from collections.abc import Iterator
from timeit import repeat
from typing import Any, cast

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from dagmaster import tracing
from dagmaster.errors import Misconfigured

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@pytest.fixture
def spans() -> Iterator[InMemorySpanExporter]:
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    tracing.use(provider)
    yield exporter
    tracing.use(None)


def python(code: str, **environ: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env={"PATH": "", **environ})
    return done.stdout.strip() + done.stderr.strip()


def test_without_an_exporter_nothing_is_imported() -> None:
    code = (
        "import os, sys; from dagmaster import tracing; tracing.set_up(os.environ, 'api')\n"
        "with tracing.span('x', job_id=1): tracing.record(ValueError())\n"
        "print(tracing.is_on(), [name for name in sys.modules if name.startswith('opentelemetry')])"
    )
    assert python(code) == "False []"
    assert python(code, OTEL_TRACES_EXPORTER="none") == "False []"
    assert python(code, OTEL_EXPORTER_OTLP_ENDPOINT="http://x", OTEL_SDK_DISABLED="true") == "False []"


def test_without_an_exporter_a_call_costs_next_to_nothing() -> None:
    number = 10_000
    assert min(repeat(lambda: tracing.span("x"), number=number)) / number < 2e-6
    assert min(repeat(tracing.current_trace_parent, number=number)) / number < 2e-6


def test_the_console_exporter_writes_to_stderr_and_names_the_role() -> None:
    code = (
        "import os; from dagmaster import tracing; tracing.set_up(os.environ, 'worker')\n"
        "with tracing.span('x', job_id=1): pass"
    )
    printed = python(code, OTEL_TRACES_EXPORTER="console")
    assert '"service.name": "dagmaster-worker"' in printed
    assert '"dagmaster.job_id": "1"' in printed
    assert '"service.name": "mine"' in python(code, OTEL_TRACES_EXPORTER="console", OTEL_SERVICE_NAME="mine")


def test_an_endpoint_chooses_the_otlp_exporter() -> None:
    code = (
        "import os; from dagmaster import tracing; tracing.set_up(os.environ, 'api')\n"
        "[one] = tracing._provider._active_span_processor._span_processors\n"
        "print(tracing.is_on(), type(one).__name__, type(one.span_exporter).__name__)"
    )
    assert python(code, OTEL_EXPORTER_OTLP_ENDPOINT="http://127.0.0.1:9") == "True BatchSpanProcessor OTLPSpanExporter"


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.http.trace_exporter", None)
    with pytest.raises(Misconfigured, match=r"pip install 'dagmaster\[otel\]'"):
        tracing.set_up({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://x"}, "api")
    monkeypatch.setitem(sys.modules, "azure.monitor.opentelemetry.exporter", None)
    with pytest.raises(Misconfigured, match="pip install azure-monitor-opentelemetry-exporter"):
        tracing.set_up({"APPLICATIONINSIGHTS_CONNECTION_STRING": "x"}, "api")
    with pytest.raises(Misconfigured, match="should be otlp, console or none, not 'zipkin'"):
        tracing.set_up({"OTEL_TRACES_EXPORTER": "zipkin"}, "api")


def test_a_span_is_a_child_of_the_enclosing_one(spans: InMemorySpanExporter) -> None:
    with tracing.span("outer", PARENT), tracing.span("inner"):
        inside = tracing.current_trace_parent()
    inner, outer = spans.get_finished_spans()
    assert f"{outer.context.trace_id:032x}" == PARENT.split("-")[1]
    assert f"{outer.parent.span_id:016x}" == PARENT.split("-")[2]
    assert inner.parent.span_id == outer.context.span_id
    assert inside == tracing.trace_parent_of(cast("Any", inner))
    assert tracing.current_trace_parent() is None


def test_a_remote_parent_is_the_parent_of_root_spans(spans: InMemorySpanExporter) -> None:
    with tracing.coming_from(PARENT):
        assert tracing.current_trace_parent() == PARENT
        with tracing.span("x"):
            pass
    [span] = spans.get_finished_spans()
    assert f"{span.parent.span_id:016x}" == PARENT.split("-")[2]


def test_a_remote_parent_is_propagated_without_an_exporter() -> None:
    with tracing.coming_from(PARENT), tracing.span("x"):
        assert tracing.current_trace_parent() == PARENT


@pytest.mark.parametrize(
    "header",
    [
        None,
        "",
        "x",
        PARENT + "0",
        PARENT.upper(),
        PARENT.replace("-", "_"),
        "00-" + "0" * 32 + PARENT[35:],
        "ff" + PARENT[2:],
    ],
)
def test_an_invalid_trace_parent_is_ignored(header: str | None) -> None:
    assert tracing.well_formed(header) is None
    assert tracing.well_formed(PARENT) == PARENT


def test_failures_are_recorded(spans: InMemorySpanExporter) -> None:
    with tracing.span("x") as span:
        tracing.record(ValueError("oops"))
        tracing.fail(span, "it failed")
    [ended] = spans.get_finished_spans()
    assert ended.events[0].attributes["exception.message"] == "oops"
    assert (ended.status.status_code.name, ended.status.description) == ("ERROR", "it failed")
