"""Mutants of the engine: outcomes, stalls, times, deadlines and progress, as shown to users."""

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from mutants import mutant

from dagmaster.engine import decide as deciding
from dagmaster.engine import (
    edges,
    job_control,
    job_end,
    node_start,
    reports,
    state,
    timers,
    transitions,
)
from dagmaster.engine.change_set import ChangeSet
from dagmaster.engine.messages import Resume
from dagmaster.explain import estimate, reasons
from dagmaster.explain.facts import Kind
from dagmaster.model import outcome, progress
from dagmaster.model.outcome import Outcome
from dagmaster.model.states import EndedBy, NodeStatus
from simulation import compare


@mutant
def show_a_fan_out_as_completed_when_it_has_expanded(patch: pytest.MonkeyPatch) -> None:
    """A former bug: shown as completed while its children were open, and when one had failed."""
    patch.setattr(progress, "outcome_of", lambda status, children: Outcome(status))


@mutant
def show_a_fan_out_as_failed_with_what_was_allowed_to_fail(patch: pytest.MonkeyPatch) -> None:
    def children_of(fan: Any, added: Any, *, may_fail: bool, last_ended_at: Any) -> outcome.Children:
        return outcome.children_of(fan, added, last_ended_at=last_ended_at)

    patch.setattr(progress, "children_of", children_of)


@mutant
def count_what_was_cancelled_as_failed(patch: pytest.MonkeyPatch) -> None:
    def of_status(self: progress.NodeSnapshot) -> Outcome:
        return outcome.outcome_of(self.status, self.children)

    patch.setattr(progress.NodeSnapshot, "outcome", property(of_status))


@mutant
def revoke_what_is_under_way_when_the_job_is_cancelled(patch: pytest.MonkeyPatch) -> None:
    close = job_end._close_nodes

    def close_nodes(changes: ChangeSet, reason: str, ended_by: EndedBy, **which: bool) -> None:
        close(changes, reason, EndedBy.REVOKED, **which)

    patch.setattr(job_end, "_close_nodes", close_nodes)


@mutant
def begin_a_job_only_to_cancel_it(patch: pytest.MonkeyPatch) -> None:
    """A former bug: started and dispatched in the instant in which it was cancelled."""
    patch.setattr(deciding, "_in_order", lambda job, messages: messages)


@mutant
def raise_a_stall_for_a_job_that_waits(patch: pytest.MonkeyPatch) -> None:
    """A former bug: for a job that waited for an approval."""
    patch.setattr(reasons, "VALID_REASONS", reasons.VALID_REASONS - {Kind.WAITING_FOR_APPROVAL})


@mutant
def raise_no_stall_while_a_task_runs_for_ever(patch: pytest.MonkeyPatch) -> None:
    """A running task would never count as stalled, even long after its timeout."""
    original = reasons.reasons

    def trusting(*around: Any) -> list[Kind]:
        return [Kind.PAUSED if kind is Kind.RUNNING else kind for kind in original(*around)]

    patch.setattr(reasons, "reasons", trusting)


@mutant
def raise_a_stall_for_a_paused_job(patch: pytest.MonkeyPatch) -> None:
    """A former bug: if only queued tasks were left."""
    original = reasons.stands_without_reason

    def stands_without_reason(job: state.JobState, *around: Any) -> bool:
        since, job.paused_at = job.paused_at, None
        verdict = original(job, *around)
        job.paused_at = since
        return verdict

    patch.setattr(compare, "stands_without_reason", stands_without_reason)


@mutant
def stamp_a_task_with_the_time_of_its_batch(patch: pytest.MonkeyPatch) -> None:
    """A former bug: a task of 13 ms was shown with 0 or 425 ms."""
    patch.setattr(transitions, "_measure", lambda changes, *measured: changes.now)


@mutant
def count_the_pause_before_a_retry_as_run_time(patch: pytest.MonkeyPatch) -> None:
    original = transitions.retry

    def retry(changes: ChangeSet, node: state.NodeState, *how: Any) -> None:
        began = node.started_at
        original(changes, node, *how)
        node.started_at = began

    patch.setattr(transitions, "retry", retry)


@mutant
def give_the_duration_of_an_attempt_by_the_clock_of_the_owner(patch: pytest.MonkeyPatch) -> None:
    def complete(
        changes: ChangeSet, node: state.NodeState, output: Any, duration_ms: Any, reported_at: Any = None
    ) -> None:
        edges.complete(changes, node, output, None, reported_at)

    patch.setattr(reports, "complete", complete)


