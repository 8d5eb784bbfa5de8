"""The script of a job under test: faults, decisions, signals and skipped time."""

from typing import Any, Self

from dagmaster.errors import Invalid, UnknownHandler, UnknownNode
from dagmaster.handlers import Handler
from dagmaster.model.problems import did_you_mean
from dagmaster.model.workflow import CHILD_SEPARATOR, ApprovalNode, Node, Workflow
from dagmaster.python.tasks import TaskFunction
from dagmaster.testing.clock import TravelClock
from dagmaster.testing.decisions import Verdict
from dagmaster.testing.faults import Fault
from dagmaster.testing.handler_calls import stand_in_for
from dagmaster.testing.stage import Stage

INJECTED = "injected by the test"


class Script:
    """Each method returns the job, so calls can be chained. `draft` is the workflow before handlers are final."""

    def __init__(self, draft: Workflow, stage: Stage) -> None:
        self._draft, self._stage = draft, stage
        self._tasks = {path[1]: task for path, task in draft.tasks()}

    @property
    def clock(self) -> TravelClock:
        return self._stage.clock

    def fail(self, node: str, *, attempt: int | None = 1, error: Fault | None = None) -> Self:
        """Let this attempt raise the error instead of running; `attempt=None` lets all of them."""
        return self._plan(node, attempt, error=error or ConnectionError(INJECTED))

    def delay(self, node: str, seconds: float, *, attempt: int | None = None) -> Self:
        """Delay the start by real time, which counts towards the timeout."""
        if seconds < 0:
            raise Invalid(f"a delay must be 0 seconds or more, not {seconds}")
        return self._plan(node, attempt, delay_seconds=seconds)

    def lose(self, node: str, *, attempt: int | None = 1, after: str | None = None) -> Self:
        """Kill the worker of this attempt: before it does anything, or after the checkpoint `after`."""
        handler = self._handler_of(node)
        if after is not None and handler is not None and handler.isolation == "process":
            raise Invalid(f"node {node!r} runs in its own process; it can be lost only without `after`")
        return self._plan(node, attempt, is_lost=True, lost_after=after)

    def replace(self, handler: str | TaskFunction[..., Any], stand_in: Any) -> Self:
        """Replace a handler or a Python task by a function; any other value becomes the output or the result."""
        name = handler if isinstance(handler, str) else handler.handler
        original = self._stage.handlers.get(name)
        used = {task.handler for task in self._tasks.values()}
        if original is None and name not in used:
            hint = did_you_mean(name, used)
            raise UnknownHandler(f"workflow {self._draft.workflow_id!r} has no node with handler {name!r}{hint}")
        self._stage.handlers[name] = stand_in_for(handler, stand_in, original)
        return self

    def approve(self, node: str, *, by: str | None = None, comment: str | None = None) -> Self:
        """Approve the node when it requests approval, as its first approver unless an actor is named."""
        return self._decide(node, Verdict(True, by, comment))

    def reject(self, node: str, *, by: str | None = None, comment: str | None = None) -> Self:
        return self._decide(node, Verdict(False, by, comment))

    def signal(self, name: str, data: Any = None) -> Self:
        """Send this signal as soon as the job is submitted."""
        self._stage.decisions.signals.setdefault(name, []).append(data)
        return self

    def skip_time(self, **span: float) -> Self:
        """Skip waits, such as retry delays, up to this much in total (`hours=2`)."""
        self.clock.skip_waiting(**span)
        return self

    def _decide(self, node: str, verdict: Verdict) -> Self:
        if not isinstance(self._node(node), ApprovalNode):
            kind = self._node(node).type
            raise Invalid(f"node {node!r} is of type {kind}; only an approval can be approved or rejected")
        self._stage.decisions.verdicts[node] = verdict
        return self

    def _node(self, node: str) -> Node:
        if node not in self._draft.nodes:
            hint = did_you_mean(node, self._draft.nodes)
            raise UnknownNode(f"workflow {self._draft.workflow_id!r} has no node {node!r}{hint}")
        return self._draft.nodes[node]

    def _plan(self, node: str, attempt: int | None, **faults: Any) -> Self:
        self._handler_of(node)
        self._stage.faults.add(node, attempt, **faults)
        return self

    def _handler_of(self, node: str) -> Handler | None:
        """Raises UnknownNode for a node that no worker executes. Nodes that tasks add are not known yet."""
        if "." in node:
            return None
        fan_out, _, index = node.rpartition(CHILD_SEPARATOR)
        name = fan_out if fan_out and index.isdecimal() else node
        kind = self._node(name).type
        task = self._tasks.get(name)
        if task is None:
            raise Invalid(f"node {node!r} is of type {kind}, which no worker executes")
        return self._stage.handlers.get(task.handler)
