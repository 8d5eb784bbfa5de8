"""Mutants of the engine: the end of jobs, finalizers, pauses, reopened jobs, full queues and large values."""

from datetime import timedelta
from typing import Any

import pytest
from mutants import mutant

from dagmaster.engine import decide as deciding
from dagmaster.engine import (
    failures,
    job_control,
    job_end,
    node_start,
    state,
    timers,
    transitions,
)
from dagmaster.engine.change_set import ChangeSet
from dagmaster.engine.messages import Pause, Resume
from simulation import owners, store


@mutant
def go_on_after_the_end(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ChangeSet, "is_over", property(lambda self: False))


@mutant
def leave_tasks_of_closed_attempts_on_the_queue(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ChangeSet, "close_task", lambda self, node: None)


@mutant
def leave_waiting_tasks_on_the_queue(patch: pytest.MonkeyPatch) -> None:
    def close_task(self: ChangeSet, node: state.NodeState) -> None:
        self.closed_running.append(self.job.task_id(node))

    patch.setattr(ChangeSet, "close_task", close_task)


@mutant
def go_on_when_a_node_has_failed(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(failures, "fail_job", lambda changes, error, failed_node: None)


@mutant
def leave_nodes_open_at_the_end(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(job_end, "_close_nodes", lambda changes, reason, ended_by, **_: None)


@mutant
def clean_up_before_the_rest_has_ended(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(state.JobState, "open_main", property(lambda self: 0))


@mutant
def answer_a_failure_that_never_was(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(job_end, "_has_failed", lambda changes: True)


@mutant
def forget_on_take_over_what_was_allowed_to_fail(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(state, "has_passed", lambda job, node: False)


@mutant
def fail_with_what_is_allowed_to_fail(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(failures, "_fail_for_good", lambda changes, node, error: job_end.fail_job(changes, error))


@mutant
def forget_to_load_a_large_output(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(owners, "values_needed", lambda job, messages, rules: [])


@mutant
def keep_a_large_output_in_memory(patch: pytest.MonkeyPatch) -> None:
    patch.setattr("dagmaster.engine.change_set.kept_output", lambda node, inline_bytes: node.output)


@mutant
def forget_what_was_postponed(patch: pytest.MonkeyPatch) -> None:
    def run_postponed(changes: ChangeSet) -> None:
        changes.job.postponed.clear()

    patch.setattr(deciding, "run_postponed", run_postponed)


@mutant
def leave_large_outputs_out_of_the_result(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(store.Store, "_result", lambda self, changes, result: result.data)


@mutant
def dispatch_while_paused(patch: pytest.MonkeyPatch) -> None:
    def run_ready(changes: ChangeSet) -> None:
        since, changes.job.paused_at = changes.job.paused_at, None
        node_start.run_ready(changes)
        changes.job.paused_at = since

    patch.setattr(deciding, "run_ready", run_ready)


@mutant
def leave_tasks_of_a_paused_job_on_the_queue(patch: pytest.MonkeyPatch) -> None:
    def pause_only(changes: ChangeSet, message: Pause) -> None:
        job_control.pause(changes, message)
        changes.holds_tasks = None

    patch.setattr(deciding, "pause", pause_only)


@mutant
def hold_tasks_after_a_pause(patch: pytest.MonkeyPatch) -> None:
    def resume(changes: ChangeSet, message: Resume) -> None:
        job_control.resume(changes, message)
        changes.holds_tasks = None

    patch.setattr(deciding, "resume", resume)


@mutant
def forget_what_was_ready_before_a_pause(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(job_control, "resume_node", lambda changes, node: None)


@mutant
def take_up_the_branch_that_was_not_taken(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(job_control, "is_bypassed", lambda node: False)


@mutant
def leave_skipped_what_a_failure_had_skipped(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(job_control, "is_bypassed", lambda node: True)


@mutant
def reopen_with_the_retries_that_were_left(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(job_control, "_retry", lambda changes, node: transitions.retry(changes, node, timedelta()))


@mutant
def try_again_what_was_not_selected(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(job_control._Selection, "selects", lambda self, node: True)


@mutant
def forget_some_of_what_was_selected(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(
        job_control._Selection, "selects", lambda self, node: self.only is None or node.node_id == max(self.only)
    )


@mutant
def go_on_after_what_was_not_selected(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(job_control._Selection, "follows", lambda self, node: True)


@mutant
def complete_without_what_was_not_selected(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(job_end, "_find_unfinished", lambda job: None)


@mutant
def dispatch_into_a_full_queue(patch: pytest.MonkeyPatch) -> None:
    original = node_start.dispatch

    def dispatch(changes: ChangeSet, node: state.NodeState) -> None:
        closed, changes.closed_queues = changes.closed_queues, ()
        original(changes, node)
        changes.closed_queues = closed

    patch.setattr(node_start, "dispatch", dispatch)


@mutant
def forget_what_a_full_queue_held_back(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(owners.Owner, "open_queue", lambda self, queue: None)


@mutant
def give_up_a_job_in_the_moment_in_which_it_should_wake(patch: pytest.MonkeyPatch) -> None:
    """A former bug: only future timers counted, not one that is due at the same instant."""

    def latest(changes: ChangeSet) -> Any:
        deadlines = (timers._deadline(changes, node) for node in changes.job.nodes.values())
        return max((at for at in deadlines if at is not None and at > changes.now), default=None)

    patch.setattr(timers, "_latest_deadline", latest)
