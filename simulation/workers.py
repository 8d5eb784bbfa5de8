"""Workers: they claim, execute the plan, and report late, twice, in any order, or never."""

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field

import orjson

from dagmaster.engine.messages import Report, TaskCompleted, TaskFailed, TaskLost, TasksAdded, TaskStarted
from dagmaster.model.added_nodes import RESULT_OF, AddedNode
from dagmaster.model.states import NodeStatus
from dagmaster.model.workflow import CHILD_SEPARATOR
from simulation.cases import output_of
from simulation.ground import JOB_ID, Fault, Ground
from simulation.store import TaskRow

# Messages of handlers must never be mistaken for the engine's.
HOSTILE = (
    "planned failure of attempt {attempt}",
    "withdrawn: job_failed",
    "withdrawn: job_cancelled",
    "stopped because the job failed",
    "worker {worker} was lost",
    "worker {worker} gave it back",
    "node {node} failed: Timeout: no progress for 24 hours",
    "Timeout: no progress",
    "timed out after 1 s",
    "the added nodes were refused: no",
    "",
)

TOOK_MS = 5
"""The duration of each task, as its worker measures it."""

FORGER = "forger"
LIE = b'{"value":"forged"}'
NEVER = 50
"""An attempt that no node ever reaches."""


@dataclass(slots=True, eq=False)
class Worker:
    name: str
    tasks: dict[str, TaskRow] = field(default_factory=dict)
    hung: set[str] = field(default_factory=set)
    added: Counter[str] = field(default_factory=Counter)  # how many slices of nodes, by task

    def hold(self, row: TaskRow) -> None:
        self.tasks[row.task_id] = row

    def drop(self, task_id: str) -> None:
        self.tasks.pop(task_id, None)
        self.hung.discard(task_id)
        self.added.pop(task_id, None)

    def drop_revoked(self, running: Collection[str]) -> bool:
        revoked = [task_id for task_id in self.tasks if task_id not in running]
        for task_id in revoked:
            self.drop(task_id)
        return bool(revoked)

    def workable(self) -> list[TaskRow]:
        return [row for task_id, row in self.tasks.items() if task_id not in self.hung]


def slices_left(ground: Ground, worker: Worker, row: TaskRow) -> Sequence[tuple[AddedNode, ...]]:
    """The slices that the attempt must still add before it may end."""
    addition = ground.case.additions.get(row.node_id)
    if addition is None:
        return ()
    return addition.due(row.attempt, ground.case.plans[row.node_id].failures)[worker.added[row.task_id] :]


def add_slice(ground: Ground, workers: Iterable[Worker]) -> bool:
    """A worker stores the next slice of a task, perhaps twice, because the response may be lost."""
    adding = [(worker, row) for worker in workers for row in worker.workable() if slices_left(ground, worker, row)]
    if not adding:
        return False
    worker, row = ground.rng.choice(adding)
    message = TasksAdded(row.node_id, row.task_id, worker.name, ground.now, slices_left(ground, worker, row)[0])
    if not ground.store.add_nodes(message):
        worker.drop(row.task_id)
        ground.note(f"{worker.name} is told that {row.task_id} is over")
        return True
    if ground.strikes(Fault.DUPLICATE):
        ground.store.add_nodes(message)
    worker.added[row.task_id] += 1
    ground.note(f"{worker.name} adds {', '.join(node.node_id for node in message.nodes)}")
    return True


def endable(ground: Ground, worker: Worker) -> list[TaskRow]:
    return [row for row in worker.workable() if not slices_left(ground, worker, row)]


def execute(ground: Ground, worker: Worker, row: TaskRow) -> Report:
    """Execute the task as planned; the same attempt always ends the same way."""
    worker.drop(row.task_id)
    plan = ground.case.plans[row.node_id]
    if row.attempt < plan.failures:
        error = HOSTILE[(plan.value + row.attempt) % len(HOSTILE)]
        return TaskFailed(
            row.node_id,
            row.task_id,
            worker.name,
            ground.now,
            error.format(attempt=row.attempt, worker=worker.name, node=row.node_id),
            plan.permanent,
            plan.retry_after_seconds,
            TOOK_MS,
            plan.error,
        )
    params = orjson.loads(ground.store.nodes[row.node_id].params or b"null")
    addition = ground.case.additions.get(row.node_id)
    source = addition.result_of if addition is not None else None
    output = orjson.dumps(output_of(plan, params) if source is None else {RESULT_OF: source})
    return TaskCompleted(row.node_id, row.task_id, worker.name, ground.now, output, TOOK_MS)


