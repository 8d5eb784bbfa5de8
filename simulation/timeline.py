"""Follow a job's timeline: each event must be a legal move, allowed by the plan, the policy and the oracle."""

from collections import Counter
from datetime import datetime

from dagmaster.engine.change_set import Event
from dagmaster.engine.messages import ManualRetry, TaskLost
from dagmaster.model.finalizers import Phase
from dagmaster.model.retry import Backoff, RetryPolicy
from dagmaster.model.states import (
    ENDED_WITH_JOB,
    JOB_MOVES,
    JOB_TERMINAL,
    NODE_IN_FLIGHT,
    NODE_MOVES,
    EndedBy,
    JobStatus,
    NodeStatus,
)
from dagmaster.model.workflow import ApprovalNode, ChildTask, FanOutNode, TaskNode, WaitNode, WorkflowNode
from simulation.cases import LATE, UNRESOLVED, Case, forgives, may_fail, moves, parent_of, policy_of
from simulation.graphs import HEAVY, QUEUE
from simulation.ground import JOB_ID, PATIENCE_SECONDS, Ground, require
from simulation.oracle import Oracle
from simulation.times import Deadline, check_duration
from simulation.workers import FORGER

NODE_MOVE = {move.event: move for move in NODE_MOVES}
JOB_MOVE = {move.event: move for move in JOB_MOVES}
LEFT = (EndedBy.LOST, EndedBy.GIVEN_BACK)
SKIPPED_WITH = {"job_failed": JobStatus.FAILED, "job_cancelled": JobStatus.CANCELLED}
CLOSED_WITH = {EndedBy.REVOKED: JobStatus.FAILED, EndedBy.CANCELLED: JobStatus.CANCELLED}


