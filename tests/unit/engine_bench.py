"""A test bench for one job: send messages and inspect the effects. Each change set is written and read back."""

import heapq
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import orjson

from dagmaster.engine.change_set import ChangeSet, Rules
from dagmaster.engine.decide import decide
from dagmaster.engine.messages import (
    Cancel,
    Load,
    ManualRetry,
    Message,
    Pause,
    QueueOpened,
    Resume,
    TaskCompleted,
    TaskFailed,
    TaskLost,
    TaskStarted,
    TimerDue,
)
from dagmaster.ids import JobId
from dagmaster.model.compile import compile_graph
from dagmaster.model.retry import RetryPolicy
from dagmaster.model.states import JobStatus, NodeStatus
from dagmaster.model.workflow import (
    Branch,
    ChildTask,
    ConditionalNode,
    DependsOn,
    EndNode,
    FanInNode,
    FanOutNode,
    InputSpec,
    InputType,
    Node,
    StartNode,
    TaskNode,
    Workflow,
)
from simulation.compare import difference
from simulation.store import Store, settle_versions

JOB = JobId(42)
OWNER = "owner"
START = datetime(2030, 1, 1, tzinfo=UTC)
NO_RETRY = RetryPolicy(max_attempts=0)
AT_ONCE = RetryPolicy(max_attempts=3, initial_delay_seconds=0)


def after(*all_of: str, any_of: tuple[str, ...] = ()) -> DependsOn | None:
    return DependsOn(all_of=all_of, any_of=any_of) if all_of or any_of else None


def task(*all_of: str, any_of: tuple[str, ...] = (), **fields: Any) -> TaskNode:
    return TaskNode(handler="work", queue="tasks", depends_on=after(*all_of, any_of=any_of), **fields)


def choose(subject: str, *all_of: str, **branches: tuple[str, ...]) -> ConditionalNode:
    """`is_3=("a",)` is the branch to `a` for the value 3; `default=("b",)` the one for everything else."""
    return ConditionalNode(
        subject=subject,
        depends_on=after(*all_of),
        retry=NO_RETRY,
        branches=tuple(
            Branch(name=name, when=f"== {name.removeprefix('is_')}" if name != "default" else None, next=targets)
            for name, targets in branches.items()
        ),
    )


def fan_out(source: Any, *all_of: str, **fields: Any) -> FanOutNode:
    child = {"params": {"item": "{{ item }}"}, "retry": NO_RETRY, "timeout_seconds": 100} | fields.pop("child", {})
    return FanOutNode(
        source=source,
        task=ChildTask(handler="work", queue="tasks", **child),
        depends_on=after(*all_of),
        retry=fields.pop("retry", NO_RETRY),
        **fields,
    )


def fan_in(source: str, **fields: Any) -> FanInNode:
    return FanInNode(depends_on=after(source), retry=fields.pop("retry", NO_RETRY), **fields)


def end(*all_of: str, any_of: tuple[str, ...] = ()) -> EndNode:
    return EndNode(depends_on=after(*all_of, any_of=any_of))


