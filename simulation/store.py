"""A model of the database: the rows of one job, and the few statements that change them.

It models `commit_batch`, `claim_tasks`, `report_tasks`, `rescue_tasks`, `close_late_mail`, `take_over_jobs` and
`reopen_job`, each as one atomic step. Rows are never changed, only replaced.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from datetime import datetime
from random import Random
from typing import Any, NamedTuple

import orjson

from dagmaster.engine.added_node import read_definition
from dagmaster.engine.change_set import ChangeSet, Event, NewChildJob, Result
from dagmaster.engine.messages import (
    Load,
    ManualRetry,
    Message,
    SignalSent,
    TaskCompleted,
    TaskFailed,
    TaskLost,
    TasksAdded,
    TaskStarted,
)
from dagmaster.engine.state import JobState, NodeState, kept_output, new_job, restore
from dagmaster.engine.values import INPUTS, JobResult, LoadedValues, StoredValue, Value
from dagmaster.errors import Conflict
from dagmaster.ids import JobId
from dagmaster.model.graph import Graph
from dagmaster.model.states import (
    JOB_TERMINAL,
    NODE_IN_FLIGHT,
    EndedBy,
    EventStatus,
    JobEndedBy,
    JobStatus,
    NodeStatus,
    TaskStatus,
)


class OwnershipLost(Conflict):
    """Another owner has the job."""


class RowsDiffer(Conflict):
    """The rows differ from the owner's memory."""


class JobRow(NamedTuple):
    job_id: JobId
    status: JobStatus
    owner_id: str | None
    owner_epoch: int
    created_at: datetime
    started_at: datetime | None = None
    completed_at: datetime | None = None
    error: str | None = None
    failed_node: str | None = None
    ended_by: JobEndedBy | None = None
    deadline_at: datetime | None = None
    result: bytes | None = None
    version: int = 0
    paused_at: datetime | None = None
    paused_by: str | None = None
    resumed_at: datetime | None = None
    idle_seconds: float = 0.0
    signals: tuple[dict[str, Any], ...] = ()


class NodeRow(NamedTuple):
    node_id: str
    status: NodeStatus
    max_retries: int
    task_id: str | None = None
    attempt: int = 0
    parent: str | None = None
    place: int | None = None
    params: bytes | None = None
    output: bytes | None = None
    error: str | None = None
    not_before: datetime | None = None
    dispatched_at: datetime | None = None
    started_at: datetime | None = None
    completed_at: datetime | None = None
    version: int = 0
    queue: str | None = None
    added_by: str | None = None
    definition: bytes | None = None  # only of added nodes
    result_of: str | None = None
    ended_by: EndedBy | None = None


class TaskRow(NamedTuple):
    task_id: str
    node_id: str
    attempt: int
    worker_id: str | None = None
    is_paused: bool = False
    queue: str = ""


# All but these are the same in rows and in memory.
_OF_JOB = {"job_id", "owner_id", "owner_epoch", "created_at", "completed_at", "result", "version", "signals"}
_OF_NODE = {"task_id", "place", "params", "output", "definition", "version"}
JOB_COLUMNS = tuple(name for name in JobRow._fields if name not in _OF_JOB)
NODE_COLUMNS = tuple(name for name in NodeRow._fields if name not in _OF_NODE)


