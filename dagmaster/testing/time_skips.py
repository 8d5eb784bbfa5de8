"""Skip the time in which a job only waits."""

import asyncio
from datetime import datetime

from dagmaster.engine.state import NodeState, is_executed
from dagmaster.model.graph import NodeType
from dagmaster.model.states import NODE_IN_FLIGHT, NodeStatus
from dagmaster.orchestrator.orchestrator import Orchestrator
from dagmaster.testing.clock import TravelClock
from dagmaster.testing.decisions import Decisions

POLL_SECONDS = 0.01


async def skip_waiting(orchestrator: Orchestrator, clock: TravelClock, decisions: Decisions) -> None:
    """Runs until cancelled. No time is skipped while a task runs."""
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
