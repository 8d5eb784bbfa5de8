"""Live timelines, as server-sent events and over a WebSocket."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from dataclasses import dataclass, field
from time import monotonic
from typing import Annotated, Any

import orjson
from fastapi import APIRouter, Header, Query, Request, WebSocket, WebSocketDisconnect
from fastapi.responses import StreamingResponse

from dagmaster.errors import DagmasterError, Forbidden, Invalid, NotFound, Unauthorized, Unavailable
from dagmaster.http.errors import documented
from dagmaster.model.states import NODE_MOVES
from dagmaster.model.workflow import CHILD_SEPARATOR
from dagmaster.store.connect import AWAY
from dagmaster.store.jobs import get_job_head
from dagmaster.web.access import (
    EVERYBODY,
    READERS_OF_OWN,
    READING_OWN,
    UNKNOWN_KEY,
    Admitted,
    Caller,
    Job,
    Keyring,
    as_job_id,
    check_visible,
)
from dagmaster.web.assets import caller_or_public
from dagmaster.web.services import services_of
from dagmaster.web.streams import Row, Streams, disconnection
from dagmaster.web.views import timeline_entry

router = APIRouter(tags=["timeline"])

HEARTBEAT_SECONDS = 15.0
CHECK_SECONDS = 5.0
FIRST_MESSAGE_SECONDS = 10.0
DIGEST_SECONDS = 0.4
NODE_EVENTS = frozenset(move.event for move in NODE_MOVES)
MOST_NODES = 200  # of one digest; a page that receives as many reloads the whole graph
SSE: Any = {200: {"content": {"text/event-stream": {}}, "description": "One event for each timeline entry."}}
NORMAL_CLOSURE, SERVICE_RESTART = 1000, 1012
CLOSE_CODES: dict[type[DagmasterError], int] = {
    Unauthorized: 4401,
    Forbidden: 4403,
    NotFound: 4404,
    Invalid: 4422,
    Unavailable: 1013,
}


@router.get(
    "/api/v1/jobs/{job_id}/stream",
    response_class=StreamingResponse,
    responses={**SSE, **documented(404)},
    dependencies=[READERS_OF_OWN],
)
async def stream_job(
    job: Job,
    request: Request,
    caller: Admitted,
    after: Annotated[int, Query(ge=0, lt=2**63, description="Only events after this event id.")] = 0,
    last_event_id: Annotated[str | None, Header()] = None,
) -> StreamingResponse:
    """Stream the timeline until the job ends. `Last-Event-ID` takes precedence over `after`."""
    start = _event_id(last_event_id) if last_event_id else after
    headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
    lines = _lines(_events(request, caller, job, start, HEARTBEAT_SECONDS))
    return StreamingResponse(lines, media_type="text/event-stream", headers=headers)


async def _lines(watched: AsyncGenerator[Row | None, None]) -> AsyncIterator[bytes]:
    yield b": watching\n\n"
    try:
        async with aclosing(watched) as events:
            async for event in events:
                yield _line(event) if event is not None else b": still here\n\n"
    except (Unavailable, Unauthorized) as error:
        yield b"event: dropped\ndata: " + orjson.dumps({"message": str(error)}) + b"\n\n"


def _line(event: Row) -> bytes:
    entry = timeline_entry(event)
    return f"id: {entry.event_id}\nevent: {entry.event_type}\ndata: {entry.model_dump_json()}\n\n".encode()


def _event_id(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) <= 19 and int(text) < 2**63):
        raise Invalid(f"Last-Event-ID must be the id of an event, not {text[:40]!r}")
    return int(text)


async def _events(
    connection: Request | WebSocket, caller: Caller, job: Row, after: int, heartbeat_seconds: float
) -> AsyncGenerator[Row | None, None]:
    """Ends when the caller's key becomes invalid: a job may take days."""
    streams: Streams = connection.app.state.streams
    watched = streams.events(job["job_id"], after, job["created_at"], heartbeat_seconds=heartbeat_seconds)
    checked_at = monotonic()
    async with aclosing(watched) as events:
        async for event in events:
            is_due = monotonic() - checked_at >= CHECK_SECONDS
            if is_due and not await connection.app.state.keyring.still_admits(caller):
                raise Unauthorized(UNKNOWN_KEY)
            checked_at = monotonic() if is_due else checked_at
            yield event


