"""The engine: what a message does to a job. No input or output, no clock, no logging.

Every job, whatever its size, is advanced by these few rules. A message costs what it changes.
"""

from collections.abc import Iterable
from datetime import datetime
from typing import assert_never

from dagmaster.engine.adding import accept_added, refuse_from_outside
from dagmaster.engine.ending import ENDED, cancel, complete_if_done
from dagmaster.engine.last import begin_last
from dagmaster.engine.messages import (
    Cancel,
    Decision,
    Expand,
    GoOn,
    Message,
    Pause,
    QueueOpened,
    Resume,
    RetryByHand,
    SignalSent,
    TaskCheckpoint,
    TaskCompleted,
    TaskFailed,
    TaskLost,
    TasksAdded,
    TaskStarted,
    TimerDue,
    Unpause,
)
from dagmaster.engine.pausing import pause, unpause
from dagmaster.engine.reopening import can_reopen, retry_by_hand
from dagmaster.engine.reports import (
    accept_checkpoint,
    accept_completed,
    accept_failed,
    accept_lost,
    accept_started,
    begin,
    ignore,
)
from dagmaster.engine.results import pass_results
from dagmaster.engine.running import expand, go_on, resume, run_ready
from dagmaster.engine.state import JobState
from dagmaster.engine.timers import fire
from dagmaster.engine.turn import Dispatch, Rules, Turn
from dagmaster.engine.values import LoadedValues
from dagmaster.engine.waking import accept_decision, accept_signal, ignore_signal
from dagmaster.model.states import JobStatus


def decide(
    job: JobState, messages: Iterable[Message], now: datetime, rules: Rules, loaded: LoadedValues | None = None
) -> Turn:
    """Move the job, in memory, by each message in turn; the turn says what must be written.

    `loaded` are the `values_wanted`. A node whose values are not there is postponed, and a message follows.
    """
    turn = Turn(job, now, rules, loaded=loaded or LoadedValues())
    for message in _in_order(job, messages):
        if turn.is_over and not can_reopen(turn, message):
            _turn_down(turn, message)
            continue
        _apply(turn, message)
        _go_on(turn)
        while begin_last(turn):
            _go_on(turn)
        complete_if_done(turn)
    if job.postponed:
        turn.follow_ups.append(GoOn())
    return turn


def _in_order(job: JobState, messages: Iterable[Message]) -> Iterable[Message]:
    """As they came. But a job that is cancelled before anybody had it never begins."""
    if job.status is not JobStatus.PENDING:
        return messages
    return sorted(messages, key=lambda message: not isinstance(message, Cancel))


def _turn_down(turn: Turn, message: Message) -> None:
    """It changes nothing any more. What was promised to be heard is at least a line in the timeline."""
    match message:
        case TaskCompleted() | TaskFailed() | TaskLost():
            ignore(turn, message, ENDED)
        case SignalSent():
            ignore_signal(turn, message)
        case TasksAdded(node_id=None):
            refuse_from_outside(turn, ENDED, message.actor)
        case _:
            pass


def _go_on(turn: Turn) -> None:
    run_ready(turn)
    while turn.given:
        pass_results(turn)
        run_ready(turn)


def _apply(turn: Turn, message: Message) -> None:
    match message:
        case Resume():
            resume(turn)
        case GoOn():
            go_on(turn)
        case Expand():
            expand(turn, turn.job.nodes[message.node_id])
        case TaskStarted():
            accept_started(turn, message)
        case TaskCompleted():
            accept_completed(turn, message)
        case TaskFailed():
            accept_failed(turn, message)
        case TaskLost():
            accept_lost(turn, message)
        case TaskCheckpoint():
            accept_checkpoint(turn, message)
        case TimerDue():
            fire(turn, message)
        case QueueOpened():
            turn.ready.extend(turn.job.nodes[node_id] for node_id in turn.job.held.pop(message.queue, ()))
        case _:
            _obey(turn, message)


def _obey(turn: Turn, order: Cancel | Pause | Unpause | RetryByHand | TasksAdded | SignalSent | Decision) -> None:
    match order:
        case TasksAdded():
            accept_added(turn, order)
        case SignalSent():
            accept_signal(turn, order)
        case Decision():
            accept_decision(turn, order)
        case Cancel():
            cancel(turn, order)
        case Pause():
            pause(turn, order)
        case Unpause():
            unpause(turn, order)
        case RetryByHand():
            retry_by_hand(turn, order)
        case _:
            assert_never(order)


def claim_here(turn: Turn, dispatch: Dispatch, worker_id: str) -> None:
    """A worker in the owner's process takes the task in the very transaction that dispatches it."""
    begin(turn, dispatch.node, worker_id)
