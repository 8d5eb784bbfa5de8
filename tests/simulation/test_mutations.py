"""The simulator is worth something only if it finds bugs: each of these is one that an engine like this has had."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from killing_seeds import KILLING

from dagmaster.engine import decide as deciding
from dagmaster.engine import (
    dynamic_nodes,
    edges,
    failures,
    fan,
    finalizers,
    job_end,
    manual_retry,
    node_start,
    pause,
    reports,
    state,
    timers,
    transitions,
    wait_nodes,
    wake_ups,
)
from dagmaster.engine.change_set import ChangeSet
from dagmaster.engine.messages import Pause, Resume, TaskLost
from dagmaster.engine.scope import item_scope
from dagmaster.explain import estimate, reasons
from dagmaster.explain.facts import Kind
from dagmaster.model import outcome, progress, retry
from dagmaster.model.graph import NodeType
from dagmaster.model.outcome import Outcome
from dagmaster.model.retry import find_rule_against
from dagmaster.model.states import NODE_IN_FLIGHT, NODE_TERMINAL, EndedBy, NodeStatus
from simulation import owners, stalls, store
from simulation.ground import Violation
from simulation.run import prepare

SEEDS = range(3000)

Patch = Callable[[pytest.MonkeyPatch], None]
BUGS: list[Patch] = []


def bug(patch: Patch) -> Patch:
    BUGS.append(patch)
    return patch


@bug
def accept_any_attempt(patch: pytest.MonkeyPatch) -> None:
    def current(changes: ChangeSet, node_id: str, task_id: str) -> state.NodeState | None:
        node = changes.job.nodes.get(node_id)
        return node if node is not None and state.is_executed(node) else None

    patch.setattr(reports, "find_current", current)


@bug
def accept_a_result_twice(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(reports, "NODE_IN_FLIGHT", frozenset(NodeStatus))


@bug
def skip_when_any_edge_is_dead(patch: pytest.MonkeyPatch) -> None:
    def is_dead(node: state.NodeState) -> bool:
        decided = len(node.spec.all_of) + len(node.spec.any_of) - node.all_open - node.any_open
        return node.live < decided

    patch.setattr(edges, "is_dead", is_dead)


@bug
def be_ready_when_all_edges_are_dead(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(edges, "is_ready", lambda node: not node.all_open and not node.any_open)


@bug
def be_ready_with_the_first_edge(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(edges, "is_ready", lambda node: node.live > 0)


@bug
def count_any_of_by_skipped(patch: pytest.MonkeyPatch) -> None:
    def count_edge(target: state.NodeState, source: state.NodeState, *, live: bool) -> None:
        target.live += live
        if source.node_id in target.spec.any_of:
            target.any_open -= 1
            target.any_live += 1
        if source.node_id not in target.spec.any_of or source.node_id in target.spec.all_of:
            target.all_open -= 1

    patch.setattr(edges, "count_edge", count_edge)
    patch.setattr(state, "count_edge", count_edge)


@bug
def count_a_source_once(patch: pytest.MonkeyPatch) -> None:
    def count_edge(target: state.NodeState, source: state.NodeState, *, live: bool) -> None:
        target.live += live
        if source.node_id in target.spec.any_of:
            target.any_open -= 1
            target.any_live += live
        else:
            target.all_open -= 1

    patch.setattr(edges, "count_edge", count_edge)
    patch.setattr(state, "count_edge", count_edge)


@bug
def take_every_branch(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(edges, "is_live", lambda node, target: node.status is NodeStatus.COMPLETED)


@bug
def ignore_max_parallel(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(node_start, "has_slot", lambda job, child: True)


@bug
def forget_held_back_children_when_one_starts(patch: pytest.MonkeyPatch) -> None:
    """As it was: a local claim took the next child out of the queue, and nobody started it."""
    count = transitions._count

    def _count(changes: ChangeSet, node: state.NodeState, was: NodeStatus) -> None:
        count(changes, node, was)
        if node.parent and was is NodeStatus.DISPATCHED and node.status is NodeStatus.RUNNING:
            queued = changes.job.fans[node.parent].waiting
            if queued:
                changes.ready.append(changes.job.nodes[queued.popleft()])

    patch.setattr(transitions, "_count", _count)


@bug
def let_no_child_take_the_place_of_another(patch: pytest.MonkeyPatch) -> None:
    def _count(changes: ChangeSet, node: state.NodeState, was: NodeStatus) -> None:
        opened = (node.status not in NODE_TERMINAL) - (was not in NODE_TERMINAL)
        changes.job.count_open(node, opened)
        if node.parent is not None:
            fan = changes.job.fans[node.parent]
            fan.open += opened
            fan.in_flight += (node.status in NODE_IN_FLIGHT) - (was in NODE_IN_FLIGHT)

    patch.setattr(transitions, "_count", _count)


@bug
def complete_a_fan_out_with_its_first_slice(patch: pytest.MonkeyPatch) -> None:
    def expand_slice(changes: ChangeSet, node: state.NodeState) -> bool:
        fan.expand_slice(changes, node)
        return True

    patch.setattr(node_start, "expand_slice", expand_slice)


@bug
def complete_the_job_with_its_first_end(patch: pytest.MonkeyPatch) -> None:
    def complete_if_done(changes: ChangeSet) -> None:
        ends = [node for node in changes.job.nodes.values() if node.spec.type is NodeType.END]
        if any(node.status is NodeStatus.COMPLETED for node in ends):
            changes.job.open = 0
        job_end.complete_if_done(changes)

    patch.setattr(deciding, "complete_if_done", complete_if_done)


@bug
def let_dependents_not_wait_for_children(patch: pytest.MonkeyPatch) -> None:
    def complete(changes: ChangeSet, node: state.NodeState, output: bytes | None, *measured: Any) -> None:
        transitions.complete(changes, node, output, *measured)
        if not node.is_child:
            edges.settle(changes, node)

    patch.setattr(node_start, "complete", complete)
    patch.setattr(reports, "complete", complete)


@bug
def mix_up_the_items(patch: pytest.MonkeyPatch) -> None:
    def child_params(changes: ChangeSet, child: state.NodeState) -> Any:
        node = changes.job.nodes[child.parent or ""]
        items = fan.resolve_items(changes, node)
        return child.task.params.resolve(item_scope(changes, items[0], child.index or 0, len(items)))

    patch.setattr(node_start, "child_params", child_params)


@bug
def aggregate_in_reverse(patch: pytest.MonkeyPatch) -> None:
    children = state.JobState.children
    patch.setattr(state.JobState, "children", lambda self, fan_out: reversed(list(children(self, fan_out))))


@bug
def retry_under_the_same_task_id(patch: pytest.MonkeyPatch) -> None:
    original = transitions.retry

    def retry(changes: ChangeSet, node: state.NodeState, *how: Any) -> None:
        original(changes, node, *how)
        node.attempt -= state.is_executed(node)

    patch.setattr(transitions, "retry", retry)


@bug
def retry_once_too_often(patch: pytest.MonkeyPatch) -> None:
    original = failures.fail_attempt

    def fail_attempt(changes: ChangeSet, node: state.NodeState, error: str, **event: Any) -> None:
        node.max_retries += 1
        original(changes, node, error, **event)
        node.max_retries -= 1

    for module in (node_start, reports, timers):
        patch.setattr(module, "fail_attempt", fail_attempt)


@bug
def retry_at_once(patch: pytest.MonkeyPatch) -> None:
    original = transitions.retry
    patch.setattr(transitions, "retry", lambda changes, node, delay, *more: original(changes, node, timedelta(), *more))


@bug
def retry_what_is_permanent(patch: pytest.MonkeyPatch) -> None:
    original = failures.fail_attempt

    def fail_attempt(
        changes: ChangeSet, node: state.NodeState, error: str, permanent: bool = False, **event: Any
    ) -> None:
        original(changes, node, error, **event)

    patch.setattr(reports, "fail_attempt", fail_attempt)


@bug
def retry_whatever_the_rules_say(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(failures, "find_rule_against", lambda policy, error_types: None)


@bug
def know_only_the_class_and_not_its_bases(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(failures, "find_rule_against", lambda policy, error_types: find_rule_against(policy, error_types[:1]))


@bug
def judge_a_lost_worker_by_the_rules(patch: pytest.MonkeyPatch) -> None:
    original = failures._rule_against

    def _rule_against(node: state.NodeState, error_types: Any, *, is_asked_for: bool) -> str | None:
        return original(node, error_types or (), is_asked_for=is_asked_for and error_types is not None)

    patch.setattr(failures, "_rule_against", _rule_against)


@bug
def stay_where_there_is_too_little_memory(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(failures, "find_queue_after", lambda policy, error_types: None)


@bug
def forget_the_other_queue_on_take_over(patch: pytest.MonkeyPatch) -> None:
    original = store._node_state
    patch.setattr(store, "_node_state", lambda row, graph: original(row._replace(queue=None), graph))


@bug
def forget_retries_on_take_over(patch: pytest.MonkeyPatch) -> None:
    original = node_start.take_up

    def take_up(changes: ChangeSet, node: state.NodeState) -> None:
        if node.status is not NodeStatus.READY:
            original(changes, node)

    patch.setattr(node_start, "take_up", take_up)


@bug
def forget_timeouts_on_take_over(patch: pytest.MonkeyPatch) -> None:
    original = node_start.take_up

    def take_up(changes: ChangeSet, node: state.NodeState) -> None:
        if node.status not in NODE_IN_FLIGHT:
            original(changes, node)

    patch.setattr(node_start, "take_up", take_up)


@bug
def forget_to_go_on_expanding_on_take_over(patch: pytest.MonkeyPatch) -> None:
    original = node_start.take_up

    def take_up(changes: ChangeSet, node: state.NodeState) -> None:
        if node.status is not NodeStatus.RUNNING or state.is_executed(node):
            original(changes, node)

    patch.setattr(node_start, "take_up", take_up)


@bug
def believe_that_a_fan_out_is_settled_when_restored(patch: pytest.MonkeyPatch) -> None:
    ended = (NodeStatus.COMPLETED, NodeStatus.SKIPPED)
    patch.setattr(state, "is_settled", lambda job, node: node.status in ended)


@bug
def go_on_after_the_end(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ChangeSet, "is_over", property(lambda self: False))


@bug
def leave_tasks_of_closed_attempts_on_the_queue(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ChangeSet, "close_task", lambda self, node: None)


@bug
def leave_waiting_tasks_on_the_queue(patch: pytest.MonkeyPatch) -> None:
    def close_task(self: ChangeSet, node: state.NodeState) -> None:
        self.closed_running.append(self.job.task_id(node))

    patch.setattr(ChangeSet, "close_task", close_task)


@bug
def go_on_when_a_node_has_failed(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(failures, "fail_job", lambda changes, error, failed_node: None)


@bug
def leave_nodes_open_at_the_end(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(job_end, "_close_nodes", lambda changes, reason, ended_by, **_: None)


@bug
def clean_up_before_the_rest_has_ended(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(state.JobState, "main_open", property(lambda self: 0))


@bug
def answer_a_failure_that_never_was(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(finalizers, "_has_failed", lambda changes: True)


@bug
def forget_on_take_over_what_was_allowed_to_fail(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(state, "has_passed", lambda job, node: False)


@bug
def fail_with_what_is_allowed_to_fail(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(failures, "_give_up", lambda changes, node, error: job_end.fail_job(changes, error))


@bug
def wake_up_too_early(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(wait_nodes, "_after", lambda changes, seconds: None if seconds is None else changes.now)


@bug
def forget_to_wake_up_on_take_over(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(node_start, "take_up_waiting", lambda changes, node: None)


@bug
def believe_decisions_for_other_attempts(patch: pytest.MonkeyPatch) -> None:
    original = wake_ups.accept_decision

    def accept_decision(changes: ChangeSet, message: Any) -> None:
        node = changes.job.nodes[message.node_id]
        original(changes, replace(message, task_id=changes.job.task_id(node)))

    patch.setattr(deciding, "accept_decision", accept_decision)


@bug
def ignore_lost_workers(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(deciding, "accept_lost", lambda changes, message: None)
    patch.setattr(timers, "fail_attempt", lambda changes, node, error, **event: None)


@bug
def count_a_task_given_back_as_a_retry(patch: pytest.MonkeyPatch) -> None:
    original = reports.accept_lost

    def accept_lost(changes: ChangeSet, message: Any) -> None:
        original(changes, TaskLost(message.node_id, message.task_id, message.worker_id, message.at))

    patch.setattr(deciding, "accept_lost", accept_lost)


@bug
def forget_late_results(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(reports, "ignore", lambda changes, message, reason: None)


@bug
def time_out_at_once(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(node_start, "dispatch_timeout", lambda changes, node: timedelta(seconds=1))


@bug
def forget_fencing(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(store.Store, "fence", lambda self, owner_id, epoch: None)


@bug
def forget_to_load_a_large_output(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(owners, "values_needed", lambda job, messages, rules: [])


@bug
def keep_a_large_output_in_memory(patch: pytest.MonkeyPatch) -> None:
    patch.setattr("dagmaster.engine.change_set.kept_output", lambda node, inline_bytes: node.output)


@bug
def forget_what_was_postponed(patch: pytest.MonkeyPatch) -> None:
    def go_on(changes: ChangeSet) -> None:
        changes.job.postponed.clear()

    patch.setattr(deciding, "go_on", go_on)


@bug
def leave_large_outputs_out_of_the_result(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(store.Store, "_result", lambda self, changes, result: result.data)


@bug
def dispatch_while_paused(patch: pytest.MonkeyPatch) -> None:
    def run_ready(changes: ChangeSet) -> None:
        since, changes.job.paused_at = changes.job.paused_at, None
        node_start.run_ready(changes)
        changes.job.paused_at = since

    patch.setattr(deciding, "run_ready", run_ready)


@bug
def leave_tasks_of_a_paused_job_on_the_queue(patch: pytest.MonkeyPatch) -> None:
    def pause_only(changes: ChangeSet, message: Pause) -> None:
        pause.pause(changes, message)
        changes.holds_tasks = None

    patch.setattr(deciding, "pause", pause_only)


@bug
def hold_tasks_after_a_pause(patch: pytest.MonkeyPatch) -> None:
    def unpause(changes: ChangeSet, message: Resume) -> None:
        pause.unpause(changes, message)
        changes.holds_tasks = None

    patch.setattr(deciding, "unpause", unpause)


@bug
def forget_what_was_ready_before_a_pause(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(pause, "take_up", lambda changes, node: None)


@bug
def take_up_the_branch_that_was_not_taken(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(manual_retry, "_is_bypassed", lambda node: False)


@bug
def leave_skipped_what_a_failure_had_skipped(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(manual_retry, "_is_bypassed", lambda node: True)


@bug
def reopen_with_the_retries_that_were_left(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(manual_retry, "_retry", lambda changes, node: transitions.retry(changes, node, timedelta()))


@bug
def dispatch_into_a_full_queue(patch: pytest.MonkeyPatch) -> None:
    original = node_start.dispatch

    def dispatch(changes: ChangeSet, node: state.NodeState) -> None:
        closed, changes.closed_queues = changes.closed_queues, ()
        original(changes, node)
        changes.closed_queues = closed

    patch.setattr(node_start, "dispatch", dispatch)


@bug
def forget_what_a_full_queue_held_back(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(owners.Owner, "open_queue", lambda self, queue: None)


@bug
def take_in_what_any_attempt_adds(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(dynamic_nodes, "find_current", lambda changes, node_id, task_id: changes.job.nodes.get(node_id))


@bug
def wait_for_what_had_ended_before(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(dynamic_nodes, "is_settled", lambda job, node: False)


@bug
def leave_out_nodes_when_they_are_added_again(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(dynamic_nodes, "_wait_for_more", lambda changes, node, given: None)


@bug
def forget_the_edges_of_added_nodes(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(state, "_restore_added", lambda job: None)


@bug
def pass_on_the_name_instead_of_the_result(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(reports, "find_named", lambda output: None)


@bug
def never_pass_results_on(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(deciding, "pass_results", lambda changes: changes.awaited_results.clear())


@bug
def leave_references_in_parameters(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(node_start, "added_params", lambda job, node: node.task.params.raw)


@bug
def settle_no_child_for_what_was_added_behind_it(patch: pytest.MonkeyPatch) -> None:
    def targets_of(node: state.NodeState) -> Sequence[str]:
        return () if node.is_child else state.targets_of(node)

    patch.setattr(edges, "targets_of", targets_of)


@bug
def take_what_a_handler_says_for_what_the_engine_does(patch: pytest.MonkeyPatch) -> None:
    """As it was: whether a node was revoked stood at the beginning of its error."""

    def is_revoked(node: state.NodeState) -> bool:
        return (node.error or "").startswith(("withdrawn: ", "stopped because "))

    for module in (state, reports, manual_retry):
        patch.setattr(module, "is_revoked", is_revoked)


@bug
def give_up_a_job_in_the_moment_in_which_it_should_wake(patch: pytest.MonkeyPatch) -> None:
    """As it was: only timers that are ahead counted, not one that is due at the same instant."""

    def latest(changes: ChangeSet) -> Any:
        deadlines = (timers._deadline(changes, node) for node in changes.job.nodes.values())
        return max((at for at in deadlines if at is not None and at > changes.now), default=None)

    patch.setattr(timers, "_latest_deadline", latest)


@bug
def drop_what_is_no_list_when_outputs_are_concatenated(patch: pytest.MonkeyPatch) -> None:
    def flatten(output: Any) -> Any:
        lists = [value for value in output.values() if isinstance(value, list)] if isinstance(output, dict) else []
        return [item for items in lists for item in items] if lists else fan_flatten(output)

    fan_flatten = fan._flatten
    patch.setattr(fan, "_flatten", flatten)


@bug
def try_again_what_can_never_succeed(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(retry, "NOT_RETRIED", ())


# Outcomes, stalls, times, deadlines and progress: what people are shown.


@bug
def show_a_fan_out_as_completed_when_it_has_expanded(patch: pytest.MonkeyPatch) -> None:
    """As it was: green while its children were open, and when one had failed."""
    patch.setattr(progress, "outcome_of", lambda status, children: Outcome(status))


@bug
def show_a_fan_out_as_failed_with_what_was_allowed_to_fail(patch: pytest.MonkeyPatch) -> None:
    def children_of(fan: Any, added: Any, *, may_fail: bool, last_ended_at: Any) -> outcome.Children:
        return outcome.children_of(fan, added, last_ended_at=last_ended_at)

    patch.setattr(progress, "children_of", children_of)


@bug
def count_what_was_cancelled_as_failed(patch: pytest.MonkeyPatch) -> None:
    def of_status(self: progress.NodeSnapshot) -> Outcome:
        return outcome.outcome_of(self.status, self.children)

    patch.setattr(progress.NodeSnapshot, "outcome", property(of_status))


@bug
def revoke_what_is_under_way_when_the_job_is_cancelled(patch: pytest.MonkeyPatch) -> None:
    close = job_end._close_nodes

    def close_nodes(changes: ChangeSet, reason: str, ended_by: EndedBy, **which: bool) -> None:
        close(changes, reason, EndedBy.REVOKED, **which)

    patch.setattr(job_end, "_close_nodes", close_nodes)


@bug
def begin_a_job_only_to_cancel_it(patch: pytest.MonkeyPatch) -> None:
    """As it was: started and dispatched in the instant in which it was cancelled."""
    patch.setattr(deciding, "_in_order", lambda job, messages: messages)


@bug
def raise_a_stall_for_a_job_that_waits(patch: pytest.MonkeyPatch) -> None:
    """As it was: for one that waited for an approval."""
    patch.setattr(reasons, "RIGHTLY", reasons.RIGHTLY - {Kind.WAITING_FOR_APPROVAL})


@bug
def raise_no_stall_while_a_task_runs_for_ever(patch: pytest.MonkeyPatch) -> None:
    """Whoever is at work would be trusted, also long after its time is over."""
    original = reasons.reasons

    def trusting(*around: Any) -> list[Kind]:
        return [Kind.PAUSED if kind is Kind.RUNNING else kind for kind in original(*around)]

    patch.setattr(reasons, "reasons", trusting)


@bug
def raise_a_stall_for_a_paused_job(patch: pytest.MonkeyPatch) -> None:
    """As it was: where nothing was left but tasks in the queue."""
    original = reasons.stands_without_reason

    def stands_without_reason(job: state.JobState, *around: Any) -> bool:
        since, job.paused_at = job.paused_at, None
        verdict = original(job, *around)
        job.paused_at = since
        return verdict

    patch.setattr(stalls, "stands_without_reason", stands_without_reason)


@bug
def stamp_a_task_with_the_time_of_its_batch(patch: pytest.MonkeyPatch) -> None:
    """As it was: a task of 13 ms was shown with 0 or 425."""
    patch.setattr(transitions, "_measure", lambda changes, *measured: changes.now)


@bug
def count_the_pause_before_a_retry_as_run_time(patch: pytest.MonkeyPatch) -> None:
    original = transitions.retry

    def retry(changes: ChangeSet, node: state.NodeState, *how: Any) -> None:
        began = node.started_at
        original(changes, node, *how)
        node.started_at = began

    patch.setattr(transitions, "retry", retry)


@bug
def give_the_duration_of_an_attempt_by_the_clock_of_the_owner(patch: pytest.MonkeyPatch) -> None:
    def complete(
        changes: ChangeSet, node: state.NodeState, output: Any, duration_ms: Any, reported_at: Any = None
    ) -> None:
        node_start.complete(changes, node, output, None, reported_at)

    patch.setattr(reports, "complete", complete)


@bug
def set_no_deadline(patch: pytest.MonkeyPatch) -> None:
    """As it was: the setting had no effect."""
    patch.setattr(transitions, "_set_deadline", lambda changes, seconds_allowed: None)


@bug
def forget_the_deadline_on_take_over(patch: pytest.MonkeyPatch) -> None:
    def resume(changes: ChangeSet) -> None:
        at, changes.job.deadline_at = changes.job.deadline_at, None
        node_start.resume(changes)
        changes.job.deadline_at = changes.job.deadline_at or at

    patch.setattr(deciding, "resume", resume)


@bug
def let_a_pause_use_up_the_time_of_the_job(patch: pytest.MonkeyPatch) -> None:
    def unpause(changes: ChangeSet, message: Resume) -> None:
        at = changes.job.deadline_at
        pause.unpause(changes, message)
        changes.job.deadline_at = at

    patch.setattr(deciding, "unpause", unpause)


@bug
def move_the_deadline_by_the_pause_before_a_job_was_reopened(patch: pytest.MonkeyPatch) -> None:
    original = transitions.reopen_job

    def reopen_job(changes: ChangeSet, seconds_allowed: float | None, **data: Any) -> None:
        since, changes.job.paused_at = changes.job.paused_at, None
        original(changes, seconds_allowed, **data)
        changes.job.paused_at = since

    patch.setattr(transitions, "reopen_job", reopen_job)


@bug
def take_the_deadline_of_the_job_for_that_of_its_tasks(patch: pytest.MonkeyPatch) -> None:
    """What is under way would be ended by a timeout of its own, and be named as what failed the job."""
    close = job_end._close_nodes

    def close_nodes(changes: ChangeSet, reason: str, ended_by: EndedBy, **which: bool) -> None:
        is_late = changes.job.failed_node is None and ended_by is EndedBy.REVOKED
        close(changes, reason, EndedBy.TIMEOUT if is_late else ended_by, **which)

    patch.setattr(job_end, "REVOKED", {**job_end.REVOKED, EndedBy.TIMEOUT: "timed out"})
    patch.setattr(job_end, "_close_nodes", close_nodes)


@bug
def fail_a_job_whose_deadline_passes_while_it_cleans_up(patch: pytest.MonkeyPatch) -> None:
    def end_late(changes: ChangeSet) -> None:
        job = changes.job
        is_late = job.deadline_at is not None and not job.is_paused and changes.now >= job.deadline_at
        if is_late and job.error is None:
            job_end.fail_job(changes, "late")

    patch.setattr(timers, "end_late", end_late)


@bug
def take_what_was_skipped_for_work_that_is_done(patch: pytest.MonkeyPatch) -> None:
    """As it was: 3 of 4."""
    original = progress.known_work

    def known_work(job: progress.JobSnapshot) -> tuple[int, int]:
        done, known = original(job)
        skipped = sum(node.status is NodeStatus.SKIPPED for node in job.nodes.values())
        return done + skipped, known + skipped

    patch.setattr(progress, "known_work", known_work)


@bug
def measure_a_fan_out_by_the_children_made_so_far(patch: pytest.MonkeyPatch) -> None:
    original = progress._own_share

    def own_share(node: progress.NodeSnapshot, job: progress.JobSnapshot) -> float:
        made = replace(node.fan, items=sum(node.fan.counts.values())) if node.fan is not None else None
        return original(replace(node, fan=made), job)

    patch.setattr(progress, "_own_share", own_share)


@bug
def show_a_job_as_done_when_what_has_begun_is_done(patch: pytest.MonkeyPatch) -> None:
    def known_work(job: progress.JobSnapshot) -> tuple[int, int]:
        begun = {name: node for name, node in job.nodes.items() if node.status is not NodeStatus.PENDING}
        return original(replace(job, nodes=begun))

    original = progress.known_work
    patch.setattr(progress, "known_work", known_work)
    patch.setattr(progress, "ALMOST_ALL", 100.0)


@bug
def show_a_failed_job_as_all_done(patch: pytest.MonkeyPatch) -> None:
    """As it was: when its deadline had skipped what was open, and the last chains had run."""
    patch.setattr(progress, "JOB_TERMINAL", frozenset())


@bug
def say_nothing_of_an_estimate_that_is_overdue(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(estimate, "_overdue", lambda job, usual: timedelta())


def find(seeds: Iterable[int]) -> int | None:
    """The first seed whose world is violated."""
    for seed in seeds:
        try:
            prepare(seed).build().run()
        except Violation:
            return seed
    return None


@pytest.mark.parametrize("patch", BUGS, ids=lambda patch: patch.__name__)
def test_the_simulator_finds_an_engine_that_would(patch: Patch, monkeypatch: pytest.MonkeyPatch) -> None:
    patch(monkeypatch)
    known = KILLING.get(patch.__name__)
    if known is not None and find([known]) is not None:
        return
    seed = find(SEEDS)
    assert seed is not None, f"{patch.__name__} went unnoticed in {len(SEEDS)} worlds"
    print(f'"{patch.__name__}": {seed},')  # noqa: T201 - for killing_seeds.py


def test_the_seeds_that_are_known_are_of_bugs_that_are_tried() -> None:
    assert set(KILLING) <= {patch.__name__ for patch in BUGS}
