"""Mutants of the engine: edges, branches, fan-outs, results and added nodes."""

from collections.abc import Sequence
from typing import Any

import pytest
from mutants import mutant

from dagmaster.engine import decide as deciding
from dagmaster.engine import (
    dynamic_nodes,
    edges,
    fan,
    job_control,
    job_end,
    node_start,
    reports,
    state,
    transitions,
)
from dagmaster.engine.change_set import ChangeSet
from dagmaster.engine.scope import item_scope
from dagmaster.model.graph import NodeType
from dagmaster.model.states import NODE_IN_FLIGHT, NODE_TERMINAL, NodeStatus


@mutant
def accept_any_attempt(patch: pytest.MonkeyPatch) -> None:
    def current(changes: ChangeSet, node_id: str, task_id: str) -> state.NodeState | None:
        node = changes.job.nodes.get(node_id)
        return node if node is not None and state.is_executed(node) else None

    patch.setattr(reports, "find_current", current)


@mutant
def accept_a_result_twice(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(reports, "NODE_IN_FLIGHT", frozenset(NodeStatus))


@mutant
def skip_when_any_edge_is_dead(patch: pytest.MonkeyPatch) -> None:
    def is_dead(node: state.NodeState) -> bool:
        decided = len(node.spec.all_of) + len(node.spec.any_of) - node.all_open - node.any_open
        return node.live < decided

    patch.setattr(edges, "is_dead", is_dead)


@mutant
def be_ready_when_all_edges_are_dead(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(edges, "is_ready", lambda node: not node.all_open and not node.any_open)


@mutant
def be_ready_with_the_first_edge(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(edges, "is_ready", lambda node: node.live > 0)


@mutant
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


@mutant
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


@mutant
def take_every_branch(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(edges, "is_live", lambda node, target: node.status is NodeStatus.COMPLETED)


@mutant
def ignore_max_parallel(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(node_start, "has_slot", lambda job, child: True)


@mutant
def forget_held_back_children_when_one_starts(patch: pytest.MonkeyPatch) -> None:
    """A former bug: a local claim took the next child out of the queue, and it was never started."""
    count = transitions._count

    def _count(changes: ChangeSet, node: state.NodeState, was: NodeStatus) -> None:
        count(changes, node, was)
        if node.parent and was is NodeStatus.DISPATCHED and node.status is NodeStatus.RUNNING:
            queued = changes.job.fans[node.parent].waiting
            if queued:
                changes.ready.append(changes.job.nodes[queued.popleft()])

    patch.setattr(transitions, "_count", _count)


@mutant
def let_no_child_take_the_place_of_another(patch: pytest.MonkeyPatch) -> None:
    def _count(changes: ChangeSet, node: state.NodeState, was: NodeStatus) -> None:
        opened = (node.status not in NODE_TERMINAL) - (was not in NODE_TERMINAL)
        changes.job.count_open(node, opened)
        if node.parent is not None:
            fan = changes.job.fans[node.parent]
            fan.open += opened
            fan.in_flight += (node.status in NODE_IN_FLIGHT) - (was in NODE_IN_FLIGHT)

    patch.setattr(transitions, "_count", _count)


@mutant
def complete_a_fan_out_with_its_first_slice(patch: pytest.MonkeyPatch) -> None:
    def expand_slice(changes: ChangeSet, node: state.NodeState) -> bool:
        fan.expand_slice(changes, node)
        return True

    patch.setattr(node_start, "expand_slice", expand_slice)


@mutant
def complete_the_job_with_its_first_end(patch: pytest.MonkeyPatch) -> None:
    def complete_if_done(changes: ChangeSet) -> None:
        ends = [node for node in changes.job.nodes.values() if node.spec.type is NodeType.END]
        if any(node.status is NodeStatus.COMPLETED for node in ends):
            changes.job.open = 0
        job_end.complete_if_done(changes)

    patch.setattr(deciding, "complete_if_done", complete_if_done)


@mutant
def let_dependents_not_wait_for_children(patch: pytest.MonkeyPatch) -> None:
    def complete(changes: ChangeSet, node: state.NodeState, output: bytes | None, *measured: Any) -> None:
        transitions.complete(changes, node, output, *measured)
        if not node.is_child:
            edges.settle(changes, node)

    patch.setattr(node_start, "complete", complete)
    patch.setattr(reports, "complete", complete)


@mutant
def mix_up_the_items(patch: pytest.MonkeyPatch) -> None:
    def child_params(changes: ChangeSet, child: state.NodeState) -> Any:
        node = changes.job.nodes[child.parent or ""]
        items = fan.resolve_items(changes, node)
        return child.task.params.resolve(item_scope(changes, items[0], child.index or 0, len(items)))

    patch.setattr(node_start, "child_params", child_params)


@mutant
def aggregate_in_reverse(patch: pytest.MonkeyPatch) -> None:
    children = state.JobState.children
    patch.setattr(state.JobState, "children", lambda self, fan_out: reversed(list(children(self, fan_out))))


@mutant
def take_in_what_any_attempt_adds(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(dynamic_nodes, "find_current", lambda changes, node_id, task_id: changes.job.nodes.get(node_id))


@mutant
def wait_for_what_had_ended_before(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(dynamic_nodes, "is_settled", lambda job, node: False)


@mutant
def leave_out_nodes_when_they_are_added_again(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(dynamic_nodes, "_add_sources", lambda changes, node, nodes: None)


@mutant
def forget_the_edges_of_added_nodes(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(state, "_restore_added", lambda job: None)


@mutant
def pass_on_the_name_instead_of_the_result(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(reports, "find_result_source", lambda output: None)


@mutant
def never_pass_results_on(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(deciding, "pass_results", lambda changes: changes.awaited_results.clear())


@mutant
def leave_references_in_parameters(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(node_start, "added_params", lambda job, node: node.task.params.raw)


@mutant
def settle_no_child_for_what_was_added_behind_it(patch: pytest.MonkeyPatch) -> None:
    def targets_of(node: state.NodeState) -> Sequence[str]:
        return () if node.is_child else state.targets_of(node)

    patch.setattr(edges, "targets_of", targets_of)


@mutant
def take_what_a_handler_says_for_what_the_engine_does(patch: pytest.MonkeyPatch) -> None:
    """A former bug: whether a node was revoked was read from the beginning of its error."""

    def is_revoked(node: state.NodeState) -> bool:
        return (node.error or "").startswith(("withdrawn: ", "stopped because "))

    for module in (state, reports, job_control):
        patch.setattr(module, "is_revoked", is_revoked)


@mutant
def drop_what_is_no_list_when_outputs_are_concatenated(patch: pytest.MonkeyPatch) -> None:
    def flatten(output: Any) -> Any:
        lists = [value for value in output.values() if isinstance(value, list)] if isinstance(output, dict) else []
        return [item for items in lists for item in items] if lists else fan_flatten(output)

    fan_flatten = fan._flatten
    patch.setattr(fan, "_flatten", flatten)