class Store:
    """`sent` is all mail that was ever in the mailbox, for the invariants; the engine never sees it."""

    def __init__(
        self,
        job_id: JobId,
        graph: Graph,
        inputs: Mapping[str, Any],
        owner_id: str,
        now: datetime,
        inline_bytes: int = 65_536,
    ) -> None:
        self.graph = graph
        self.inputs = inputs
        self.inline_bytes = inline_bytes
        self.job = JobRow(job_id, JobStatus.PENDING, owner_id, 1, now)
        fresh = new_job(job_id, graph, inputs, now)
        self.nodes = {
            node.node_id: NodeRow(node.node_id, NodeStatus.PENDING, node.max_retries) for node in fresh.nodes.values()
        }
        self.results: dict[str, Result] = {}
        self.waiting: dict[str, TaskRow] = {}
        self.running: dict[str, TaskRow] = {}
        self.mailbox: dict[int, Message] = {}
        self.events: list[Event] = []
        self.sent: list[Message] = []
        self.active_workers: set[str] = set()
        self.children: dict[str, str] = {}
        self.add_mail(Load())

    @property
    def is_over(self) -> bool:
        return self.job.status in JOB_TERMINAL

    # The owner's side.

    def take_over(self, owner_id: str) -> None:
        self.job = self.job._replace(owner_id=owner_id, owner_epoch=self.job.owner_epoch + 1)

    def reopen(self, owner_id: str, message: ManualRetry) -> None:
        """Give a failed job to an owner, with the retry as mail."""
        self.take_over(owner_id)
        self.add_mail(message)

    def load(self, rng: Random | None = None) -> JobState:
        """Load the job for its owner's memory; the nodes of a pending job are not read."""
        size = len(orjson.dumps(self.inputs))
        inputs = self.inputs if size <= self.inline_bytes else StoredValue(size)
        job = new_job(self.job.job_id, self.graph, inputs, self.job.created_at)
        for name in ("version", "completed_at", *JOB_COLUMNS):
            setattr(job, name, getattr(self.job, name))
        job.signals = list(self.job.signals)
        if job.status is JobStatus.PENDING:
            return job
        rows = list(self.nodes.values())
        if rng is not None:
            rng.shuffle(rows)
        rows.sort(key=lambda row: -1 if row.place is None else row.place)
        restore(job, [self._node_state(row) for row in rows])
        times = [at for row in rows for at in (row.dispatched_at, row.started_at, row.completed_at) if at is not None]
        times += [job.resumed_at] if job.resumed_at is not None else []
        job.last_progress_at = max(times, default=job.started_at)
        return job

    def _node_state(self, row: NodeRow) -> NodeState:
        node = _node_state(row, self.graph)
        node.output = kept_output(node, self.inline_bytes)
        return node

    def load_values(self, names: Collection[str]) -> LoadedValues:
        outputs = {name: self.nodes[name].output for name in names if name != INPUTS}
        stored = {name: output for name, output in outputs.items() if output is not None}
        return LoadedValues(stored, self.inputs if INPUTS in names else None)

    def _read(self, value: Value | None, node_id: str) -> bytes | None:
        """A value, wherever it is stored."""
        if not isinstance(value, StoredValue):
            return value
        if value.mail_id is not None:
            message = self.mailbox[value.mail_id]
            assert isinstance(message, TaskCompleted) and isinstance(message.output, bytes)
            return message.output
        return self.nodes[value.node_id or node_id].output

    def commit(
        self, changes: ChangeSet, owner_id: str, epoch: int, mail: Iterable[int], local: Mapping[str, str]
    ) -> None:
        """Commit all or nothing; `local` are the tasks that a worker in the owner's process claims at once."""
        self.fence(owner_id, epoch)
        job = self._new_job_row(changes)
        nodes = {node.node_id: self._new_node_row(changes, node) for node in changes.touched.values()}
        created = {node.node_id: self._row(changes, node, node.version) for node in changes.created.values()}
        if clash := [node_id for node_id in created if node_id in self.nodes]:
            raise RowsDiffer(f"these nodes exist already: {clash}")
        if clash := [task_id for task_id in changes.dispatches if task_id in self.waiting or task_id in self.running]:
            raise RowsDiffer(f"these tasks are on a queue already: {clash}")
        self.job = job
        self.nodes.update(nodes)
        self.nodes.update(created)
        for task_id, result in changes.results.items():
            output = self._read(result.output, result.node_id)
            self.results.setdefault(task_id, replace(result, output=output))
        for task_id in changes.closed_waiting:
            self.waiting.pop(task_id, None)
        for task_id in changes.closed_running:
            self.running.pop(task_id, None)
        if changes.holds_tasks is not None:
            self.waiting = {
                task_id: row._replace(is_paused=changes.holds_tasks) for task_id, row in self.waiting.items()
            }
        for task_id, dispatch in changes.dispatches.items():
            is_paused = changes.job.is_paused
            node = dispatch.node
            row = TaskRow(task_id, node.node_id, dispatch.attempt, local.get(task_id), is_paused, node.task_queue)
            (self.waiting if row.worker_id is None else self.running)[task_id] = row
        for task_id in changes.cancelled_children:
            self._call_off(task_id, changes.now)
        self.events += changes.events
        for mail_id in mail:
            self.mailbox.pop(mail_id, None)

    def call(self, call: NewChildJob) -> None:
        """Submit a child for a running attempt, unless that was done before."""
        row = self.nodes[call.node_id]
        if row.status is NodeStatus.RUNNING and row.task_id == call.task_id:
            self.children.setdefault(call.task_id, "running")

    def _call_off(self, task_id: str, now: datetime) -> None:
        if self.children.get(task_id) == "running":
            self.children[task_id] = "cancelled"
            node_id = task_id.partition("_")[2].rpartition("_")[0]
            self.add_mail(TaskFailed(node_id, task_id, None, now, f"job of {task_id} was cancelled"))

    def fence(self, owner_id: str, epoch: int) -> None:
        if self.job.owner_id != owner_id or self.job.owner_epoch != epoch:
            raise OwnershipLost

    def _new_job_row(self, changes: ChangeSet) -> JobRow:
        job = changes.job
        if not changes.job_touched:
            return self.job
        may_change = not self.is_over or (changes.reopened and self.job.status is JobStatus.FAILED)
        if job.version != self.job.version or not may_change:
            raise RowsDiffer(f"the job is {self.job.status} in version {self.job.version}, not {job.version}")
        return self.job._replace(
            **{name: getattr(job, name) for name in JOB_COLUMNS},
            completed_at=job.completed_at,
            owner_id=None if job.status in JOB_TERMINAL else self.job.owner_id,
            result=self._result(changes, job.result) if job.result is not None else None,
            version=job.version + 1,
            signals=tuple(job.signals),
        )

    def _result(self, changes: ChangeSet, result: JobResult) -> bytes:
        """Assembled from its parts, some of which are written with it."""
        parts = {}
        for name, part in result.parts.items():
            node = changes.touched.get(part.node_id or "")
            parts[name] = self._read(node.output if node is not None else part, name)
        document = orjson.loads(result.data) | {name: orjson.loads(part or b"null") for name, part in parts.items()}
        return orjson.dumps(document)

    def _row(self, changes: ChangeSet, node: NodeState, version: int) -> NodeRow:
        return NodeRow(
            **{name: getattr(node, name) for name in NODE_COLUMNS},
            task_id=changes.job.task_id(node) if node.dispatched_at else None,
            place=node.index,
            params=node.params,
            output=self._read(node.output, node.node_id),
            definition=node.definition,
            version=version,
        )

    def _new_node_row(self, changes: ChangeSet, node: NodeState) -> NodeRow:
        old = self.nodes.get(node.node_id)
        if old is None or old.version != node.version:
            raise RowsDiffer(f"node {node.node_id} is {old}, not of version {node.version}")
        row = self._row(changes, node, node.version + 1)
        return row._replace(
            params=old.params if row.params is None else row.params,
            queue=row.queue or old.queue,
            definition=row.definition or old.definition,
        )

    # The workers' side.

    def claimable(self) -> list[str]:
        return [task_id for task_id, row in self.waiting.items() if not row.is_paused]

    def claim(self, task_id: str, worker_id: str, now: datetime) -> TaskRow:
        row = self.waiting.pop(task_id)._replace(worker_id=worker_id)
        self.running[task_id] = row
        self.add_mail(TaskStarted(row.node_id, task_id, worker_id, now))
        return row

    def report(self, message: TaskCompleted | TaskFailed | TaskLost) -> None:
        row = self.running.get(message.task_id)
        if row is not None and row.worker_id == message.worker_id:
            del self.running[message.task_id]
        self.add_mail(message)

    def add_nodes(self, message: TasksAdded) -> bool:
        """False if the attempt is over."""
        row = self.nodes[message.node_id or ""]
        if row.task_id != message.task_id or row.status not in NODE_IN_FLIGHT or row.result_of is not None:
            return False
        self.add_mail(message)
        return True

    def rescue(self, now: datetime) -> int:
        """Report the tasks of lost workers to the owner."""
        gone = [row for row in self.running.values() if row.worker_id not in self.active_workers]
        for row in gone:
            del self.running[row.task_id]
            self.add_mail(TaskLost(row.node_id, row.task_id, row.worker_id, now))
        return len(gone)

    def add_mail(self, message: Message) -> None:
        self.sent.append(message)
        self.mailbox[len(self.sent)] = message

    def close_late_mail(self, now: datetime) -> None:
        """Reports for an ended job: stored, noted in the timeline, and removed from the mailbox."""
        for message in self.mailbox.values():
            if isinstance(message, SignalSent):
                self.events.append(Event(self.job.job_id, "signal_received", EventStatus.WARNING, now))
            if not isinstance(message, TaskCompleted | TaskFailed) or message.task_id in self.results:
                continue
            if message.task_id in self.children:
                continue
            if message.task_id.startswith(f"{self.job.job_id}_{message.node_id}_"):
                self.results[message.task_id] = _late_result(self.job.job_id, message)
                self.events.append(Event(self.job.job_id, "result_ignored", EventStatus.WARNING, now, message.node_id))
        self.mailbox.clear()


def settle_versions(changes: ChangeSet) -> None:
    """Update the versions in memory after the commit succeeded."""
    changes.job.version += changes.job_touched
    for node in changes.touched.values():
        node.version += 1
    changes.release()


def _node_state(row: NodeRow, graph: Graph) -> NodeState:
    if row.definition is not None:
        node = read_definition(row.node_id, row.definition, row.added_by)
    else:
        spec = graph.nodes[row.parent or row.node_id]
        node = NodeState(row.node_id, spec, row.max_retries, index=row.place)
    for name in ("output", "version", *NODE_COLUMNS):
        setattr(node, name, getattr(row, name))
    node.has_params = row.params is not None
    return node


def _late_result(job_id: JobId, message: TaskCompleted | TaskFailed) -> Result:
    completed = isinstance(message, TaskCompleted)
    return Result(
        message.task_id,
        job_id,
        message.node_id,
        TaskStatus.COMPLETED if completed else TaskStatus.FAILED,
        message.worker_id,
        message.output if isinstance(message, TaskCompleted) else None,
        message.error if isinstance(message, TaskFailed) else None,
        message.duration_ms,
        message.at,
    )
