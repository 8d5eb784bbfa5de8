"""Signals, approvals and rejections that a test declares before the run."""

import asyncio
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from dagmaster.engine.state import NodeState
from dagmaster.errors import Conflict
from dagmaster.ids import JobId, NodeId
from dagmaster.model.graph import NodeType
from dagmaster.model.states import NodeStatus
from dagmaster.orchestrator.orchestrator import Orchestrator
from dagmaster.store.connect import Connection, opened
from dagmaster.store.signals import has_unread_signal, request_decision, send_signal

APPLICATION = "dagmaster test"
POLL_SECONDS = 0.01
SOMEBODY = "test"


@dataclass(frozen=True, slots=True)
class Verdict:
    """A decision by the first approver, unless an actor is named."""

    approved: bool
    by: str | None = None
    comment: str | None = None


@dataclass(slots=True)
class Decisions:
    signals: dict[str, list[Any]] = field(default_factory=dict)
    verdicts: dict[str, Verdict] = field(default_factory=dict)
    are_heard: bool = False  # the signals, by the owner of the job

    def concern(self, node: NodeState) -> bool:
        """Whether a declared decision or signal will end the wait of the node."""
        if node.spec.type is NodeType.APPROVAL:
            return node.node_id in self.verdicts
        return not self.are_heard and node.spec.wait is not None and node.spec.wait.signal in self.signals

    async def tell(self, dsn: str, job_id: JobId, orchestrator: Orchestrator) -> None:
        """Send the signals now, and decide each approval when it is requested."""
        self.are_heard = not self.signals
        if not self.signals and not self.verdicts:
            return
        async with opened(dsn, application=APPLICATION) as conn:
            for name, several in self.signals.items():
                for data in several:
                    await send_signal(conn, job_id, name, data=data, actor=SOMEBODY)
            while not self.are_heard:
                await asyncio.sleep(POLL_SECONDS)
                self.are_heard = not await has_unread_signal(conn, job_id)
            await self._decide(conn, job_id, orchestrator)

    async def _decide(self, conn: Connection, job_id: JobId, orchestrator: Orchestrator) -> None:
        decided: set[tuple[str, int]] = set()
        while self.verdicts:
            await asyncio.sleep(POLL_SECONDS)
            owned = orchestrator.jobs.get(job_id)
            for node_id, verdict in self.verdicts.items():
                node = owned.state.nodes.get(node_id) if owned is not None else None
                if node is None or node.status is not NodeStatus.RUNNING or (node_id, node.attempt) in decided:
                    continue
                with suppress(Conflict):  # State in memory may not be written yet.
                    await _announce(conn, job_id, node, verdict)
                    decided.add((node_id, node.attempt))


async def _announce(conn: Connection, job_id: JobId, node: NodeState, verdict: Verdict) -> None:
    approvers = node.spec.approval.approvers if node.spec.approval is not None else ()
    actor = verdict.by or (approvers[0] if approvers else SOMEBODY)
    node_id, approved = NodeId(node.node_id), verdict.approved
    await request_decision(conn, job_id, node_id, approved=approved, actor=actor, comment=verdict.comment)
