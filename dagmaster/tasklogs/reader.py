"""Read the log of an attempt, even while it is written."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Self

from dagmaster.ids import JobId, NodeId, TaskId
from dagmaster.model.states import NODE_TERMINAL, NodeStatus
from dagmaster.tasklogs.contract import READ_BYTES, TaskLogs

POLL_SECONDS: Final = 0.3
BLOCK_BYTES: Final = 64 * 1024
MAX_LINE_CHARS: Final = 2000
NOT_BEGUN: Final = frozenset({NodeStatus.PENDING, NodeStatus.READY, NodeStatus.DISPATCHED})


@dataclass(frozen=True, slots=True)
class NodeState:
    """The state of a node. Attempts are counted from 1."""

    status: NodeStatus
    attempt: int

    @classmethod
    def of(cls, row: Mapping[str, Any]) -> Self:
        return cls(NodeStatus(row["status"]), row["retry_count"] + 1)

    def is_over(self, attempt: int) -> bool:
        return attempt < self.attempt or self.status in NODE_TERMINAL

    def is_to_come(self, attempt: int) -> bool:
        return attempt > self.attempt or (attempt == self.attempt and self.status in NOT_BEGUN)

    @property
    def newest_begun(self) -> int:
        """While a node waits for a retry, the previous attempt is of interest."""
        return self.attempt - 1 if self.attempt > 1 and self.is_to_come(self.attempt) else self.attempt


# Returns None if the state can no longer be read.
Look = Callable[[], Awaitable[NodeState | None]]


@dataclass(frozen=True, slots=True)
class LogSelection:
    """The part of a log to read: of an attempt or the newest; after an offset, or the last lines."""

    attempt: int | None = None
    offset: int = 0
    tail: int | None = None
    follow: bool = False


@dataclass(frozen=True, slots=True)
class LogRange:
    """With `follow` the log may not exist yet."""

    attempt: int
    start: int
    size: int


@dataclass(frozen=True, slots=True)
class Match:
    """A line of a log; the first line is number 1."""

    number: int
    text: str


@dataclass(slots=True)
class Matches:
    """`total` of `log_lines` lines contain the text; `lines` are the first of them."""

    lines: list[Match]
    total: int
    log_lines: int


@dataclass(frozen=True, slots=True)
class NodeLog:
    """The logs of a node's attempts."""

    logs: TaskLogs
    job_id: JobId
    node_id: NodeId

    def task_id(self, attempt: int) -> TaskId:
        return TaskId(f"{self.job_id}_{self.node_id}_{attempt - 1}")

    async def find(self, selection: LogSelection, state: NodeState) -> LogRange | None:
        """None if there is no log; `why_none` gives the reason."""
        attempt = selection.attempt or state.newest_begun
        size = await self.size(attempt)
        may_come = selection.follow and not state.is_over(state.attempt if selection.attempt is None else attempt)
        if size is None and not may_come:
            return None
        start = selection.offset if selection.tail is None else await self.tail(attempt, selection.tail)
        return LogRange(attempt, start, size or 0)

    async def size(self, attempt: int) -> int | None:
        return await self.logs.size(self.task_id(attempt))

    async def tail(self, attempt: int, lines: int) -> int:
        """The offset of the last lines."""
        start = end = await self.size(attempt) or 0
        # A newline at the very end ends the last line and starts none.
        missing = lines + 1 if end and await self._block(attempt, end - 1, end) == b"\n" else lines
        while start and missing > 0:
            block_end, start = start, max(start - BLOCK_BYTES, 0)
            block = await self._block(attempt, start, block_end)
            if (newlines := block.count(b"\n")) >= missing:
                for _ in range(missing):
                    block = block[: block.rfind(b"\n")]
                return start + len(block) + 1
            missing -= newlines
        return start if lines else end

    async def _block(self, attempt: int, start: int, end: int) -> bytes:
        return await self.logs.read(self.task_id(attempt), start, end - start)

    async def pieces(self, attempt: int, offset: int, end: int) -> AsyncIterator[bytes]:
        while offset < end and (piece := await self._block(attempt, offset, min(offset + READ_BYTES, end))):
            yield piece
            offset += len(piece)

    async def search(self, attempt: int, text: str, limit: int) -> "Matches":
        """The first lines that contain the text, ignoring case, and their total number."""
        needle, matches, number = text.lower(), Matches([], 0, 0), 0
        async for line in self._lines(attempt):
            number += 1
            if needle in line.lower():
                matches.total += 1
                if len(matches.lines) < limit:
                    matches.lines.append(Match(number, line[:MAX_LINE_CHARS]))
        matches.log_lines = number
        return matches

    async def _lines(self, attempt: int) -> AsyncIterator[str]:
        partial = b""
        async for piece in self.pieces(attempt, 0, await self.size(attempt) or 0):
            *lines, partial = (partial + piece).split(b"\n")
            for line in lines:
                yield line.decode(errors="replace")
            await asyncio.sleep(0)  # A log of megabytes must not block the event loop.
        if partial:
            yield partial.decode(errors="replace")

    async def follow(self, attempt: int, offset: int, look: Look, *, goes_on: bool = True) -> AsyncIterator[bytes]:
        """Follow the attempt to its end; with `goes_on`, also the later attempts until the node ends."""
        while True:
            # Read the state before the log: output written just before the end is still sent.
            state = await look()
            if state is None:
                return
            while piece := await self.logs.read(self.task_id(attempt), offset):
                yield piece
                offset += len(piece)
            if not state.is_over(attempt):
                await asyncio.sleep(POLL_SECONDS)
            elif goes_on and attempt < state.attempt:
                attempt, offset = attempt + 1, 0
            else:
                return


def why_none(node: NodeLog, selection: LogSelection, state: NodeState, place: Mapping[str, Any] | None) -> str:
    """Why there is no log of this attempt; `place` is the location that its worker reported."""
    attempt = selection.attempt or state.newest_begun
    of = f"attempt {attempt} of node {node.node_id!r}"
    if place is not None:
        there = f" on {place['hostname']}" if place["hostname"] else ""
        return f"the log of {of} is {place['log_path']}{there}; it cannot be read from here"
    if state.status is NodeStatus.SKIPPED and state.attempt == attempt:
        return f"node {node.node_id!r} was skipped; it has no log"
    if attempt > state.attempt and state.status in NODE_TERMINAL:
        return f"node {node.node_id!r} has ended with attempt {state.attempt}"
    if state.is_to_come(attempt):
        return f"{of} has not started"
    return f"{of} has written nothing" if state.is_over(attempt) else f"{of} has written nothing yet"