@router.websocket("/ws/jobs/{job_id}", dependencies=[EVERYBODY])
async def watch_job(socket: WebSocket, job_id: str) -> None:
    """Stream the same entries as messages. Send the key in a header or as the first message, `{"key": "dm_..."}`.

    With `digest=1`, entries are combined into at most a few messages per second.
    """
    await socket.accept()
    try:
        caller = await _admitted(socket)
        job = await _job(socket, job_id, caller)
        after = _event_id(socket.query_params.get("after", "0"))
        if socket.query_params.get("digest") == "1":
            messages = _digests(_events(socket, caller, job, after, DIGEST_SECONDS))
        else:
            messages = _entries(_events(socket, caller, job, after, 1.0))
        await _send(socket, messages)
        # A client that reconnects after a restart must not take it for the end of the job.
        await socket.close(SERVICE_RESTART if socket.app.state.is_stopping else NORMAL_CLOSURE)
    except DagmasterError as error:
        code = next((code for kind, code in CLOSE_CODES.items() if isinstance(error, kind)), 1011)
        await socket.close(code, str(error)[:100])
    except AWAY:
        await socket.close(CLOSE_CODES[Unavailable], "the database cannot be reached")
    except WebSocketDisconnect:
        return


async def _admitted(socket: WebSocket) -> Caller:
    if "key" in socket.query_params:
        raise Unauthorized("keys in URLs end up in logs; send the key as the first message")
    caller = await caller_or_public(socket, await services_of(socket)) or await _read_first_message(socket)
    if caller.token is not None or caller.role not in READING_OWN or caller.is_platform_reviewer:
        raise Forbidden(f"a key of role {caller.role} may not watch jobs")
    return caller


async def _read_first_message(socket: WebSocket) -> Caller:
    """Browsers cannot send headers with a WebSocket, so the first message has the key."""
    keyring: Keyring = socket.app.state.keyring
    try:
        first = orjson.loads(await asyncio.wait_for(socket.receive_text(), FIRST_MESSAGE_SECONDS))
    except (TimeoutError, ValueError, KeyError):
        raise Unauthorized from None
    text = first.get("key") if isinstance(first, dict) else None
    caller = await keyring.find(text) if isinstance(text, str) else None
    if caller is None:
        raise Unauthorized(UNKNOWN_KEY)
    return caller


async def _job(socket: WebSocket, job_id: str, caller: Caller) -> Row:
    services = await services_of(socket)
    async with services.pool.connection() as conn:
        job = await get_job_head(conn, as_job_id(job_id))
    check_visible(job, caller)
    return job


async def _entries(watched: AsyncGenerator[Row | None, None]) -> AsyncGenerator[str | None, None]:
    async with aclosing(watched) as events:
        async for event in events:
            yield None if event is None else timeline_entry(event).model_dump_json()


async def _digests(watched: AsyncGenerator[Row | None, None]) -> AsyncGenerator[str | None, None]:
    """`{"event_id", "events", "nodes"}`: the last event, the number of events, and the newest move of each node of the
    definition. Children of fan-outs are only counted."""
    digest, sent_at = Digest(), 0.0
    async with aclosing(watched) as events:
        async for event in events:
            if event is not None:
                digest.take(event)
            is_due = digest.events and monotonic() - sent_at >= DIGEST_SECONDS
            yield digest.text() if is_due else None
            if is_due:
                digest, sent_at = Digest(), monotonic()
    if digest.events:
        yield digest.text()


@dataclass(slots=True)
class Digest:
    event_id: int = 0
    events: int = 0
    nodes: dict[str, Row] = field(default_factory=dict)

    def take(self, event: Row) -> None:
        self.event_id = max(self.event_id, event["event_id"])
        self.events += 1
        node_id = event["node_id"]
        is_own = node_id is not None and CHILD_SEPARATOR not in node_id and "." not in node_id
        if is_own and event["event_type"] in NODE_EVENTS:
            self.nodes[node_id] = event

    def text(self) -> str:
        newest = list(self.nodes.values())[-MOST_NODES:]
        nodes = [orjson.Fragment(timeline_entry(event).model_dump_json()) for event in newest]
        return orjson.dumps({"event_id": str(self.event_id), "events": self.events, "nodes": nodes}).decode()


async def _send(socket: WebSocket, messages: AsyncGenerator[str | None, None]) -> None:
    """Until the job ends or the client disconnects."""
    async with disconnection(socket) as gone, aclosing(messages) as texts:
        async for text in texts:
            if gone.done():
                raise WebSocketDisconnect(1006)
            if text is not None:
                await socket.send_text(text)