class Bench:
    """`start` is added to the nodes; whatever depends on nothing depends on it. `expands` is for the next slices.

    `chains` are the heads of the chains that run last, by their key.
    """

    def __init__(
        self,
        inputs: Mapping[str, Any] | None = None,
        rules: Rules | None = None,
        chains: Mapping[str, tuple[str, ...]] | None = None,
        **nodes: Node,
    ) -> None:
        self.rules = rules or Rules()
        self.closed_queues: set[str] = set()
        self.now = START
        self.expands = True
        graph = compile_graph(_workflow(dict(inputs or {}), nodes, dict(chains or {})))
        self.store = Store(JOB, graph, dict(inputs or {}), OWNER, self.now)
        self.job = self.store.load()
        self.changes = ChangeSet(self.job, self.now, self.rules)
        self.timers: list[tuple[datetime, int, TimerDue]] = []
        self._armed = 0

    # Messages.

    def start(self) -> "Bench":
        self.send(Load())
        return self

    def send(self, *messages: Message) -> ChangeSet:
        """One change set, written as the owner writes it; afterwards rows and memory must agree."""
        self.changes = changes = decide(self.job, messages, self.now, self.rules, None, self.closed_queues)
        if self.store.is_over and not changes.reopened:
            self._keep_late(changes)
        else:
            self.store.commit(changes, OWNER, self.store.job.owner_epoch, [], {})
        settle_versions(changes)
        for timer in changes.timers:
            self._armed += 1
            heapq.heappush(self.timers, (timer.at, self._armed, TimerDue(timer.kind, timer.node_id, timer.attempt)))
        if not changes.is_over:
            assert difference(self.job, self.store.load()) is None
        if changes.follow_ups and self.expands:
            self.send(*changes.follow_ups)
        return changes

    def _keep_late(self, changes: ChangeSet) -> None:
        """The owner has released an ended job; only late mail is recorded."""
        assert not changes.touched and not changes.created and not changes.dispatches and not changes.job_touched
        self.store.events += changes.events
        for task_id, result in changes.results.items():
            self.store.results.setdefault(task_id, result)

    def begin(self, node_id: str, task_id: str | None = None) -> ChangeSet:
        """A worker claims it from the queue."""
        task_id = task_id or self.task_id(node_id)
        if task_id in self.store.waiting:
            self.store.claim(task_id, "worker", self.now)
        return self.send(TaskStarted(node_id, task_id, "worker", self.now))

    def complete(self, node_id: str, output: Any = None, task_id: str | None = None) -> ChangeSet:
        return self.send(self.completed(node_id, output, task_id))

    def completed(self, node_id: str, output: Any = None, task_id: str | None = None) -> TaskCompleted:
        encoded = orjson.dumps({} if output is None else output)
        return TaskCompleted(node_id, task_id or self.task_id(node_id), "worker", self.now, encoded, 5)

    def fail(self, node_id: str, error: str = "no luck", **fields: Any) -> ChangeSet:
        task_id = fields.pop("task_id", None) or self.task_id(node_id)
        return self.send(TaskFailed(node_id, task_id, "worker", self.now, error, **fields))

    def lose(self, node_id: str, **fields: Any) -> ChangeSet:
        task_id = fields.pop("task_id", None) or self.task_id(node_id)
        return self.send(TaskLost(node_id, task_id, "worker", self.now, **fields))

    def cancel(self) -> ChangeSet:
        return self.send(Cancel("ann", "changed my mind"))

    def pause(self) -> ChangeSet:
        return self.send(Pause("ann"))

    def unpause(self) -> ChangeSet:
        return self.send(Resume("bob"))

    def retry(self, node_id: str | None = None, *, only: frozenset[str] | None = None) -> ChangeSet:
        """A manual retry. An ended job is given to an owner, who loads it from the rows."""
        message = ManualRetry(node_id, "ann", only)
        if not self.store.is_over:
            return self.send(message)
        self.store.reopen(OWNER, message)
        self.job = self.store.load()
        self.timers = []
        return self.send(Load(), message)

    def close_queue(self, queue: str = "tasks") -> "Bench":
        self.closed_queues.add(queue)
        return self

    def open_queue(self, queue: str = "tasks") -> ChangeSet:
        self.closed_queues.discard(queue)
        return self.send(QueueOpened(queue))

    def wait(self, seconds: float) -> None:
        """Let time pass; fire the timers that expire, all of them late."""
        self.now += timedelta(seconds=seconds)
        while self.timers and self.timers[0][0] <= self.now:
            self.send(heapq.heappop(self.timers)[2])

    def restart(self) -> None:
        """The owner is gone; another one loads the rows."""
        self.job = self.store.load()
        self.timers = []
        self.send(Load())

    # State.

    @property
    def status(self) -> JobStatus:
        return self.store.job.status

    @property
    def error(self) -> str | None:
        return self.store.job.error

    @property
    def result(self) -> dict[str, Any]:
        value: dict[str, Any] = orjson.loads(self.store.job.result or b"{}")
        return value

    @property
    def waiting(self) -> list[str]:
        """The queued tasks."""
        return list(self.store.waiting)

    def task_id(self, node_id: str) -> str:
        return f"{JOB}_{node_id}_{self.store.nodes[node_id].attempt}"

    def of(self, node_id: str) -> NodeStatus:
        return self.store.nodes[node_id].status

    def output(self, node_id: str) -> Any:
        return orjson.loads(self.store.nodes[node_id].output or b"null")

    def params(self, node_id: str) -> Any:
        return orjson.loads(self.store.nodes[node_id].params or b"null")

    def in_state(self, *statuses: NodeStatus) -> set[str]:
        return {row.node_id for row in self.store.nodes.values() if row.status in statuses}

    def events(self, node_id: str | None = None) -> list[str]:
        """`node move` for each event, oldest first; of one node, or of all."""
        names = [(event.node_id or "job", event.event_type.partition("_")[2]) for event in self.store.events]
        return [f"{name} {move}" if node_id is None else move for name, move in names if node_id in (None, name)]

    def data(self, node_id: str | None, event_type: str) -> Mapping[str, Any]:
        """The data of the latest such event."""
        events = [e for e in self.store.events if e.node_id == node_id and e.event_type == event_type]
        return events[-1].event_data or {}


def _workflow(inputs: Mapping[str, Any], nodes: Mapping[str, Node], chains: Mapping[str, tuple[str, ...]]) -> Workflow:
    branched = {
        target
        for node in nodes.values()
        if isinstance(node, ConditionalNode)
        for branch in node.branches
        for target in branch.next
    }
    linked = branched | {target for node in nodes.values() for target in node.next}
    linked |= {head for heads in chains.values() for head in heads}
    loose = [name for name, node in nodes.items() if not node.depends_on and name not in linked]
    return Workflow(
        workflow_id="bench",
        name="bench",
        version=7,
        inputs={name: InputSpec(type=_type_of(value)) for name, value in inputs.items()},
        nodes={"start": StartNode(next=tuple(loose)), **nodes},
        **chains,
    )


def _type_of(value: Any) -> InputType:
    kinds = {bool: InputType.BOOLEAN, int: InputType.INTEGER, list: InputType.ARRAY, dict: InputType.OBJECT}
    return kinds.get(type(value), InputType.STRING)
