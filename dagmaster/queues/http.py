"""The transport of remote workers, which have only an HTTPS address and a key."""

import logging
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict
from ipaddress import ip_address
from typing import Any

import httpx
import orjson

from dagmaster.certificates import trusted_authorities
from dagmaster.errors import DagmasterError, Invalid, Misconfigured, TaskOver, TooLarge, Unavailable
from dagmaster.ids import TaskId, WorkerId
from dagmaster.queues.contract import (
    Heartbeat,
    Orders,
    Recalled,
    Registration,
    SavedCheckpoint,
    TaskMessage,
    TaskReport,
)
from dagmaster.queues.httpbodies import (
    Limits,
    batches,
    checkpoint_of,
    contract_bodies,
    message_of,
    parts,
    recalled_of,
    report_body,
)
from dagmaster.schemas.workers import PROTOCOL
from dagmaster.store.task_reports import ReportedProgress

log = logging.getLogger(__name__)

PREFIX = "/api/v1/workers"
CONNECT_SECONDS = 5.0
SHOWN = 200
PASSING = frozenset({408, 425, 429})


class ServerUnavailable(Unavailable):
    """The server is unreachable or busy; the request may succeed later."""


class GivenUp(ServerUnavailable):
    """The server has declared this worker lost."""


class HttpTransport:
    """The connection pool to a dagmaster server. Its creator closes it."""

    lost: tuple[type[Exception], ...] = (ServerUnavailable,)
    waits = True
    handler_pool = None

    def __init__(self, url: str, key: str | None = None, *, timeout_seconds: float = 30.0) -> None:
        self.url = url.rstrip("/")
        self.worker_id = WorkerId("")
        self.limits = Limits()
        _check(self.url, key)
        headers = {"Content-Type": "application/json", "User-Agent": "dagmaster-worker"}
        if key:
            headers["Authorization"] = f"Bearer {key}"
        self._timeout_seconds = timeout_seconds
        self._http = httpx.AsyncClient(
            base_url=self.url,
            headers=headers,
            timeout=httpx.Timeout(timeout_seconds, connect=min(CONNECT_SECONDS, timeout_seconds)),
            verify=trusted_authorities(),
        )

    @asynccontextmanager
    async def open(self, worker_id: WorkerId | None) -> AsyncIterator["HttpLink"]:
        self.worker_id = worker_id or WorkerId("")
        yield HttpLink(self)

    async def close(self) -> None:
        await self._http.aclose()

    async def ask(self, method: str, path: str, body: Any = None, *, wait_seconds: float = 0) -> Any:
        """Send a request; returns the JSON of the response. Raises ServerUnavailable or the server's error."""
        content = orjson.dumps(body) if body is not None else None
        timeout = httpx.Timeout(self._timeout_seconds + wait_seconds, connect=self._http.timeout.connect)
        try:
            answer = await self._http.request(method, PREFIX + path, content=content, timeout=timeout)
        except httpx.TransportError as error:
            reason = str(error) or type(error).__name__
            raise ServerUnavailable(f"{self.url} cannot be reached: {reason}") from error
        if not answer.is_success:
            raise self._error(answer)
        return self._read(answer)

    def _read(self, answer: httpx.Response) -> Any:
        if answer.status_code == 204:
            return None
        try:
            return orjson.loads(answer.content)
        except ValueError as error:  # e.g. a proxy's error page
            excerpt = answer.text[:SHOWN].strip()
            raise ServerUnavailable(f"{self.url} does not look like a dagmaster server: {excerpt}") from error

    def _error(self, answer: httpx.Response) -> DagmasterError:
        status, (code, message) = answer.status_code, _code_and_message(answer)
        if status == 410 or code == "unknown_worker":
            return GivenUp(message)
        if status >= 500 or status in PASSING:
            return ServerUnavailable(f"{self.url} answered {status}: {message}")
        if status in (401, 403):
            return Misconfigured(
                f"{self.url} rejected this worker: {message}. It needs an API key with the role worker: "
                "create one with `dagmaster keys create --name NAME --role worker` and set DAGMASTER_API_KEY"
            )
        if answer.is_redirect:
            return Misconfigured(f"{self.url} has moved to {answer.headers.get('Location')}; use that address")
        if status in (404, 405):
            return Misconfigured(
                f"{self.url} takes no workers over HTTP ({status}: {message}); is it a dagmaster server?"
            )
        if status == 409:
            return TaskOver(message)
        return TooLarge(message) if status == 413 else Invalid(message)


def _check(url: str, key: str | None) -> None:
    try:
        parsed = httpx.URL(url)
    except httpx.InvalidURL as error:
        raise Misconfigured(f"{url!r} is not a URL: {error}") from error
    if parsed.scheme not in ("http", "https") or not parsed.host:
        raise Misconfigured(f"the url should look like https://dagmaster.example.com, not {url!r}")
    if key and parsed.scheme == "http" and not _is_near(parsed.host):
        log.warning("%s does not use TLS: others on the network can read the key", url)


