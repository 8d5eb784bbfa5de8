"""Waits, approvals and child jobs of a random case: their wake-ups, outcomes and invariants."""

from collections.abc import Iterator

import orjson

from dagmaster.engine.messages import ApprovalDecision, SignalSent, TaskCompleted, TaskFailed
from dagmaster.model.states import NODE_TERMINAL, NodeStatus
from dagmaster.model.workflow import ApprovalNode, WaitNode, WorkflowNode
from simulation.ground import Ground, require
from simulation.store import NodeRow
from simulation.workers import FORGER

MOST_SIGNALS = 3


class Outside:
    """The senders of signals and decisions, and the child jobs."""

    def __init__(self, ground: Ground) -> None:
        self._ground = ground
        self._sent: dict[str, int] = {}

    def signal(self) -> bool:
        """Sometimes before a node waits for it; in calm weather only to waiting nodes."""
        names = [row.node_id for row in self._steps(WaitNode) if self._hears(row)]
        if names:
            self.send_signal(self._ground.rng.choice(names))
        return bool(names)

    def send_signal(self, node_id: str) -> None:
        self._sent[node_id] = self._sent.get(node_id, 0) + 1
        self._ground.store.add_mail(SignalSent(node_id, {"to": node_id}, self._ground.now, "someone"))
        self._ground.note(f"signal {node_id} is sent")

    def _hears(self, row: NodeRow) -> bool:
        node = self._ground.case.blueprint.workflow.nodes[row.node_id]
        if not isinstance(node, WaitNode) or node.signal is None or row.status in NODE_TERMINAL:
            return False
        is_on_its_way = any(
            isinstance(mail, SignalSent) and mail.name == node.signal for mail in self._ground.store.mailbox.values()
        )
        if row.status is NodeStatus.RUNNING and self._ground.is_calm:
            return not is_on_its_way
        return not self._ground.is_calm and self._sent.get(row.node_id, 0) < MOST_SIGNALS

    def decide(self) -> bool:
        rows = [row for row in self._steps(ApprovalNode) if row.status is NodeStatus.RUNNING and not self._is_told(row)]
        if rows:
            self.send_decision(self._ground.rng.choice(rows))
        return bool(rows)

    def send_decision(self, row: NodeRow) -> None:
        ground = self._ground
        approved = ground.case.answers[row.node_id] == 0
        if ground.rng.random() < 0.3:  # For a past or nonexistent attempt.
            ground.store.add_mail(ApprovalDecision(row.node_id, f"{row.task_id}9", not approved, ground.now, FORGER))
        ground.store.add_mail(
            ApprovalDecision(row.node_id, row.task_id or "", approved, ground.now, "someone", "so be it")
        )
        ground.note(f"{row.node_id} is {'approved' if approved else 'rejected'}")

    def _is_told(self, row: NodeRow) -> bool:
        mail = self._ground.store.mailbox.values()
        return any(isinstance(message, ApprovalDecision) and message.task_id == row.task_id for message in mail)

    def end_child(self) -> bool:
        """A child ends, and reports to its parent once, in the transaction that ends it."""
        running = [task_id for task_id, status in self._ground.store.children.items() if status == "running"]
        if running:
            self.report_child(self._ground.rng.choice(running))
        return bool(running)

    def report_child(self, task_id: str) -> None:
        ground = self._ground
        node_id, attempt = task_id.partition("_")[2].rsplit("_", 1)
        is_well = int(attempt) >= ground.case.answers[node_id]
        ground.store.children[task_id] = "completed" if is_well else "failed"
        if is_well:
            output = orjson.dumps({"job_id": task_id, "result": {}})
            ground.store.add_mail(TaskCompleted(node_id, task_id, None, ground.now, output))
        else:
            error = f"job of {task_id} failed"
            ground.store.add_mail(TaskFailed(node_id, task_id, None, ground.now, error, error_types=("JobFailed",)))
        ground.note(f"the child {task_id} ends")

    def _steps(self, kind: type[WaitNode | ApprovalNode]) -> Iterator[NodeRow]:
        nodes = self._ground.case.blueprint.workflow.nodes
        return (row for row in self._ground.store.nodes.values() if isinstance(nodes.get(row.node_id), kind))


def check_step(ground: Ground, row: NodeRow) -> None:
    """A step has completed: the awaited event must have occurred."""
    node = ground.case.blueprint.workflow.nodes.get(row.node_id)
    output, sent = orjson.loads(row.output or b"null"), ground.store.sent
    match node:
        case WaitNode(signal=None):
            assert row.completed_at is not None and row.started_at is not None
            waited = (row.completed_at - row.started_at).total_seconds()
            require(waited >= float(node.seconds or 0), "{} waited only {} s", row.node_id, waited)
        case WaitNode():
            is_sent = any(isinstance(message, SignalSent) and message.name == node.signal for message in sent)
            same = output["signal"]["data"] == {"to": node.signal}
            require(is_sent and same, "{} received {}, which was never sent", row.node_id, output)
        case ApprovalNode():
            decisions = [message for message in sent if isinstance(message, ApprovalDecision)]
            first = next((decision for decision in decisions if decision.task_id == row.task_id), None)
            is_approved = first is not None and first.approved and output["approved"]
            require(is_approved, "{} was not approved", row.node_id)
        case WorkflowNode():
            results = [message for message in sent if isinstance(message, TaskCompleted) and message.worker_id is None]
            same = any((result.task_id, result.output) == (row.task_id, row.output) for result in results)
            require(same, "{} has the output {}, which no child returned", row.node_id, row.output)