class Timeline:
    """The state of the job and its nodes according to the events; the rows must agree."""

    def __init__(self, ground: Ground, oracle: Oracle) -> None:
        self.job_status = JobStatus.PENDING
        self.status: dict[str, NodeStatus] = dict.fromkeys(ground.store.nodes, NodeStatus.PENDING)
        self.attempt: Counter[str] = Counter()
        self.timeouts = 0
        self.is_paused = False
        self.is_reopened = False
        self._has_begun = False  # in this very transaction
        self.revived: set[str] = set()
        self.closing: JobStatus | None = None
        self.deadline = Deadline(ground.case.blueprint.workflow, ground.rules)
        self.was_late: bool | None = None  # when it began to fail
        self._gifts: Counter[str] = Counter()
        self._fresh_from: Counter[str] = Counter()
        self._by_hand: set[str] = set()
        self.left: set[str] = set()  # nodes that a reopened job does not retry
        self._reason: dict[str, str] = {}
        self._ground = ground
        self._oracle = oracle
        self._due: dict[str, datetime] = {}
        self._since: dict[str, datetime] = {}
        self._failure: dict[str, Event] = {}
        self._dispatched: set[str] = set()
        self._moved: set[str] = set()

    def begin(self) -> None:
        """The following events were written in one transaction."""
        self.revived.clear()
        self.is_reopened = self._has_begun = False

    def allowed(self, node_id: str) -> int:
        """The allowed retries: those of its policy, counted from the last manual retry."""
        retries = self._policy(node_id).max_attempts
        return self._fresh_from[node_id] + retries + self._gifts[node_id]

    def queue_of(self, node_id: str) -> str:
        """The queue of its tasks: after it ran out of memory, that of its policy."""
        return HEAVY if node_id in self._moved else QUEUE

    def is_forgiven(self, node_id: str) -> bool:
        """Whether a retry is allowed after its last error."""
        plan, failure = self._ground.case.plans.get(node_id), self._failure[node_id]
        if ended_by(failure) in LEFT:
            return True
        if plan is not None and _was_reported(failure):
            is_asked_for = plan.retry_after_seconds is not None
            return not plan.permanent and forgives(self._policy(node_id), plan.error, is_asked_for=is_asked_for)
        if _was_reported(failure):  # By its child job.
            return forgives(self._policy(node_id), ())
        is_late = "timeout" in (failure.event_data or {})
        return forgives(self._policy(node_id), LATE if is_late else UNRESOLVED)

    def _policy(self, node_id: str) -> RetryPolicy:
        added = self._ground.case.added.get(node_id)
        if added is not None:
            return added.retry or RetryPolicy(max_attempts=0)  # A gate has none.
        return policy_of(node_id, self._ground.case.blueprint)

    def follow(self, event: Event) -> str | None:
        """The node that was moved, if any."""
        self._follow_job(event)
        if event.event_type not in NODE_MOVE or event.node_id is None:
            return None
        if (event.event_data or {}).get("at_once"):
            return self._end_back_off(event.node_id)
        node_id, step = event.node_id, NODE_MOVE[event.event_type]
        was = self.status.get(node_id, NodeStatus.PENDING)
        require(was in step.sources, "{} while {} is {}", event.event_type, node_id, was)
        require(self.job_status not in JOB_TERMINAL, "{} of {} after the job had ended", event.event_type, node_id)
        self._check(node_id, event)
        self.status[node_id] = step.target
        if step.target is NodeStatus.DISPATCHED:
            self._check_parallel(node_id)
        return node_id

    def _follow_job(self, event: Event) -> None:
        self.deadline.follow(event)
        match event.event_type:
            case "job_started":
                self._has_begun = True
            case "job_cancelled":
                require(not self._has_begun, "the job was started only to be cancelled")
            case "job_paused" | "job_resumed":
                self.is_paused = event.event_type == "job_paused"
                waiting = [node_id for node_id, status in self.status.items() if status is NodeStatus.DISPATCHED]
                self._since.update(dict.fromkeys(waiting, event.created_at))
            case "job_reopened":
                self.is_reopened = True
                self._oracle.is_failing, self.was_late = False, None
                self._select()
        wrong = event.event_type == "job_completed" and (self._oracle.is_failing or self.left)
        require(not wrong, "the job completed after {} had failed, without {}", self._failure, self.left)
        if event.event_type in JOB_MOVE:
            move = JOB_MOVE[event.event_type]
            require(self.job_status in move.sources, "{} while the job is {}", event.event_type, self.job_status)
            require(self.closing in (None, move.target), "{} while it is being {}", event.event_type, self.closing)
            self.job_status, self.closing = move.target, None

    def _select(self) -> None:
        """A retry limited to some nodes leaves the others, and their successors, as they are."""
        failed = [node_id for node_id, status in self.status.items() if status is NodeStatus.FAILED]
        self._by_hand = {node_id for node_id in failed if self._is_tried_by_hand(node_id)}
        only = next(message.only for message in reversed(self._ground.store.sent) if isinstance(message, ManualRetry))
        self.left = set()
        if only is not None:
            skipped = {node_id for node_id, reason in self._reason.items() if reason == "job_failed"}
            skipped = {node_id for node_id in skipped if self.status[node_id] is NodeStatus.SKIPPED}
            self.left = ((self._by_hand | skipped) - only) - self._oracle.chains.keys()
            self._by_hand &= only

    def check_selected(self) -> None:
        """Every selected node is retried."""
        require(not (self.is_reopened and self._by_hand), "{} are not retried", self._by_hand)

    def _is_tried_by_hand(self, node_id: str) -> bool:
        """Not nodes that were allowed to fail, nor finalizers, which run again anyway."""
        if node_id in self._oracle.chains:
            return False
        is_revoked = ended_by(self._failure[node_id]) in ENDED_WITH_JOB
        return is_revoked or not may_fail(node_id, self._ground.case.blueprint.workflow)

    def _end_back_off(self, node_id: str) -> str:
        ready = self.status[node_id] is NodeStatus.READY
        require(ready, "the back-off of {} is ended while it is {}", node_id, self.status[node_id])
        self._due.pop(node_id, None)
        return node_id

    def _check(self, node_id: str, event: Event) -> None:
        match event.event_type:
            case "node_ready":
                self._check_ready(node_id)
            case "node_skipped":
                self._check_skipped(node_id, event)
            case "node_dispatched":
                self._check_dispatched(node_id, event)
            case "node_started":
                self._since[node_id] = event.created_at
            case "node_failed":
                check_duration(self._ground, event)
                self._check_failed(node_id, event)
            case "node_completed":
                check_duration(self._ground, event)
            case "node_retrying":
                self._check_retrying(node_id, event)
            case "node_reopened":
                self._check_reopened(node_id)

    def _check_ready(self, node_id: str) -> None:
        if (parent := parent_of(node_id)) is None:
            ready = self._oracle.may_become_ready(node_id, self.status)
            require(ready, "{} is ready before its dependencies allow it", node_id)
            return
        is_due = self.status[parent] is NodeStatus.RUNNING or node_id in self.revived
        require(is_due, "{} is made while {} does not run", node_id, parent)
        require(node_id in self._oracle.children(parent), "{} is no child of {}", node_id, parent)

    def _check_skipped(self, node_id: str, event: Event) -> None:
        reason = self._reason[node_id] = str((event.event_data or {}).get("reason"))
        chain = self._oracle.chains.get(node_id)
        match reason:
            case "conditional_branch_not_taken":
                holds = self._oracle.may_be_skipped(node_id, self.status)
            case "step_before_failed":
                holds = chain is not None and self._oracle.may_be_skipped(node_id, self.status)
            case "job_did_not_fail":
                holds = self._oracle.is_main_over and not self._oracle.is_failing and chain is Phase.ON_FAILURE
            case _:
                holds = reason in SKIPPED_WITH
        require(holds, "{} is skipped for the reason {}, which does not hold", node_id, reason)
        if reason in SKIPPED_WITH:
            self._close(node_id, SKIPPED_WITH[reason], event)

    def _close(self, node_id: str, status: JobStatus, event: Event) -> None:
        """It ends with its job, at once or after the finalizers."""
        if status is JobStatus.FAILED:
            if self.was_late is None:
                self.was_late = self.deadline.has_passed(event.created_at)
            if self._oracle.chains and node_id not in self._oracle.chains:
                is_given_up = self._ground.rules.zombie_after_seconds < PATIENCE_SECONDS
                is_given_up = is_given_up or self.was_late
                require(self._oracle.is_failing or is_given_up, "{} is closed although nothing has failed", node_id)
                self._oracle.is_failing = True
                return
        self.closing = status

    def _check_reopened(self, node_id: str) -> None:
        """Only nodes skipped because of a failure wait again."""
        require(self.is_reopened, "{} is reopened, its job is not", node_id)
        if node_id in self._oracle.chains:
            if self.status[node_id] is not NodeStatus.SKIPPED:
                self.attempt[node_id] += 1
                self._count_again(node_id)
        else:
            require(self._reason[node_id] == "job_failed", "{} was skipped for {}", node_id, self._reason[node_id])
        if node_id in self.left:
            is_led_to = parent_of(node_id) is None and self._oracle.follows(node_id, self.revived, self.left)
            require(is_led_to, "{} is reopened, and nothing that was selected leads to it", node_id)
            self.left.remove(node_id)
        self._due.pop(node_id, None)
        self.revived.add(node_id)

    def _check_dispatched(self, node_id: str, event: Event) -> None:
        runs = self.job_status is JobStatus.RUNNING and not self.is_paused
        require(runs, "{} is dispatched while the job does not run", node_id)
        is_late = self._oracle.is_failing and node_id not in self._oracle.chains
        require(not is_late, "{} is dispatched after the job has failed", node_id)
        self._oracle.job_results[node_id] = "failed" if self._oracle.is_failing else "completed"
        ground = self._ground
        queue = self.queue_of(node_id)
        is_full = queue in ground.closed_queues and ground.decided_at > ground.closed_at
        require(not is_full or node_id not in ground.case.plans, "{} is put on a queue that is full", node_id)
        recorded = (event.event_data or {}).get("queue", queue)
        require(recorded == queue, "{} is put on the queue {}, not on {}", node_id, recorded, queue)
        task_id = f"{JOB_ID}_{node_id}_{self.attempt[node_id]}"
        require(event.task_id == task_id, "{} is dispatched as {}, not as {}", node_id, event.task_id, task_id)
        require(task_id not in self._dispatched, "{} is dispatched twice", task_id)
        self._dispatched.add(task_id)
        self._since[node_id] = event.created_at
        due = self._due.pop(node_id, event.created_at)
        require(event.created_at >= due, "{} is dispatched before its back-off is over", node_id)

    def _check_parallel(self, node_id: str) -> None:
        parent = parent_of(node_id)
        if parent is None or (limit := max_parallel(self._ground.case, parent)) is None:
            return
        in_flight = sum(self.status.get(child) in NODE_IN_FLIGHT for child in self._oracle.children(parent))
        require(in_flight <= limit, "{} children of {} are in flight, {} are allowed", in_flight, parent, limit)

    def _check_failed(self, node_id: str, event: Event) -> None:
        """A timeout must have elapsed, by the clock of that state."""
        self._failure[node_id] = event
        self._gifts[node_id] += event.task_id is not None and self._was_given_back(event)
        plan = self._ground.case.plans.get(node_id)
        if plan and _was_reported(event) and moves(self._policy(node_id), plan.error):
            self._moved.add(node_id)
        self._note_failure(node_id, event)
        if ended_by(event) in CLOSED_WITH:
            self._close(node_id, CLOSED_WITH[ended_by(event)], event)
        kind = (event.event_data or {}).get("timeout")
        is_late = ended_by(event) is EndedBy.TIMEOUT
        require(is_late is (kind is not None), "{} is ended by {}, timed out: {}", node_id, ended_by(event), kind)
        if kind is None:
            return
        self.timeouts += 1
        waited = (event.created_at - self._since[node_id]).total_seconds()
        limit = timeout_of(self._ground.case, node_id)
        if kind == "dispatch":
            limit = self._ground.rules.dispatch_timeout_seconds or max(limit, 1800)
        require(waited >= limit, "{} timed out ({}) after {} s of {} s", node_id, kind, waited, limit)

    def _note_failure(self, node_id: str, event: Event) -> None:
        """A failure that is not allowed makes the job fail."""
        is_final = (event.event_data or {}).get("will_retry") is False
        is_allowed = may_fail(node_id, self._ground.case.blueprint.workflow)
        if is_final and not is_allowed and ended_by(event) not in ENDED_WITH_JOB:
            self._oracle.is_failing = True

    def _check_retrying(self, node_id: str, event: Event) -> None:
        data = event.event_data or {}
        require(node_id not in self.left, "{} is retried although it was not selected", node_id)
        self.attempt[node_id] += 1
        if node_id in self._by_hand:
            self._count_again(node_id)
            return
        attempt, policy = self.attempt[node_id], self._policy(node_id)
        require(self.is_forgiven(node_id), "{} is retried after an error that forbids it", node_id)
        require(data.get("attempt") == attempt, "{} retries as {}, not as {}", node_id, data.get("attempt"), attempt)
        allowed = self.allowed(node_id)
        require(attempt <= allowed, "{} has its retry number {}, {} are allowed", node_id, attempt, allowed)
        not_before = data.get("not_before") or event.created_at
        waits = (not_before - event.created_at).total_seconds()
        # The policy counts neither attempts before a manual retry nor those of tasks given back.
        counted = attempt - self._fresh_from[node_id] - self._gifts[node_id]
        least, most = self._delay(node_id, policy, max(counted, 1))
        require(least <= waits <= most, "{} waits {} s, not {} to {} s", node_id, waits, least, most)
        self._due[node_id] = not_before

    def _count_again(self, node_id: str) -> None:
        self._by_hand.discard(node_id)
        self.revived.add(node_id)
        self._fresh_from[node_id], self._gifts[node_id] = self.attempt[node_id], 0

    def _delay(self, node_id: str, policy: RetryPolicy, retry: int) -> tuple[float, float]:
        """The back-off: the worker's delay, none if the worker left, else that of the policy."""
        failure = self._failure[node_id]
        if ended_by(failure) in LEFT:
            return 0, 0
        plan = self._ground.case.plans.get(node_id)
        if plan and plan.retry_after_seconds is not None and _was_reported(failure):
            return plan.retry_after_seconds, plan.retry_after_seconds
        factor = {Backoff.FIXED: 1, Backoff.LINEAR: retry, Backoff.EXPONENTIAL: 2 ** (retry - 1)}[policy.backoff]
        limit = max(policy.max_delay_seconds, policy.initial_delay_seconds)
        delay = min(policy.initial_delay_seconds * factor, limit)
        return delay * (1 - policy.jitter) - 1e-6, delay * (1 + policy.jitter) + 1e-6

    def _was_given_back(self, event: Event) -> bool:
        """Whether the attempt ended because its worker shut down in order; that costs no retry."""
        if ended_by(event) not in LEFT:
            return False
        mail = [message for message in self._ground.store.sent if isinstance(message, TaskLost)]
        about = [message for message in mail if message.task_id == event.task_id and message.worker_id != FORGER]
        return bool(about) and about[0].given_back


def ended_by(event: Event) -> EndedBy:
    return EndedBy((event.event_data or {})["ended_by"])


def _was_reported(failure: Event) -> bool:
    """By a worker, as planned; expressions fail before there is one."""
    return ended_by(failure) is EndedBy.FAILURE and "worker_id" in (failure.event_data or {})


def max_parallel(case: Case, fan_out: str) -> int | None:
    node = case.blueprint.workflow.nodes[fan_out]
    return node.max_parallel if isinstance(node, FanOutNode) else None


def timeout_of(case: Case, node_id: str) -> float:
    added = case.added.get(node_id)
    node = case.blueprint.workflow.nodes.get(node_id)
    if isinstance(node, WaitNode | ApprovalNode | WorkflowNode):
        return node.timeout_seconds or 0.0
    return (added if added is not None else task_of(case, node_id)).timeout_seconds or 3600


def task_of(case: Case, node_id: str) -> ChildTask:
    node = case.blueprint.workflow.nodes[parent_of(node_id) or node_id]
    assert isinstance(node, TaskNode | FanOutNode)
    return node.task if isinstance(node, FanOutNode) else node
