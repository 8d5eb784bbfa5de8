"""A clock that tests can advance: a wait of two hours ends at once.

Only the orchestrator's times follow it. Leases and heartbeats use the database's clock, so that no process is declared
lost because a test advances the time.
"""

import asyncio
from collections.abc import Callable
from datetime import datetime, timedelta

from dagmaster.engine.state import NodeState, is_executed
from dagmaster.errors import Invalid
from dagmaster.model.graph import NodeType
from dagmaster.model.states import NODE_IN_FLIGHT, NodeStatus
from dagmaster.orchestrator.clock import DatabaseClock
from dagmaster.orchestrator.orchestrator import Orchestrator
from dagmaster.testing.decisions import Decisions

POLL_SECONDS = 0.01


class TravelClock(DatabaseClock):
    def __init__(self) -> None:
        super().__init__()
        self.skipped = timedelta()
        self.patience = timedelta()
        self._watchers: list[Callable[[], object]] = []

    def now(self) -> datetime:
        return super().now() + self.skipped

    def advance(self, **span: float) -> None:
        """Advance by this much now: `hours=2`, `minutes=`, `seconds=`, `days=`. Running tasks may time out.

        Call it from any thread.
        """
        self._skip(_positive(span))

    def skip_waiting(self, **span: float) -> None:
        """Skip the time in which the job only waits, up to this total."""
        self.patience += _positive(span)

    def go_to(self, at: datetime) -> bool:
        """Skip the time until then, within the permitted total."""
        wait = at - self.now()
        if not timedelta() < wait <= self.patience:
            return False
        self.patience -= wait
        self._skip(wait)
        return True

    def on_skip(self, call: Callable[[], object]) -> Callable[[], None]:
        """Register a callback for each skip; returns a function that removes it."""
        self._watchers.append(call)
        return lambda: self._watchers.remove(call)

    def _skip(self, span: timedelta) -> None:
        self.skipped += span
        for call in list(self._watchers):
            call()


def _positive(span: dict[str, float]) -> timedelta:
    try:
        chosen = timedelta(**span)
    except (TypeError, OverflowError) as error:
        raise Invalid(f"use a time span such as hours=2 or minutes=30: {error}") from None
    if chosen <= timedelta():
        raise Invalid(f"time can only move forward: use a span above 0, such as hours=2, not {span or 'nothing'}")
    return chosen


async def skip_waiting(orchestrator: Orchestrator, clock: TravelClock, decisions: Decisions) -> None:
    """Skip the time in which a job only waits, until cancelled. No time is skipped while a task runs."""
    while True:
        await asyncio.sleep(POLL_SECONDS)
        if clock.patience and (at := next_due(orchestrator, clock.now(), decisions)) is not None:
            clock.go_to(at)


def next_due(orchestrator: Orchestrator, now: datetime, decisions: Decisions) -> datetime | None:
    """The earliest time for which a node waits; None while anything else is in progress."""
    jobs = [job.state for job_id in orchestrator.jobs if (job := orchestrator.jobs.get(job_id)) is not None]
    open_nodes = [node for job in jobs if not job.is_paused for node in job.nodes.values()]
    if sum(map(_calls, open_nodes)) > sum(not job.is_terminal for job in jobs) - 1:
        return None  # The child job is not loaded yet, or its end has not been processed.
    if any(_is_at_work(node) or (decisions.concern(node) and _waits(node, now)) for node in open_nodes):
        return None
    return min((node.not_before for node in open_nodes if node.not_before and _waits(node, now)), default=None)


def _is_at_work(node: NodeState) -> bool:
    return node.status in NODE_IN_FLIGHT and is_executed(node) and node.result_of is None


def _waits(node: NodeState, now: datetime) -> bool:
    if node.status not in (NodeStatus.READY, NodeStatus.RUNNING):
        return False
    return node.not_before is not None and node.not_before > now


def _calls(node: NodeState) -> bool:
    return node.status is NodeStatus.RUNNING and node.spec.type is NodeType.WORKFLOW
