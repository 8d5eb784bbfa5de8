"""The URL, headers and timeouts of both clients."""

from typing import Any

import httpx

from dagmaster.client.call import Call
from dagmaster.errors import Misconfigured
from dagmaster.tracing import current_trace_parent

CONNECT_SECONDS = 5.0


def connection_options(url: str, key: str | None, timeout_seconds: float) -> dict[str, Any]:
    if not url.startswith(("http://", "https://")):
        raise Misconfigured(f"the url should look like https://dagmaster.example.com, not {url!r}")
    headers = {"Accept": "application/json", "User-Agent": "dagmaster-client"}
    if key:
        headers["Authorization"] = f"Bearer {key}"
    timeout = httpx.Timeout(timeout_seconds, connect=min(CONNECT_SECONDS, timeout_seconds))
    return {"base_url": url, "headers": headers, "timeout": timeout}


def headers_of(call: Call[Any]) -> dict[str, str]:
    """The key and the trace context."""
    headers = dict(call.headers)
    if call.body is not None:
        headers["Content-Type"] = "application/json"
    if (trace_parent := current_trace_parent()) is not None:
        headers["traceparent"] = trace_parent
    return headers


def log_timeout(usual: httpx.Timeout, follow: bool) -> httpx.Timeout:
    """No read timeout: a task may be silent for any time."""
    return httpx.Timeout(None, connect=usual.connect, write=usual.write, pool=usual.pool) if follow else usual