def _is_near(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _code_and_message(answer: httpx.Response) -> tuple[str, str]:
    """Code and message of dagmaster's own errors; of others, the beginning of the body."""
    try:
        error = orjson.loads(answer.content)["error"]
        return str(error["code"]), str(error["message"])
    except (ValueError, KeyError, TypeError):
        return "", answer.text[:SHOWN].strip() or answer.reason_phrase


class HttpLink:
    """A registered worker."""

    def __init__(self, transport: HttpTransport) -> None:
        self._transport = transport
        self._heartbeat = Heartbeat()

    async def register(self, registration: Registration) -> WorkerId:
        body = {
            "hostname": registration.hostname,
            "pid": registration.pid,
            "queues": registration.queues,
            "handlers": registration.handlers,
            "concurrency": registration.concurrency,
            "contracts": contract_bodies(registration.contracts),
        }
        reply = await self._transport.ask("POST", "", body)
        if reply["protocol"] != PROTOCOL:
            raise Misconfigured(
                f"{self._transport.url} (dagmaster {reply['version']}) speaks protocol {reply['protocol']} "
                f"with workers, this worker speaks {PROTOCOL}; install the same version on both sides"
            )
        self._transport.limits = Limits(reply["claim_wait_seconds"], reply["max_body_bytes"])
        self._transport.worker_id = WorkerId(str(reply["worker_id"]))
        return self._transport.worker_id

    async def beat(self, heartbeat: Heartbeat) -> bool:
        self._heartbeat = heartbeat
        try:
            await self.orders([])
        except GivenUp:
            return False
        return True

    async def orders(self, task_ids: Sequence[TaskId]) -> Orders:
        """The request is a heartbeat, too."""
        body = {**asdict(self._heartbeat), "running": list(task_ids)}
        reply = await self._ask("POST", "/heartbeat", body)
        return Orders(frozenset(reply["withdrawn"]), reply["wanted"])

    async def exchange(self, reports: Sequence[TaskReport], limit: int) -> list[TaskMessage]:
        """Reports that the server has accepted stay accepted if the claim fails: sending them again does no harm."""
        for batch in batches(reports, self._transport.limits):
            await self._report(batch)
        if not limit:
            return []
        wait = 0.0 if reports else self._transport.limits.claim_wait_seconds
        reply = await self._ask("POST", "/claim", {"limit": limit, "wait_seconds": wait}, wait_seconds=wait)
        return [message_of(task) for task in reply["tasks"]]

    async def listen(self, on_tasks: Callable[[], None]) -> None:
        """Nothing to do: a claim waits for tasks."""

    async def tell_starts(self) -> None:
        """Nothing to do: the server announces the start with the claim."""

    async def forgotten(self, known: Collection[TaskId]) -> list[TaskMessage]:
        reply, ids = await self._ask("GET", "/tasks"), set(known)
        return [message_of(task) for task in reply["tasks"] if task["task_id"] not in ids]

    async def tell(self, task_id: TaskId, progress: ReportedProgress) -> None:
        body = {"task_id": task_id, "current": progress.current, "total": progress.total}
        await self._ask("POST", "/progress", [{**body, "message": progress.message or None}])

    async def save(self, task_id: TaskId, checkpoint: SavedCheckpoint) -> None:
        artifacts = orjson.Fragment(checkpoint.artifacts) if checkpoint.artifacts is not None else None
        body = {"task_id": task_id, "phase": checkpoint.phase, "data": orjson.Fragment(checkpoint.data)}
        await self._ask("POST", "/checkpoints", {**body, "artifacts": artifacts})

    async def add(self, task_id: TaskId, slices: Sequence[bytes]) -> None:
        """Send as many slices at once as fit in a body. A slice that is sent twice is added once."""
        for part in parts(slices, self._transport.limits):
            body = {"task_id": task_id, "slices": [orjson.Fragment(encoded) for encoded in part]}
            await self._ask("POST", "/tasks/added", body)

    async def discard(self, task_id: TaskId, checkpoint_id: int, reason: str) -> SavedCheckpoint | None:
        body = {"task_id": task_id, "reason": reason}
        reply = await self._ask("POST", f"/checkpoints/{checkpoint_id}/discard", body)
        return checkpoint_of(reply["checkpoint"]) if reply["checkpoint"] is not None else None

    async def recall(self, task_id: TaskId, version: str) -> Recalled | None:
        reply = await self._ask("POST", "/cache/recall", {"task_id": task_id, "version": version})
        return recalled_of(reply["result"]) if reply["result"] is not None else None

    async def remember(self, task_id: TaskId, version: str, output: bytes, seconds: float | None) -> None:
        body = {"task_id": task_id, "version": version, "output": orjson.Fragment(output), "seconds": seconds}
        await self._ask("POST", "/cache", body)

    async def open_secrets(self, task_id: TaskId, references: Collection[str]) -> Mapping[str, str]:
        reply = await self._ask("POST", "/secrets", {"task_id": task_id, "references": sorted(references)})
        opened: dict[str, str] = reply["values"]
        return opened

    async def leave(self, heartbeat: Heartbeat) -> None:
        if await self.beat(heartbeat):
            await self._ask("DELETE", "")

    async def _ask(self, method: str, path: str, body: Any = None, *, wait_seconds: float = 0) -> Any:
        return await self._transport.ask(method, f"/{self._transport.worker_id}{path}", body, wait_seconds=wait_seconds)

    async def _report(self, reports: Sequence[TaskReport]) -> None:
        """Send a rejected batch report by report: one bad report must not block the others."""
        try:
            reply = await self._ask("POST", "/results", [report_body(report) for report in reports])
        except (Invalid, TooLarge) as error:
            if len(reports) > 1:
                for report in reports:
                    await self._report([report])
                return
            reply = {"outcomes": [{"outcome": "refused", "reason": str(error)}]}
        for report, outcome in zip(reports, reply["outcomes"], strict=True):
            if outcome["outcome"] == "refused":
                await self._report_refusal(report, outcome["reason"])

    async def _report_refusal(self, report: TaskReport, reason: str) -> None:
        log.error("the server rejected the result of task %s: %s", report.task_id, reason)
        error = f"the server rejected the result: {reason}"
        failed = TaskReport(report.task_id, report.job_id, report.node_id, "failed", error=error, permanent=True)
        try:
            await self._ask("POST", "/results", [report_body(failed)])
        except (Invalid, TooLarge) as refused:  # No report of this task would be accepted.
            log.error("the failure of task %s could not be reported either: %s", report.task_id, refused)