class Remote:
    """The workers outside of any owner's process, and their reports in transit."""

    def __init__(self, ground: Ground, count: int) -> None:
        self._ground = ground
        self._made = 0
        self.workers: list[Worker] = []
        self.given_up: list[Worker] = []
        self.flights: list[Report] = []
        for _ in range(count):
            self._hire()

    def _hire(self) -> None:
        self._made += 1
        worker = Worker(f"worker-{self._made}")
        self.workers.append(worker)
        self._ground.store.active_workers.add(worker.name)

    def claim(self) -> bool:
        ground = self._ground
        claimable = ground.store.claimable()
        if not claimable:
            return False
        worker = ground.rng.choice(self.workers)
        task_id = ground.rng.choice(claimable)
        worker.hold(ground.store.claim(task_id, worker.name, ground.now))
        if ground.strikes(Fault.HANG):
            worker.hung.add(task_id)
        ground.note(f"{worker.name} claims {task_id}{' and hangs' if task_id in worker.hung else ''}")
        return True

    def work(self) -> bool:
        """A worker ends a task; lost workers do not know that they are lost and continue."""
        everybody = (*self.workers, *self.given_up)
        ready = [(worker, row) for worker in everybody for row in endable(self._ground, worker)]
        if not ready:
            return False
        worker, row = self._ground.rng.choice(ready)
        if self._ground.strikes(Fault.GIVE_BACK):
            worker.drop(row.task_id)
            self.flights.append(TaskLost(row.node_id, row.task_id, worker.name, self._ground.now, given_back=True))
            self._ground.note(f"{worker.name} gives back {row.task_id}")
            return True
        report = execute(self._ground, worker, row)
        self._ground.note(f"{worker.name} ends {row.task_id}")
        if worker in self.workers and self._ground.strikes(Fault.LOST_REPORT):
            self._dismiss(worker)
            self._ground.note(f"{worker.name} dies before it reports")
            return True
        self.flights.append(report)
        return True

    def add(self) -> bool:
        return add_slice(self._ground, (*self.workers, *self.given_up))

    def arrive(self) -> bool:
        """A report in transit reaches the mailbox, perhaps not for the last time."""
        if not self.flights:
            return False
        report = self.flights.pop(self._ground.rng.randrange(len(self.flights)))
        if self._ground.strikes(Fault.DUPLICATE):
            self.flights.append(report)
        self._ground.store.report(report)
        self._ground.note(f"{type(report).__name__} of {report.task_id} arrives")
        return True

    def watch(self) -> bool:
        """Stop revoked tasks."""
        running = self._ground.store.running
        stopped = [worker.drop_revoked(running) for worker in (*self.workers, *self.given_up)]
        return any(stopped)

    def lose_one(self) -> bool:
        """A worker dies, or is declared lost while it keeps running."""
        ground = self._ground
        if ground.strikes(Fault.WORKER_DEATH):
            worker = self._dismiss(ground.rng.choice(self.workers))
            ground.note(f"{worker.name} dies")
            return True
        if ground.strikes(Fault.PARTITION):
            worker = self._dismiss(ground.rng.choice(self.workers))
            ground.note(f"{worker.name} is declared lost")
            self.given_up.append(worker)
            return True
        return False

    def _dismiss(self, worker: Worker) -> Worker:
        """Another worker takes its place. Its sent reports stay in transit."""
        self.workers.remove(worker)
        self._ground.store.active_workers.discard(worker.name)
        self._hire()
        return worker

    def rescue(self) -> bool:
        rescued = self._ground.store.rescue(self._ground.now)
        if rescued:
            self._ground.note(f"{rescued} tasks of lost workers are rescued")
        return bool(rescued)


def forge(ground: Ground) -> Report | TaskStarted | TasksAdded:
    """A report that the engine must ignore."""
    rng, now = ground.rng, ground.now
    node_id, task_id = _false_name(ground)
    return rng.choice(
        (
            TaskCompleted(node_id, task_id, FORGER, now, LIE, 1),
            TaskFailed(node_id, task_id, FORGER, now, "forged", permanent=True),
            TaskLost(node_id, task_id, FORGER, now, given_back=rng.random() < 0.5),
            TaskStarted(node_id, task_id, FORGER, now),
            TasksAdded(node_id, task_id, FORGER, now, (AddedNode(f"{node_id}.forged", "work"),)),
        )
    )


def _false_name(ground: Ground) -> tuple[str, str]:
    """A wrong attempt, a wrong node, a wrong job, or a node that no worker executes."""
    nodes, rng = ground.store.nodes, ground.rng
    under_way = [row for row in nodes.values() if row.status is NodeStatus.RUNNING and row.node_id in ground.case.items]
    if under_way and rng.random() < 0.5:
        return under_way[0].node_id, f"{JOB_ID}_{under_way[0].node_id}_{under_way[0].attempt}"
    node_id, other = rng.sample(list(nodes), 2)
    attempt = nodes[node_id].attempt
    engine_node = rng.choice([name for name in nodes if name not in ground.case.plans])
    return rng.choice(
        (
            (node_id, f"{JOB_ID}_{node_id}_{attempt + NEVER}"),
            (node_id, f"{JOB_ID}_{node_id}_-1"),
            (node_id, f"{JOB_ID}_{node_id}"),
            (node_id, f"{JOB_ID}_{other}_{nodes[other].attempt}"),
            (node_id, f"{JOB_ID + 1}_{node_id}_{attempt}"),
            (node_id, f"{JOB_ID}_{node_id}{CHILD_SEPARATOR}0_0"),
            ("ghost", f"{JOB_ID}_ghost_0"),
            (f"{node_id}{CHILD_SEPARATOR}99", f"{JOB_ID}_{node_id}{CHILD_SEPARATOR}99_0"),
            (engine_node, f"{JOB_ID}_{engine_node}_{nodes[engine_node].attempt}"),
        )
    )
