"""Invariants that must hold after every step, at the end of the job and at rest, checked on the rows alone."""

import orjson

from dagmaster.engine.messages import TaskCompleted, TaskFailed
from dagmaster.model.added_nodes import RESULT_OF
from dagmaster.model.states import (
    ENDED_WITH_JOB,
    JOB_TERMINAL,
    NODE_IN_FLIGHT,
    NODE_TERMINAL,
    JobEndedBy,
    JobStatus,
    NodeStatus,
    TaskStatus,
)
from dagmaster.model.workflow import CHILD_SEPARATOR, EndNode, FanInNode, StartNode
from simulation.cases import may_fail, parent_of
from simulation.dynamic_nodes import adder_of
from simulation.graphs import QUEUE
from simulation.ground import INTERFERING, JOB_ID, Fault, Ground, require
from simulation.oracle import Oracle, foresee
from simulation.progress import ShownProgress
from simulation.store import NodeRow, Store
from simulation.timeline import Timeline, max_parallel
from simulation.times import check_times
from simulation.wait_nodes import check_step
from simulation.workers import FORGER


class Watch:
    """Compares the rows after each step with their previous state, the timeline and the oracle."""

    def __init__(self, ground: Ground) -> None:
        self.oracle = foresee(ground.case)
        self.timeline = Timeline(ground, self.oracle)
        self._ground = ground
        self._job = ground.store.job
        self._rows: dict[str, NodeRow] = dict(ground.store.nodes)
        self._shown = ShownProgress(ground)
        self._heard = 0

    def check(self) -> None:
        store = self._ground.store
        fresh, self._heard = store.events[self._heard :], len(store.events)
        main = (row for node_id, row in store.nodes.items() if node_id not in self.oracle.chains)
        self.oracle.is_main_over = bool(self.oracle.chains) and all(row.status in NODE_TERMINAL for row in main)
        self.timeline.begin()
        if self.timeline.left and self.oracle.is_main_over:
            self.oracle.is_failing = True  # Only nodes that were not selected are left.
        moved = {self.timeline.follow(event) for event in fresh}
        self.timeline.check_selected()
        added = [event.event_data or {} for event in fresh if event.event_type == "tasks_added"]
        moved |= {node_id for data in added for node_id in data["node_ids"]}
        require(self.timeline.closing is None, "nodes were closed as if the job had ended: {}", self.timeline.closing)
        self._check_job()
        changed = [row for node_id, row in store.nodes.items() if row is not self._rows.get(node_id)]
        for row in changed:
            self._check_row(row, moved)
        self._check_tasks()
        if changed:
            self._shown.check(changed, is_reopened=self.timeline.is_reopened)
        if changed and not store.is_over:
            self._check_progress()

    def _check_job(self) -> None:
        job, before, last_event = self._ground.store.job, self._job, self.timeline.job_status
        self._job = job
        require(job.status is last_event, "the job is {}, its timeline says {}", job.status, last_event)
        if job == before._replace(owner_id=job.owner_id, owner_epoch=job.owner_epoch):
            return
        is_reopened = before.status is JobStatus.FAILED and self.timeline.is_reopened
        require(before.status not in JOB_TERMINAL or is_reopened, "the job had ended: {}, now {}", before, job)
        is_known = (job.paused_at is not None) is self.timeline.is_paused
        require(is_known, "the timeline knows nothing of a pause: {}", job)
        self._check_deadline()
        if job.status in JOB_TERMINAL:
            _check_end(self._ground, self.oracle, self.timeline)

    def _check_deadline(self) -> None:
        stored, deadline = self._ground.store.job.deadline_at, self.timeline.deadline
        same = deadline.is_moving or stored == deadline.at
        require(same, "the job is to end by {}, its deadline is {}", stored, deadline.at)

    def check_deadline_is_kept(self) -> None:
        """All due timers have fired: a late job must have ended, except for its finalizers."""
        is_last = self.oracle.is_failing or (bool(self.oracle.chains) and self.oracle.is_main_over)
        is_late = self.timeline.deadline.has_passed(self._ground.now) and not is_last and not self._ground.store.is_over
        require(not is_late, "the job continues after its deadline at {}", self.timeline.deadline.at)

    def _check_row(self, row: NodeRow, moved: set[str | None]) -> None:
        node_id, before = row.node_id, self._rows.get(row.node_id)
        self._rows[node_id] = row
        last_event = self.timeline.status.get(node_id, NodeStatus.PENDING if row.added_by is not None else None)
        told_of = node_id in moved or _is_silent(before, row)
        require(told_of, "{} changed, its timeline does not say so: {}, now {}", node_id, before, row)
        require(row.status is last_event, "{} is {}, its timeline says {}", node_id, row.status, last_event)
        was_open = before is None or before.status not in NODE_TERMINAL
        require(was_open or node_id in self.timeline.revived, "{} had ended: {}, now {}", node_id, before, row)
        require(row.attempt == self.timeline.attempt[node_id], "{} is in attempt {}", node_id, row.attempt)
        queue = self.timeline.queue_of(node_id)
        require((row.queue or QUEUE) == queue, "{} belongs on the queue {}: {}", node_id, queue, row)
        self._check_identity(row)
        check_times(self._ground, row)
        if row.status is NodeStatus.COMPLETED:
            self._check_completed(row)

    def _check_identity(self, row: NodeRow) -> None:
        parent = parent_of(row.node_id)
        index = None if parent is None else int(row.node_id.rpartition(CHILD_SEPARATOR)[2])
        require((row.parent, row.place) == (parent, index), "{} is the wrong child", row)
        require(row.added_by == adder_of(row.node_id), "{} was added by another", row)
        self._check_added(row)
        task_id = f"{JOB_ID}_{row.node_id}_{row.attempt}"
        require(row.task_id in (None, task_id), "{} has the task {}", row.node_id, row.task_id)
        allowed = self.timeline.allowed(row.node_id)
        require(row.max_retries == allowed, "{} may retry {} times, not {}", row.node_id, row.max_retries, allowed)

    def _check_added(self, row: NodeRow) -> None:
        case = self._ground.case
        source = case.additions[row.node_id].result_of if row.node_id in case.additions else None
        waits = row.result_of is None or (row.result_of == source and row.status is NodeStatus.RUNNING)
        require(waits, "{} returns the result of {}, not of {}", row.node_id, row.result_of, source)
        if row.added_by is not None:
            require(row.node_id in case.added, "{} has no adder", row.node_id)
            adder = self.timeline.status.get(row.added_by, NodeStatus.PENDING)
            has_run = adder not in (NodeStatus.PENDING, NodeStatus.DISPATCHED) or self.timeline.attempt[row.added_by]
            require(bool(has_run), "{} was added by {}, which has not run", row.node_id, row.added_by)

    def _check_completed(self, row: NodeRow) -> None:
        """Its output is the reported and the planned one."""
        node_id, store, workflow = row.node_id, self._ground.store, self._ground.case.blueprint.workflow
        output = orjson.loads(row.output or b"null")
        check_step(self._ground, row)
        if node_id in self._ground.case.plans:
            result = store.results.get(row.task_id or "")
            is_accepted = result is not None and result.status is TaskStatus.COMPLETED
            is_accepted = is_accepted and result is not None and result.output == self._reported(row)
            require(is_accepted, "{} completed with {}, reported was {}", node_id, row.output, result)
        if node_id in self._ground.case.items:
            children = [name for name in store.nodes if parent_of(name) == node_id]
            require(children == self.oracle.children(node_id), "the children of {} are {}", node_id, children)
            require(output["fan_out_count"] == len(children), "{} counts {}", node_id, output)
        elif node_id in self._ground.case.plans or isinstance(workflow.nodes.get(node_id), FanInNode):
            expected = self.oracle.output(node_id)
            require(output == expected, "{} completed with {}, expected was {}", node_id, output, expected)

    def _reported(self, row: NodeRow) -> bytes | None:
        """The result that its worker must have reported: its output, or whose output it is."""
        addition = self._ground.case.additions.get(row.node_id)
        if addition is None or addition.result_of is None:
            return row.output
        other = self._ground.store.nodes[addition.result_of]
        is_same = other.status is NodeStatus.COMPLETED and other.output == row.output
        require(is_same, "{} has the output {}, not that of {}", row.node_id, row.output, other)
        return orjson.dumps({RESULT_OF: addition.result_of})

    def _check_tasks(self) -> None:
        """Each waiting or running task is the current attempt of a node in flight; none is left at the end."""
        store = self._ground.store
        if not store.is_over:
            wrong = [row for row in store.waiting.values() if row.is_paused is not (store.job.paused_at is not None)]
            require(not wrong, "{} wait, paused since: {}", wrong, store.job.paused_at)
        for task_id, task in (*store.waiting.items(), *store.running.items()):
            require(not store.is_over, "{} is still to be done although the job has ended", task_id)
            row = store.nodes[task.node_id]
            current = row.status in NODE_IN_FLIGHT and row.task_id == task_id
            require(current, "{} is still to be done although its node is {}", task_id, row)
            queue = self.timeline.queue_of(task.node_id)
            require(task.queue == queue, "{} is on the queue {}, not on {}", task_id, task.queue, queue)

    def _check_progress(self) -> None:
        """No node stands still that could proceed."""
        status = self.timeline.status
        for node_id, row in self._ground.store.nodes.items():
            if row.status is NodeStatus.PENDING:
                stuck = self.oracle.must_move(node_id, status)
                require(not stuck, "{} waits although all its sources are decided", node_id)
            elif row.status is NodeStatus.READY and row.not_before is None:
                require(self._is_held_back(row), "{} is ready and does not start", node_id)

    def _is_held_back(self, row: NodeRow) -> bool:
        ground = self._ground
        is_told, queue = ground.decided_at > ground.opened_at, self.timeline.queue_of(row.node_id)
        if ground.store.job.paused_at is not None or row.node_id in ground.postponed:
            return True
        if row.node_id in ground.case.plans and (queue in ground.closed_queues or not is_told):
            return True
        if row.parent is None or (limit := max_parallel(self._ground.case, row.parent)) is None:
            return False
        children = self.oracle.children(row.parent)
        status = self.timeline.status
        return sum(status.get(name) in NODE_IN_FLIGHT or name in ground.postponed for name in children) >= limit


