"""Mutants of the engine: retries, time-outs, lost workers and take-overs."""

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from mutants import mutant

from dagmaster.engine import decide as deciding
from dagmaster.engine import (
    failures,
    node_start,
    reports,
    state,
    timers,
    transitions,
    wait_nodes,
)
from dagmaster.engine.change_set import ChangeSet
from dagmaster.engine.messages import TaskLost
from dagmaster.model import retry
from dagmaster.model.retry import find_rule_against
from dagmaster.model.states import NODE_IN_FLIGHT, NodeStatus
from simulation import store


@mutant
def retry_under_the_same_task_id(patch: pytest.MonkeyPatch) -> None:
    original = transitions.retry

    def retry(changes: ChangeSet, node: state.NodeState, *how: Any) -> None:
        original(changes, node, *how)
        node.attempt -= state.is_executed(node)

    patch.setattr(transitions, "retry", retry)


@mutant
def retry_once_too_often(patch: pytest.MonkeyPatch) -> None:
    original = failures.fail_attempt

    def fail_attempt(changes: ChangeSet, node: state.NodeState, error: str, **event: Any) -> None:
        node.max_retries += 1
        original(changes, node, error, **event)
        node.max_retries -= 1

    for module in (node_start, reports, timers):
        patch.setattr(module, "fail_attempt", fail_attempt)


@mutant
def retry_at_once(patch: pytest.MonkeyPatch) -> None:
    original = transitions.retry
    patch.setattr(transitions, "retry", lambda changes, node, delay, *more: original(changes, node, timedelta(), *more))


@mutant
def retry_what_is_permanent(patch: pytest.MonkeyPatch) -> None:
    original = failures.fail_attempt

    def fail_attempt(
        changes: ChangeSet, node: state.NodeState, error: str, permanent: bool = False, **event: Any
    ) -> None:
        original(changes, node, error, **event)

    patch.setattr(reports, "fail_attempt", fail_attempt)


@mutant
def retry_whatever_the_rules_say(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(failures, "find_rule_against", lambda policy, error_types: None)


@mutant
def know_only_the_class_and_not_its_bases(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(failures, "find_rule_against", lambda policy, error_types: find_rule_against(policy, error_types[:1]))


@mutant
def judge_a_lost_worker_by_the_rules(patch: pytest.MonkeyPatch) -> None:
    original = failures._rule_against

    def _rule_against(node: state.NodeState, error_types: Any, *, is_requested: bool) -> str | None:
        return original(node, error_types or (), is_requested=is_requested and error_types is not None)

    patch.setattr(failures, "_rule_against", _rule_against)


@mutant
def stay_where_there_is_too_little_memory(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(failures, "find_queue_after", lambda policy, error_types: None)


@mutant
def forget_the_other_queue_on_take_over(patch: pytest.MonkeyPatch) -> None:
    original = store._node_state
    patch.setattr(store, "_node_state", lambda row, graph: original(row._replace(queue=None), graph))


@mutant
def forget_retries_on_take_over(patch: pytest.MonkeyPatch) -> None:
    original = node_start.resume_node

    def resume_node(changes: ChangeSet, node: state.NodeState) -> None:
        if node.status is not NodeStatus.READY:
            original(changes, node)

    patch.setattr(node_start, "resume_node", resume_node)


@mutant
def forget_timeouts_on_take_over(patch: pytest.MonkeyPatch) -> None:
    original = node_start.resume_node

    def resume_node(changes: ChangeSet, node: state.NodeState) -> None:
        if node.status not in NODE_IN_FLIGHT:
            original(changes, node)

    patch.setattr(node_start, "resume_node", resume_node)


@mutant
def forget_to_go_on_expanding_on_take_over(patch: pytest.MonkeyPatch) -> None:
    original = node_start.resume_node

    def resume_node(changes: ChangeSet, node: state.NodeState) -> None:
        if node.status is not NodeStatus.RUNNING or state.is_executed(node):
            original(changes, node)

    patch.setattr(node_start, "resume_node", resume_node)


@mutant
def believe_that_a_fan_out_is_settled_when_restored(patch: pytest.MonkeyPatch) -> None:
    ended = (NodeStatus.COMPLETED, NodeStatus.SKIPPED)
    patch.setattr(state, "is_settled", lambda job, node: node.status in ended)


@mutant
def wake_up_too_early(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(wait_nodes, "_after", lambda changes, seconds: None if seconds is None else changes.now)


@mutant
def forget_to_wake_up_on_take_over(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(node_start, "resume_waiting", lambda changes, node: None)


@mutant
def believe_decisions_for_other_attempts(patch: pytest.MonkeyPatch) -> None:
    original = wait_nodes.accept_decision

    def accept_decision(changes: ChangeSet, message: Any) -> None:
        node = changes.job.nodes[message.node_id]
        original(changes, replace(message, task_id=changes.job.task_id(node)))

    patch.setattr(deciding, "accept_decision", accept_decision)


@mutant
def ignore_lost_workers(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(deciding, "accept_lost", lambda changes, message: None)
    patch.setattr(timers, "fail_attempt", lambda changes, node, error, **event: None)


@mutant
def count_a_task_given_back_as_a_retry(patch: pytest.MonkeyPatch) -> None:
    original = reports.accept_lost

    def accept_lost(changes: ChangeSet, message: Any) -> None:
        original(changes, TaskLost(message.node_id, message.task_id, message.worker_id, message.at))

    patch.setattr(deciding, "accept_lost", accept_lost)


@mutant
def forget_late_results(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(reports, "ignore", lambda changes, message, reason: None)


@mutant
def time_out_at_once(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(node_start, "dispatch_timeout", lambda changes, node: timedelta(seconds=1))


@mutant
def forget_fencing(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(store.Store, "fence", lambda self, owner_id, epoch: None)


@mutant
def try_again_what_can_never_succeed(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(retry, "NOT_RETRIED", ())
