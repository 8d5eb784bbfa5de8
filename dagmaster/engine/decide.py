"""The engine: apply messages to a job. No I/O, no clock, no logging.

Every job, whatever its size, is advanced by these few rules. The cost of a message is proportional to its changes.
"""

from collections.abc import Collection, Iterable
from datetime import datetime
from typing import assert_never

from dagmaster.engine.change_set import ChangeSet, Dispatch, Rules
from dagmaster.engine.dynamic_nodes import accept_added, refuse_from_outside
from dagmaster.engine.job_control import can_reopen, pause, resume, retry_manually
from dagmaster.engine.job_end import ENDED, cancel, complete_if_done, start_finalizers
from dagmaster.engine.messages import (
    ApprovalDecision,
    Cancel,
    Continue,
    Expand,
    Load,
    ManualRetry,
    Message,
    Pause,
    QueueOpened,
    Resume,
    SignalSent,
    TaskCheckpoint,
    TaskCompleted,
    TaskFailed,
    TaskLost,
    TasksAdded,
    TaskStarted,
    TimerDue,
)
from dagmaster.engine.node_start import expand, load_job, run_postponed, run_ready
from dagmaster.engine.reports import (
    accept_checkpoint,
    accept_completed,
    accept_failed,
    accept_lost,
    accept_started,
    ignore,
    start_task,
)
from dagmaster.engine.results import pass_results
from dagmaster.engine.state import JobState
from dagmaster.engine.timers import fire
from dagmaster.engine.values import LoadedValues
from dagmaster.engine.wait_nodes import accept_decision, accept_signal, ignore_signal
from dagmaster.model.states import JobStatus


def decide(
    job: JobState,
    messages: Iterable[Message],
    now: datetime,
    rules: Rules,
    loaded: LoadedValues | None = None,
    closed_queues: Collection[str] = (),
) -> ChangeSet:
    """Apply each message to the job in memory; the change set holds the rows to write.

    `loaded` holds the `values_needed`. A node whose values are missing is postponed until a `Continue` follows.
    """
    changes = ChangeSet(job, now, rules, closed_queues, loaded=loaded or LoadedValues())
    for message in _in_order(job, messages):
        if changes.is_over and not can_reopen(changes, message):
            _reject(changes, message)
            continue
        _apply(changes, message)
        _advance(changes)
        while start_finalizers(changes):
            _advance(changes)
        complete_if_done(changes)
    if job.postponed:
        changes.follow_ups.append(Continue())
    return changes


def _in_order(job: JobState, messages: Iterable[Message]) -> Iterable[Message]:
    """In order of arrival, except that a job cancelled before its first owner loaded it never starts."""
    if job.status is not JobStatus.PENDING:
        return messages
    return sorted(messages, key=lambda message: not isinstance(message, Cancel))


def _reject(changes: ChangeSet, message: Message) -> None:
    """The job has ended: the message changes nothing. Reports and signals are noted in the timeline."""
    match message:
        case TaskCompleted() | TaskFailed() | TaskLost():
            ignore(changes, message, ENDED)
        case SignalSent():
            ignore_signal(changes, message)
        case TasksAdded(node_id=None):
            refuse_from_outside(changes, ENDED, message.actor)


def _advance(changes: ChangeSet) -> None:
    run_ready(changes)
    while changes.awaited_results:
        pass_results(changes)
        run_ready(changes)


def _apply(changes: ChangeSet, message: Message) -> None:
    match message:
        case Load():
            load_job(changes)
        case Continue():
            run_postponed(changes)
        case Expand():
            expand(changes, changes.job.nodes[message.node_id])
        case TaskStarted():
            accept_started(changes, message)
        case TaskCompleted():
            accept_completed(changes, message)
        case TaskFailed():
            accept_failed(changes, message)
        case TaskLost():
            accept_lost(changes, message)
        case TaskCheckpoint():
            accept_checkpoint(changes, message)
        case TimerDue():
            fire(changes, message)
        case QueueOpened():
            changes.ready.extend(changes.job.nodes[node_id] for node_id in changes.job.backlog.pop(message.queue, ()))
        case _:
            _apply_command(changes, message)


def _apply_command(
    changes: ChangeSet, command: Cancel | Pause | Resume | ManualRetry | TasksAdded | SignalSent | ApprovalDecision
) -> None:
    match command:
        case TasksAdded():
            accept_added(changes, command)
        case SignalSent():
            accept_signal(changes, command)
        case ApprovalDecision():
            accept_decision(changes, command)
        case Cancel():
            cancel(changes, command)
        case Pause():
            pause(changes, command)
        case Resume():
            resume(changes, command)
        case ManualRetry():
            retry_manually(changes, command)
        case _:
            assert_never(command)


def claim_here(changes: ChangeSet, dispatch: Dispatch, worker_id: str) -> None:
    """Let a worker in the owner's process claim the task in the transaction that dispatches it."""
    start_task(changes, dispatch.node, worker_id)
