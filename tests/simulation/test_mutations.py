"""The simulator is worth something only if it finds bugs: each of these is one that an engine like this has had."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from killing_seeds import KILLING

from dagmaster.engine import (
    adding,
    edges,
    ending,
    failing,
    fan,
    last,
    pausing,
    reopening,
    reports,
    running,
    state,
    timers,
    turn,
    waiting,
    waking,
)
from dagmaster.engine import decide as deciding
from dagmaster.engine.messages import Pause, TaskLost, Unpause
from dagmaster.engine.scope import item_scope
from dagmaster.model import retry
from dagmaster.model.graph import NodeType
from dagmaster.model.states import NODE_COMPLETED, NODE_IN_FLIGHT, NODE_TERMINAL, NodeStatus
from dagmaster.simulation import owners, store
from dagmaster.simulation.ground import Violation
from dagmaster.simulation.run import prepare

SEEDS = range(3000)

Patch = Callable[[pytest.MonkeyPatch], None]
BUGS: list[Patch] = []


def bug(patch: Patch) -> Patch:
    BUGS.append(patch)
    return patch


@bug
def accept_any_attempt(patch: pytest.MonkeyPatch) -> None:
    def current(turn: turn.Turn, node_id: str, task_id: str) -> state.NodeState | None:
        node = turn.job.nodes.get(node_id)
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
    patch.setattr(running, "has_slot", lambda job, child: True)


@bug
def forget_held_back_children_when_one_starts(patch: pytest.MonkeyPatch) -> None:
    """As it was: a local claim took the next child out of the queue, and nobody started it."""
    count = turn.Turn._count

    def _count(self: turn.Turn, node: state.NodeState, was: NodeStatus) -> None:
        count(self, node, was)
        if node.parent and was is NodeStatus.DISPATCHED and node.status is NodeStatus.RUNNING:
            waiting = self.job.fans[node.parent].waiting
            if waiting:
                self.ready.append(self.job.nodes[waiting.popleft()])

    patch.setattr(turn.Turn, "_count", _count)


@bug
def let_no_child_take_the_place_of_another(patch: pytest.MonkeyPatch) -> None:
    def _count(self: turn.Turn, node: state.NodeState, was: NodeStatus) -> None:
        opened = (node.status not in NODE_TERMINAL) - (was not in NODE_TERMINAL)
        self.job.open += opened
        if node.parent is not None:
            self.job.fans[node.parent].open += opened
            self.job.fans[node.parent].in_flight += (node.status in NODE_IN_FLIGHT) - (was in NODE_IN_FLIGHT)

    patch.setattr(turn.Turn, "_count", _count)


@bug
def complete_a_fan_out_with_its_first_slice(patch: pytest.MonkeyPatch) -> None:
    def expand_slice(turn: turn.Turn, node: state.NodeState) -> bool:
        fan.expand_slice(turn, node)
        return True

    patch.setattr(running, "expand_slice", expand_slice)


@bug
def complete_the_job_with_its_first_end(patch: pytest.MonkeyPatch) -> None:
    def complete_if_done(turn: turn.Turn) -> None:
        ends = [node for node in turn.job.nodes.values() if node.spec.type is NodeType.END]
        if any(node.status is NodeStatus.COMPLETED for node in ends):
            turn.job.open = 0
        ending.complete_if_done(turn)

    patch.setattr(deciding, "complete_if_done", complete_if_done)


@bug
def let_dependents_not_wait_for_children(patch: pytest.MonkeyPatch) -> None:
    def complete(turn: turn.Turn, node: state.NodeState, output: bytes | None, duration_ms: int | None = None) -> None:
        node.output, node.completed_at = output, turn.now
        turn.move_node(node, NODE_COMPLETED)
        if not node.is_child:
            edges.settle(turn, node)

    patch.setattr(running, "complete", complete)
    patch.setattr(reports, "complete", complete)


@bug
def mix_up_the_items(patch: pytest.MonkeyPatch) -> None:
    def child_params(turn: turn.Turn, child: state.NodeState) -> Any:
        node = turn.job.nodes[child.parent or ""]
        items = fan.resolve_items(turn, node)
        return child.task.params.resolve(item_scope(turn, items[0], child.index or 0, len(items)))

    patch.setattr(running, "child_params", child_params)


@bug
def aggregate_in_reverse(patch: pytest.MonkeyPatch) -> None:
    children = state.JobState.children
    patch.setattr(state.JobState, "children", lambda self, fan_out: reversed(list(children(self, fan_out))))


@bug
def retry_under_the_same_task_id(patch: pytest.MonkeyPatch) -> None:
    original = failing.retry

    def retry(turn: turn.Turn, node: state.NodeState, delay: timedelta) -> None:
        original(turn, node, delay)
        node.attempt -= state.is_executed(node)

    patch.setattr(failing, "retry", retry)


@bug
def retry_once_too_often(patch: pytest.MonkeyPatch) -> None:
    original = failing.fail_attempt

    def fail_attempt(turn: turn.Turn, node: state.NodeState, error: str, **event: Any) -> None:
        node.max_retries += 1
        original(turn, node, error, **event)
        node.max_retries -= 1

    for module in (running, reports, timers):
        patch.setattr(module, "fail_attempt", fail_attempt)


@bug
def retry_at_once(patch: pytest.MonkeyPatch) -> None:
    original = failing.retry
    patch.setattr(failing, "retry", lambda turn, node, delay: original(turn, node, timedelta(0)))


@bug
def retry_what_is_permanent(patch: pytest.MonkeyPatch) -> None:
    original = failing.fail_attempt

    def fail_attempt(turn: turn.Turn, node: state.NodeState, error: str, permanent: bool = False, **event: Any) -> None:
        original(turn, node, error, **event)

    patch.setattr(reports, "fail_attempt", fail_attempt)


@bug
def retry_whatever_the_rules_say(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(failing, "find_rule_against", lambda policy, error_types: None)


@bug
def know_only_the_class_and_not_its_bases(patch: pytest.MonkeyPatch) -> None:
    original = failing.find_rule_against
    patch.setattr(failing, "find_rule_against", lambda policy, error_types: original(policy, error_types[:1]))


@bug
def judge_a_lost_worker_by_the_rules(patch: pytest.MonkeyPatch) -> None:
    original = failing._rule_against

    def _rule_against(node: state.NodeState, error_types: Any, *, is_asked_for: bool) -> str | None:
        return original(node, error_types or (), is_asked_for=is_asked_for and error_types is not None)

    patch.setattr(failing, "_rule_against", _rule_against)


@bug
def stay_where_there_is_too_little_memory(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(failing, "find_queue_after", lambda policy, error_types: None)


@bug
def forget_the_other_queue_on_take_over(patch: pytest.MonkeyPatch) -> None:
    original = store._node_state
    patch.setattr(store, "_node_state", lambda row, graph: original(row._replace(queue=None), graph))


@bug
def forget_retries_on_take_over(patch: pytest.MonkeyPatch) -> None:
    original = running.take_up

    def take_up(turn: turn.Turn, node: state.NodeState) -> None:
        if node.status is not NodeStatus.READY:
            original(turn, node)

    patch.setattr(running, "take_up", take_up)


@bug
def forget_timeouts_on_take_over(patch: pytest.MonkeyPatch) -> None:
    original = running.take_up

    def take_up(turn: turn.Turn, node: state.NodeState) -> None:
        if node.status not in NODE_IN_FLIGHT:
            original(turn, node)

    patch.setattr(running, "take_up", take_up)


@bug
def forget_to_go_on_expanding_on_take_over(patch: pytest.MonkeyPatch) -> None:
    original = running.take_up

    def take_up(turn: turn.Turn, node: state.NodeState) -> None:
        if node.status is not NodeStatus.RUNNING or state.is_executed(node):
            original(turn, node)

    patch.setattr(running, "take_up", take_up)


@bug
def believe_that_a_fan_out_is_settled_when_restored(patch: pytest.MonkeyPatch) -> None:
    ended = (NodeStatus.COMPLETED, NodeStatus.SKIPPED)
    patch.setattr(state, "is_settled", lambda job, node: node.status in ended)


@bug
def go_on_after_the_end(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(turn.Turn, "is_over", property(lambda self: False))


@bug
def leave_tasks_of_closed_attempts_on_the_queue(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(turn.Turn, "close_task", lambda self, node: None)


@bug
def leave_waiting_tasks_on_the_queue(patch: pytest.MonkeyPatch) -> None:
    def close_task(self: turn.Turn, node: state.NodeState) -> None:
        self.closed_running.append(self.job.task_id(node))

    patch.setattr(turn.Turn, "close_task", close_task)


@bug
def go_on_when_a_node_has_failed(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(failing, "fail_job", lambda turn, error: None)


@bug
def leave_nodes_open_at_the_end(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ending, "_close_nodes", lambda turn, reason, **_: None)


@bug
def clean_up_before_the_rest_has_ended(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(state.JobState, "main_open", property(lambda self: 0))


@bug
def answer_a_failure_that_never_was(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(last, "_has_failed", lambda turn: True)


@bug
def forget_on_take_over_what_was_allowed_to_fail(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(state, "has_passed", lambda job, node: False)


@bug
def fail_with_what_is_allowed_to_fail(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(failing, "_give_up", lambda turn, node, error: ending.fail_job(turn, error))


@bug
def wake_up_too_early(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(waiting, "_after", lambda turn, seconds: None if seconds is None else turn.now)


@bug
def forget_to_wake_up_on_take_over(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(running, "take_up_waiting", lambda turn, node: None)


@bug
def believe_decisions_for_other_attempts(patch: pytest.MonkeyPatch) -> None:
    original = waking.accept_decision

    def accept_decision(turn: turn.Turn, message: Any) -> None:
        node = turn.job.nodes[message.node_id]
        original(turn, replace(message, task_id=turn.job.task_id(node)))

    patch.setattr(deciding, "accept_decision", accept_decision)


@bug
def ignore_lost_workers(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(deciding, "accept_lost", lambda turn, message: None)
    patch.setattr(timers, "fail_attempt", lambda turn, node, error, **event: None)


@bug
def count_a_task_given_back_as_a_retry(patch: pytest.MonkeyPatch) -> None:
    original = reports.accept_lost

    def accept_lost(turn: turn.Turn, message: Any) -> None:
        original(turn, TaskLost(message.node_id, message.task_id, message.worker_id, message.at))

    patch.setattr(deciding, "accept_lost", accept_lost)


@bug
def forget_late_results(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(reports, "ignore", lambda turn, message, reason: None)


@bug
def time_out_at_once(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(running, "dispatch_timeout", lambda turn, node: timedelta(seconds=1))


@bug
def forget_fencing(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(store.Store, "fence", lambda self, owner_id, epoch: None)


@bug
def forget_to_load_a_large_output(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(owners, "values_wanted", lambda job, messages, rules: [])


@bug
def keep_a_large_output_in_memory(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(turn, "kept_output", lambda node, inline_bytes: node.output)


@bug
def forget_what_was_postponed(patch: pytest.MonkeyPatch) -> None:
    def go_on(turn: turn.Turn) -> None:
        turn.job.postponed.clear()

    patch.setattr(deciding, "go_on", go_on)


@bug
def leave_large_outputs_out_of_the_result(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(store.Store, "_result", lambda self, turn, result: result.data)


@bug
def dispatch_while_paused(patch: pytest.MonkeyPatch) -> None:
    def run_ready(turn: turn.Turn) -> None:
        since, turn.job.paused_at = turn.job.paused_at, None
        running.run_ready(turn)
        turn.job.paused_at = since

    patch.setattr(deciding, "run_ready", run_ready)


@bug
def leave_tasks_of_a_paused_job_on_the_queue(patch: pytest.MonkeyPatch) -> None:
    def pause(turn: turn.Turn, message: Pause) -> None:
        pausing.pause(turn, message)
        turn.holds_tasks = None

    patch.setattr(deciding, "pause", pause)


@bug
def hold_tasks_after_a_pause(patch: pytest.MonkeyPatch) -> None:
    def unpause(turn: turn.Turn, message: Unpause) -> None:
        pausing.unpause(turn, message)
        turn.holds_tasks = None

    patch.setattr(deciding, "unpause", unpause)


@bug
def forget_what_was_ready_before_a_pause(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(pausing, "take_up", lambda turn, node: None)


@bug
def take_up_the_branch_that_was_not_taken(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(reopening, "_is_bypassed", lambda node: False)


@bug
def leave_skipped_what_a_failure_had_skipped(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(reopening, "_is_bypassed", lambda node: True)


@bug
def reopen_with_the_retries_that_were_left(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(reopening, "_retry", lambda turn, node: failing.retry(turn, node, timedelta()))


@bug
def dispatch_into_a_full_queue(patch: pytest.MonkeyPatch) -> None:
    original = running.dispatch

    def dispatch(turn: turn.Turn, node: state.NodeState) -> None:
        closed = set(turn.rules.closed_queues)
        turn.rules.closed_queues.clear()
        original(turn, node)
        turn.rules.closed_queues.update(closed)

    patch.setattr(running, "dispatch", dispatch)


@bug
def forget_what_a_full_queue_held_back(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(owners.Owner, "open_queue", lambda self, queue: None)


@bug
def take_in_what_any_attempt_adds(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(adding, "find_current", lambda turn, node_id, task_id: turn.job.nodes.get(node_id))


@bug
def wait_for_what_had_ended_before(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(adding, "is_settled", lambda job, node: False)


@bug
def leave_out_nodes_when_they_are_added_again(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(adding, "_wait_for_more", lambda turn, node, given: None)


@bug
def forget_the_edges_of_added_nodes(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(state, "_restore_added", lambda job: None)


@bug
def pass_on_the_name_instead_of_the_result(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(reports, "find_named", lambda output: None)


@bug
def never_pass_results_on(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(deciding, "pass_results", lambda turn: turn.given.clear())


@bug
def leave_references_in_parameters(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(running, "added_params", lambda job, node: node.task.params.raw)


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

    for module in (state, reports, reopening):
        patch.setattr(module, "is_revoked", is_revoked)


@bug
def give_up_a_job_in_the_moment_in_which_it_should_wake(patch: pytest.MonkeyPatch) -> None:
    """As it was: only timers that are ahead counted, not one that is due at the same instant."""

    def latest(turn: turn.Turn) -> Any:
        deadlines = (timers._deadline(turn, node) for node in turn.job.nodes.values())
        return max((at for at in deadlines if at is not None and at > turn.now), default=None)

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
