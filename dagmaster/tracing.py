"""Spans from submission to execution; without an exporter they cost nothing, and nothing is imported for them."""

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
ENDPOINTS = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
AZURE = "APPLICATIONINSIGHTS_CONNECTION_STRING"
FLUSH_MILLISECONDS = 3000
LENGTH = 55
NOTHING: AbstractContextManager[None] = nullcontext()

_tracer: "Tracer | None" = None
_provider: "TracerProvider | None" = None
# What came with a request or a task: passed on whether or not spans are made here.
_incoming: ContextVar[str | None] = ContextVar("incoming", default=None)


def set_up(environ: Mapping[str, str], role: str) -> None:
    """Export spans if the environment names an exporter, as it does for every OpenTelemetry program."""
    exporters = list(_exporters(environ))
    if not exporters:
        return
    sdk, resources = _sdk("opentelemetry.sdk.trace"), _sdk("opentelemetry.sdk.resources")
    named = {} if environ.get("OTEL_SERVICE_NAME") else {"service.name": f"{NAME}-{role}"}
    provider = sdk.TracerProvider(resource=resources.Resource.create(named))
    for exporter in exporters:
        provider.add_span_processor(_sdk("opentelemetry.sdk.trace.export").BatchSpanProcessor(exporter))
    import_module("opentelemetry.trace").set_tracer_provider(provider)  # for the spans of handlers
    use(provider)


def use(provider: "TracerProvider | None") -> None:
    """Make spans with this one; None makes no more."""
    global _tracer, _provider  # noqa: PLW0603 - like the provider of OpenTelemetry itself, there is one in a process
    _provider = provider
    _tracer = provider.get_tracer(NAME) if provider else None


def flush() -> None:
    """Before a process ends that does not end in order."""
    if _provider is not None:
        _provider.force_flush(FLUSH_MILLISECONDS)


def _exporters(environ: Mapping[str, str]) -> Iterator[Any]:
    if environ.get("OTEL_SDK_DISABLED", "").lower() == "true":
        return
    default = "otlp" if any(environ.get(name) for name in ENDPOINTS) else "none"
    for kind in (environ.get("OTEL_TRACES_EXPORTER") or default).split(","):
        match kind.strip().lower():
            case "otlp":
                yield _sdk("opentelemetry.exporter.otlp.proto.http.trace_exporter").OTLPSpanExporter()
            case "console":
                # Results go to stdout.
                yield _sdk("opentelemetry.sdk.trace.export").ConsoleSpanExporter(out=sys.stderr)
            case "none" | "":
                pass
            case other:
                raise Misconfigured(f"OTEL_TRACES_EXPORTER should be otlp, console or none, not {other!r}")
    if environ.get(AZURE):
        azure = _library("azure.monitor.opentelemetry.exporter", AZURE, "azure-monitor-opentelemetry-exporter")
        yield azure.AzureMonitorTraceExporter(connection_string=environ[AZURE])


def _sdk(module: str) -> Any:
    return _library(module, "OTEL_EXPORTER_OTLP_ENDPOINT or OTEL_TRACES_EXPORTER", "'dagmaster[otel]'")


def _library(module: str, setting: str, package: str) -> Any:
    try:
        return import_module(module)
    except ImportError as error:
        raise Misconfigured(f"{setting} is set, but {module} is missing: pip install {package}") from error


# Spans.


def is_on() -> bool:
    return _tracer is not None


def current_trace_parent() -> str | None:
    """The W3C context that a job inherits: of the span around, or what came from outside."""
    if _tracer is None:
        return _incoming.get()
    return trace_parent_of(import_module("opentelemetry.trace").get_current_span()) or _incoming.get()


def trace_parent_of(span: "Span") -> str | None:
    """None for a span that is none."""
    found = span.get_span_context()
    return f"00-{found.trace_id:032x}-{found.span_id:016x}-{found.trace_flags:02x}" if found.is_valid else None


def well_formed(trace_parent: str | None) -> str | None:
    """None for what is no trace parent: it comes from strangers, and is stored."""
    if not trace_parent or len(trace_parent) != LENGTH:
        return None
    version, trace_id, span_id, flags = ([*trace_parent.split("-"), "", "", ""])[:4]
    if [len(part) for part in (version, trace_id, span_id, flags)] != [2, 32, 16, 2] or version == "ff":
        return None
    is_hex = all(letter in "0123456789abcdef-" for letter in trace_parent)
    return trace_parent if is_hex and trace_id.strip("0") and span_id.strip("0") else None


def come_from(trace_parent: str | None) -> None:
    """What this asyncio task does from now on is part of that trace."""
    _incoming.set(well_formed(trace_parent))


@contextmanager
def coming_from(trace_parent: str) -> Iterator[None]:
    token = _incoming.set(trace_parent)
    try:
        yield
    finally:
        _incoming.reset(token)


def span(name: str, parent: str | None = None, /, **attributes: Any) -> AbstractContextManager["Span | None"]:
    """Around a piece of work; without `parent` it belongs to the span around it, or to what came from outside."""
    if _tracer is None:
        return NOTHING
    return _tracer.start_as_current_span(name, _context(parent), attributes=_texts(attributes))


def begin(name: str, parent: str | None, started_at: datetime | None = None, /, **attributes: Any) -> "Span":
    """A span that does not surround anything; whoever begins it ends it. Only while `is_on`."""
    assert _tracer is not None
    start_time = _nanoseconds(started_at) if started_at else None
    return _tracer.start_span(name, _context(parent), attributes=_texts(attributes), start_time=start_time)


def describe(span: "Span | None", **attributes: Any) -> None:
    if span is not None:
        span.set_attributes(_texts(attributes))


def fail(span: "Span | None", reason: str) -> None:
    if span is not None:
        trace = import_module("opentelemetry.trace")
        span.set_status(trace.Status(trace.StatusCode.ERROR, reason))


def record(error: BaseException) -> None:
    """The exception, in the span around."""
    if _tracer is not None:
        import_module("opentelemetry.trace").get_current_span().record_exception(error)


def _context(parent: str | None) -> Any:
    """None stands for the span around."""
    if parent is None:
        current = import_module("opentelemetry.trace").get_current_span().get_span_context()
        parent = None if current.is_valid else _incoming.get()
    if parent is None:
        return None
    propagator = import_module("opentelemetry.trace.propagation.tracecontext").TraceContextTextMapPropagator()
    return propagator.extract({"traceparent": parent})


def _texts(attributes: Mapping[str, Any]) -> dict[str, Any]:
    """Ids as texts, as everywhere; what is not known is left out."""
    return {
        f"{NAME}.{name}": str(value) if name.endswith("_id") else value
        for name, value in attributes.items()
        if value is not None
    }


def _nanoseconds(at: datetime) -> int:
    return int(at.timestamp() * 1_000_000) * 1000