def _is_silent(before: NodeRow | None, row: NodeRow) -> bool:
    """Changes of sources, or of the returned result, are no move."""
    if before is None:
        return False
    return row == before._replace(result_of=row.result_of, definition=row.definition, version=row.version)


def _check_end(ground: Ground, oracle: Oracle, timeline: Timeline) -> None:
    require(not open_nodes(ground.store), "the job has ended, open are {}", open_nodes(ground.store))
    match ground.store.job.status:
        case JobStatus.COMPLETED:
            _check_success(ground.store, oracle)
        case JobStatus.FAILED:
            _check_failure(ground, oracle, timeline)
        case _:
            require(ground.faults[Fault.CANCEL] > 0, "the job was cancelled without a request")


def open_nodes(store: Store) -> str:
    rows = store.nodes.values()
    return ", ".join(f"{row.node_id} ({row.status})" for row in rows if row.status not in NODE_TERMINAL)


def _check_success(store: Store, oracle: Oracle) -> None:
    """Every node ended as the oracle predicted, and the result contains its output."""
    expected, workflow = oracle.expected, oracle.case.blueprint.workflow
    require(not oracle.doomed, "the job completed although {} can never succeed", oracle.doomed)
    ends = {node_id: row.status for node_id, row in store.nodes.items()}
    wrong = {
        node_id: str(status)
        for node_id, status in ends.items()
        if expected.get(node_id) is not status and not (status is NodeStatus.FAILED and may_fail(node_id, workflow))
    }
    require(ends.keys() == expected.keys(), "the nodes are {}, not {}", sorted(ends), sorted(expected))
    require(not wrong, "the job completed, these ended otherwise than they should: {}", wrong)
    result = orjson.loads(store.job.result or b"{}")
    # Not the outputs of start, end, children and added nodes.
    shown = [node_id for node_id, node in workflow.nodes.items() if not isinstance(node, StartNode | EndNode)]
    keys = {node_id for node_id in shown if ends[node_id] is NodeStatus.COMPLETED}
    require(result.keys() == keys | {"_provenance"}, "the result has {}, not {}", sorted(result), sorted(keys))
    for node_id in keys:
        same = result[node_id] == orjson.loads(store.nodes[node_id].output or b"null")
        require(same, "the result of {} is {}", node_id, result[node_id])