@mutant
def set_no_deadline(patch: pytest.MonkeyPatch) -> None:
    """A former bug: the setting had no effect."""
    patch.setattr(transitions, "_set_deadline", lambda changes, seconds_allowed: None)


@mutant
def forget_the_deadline_on_take_over(patch: pytest.MonkeyPatch) -> None:
    def load_job(changes: ChangeSet) -> None:
        at, changes.job.deadline_at = changes.job.deadline_at, None
        node_start.load_job(changes)
        changes.job.deadline_at = changes.job.deadline_at or at

    patch.setattr(deciding, "load_job", load_job)


@mutant
def let_a_pause_use_up_the_time_of_the_job(patch: pytest.MonkeyPatch) -> None:
    def resume(changes: ChangeSet, message: Resume) -> None:
        at = changes.job.deadline_at
        job_control.resume(changes, message)
        changes.job.deadline_at = at

    patch.setattr(deciding, "resume", resume)


@mutant
def move_the_deadline_by_the_pause_before_a_job_was_reopened(patch: pytest.MonkeyPatch) -> None:
    original = transitions.reopen_job

    def reopen_job(changes: ChangeSet, seconds_allowed: float | None, **data: Any) -> None:
        since, changes.job.paused_at = changes.job.paused_at, None
        original(changes, seconds_allowed, **data)
        changes.job.paused_at = since

    patch.setattr(transitions, "reopen_job", reopen_job)


@mutant
def take_the_deadline_of_the_job_for_that_of_its_tasks(patch: pytest.MonkeyPatch) -> None:
    """Running nodes would be ended by their own timeout, and be named as the cause of the failure."""
    close = job_end._close_nodes

    def close_nodes(changes: ChangeSet, reason: str, ended_by: EndedBy, **which: bool) -> None:
        is_late = changes.job.failed_node is None and ended_by is EndedBy.REVOKED
        close(changes, reason, EndedBy.TIMEOUT if is_late else ended_by, **which)

    patch.setattr(job_end, "REVOKED", {**job_end.REVOKED, EndedBy.TIMEOUT: "timed out"})
    patch.setattr(job_end, "_close_nodes", close_nodes)


@mutant
def fail_a_job_whose_deadline_passes_while_it_cleans_up(patch: pytest.MonkeyPatch) -> None:
    def fail_overdue(changes: ChangeSet) -> None:
        job = changes.job
        is_late = job.deadline_at is not None and not job.is_paused and changes.now >= job.deadline_at
        if is_late and job.error is None:
            job_end.fail_job(changes, "late")

    patch.setattr(timers, "fail_overdue", fail_overdue)


@mutant
def take_what_was_skipped_for_work_that_is_done(patch: pytest.MonkeyPatch) -> None:
    """A former bug: 3 of 4."""
    original = progress.known_work

    def known_work(job: progress.JobSnapshot) -> tuple[int, int]:
        done, known = original(job)
        skipped = sum(node.status is NodeStatus.SKIPPED for node in job.nodes.values())
        return done + skipped, known + skipped

    patch.setattr(progress, "known_work", known_work)


@mutant
def measure_a_fan_out_by_the_children_made_so_far(patch: pytest.MonkeyPatch) -> None:
    original = progress._own_share

    def own_share(node: progress.NodeSnapshot, job: progress.JobSnapshot) -> float:
        fan = replace(node.fan, items=sum(node.fan.counts.values())) if node.fan is not None else None
        return original(replace(node, fan=fan), job)

    patch.setattr(progress, "_own_share", own_share)


@mutant
def show_a_job_as_done_when_what_has_begun_is_done(patch: pytest.MonkeyPatch) -> None:
    def known_work(job: progress.JobSnapshot) -> tuple[int, int]:
        begun = {name: node for name, node in job.nodes.items() if node.status is not NodeStatus.PENDING}
        return original(replace(job, nodes=begun))

    original = progress.known_work
    patch.setattr(progress, "known_work", known_work)
    patch.setattr(progress, "ALMOST_ALL", 100.0)


@mutant
def show_a_failed_job_as_all_done(patch: pytest.MonkeyPatch) -> None:
    """A former bug: if its deadline had skipped open nodes and its finalizers had run."""
    patch.setattr(progress, "JOB_TERMINAL", frozenset())


@mutant
def say_nothing_of_an_estimate_that_is_overdue(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(estimate, "_overdue", lambda job, usual: timedelta())
