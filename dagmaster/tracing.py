"""Spans from submission to execution. OpenTelemetry is loaded only where the environment names an exporter."""

import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from datetime import datetime
from importlib import import_module
from typing import TYPE_CHECKING, Any

from dagmaster.errors import Misconfigured

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.trace import Span, Tracer

NAME = "dagmaster"
SETTINGS = "OTEL_EXPORTER_OTLP_ENDPOINT or OTEL_TRACES_EXPORTER"
ENDPOINTS = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
AZURE = "APPLICATIONINSIGHTS_CONNECTION_STRING"
FLUSH_MILLISECONDS = 3000
TRACE_PARENT = re.compile(r"(?!ff)[0-9a-f]{2}-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}")

_tracer: "Tracer | None" = None
_provider: "TracerProvider | None" = None
# The trace parent of a request or a task: passed on even without an exporter.
_incoming: ContextVar[str | None] = ContextVar("incoming", default=None)


def set_up(environ: Mapping[str, str], role: str) -> None:
    """Export spans if the environment names an exporter, as it does for every OpenTelemetry program."""
    exporters = list(_exporters(environ))
    if not exporters:
        return
    named = {} if environ.get("OTEL_SERVICE_NAME") else {"service.name": f"{NAME}-{role}"}
    resource = _load("opentelemetry.sdk.resources").Resource.create(named)
    provider = _load("opentelemetry.sdk.trace").TracerProvider(resource=resource)
    for exporter in exporters:
        provider.add_span_processor(_load("opentelemetry.sdk.trace.export").BatchSpanProcessor(exporter))
    _api().set_tracer_provider(provider)  # for the spans of handlers
    use(provider)


def use(provider: "TracerProvider | None") -> None:
    """Set the provider of all spans; None turns tracing off."""
    global _tracer, _provider  # noqa: PLW0603 - like the provider of OpenTelemetry itself, there is one in a process
    _provider = provider
    _tracer = provider.get_tracer(NAME) if provider else None


def flush() -> None:
    """Export pending spans before the process exits abruptly."""
    if _provider is not None:
        _provider.force_flush(FLUSH_MILLISECONDS)


def _exporters(environ: Mapping[str, str]) -> Iterator[Any]:
    if environ.get("OTEL_SDK_DISABLED", "").lower() == "true":
        return
    default = "otlp" if any(environ.get(name) for name in ENDPOINTS) else "none"
    for kind in (environ.get("OTEL_TRACES_EXPORTER") or default).split(","):
        match kind.strip().lower():
            case "otlp":
                yield _load("opentelemetry.exporter.otlp.proto.http.trace_exporter").OTLPSpanExporter()
            case "console":
                # Results go to stdout.
                yield _load("opentelemetry.sdk.trace.export").ConsoleSpanExporter(out=sys.stderr)
            case "none" | "":
                pass
            case other:
                raise Misconfigured(f"OTEL_TRACES_EXPORTER should be otlp, console or none, not {other!r}")
    if environ.get(AZURE):
        azure = _load("azure.monitor.opentelemetry.exporter", AZURE, "azure-monitor-opentelemetry-exporter")
        yield azure.AzureMonitorTraceExporter(connection_string=environ[AZURE])


def _load(module: str, setting: str = SETTINGS, package: str = "'dagmaster[otel]'") -> Any:
    try:
        return import_module(module)
    except ImportError as error:
        raise Misconfigured(f"{setting} is set, but {module} is missing: pip install {package}") from error


def _api() -> Any:
    return import_module("opentelemetry.trace")


def is_on() -> bool:
    return _tracer is not None


def current_trace_parent() -> str | None:
    """The W3C trace parent that a job inherits: of the current span, else of the request or task."""
    return (is_on() and trace_parent_of(_api().get_current_span())) or _incoming.get()


def trace_parent_of(span: "Span") -> str | None:
    """None for an invalid span."""
    context = span.get_span_context()
    return f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags:02x}" if context.is_valid else None


def well_formed(trace_parent: str | None) -> str | None:
    """None for an invalid trace parent: it comes from strangers, and is stored."""
    return trace_parent if trace_parent and TRACE_PARENT.fullmatch(trace_parent) else None


def come_from(trace_parent: str | None) -> None:
    """Continue that trace for the rest of this asyncio task."""
    _incoming.set(well_formed(trace_parent))


@contextmanager
def coming_from(trace_parent: str | None) -> Iterator[None]:
    """Continue that trace inside."""
    token = _incoming.set(trace_parent)
    try:
        yield
    finally:
        _incoming.reset(token)


def span(name: str, parent: str | None = None, /, **attributes: Any) -> AbstractContextManager["Span | None"]:
    """A span around a piece of work, by default in the current span or in the trace of the request or task.

    Without an exporter the parent is only passed on.
    """
    if _tracer is None:
        return coming_from(parent) if parent else nullcontext()
    return _tracer.start_as_current_span(name, _context(parent), attributes=_attributes(attributes))


def begin(name: str, parent: str | None, started_at: datetime | None = None, /, **attributes: Any) -> "Span":
    """A span that its caller ends, and that is not the current span. Only while `is_on`."""
    assert _tracer is not None
    start_time = int(started_at.timestamp() * 1_000_000) * 1000 if started_at else None
    return _tracer.start_span(name, _context(parent), attributes=_attributes(attributes), start_time=start_time)


def describe(span: "Span | None", **attributes: Any) -> None:
    if span is not None:
        span.set_attributes(_attributes(attributes))


def fail(span: "Span | None", reason: str) -> None:
    if span is not None:
        span.set_status(_api().StatusCode.ERROR, reason)


def record(error: BaseException) -> None:
    """Record the exception in the current span."""
    if is_on():
        _api().get_current_span().record_exception(error)


def _context(parent: str | None) -> Any:
    """None stands for the context of the current span."""
    if parent is None and not _api().get_current_span().get_span_context().is_valid:
        parent = _incoming.get()
    if parent is None:
        return None
    propagator = import_module("opentelemetry.trace.propagation.tracecontext").TraceContextTextMapPropagator()
    return propagator.extract({"traceparent": parent})


def _attributes(values: Mapping[str, Any]) -> dict[str, Any]:
    """Ids as strings, as everywhere; unknown values are left out."""
    return {
        f"{NAME}.{name}": str(value) if name.endswith("_id") else value
        for name, value in values.items()
        if value is not None
    }