def _check_failure(ground: Ground, oracle: Oracle, timeline: Timeline) -> None:
    """A node was doomed, or faults used up its attempts, or nothing progressed for too long."""
    job = ground.store.job
    error, culprit = job.error, job.failed_node
    ended_by = JobEndedBy.DEADLINE if culprit is None else JobEndedBy.FAILURE
    require(job.ended_by is ended_by, "the job ended by {}, not by {}: {}", job.ended_by, ended_by, error)
    if culprit is None:
        # A stalled job would be a bug: as long as the job is open, a timer or an external event is ahead.
        require(timeline.was_late is True, "the job failed before its deadline: {}", error)
        return
    row = ground.store.nodes.get(culprit)
    if culprit in timeline.left and (row is None or row.status is NodeStatus.SKIPPED or row.ended_by in ENDED_WITH_JOB):
        return
    assert row is not None and row.status is NodeStatus.FAILED, f"the job failed without a node: {error}"
    spent = row.attempt >= row.max_retries or not timeline.is_forgiven(culprit)
    require(spent, "{} could have been retried: {}", culprit, row)
    planned = culprit in oracle.doomed or parent_of(culprit) in oracle.doomed or culprit in ground.case.broken
    unlucky = timeline.timeouts > 0 or any(ground.faults[fault] for fault in INTERFERING)
    require(planned or unlucky, "the job failed although everything could succeed: {}", error)


def check_rest(ground: Ground) -> None:
    """Nothing happens any more: the job has ended, and every report of a worker was stored."""
    store = ground.store
    require(store.is_over, "the job never ended; open are {}", open_nodes(store))
    require(not store.mailbox, "mail is left over: {}", store.mailbox)
    orphans = [task_id for task_id, status in store.children.items() if status == "running"]
    require(not orphans, "the job has ended, but its child jobs continue: {}", orphans)
    for message in store.sent:
        if isinstance(message, TaskCompleted | TaskFailed) and message.worker_id not in (FORGER, None):
            require(message.task_id in store.results, "the report {} was not stored", message)
