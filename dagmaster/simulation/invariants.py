"""What must hold after every step, seen on the rows alone, and what must hold when all is over."""

from collections import Counter
from datetime import datetime

import orjson

from dagmaster.engine.messages import Message, TaskCompleted, TaskFailed, TaskLost
from dagmaster.engine.turn import Event
from dagmaster.model.retry import RetryPolicy
from dagmaster.model.states import (
    JOB_MOVES,
    JOB_TERMINAL,
    NODE_IN_FLIGHT,
    NODE_MOVES,
    NODE_TERMINAL,
    JobStatus,
    NodeStatus,
    TaskStatus,
)
from dagmaster.model.workflow import ChildTask, EndNode, FanOutNode, StartNode, TaskNode
from dagmaster.simulation.cases import parent_of
from dagmaster.simulation.forging import FORGER
from dagmaster.simulation.ground import INTERFERING, JOB_ID, Fault, Ground, Violation
from dagmaster.simulation.oracle import Oracle, foresee
from dagmaster.simulation.store import NodeRow

NODE_MOVE = {move.event: move for move in NODE_MOVES}
JOB_MOVE = {move.event: move for move in JOB_MOVES}


class Watch:
    """Follows the timeline event by event and compares it with the rows, the plan and the oracle."""

    def __init__(self, ground: Ground) -> None:
        self.oracle: Oracle = foresee(ground.case)
        self.timeouts = 0
        self._ground = ground
        self._job = ground.store.job
        self._rows: dict[str, NodeRow] = dict(ground.store.nodes)
        self._status: dict[str, NodeStatus] = dict.fromkeys(ground.store.nodes, NodeStatus.PENDING)
        self._job_status = JobStatus.PENDING
        self._attempt: Counter[str] = Counter()
        self._not_before: dict[str, datetime] = {}
        self._began: dict[str, datetime] = {}
        self._dispatched: set[str] = set()
        self._heard = 0
        self._executed = set(ground.case.plans)

    def look(self) -> None:
        """After a step."""
        store = self._ground.store
        fresh, self._heard = store.events[self._heard :], len(store.events)
        moved = {event.node_id for event in fresh if self._follow(event)}
        self._check_job()
        changed = [row for node_id, row in store.nodes.items() if row is not self._rows.get(node_id)]
        for row in changed:
            self._check_row(row, moved)
        self._check_tasks()
        if changed and not store.is_over:
            self._check_progress()

    def open_nodes(self) -> str:
        rows = self._ground.store.nodes.values()
        return ", ".join(f"{row.node_id} ({row.status})" for row in rows if row.status not in NODE_TERMINAL)

    # The timeline.

    def _follow(self, event: Event) -> bool:
        """Whether the event moved a node."""
        if event.event_type in JOB_MOVE:
            move = JOB_MOVE[event.event_type]
            require(self._job_status in move.sources, f"{event.event_type} while the job is {self._job_status}")
            self._job_status = move.target
        if event.event_type not in NODE_MOVE or event.node_id is None:
            return False
        node_id, step = event.node_id, NODE_MOVE[event.event_type]
        was = self._status.get(node_id, NodeStatus.PENDING)
        require(was in step.sources, f"{event.event_type} while {node_id} is {was}")
        require(self._job_status not in JOB_TERMINAL, f"{event.event_type} of {node_id} after the job had ended")
        self._check_move(node_id, event)
        self._status[node_id] = step.target
        if parent_of(node_id) is not None and step.target is NodeStatus.DISPATCHED:
            self._check_parallel(node_id)
        return True

    def _check_move(self, node_id: str, event: Event) -> None:
        match event.event_type:
            case "node_ready":
                self._check_ready(node_id)
            case "node_skipped":
                self._check_skipped(node_id, event)
            case "node_dispatched":
                self._check_dispatched(node_id, event)
            case "node_started":
                self._began[node_id] = event.created_at
            case "node_failed":
                self._check_failed(node_id, event)
            case "node_retrying":
                self._check_retrying(node_id, event)
            case _:
                pass

    def _check_ready(self, node_id: str) -> None:
        parent = parent_of(node_id)
        if parent is None:
            ready = self.oracle.may_become_ready(node_id, self._status)
            require(ready, f"{node_id} is ready before its dependencies allow it")
            return
        require(self._status[parent] is NodeStatus.RUNNING, f"{node_id} is made while {parent} does not run")
        require(node_id in self.oracle.children(parent), f"{node_id} is no child of {parent}")

    def _check_skipped(self, node_id: str, event: Event) -> None:
        reason = (event.event_data or {}).get("reason")
        if reason == "conditional_branch_not_taken":
            dead = self.oracle.may_be_skipped(node_id, self._status)
            require(dead, f"{node_id} is skipped although something may still lead to it")
            return
        ended = {"job_failed": JobStatus.FAILED, "job_cancelled": JobStatus.CANCELLED}.get(str(reason))
        require(self._ground.store.job.status is ended, f"{node_id} is skipped for {reason}")

    def _check_dispatched(self, node_id: str, event: Event) -> None:
        require(self._job_status is JobStatus.RUNNING, f"{node_id} is dispatched while the job does not run")
        task_id = f"{JOB_ID}_{node_id}_{self._attempt[node_id]}"
        require(event.task_id == task_id, f"{node_id} is dispatched as {event.task_id}, not as {task_id}")
        require(task_id not in self._dispatched, f"{task_id} is dispatched twice")
        self._dispatched.add(task_id)
        self._began[node_id] = event.created_at
        due = self._not_before.pop(node_id, event.created_at)
        require(event.created_at >= due, f"{node_id} is dispatched before its back-off is over")

    def _check_parallel(self, child: str) -> None:
        parent = parent_of(child)
        node = self._ground.case.blueprint.workflow.nodes[str(parent)]
        assert isinstance(node, FanOutNode)
        if node.max_parallel is not None:
            in_flight = sum(self._status.get(one) in NODE_IN_FLIGHT for one in self.oracle.children(str(parent)))
            require(in_flight <= node.max_parallel, f"{in_flight} children of {parent} are in flight")

    def _check_failed(self, node_id: str, event: Event) -> None:
        """A timeout has run its time, by the clock that counts in that state (ruling C-32)."""
        data = event.event_data or {}
        if (kind := data.get("timeout")) is None:
            return
        self.timeouts += 1
        waited = (event.created_at - self._began[node_id]).total_seconds()
        limit = self._task(node_id).timeout_seconds or 3600
        if kind == "dispatch":
            limit = self._ground.rules.dispatch_timeout_seconds or max(limit, 1800)
        require(waited >= limit, f"{node_id} timed out ({kind}) after {waited} s of {limit} s")

    def _check_retrying(self, node_id: str, event: Event) -> None:
        data = event.event_data or {}
        self._attempt[node_id] += 1
        attempt, allowed = self._attempt[node_id], self._policy(node_id).max_attempts + self._given_back(node_id)
        require(data.get("attempt") == attempt, f"{node_id} retries as {data.get('attempt')}, not as {attempt}")
        require(attempt <= allowed, f"{node_id} is tried for the {attempt}th time again, {allowed} are allowed")
        if (not_before := data.get("not_before")) is not None:
            self._not_before[node_id] = not_before

    def _given_back(self, node_id: str) -> int:
        return len({task_id for message in self._ground.store.sent if (task_id := _gift(message, node_id))})

    # The rows.

    def _check_job(self) -> None:
        job, before = self._ground.store.job, self._job
        self._job = job
        require(job.status is self._job_status, f"the job is {job.status}, its timeline says {self._job_status}")
        if job is before:
            return
        require(before.status not in JOB_TERMINAL, f"the job had ended: {before}, now {job}")
        if job.status in JOB_TERMINAL:
            self._check_end()

    def _check_row(self, row: NodeRow, moved: set[str | None]) -> None:
        node_id, before = row.node_id, self._rows.get(row.node_id)
        self._rows[node_id] = row
        status = self._status.get(node_id)
        require(node_id in moved, f"{node_id} changed and the timeline does not say so: {before}, now {row}")
        require(row.status is status, f"{node_id} is {row.status}, its timeline says {status}")
        require(before is None or before.status not in NODE_TERMINAL, f"{node_id} had ended: {before}, now {row}")
        require(row.attempt == self._attempt[node_id], f"{node_id} is in attempt {row.attempt}")
        self._check_identity(row)
        if row.status is NodeStatus.COMPLETED:
            self._check_completed(row)

    def _check_identity(self, row: NodeRow) -> None:
        parent = parent_of(row.node_id)
        index = None if parent is None else int(row.node_id.rpartition("__")[2])
        same = (row.parent, row.place) == (parent, index)
        require(same, f"{row.node_id} says it is child {row.place} of {row.parent}")
        task_id = f"{JOB_ID}_{row.node_id}_{row.attempt}"
        require(row.task_id in (None, task_id), f"{row.node_id} has the task {row.task_id}")
        extra = row.max_retries - self._policy(row.node_id).max_attempts
        require(0 <= extra <= self._given_back(row.node_id), f"{row.node_id} has {extra} retries too many")

    def _check_completed(self, row: NodeRow) -> None:
        """Its output is the one that was reported under its task, and the one that was planned."""
        output = orjson.loads(row.output or b"null")
        if row.node_id in self._executed:
            result = self._ground.store.results.get(row.task_id or "")
            accepted = result is not None and result.status is TaskStatus.COMPLETED and result.output == row.output
            require(accepted, f"{row.node_id} completed with {row.output!r}, reported was {result}")
        fan_out = self._ground.case.items.get(row.node_id)
        if fan_out is not None:
            made = [one for one in self._ground.store.nodes if parent_of(one) == row.node_id]
            require(made == self.oracle.children(row.node_id), f"the children of {row.node_id} are {made}")
            require(output["fan_out_count"] == len(made), f"{row.node_id} counts {output}")
        elif row.node_id in self._executed or self._is_fan_in(row.node_id):
            expected = self.oracle.output(row.node_id)
            require(output == expected, f"{row.node_id} completed with {output}, expected was {expected}")

    def _is_fan_in(self, node_id: str) -> bool:
        node = self._ground.case.blueprint.workflow.nodes.get(node_id)
        return node is not None and node.type == "fan_in"

    def _check_tasks(self) -> None:
        """Each task on a queue or with a worker is the current attempt of a node in flight; none is left at the end."""
        store = self._ground.store
        for task_id, task in (*store.waiting.items(), *store.running.items()):
            require(not store.is_over, f"{task_id} is still to be done although the job has ended")
            row = store.nodes[task.node_id]
            current = row.status in NODE_IN_FLIGHT and row.task_id == task_id
            require(current, f"{task_id} is still to be done although {task.node_id} is {row}")

    def _check_progress(self) -> None:
        """Nothing stands still that could go on."""
        for node_id, row in self._ground.store.nodes.items():
            if row.status is NodeStatus.PENDING:
                stuck = self.oracle.must_move(node_id, self._status)
                require(not stuck, f"{node_id} waits although all that it waits for is decided")
            elif row.status is NodeStatus.READY and row.not_before is None:
                require(self._is_held_back(row), f"{node_id} is ready and does not start")

    def _is_held_back(self, row: NodeRow) -> bool:
        node = self._ground.case.blueprint.workflow.nodes[row.parent or row.node_id]
        if row.parent is None or not isinstance(node, FanOutNode) or node.max_parallel is None:
            return False
        children = self.oracle.children(row.parent)
        return sum(self._status.get(one) in NODE_IN_FLIGHT for one in children) >= node.max_parallel

    # The end.

    def _check_end(self) -> None:
        store = self._ground.store
        require(self.open_nodes() == "", f"the job has ended, open are {self.open_nodes()}")
        match store.job.status:
            case JobStatus.COMPLETED:
                self._check_success()
            case JobStatus.FAILED:
                self._check_failure()
            case _:
                require(self._ground.faults[Fault.CANCEL] > 0, "the job was cancelled, nobody asked for it")

    def _check_success(self) -> None:
        store, expected = self._ground.store, self.oracle.expected
        require(not self.oracle.doomed, f"the job completed although {self.oracle.doomed} can never succeed")
        ends = {node_id: row.status for node_id, row in store.nodes.items()}
        wrong = {node_id: status for node_id, status in ends.items() if expected.get(node_id) is not status}
        require(not wrong, f"the job completed, these ended otherwise than they should: {wrong}")
        result = orjson.loads(store.job.result or b"{}")
        keys = {
            node_id for node_id, status in expected.items() if status is NodeStatus.COMPLETED and self._shows(node_id)
        }
        require(result.keys() == keys | {"_provenance"}, f"the result has {sorted(result)}, not {sorted(keys)}")
        for node_id in keys:
            same = result[node_id] == orjson.loads(store.nodes[node_id].output or b"null")
            require(same, f"the result of {node_id} is {result[node_id]}")

    def _shows(self, node_id: str) -> bool:
        """Whether its output belongs into the job's result: not of start and end, not of children."""
        node = self._ground.case.blueprint.workflow.nodes.get(node_id)
        return node is not None and not isinstance(node, StartNode | EndNode)

    def _check_failure(self) -> None:
        """Something could not succeed, or attempts were used up by faults, or nothing moved for too long."""
        error = str(self._ground.store.job.error)
        if error.startswith("Timeout: no progress"):
            patient = self._ground.rules.zombie_after_seconds > 10**9
            require(not patient, "the job stood still until it was given up")
            return
        culprit = error.removeprefix("node ").partition(" failed")[0]
        row = self._ground.store.nodes.get(culprit)
        require(row is not None and row.status is NodeStatus.FAILED, f"the job failed without a node: {error}")
        assert row is not None
        plan = self._ground.case.plans.get(culprit)
        spent = row.attempt >= row.max_retries or (plan is not None and plan.permanent)
        require(spent, f"{culprit} could have been tried again: {row}")
        planned = culprit in self.oracle.doomed or parent_of(culprit) in self.oracle.doomed
        unlucky = self.timeouts > 0 or any(self._ground.faults[fault] for fault in INTERFERING)
        require(planned or unlucky, f"the job failed although everything could succeed: {error}")

    def last_look(self) -> None:
        """When nothing happens any more: the job has ended, and every report was kept."""
        store = self._ground.store
        require(store.is_over, f"the job never ended; open are {self.open_nodes()}")
        require(not store.mailbox, f"mail is left over: {store.mailbox}")
        for message in store.sent:
            if isinstance(message, TaskCompleted | TaskFailed) and message.worker_id != FORGER:
                require(message.task_id in store.results, f"the report {message} was not kept")

    # What the policy says.

    def _task(self, node_id: str) -> ChildTask:
        node = self._ground.case.blueprint.workflow.nodes[parent_of(node_id) or node_id]
        assert isinstance(node, TaskNode | FanOutNode)
        return node.task if isinstance(node, FanOutNode) else node

    def _policy(self, node_id: str) -> RetryPolicy:
        node = self._ground.case.blueprint.workflow.nodes[parent_of(node_id) or node_id]
        if isinstance(node, FanOutNode) and parent_of(node_id):
            return node.task.retry or RetryPolicy()
        return getattr(node, "retry", None) or RetryPolicy()


def _gift(message: Message, node_id: str) -> str | None:
    """The task that was given back, if it was one of this node."""
    if isinstance(message, TaskLost) and message.given_back and message.worker_id != FORGER:
        return message.task_id if message.node_id == node_id else None
    return None


def require(holds: bool, otherwise: str, *values: object) -> None:
    """The text is put together only when it is needed."""
    if not holds:
        raise Violation(otherwise.format(*values))
