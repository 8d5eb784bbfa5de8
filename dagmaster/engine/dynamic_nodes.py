"""Nodes that a running task or an external caller adds to a job.

Existing nodes are kept, because a repeated attempt adds the same nodes again. An added node may wait for any node of
the job; no node of the definition ever waits for an added one.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

import orjson

from dagmaster.engine import transitions
from dagmaster.engine.added_node import encode_definition, state_of
from dagmaster.engine.change_set import ChangeSet
from dagmaster.engine.edges import is_dead, is_ready, make_ready
from dagmaster.engine.failures import fail_attempt
from dagmaster.engine.job_end import start_job
from dagmaster.engine.messages import TasksAdded
from dagmaster.engine.node_start import start
from dagmaster.engine.reports import find_current, start_task
from dagmaster.engine.results import REFUSED, waits_for
from dagmaster.engine.state import (
    JobState,
    NodeState,
    count_edge,
    follow,
    has_passed,
    is_live,
    is_settled,
    unfollow,
)
from dagmaster.errors import Invalid
from dagmaster.model.added_nodes import AddedDependency, AddedNode, awaited, may_add
from dagmaster.model.finalizers import Phase
from dagmaster.model.states import (
    NODE_IN_FLIGHT,
    NODE_TERMINAL,
    EventStatus,
    JobStatus,
    NodeStatus,
)

SHOWN_IDS = 20


def accept_added(changes: ChangeSet, message: TasksAdded) -> None:
    """Accept nodes only while the attempt that adds them is the current one and in flight."""
    adder = None
    if message.node_id is not None:
        adder = find_current(changes, message.node_id, message.task_id or "")
        if adder is None or adder.status not in NODE_IN_FLIGHT or adder.result_of is not None:
            return
        if adder.status is NodeStatus.DISPATCHED:  # Only a running task can add nodes.
            start_task(changes, adder, message.worker_id)
    try:
        _check(changes, adder, message)
    except Invalid as error:
        if adder is None:
            refuse_from_outside(changes, str(error), message.actor)
        else:
            fail_attempt(
                changes, adder, f"the nodes that it added were refused: {error}", permanent=True, error_types=REFUSED
            )
        return
    if changes.job.status is JobStatus.PENDING:  # Paused before it started: added nodes need a started job.
        start(changes)
        start_job(changes, None)
    _add(changes, adder, message)


def refuse_from_outside(changes: ChangeSet, reason: str, actor: str | None) -> None:
    data = {"warning": f"the added nodes were refused: {reason}", "refused": "added", "actor": actor}
    changes.note("job_warning", EventStatus.WARNING, data=data)


def _check(changes: ChangeSet, adder: NodeState | None, message: TasksAdded) -> None:
    """Check the whole message before any node is added."""
    job, adder_id = changes.job, adder.node_id if adder else None
    phase = job.phase_of(adder) if adder else Phase.MAIN
    if adder is None and job.error is not None:
        raise Invalid("the job is failing")
    if adder is None and job.open_finalizers and not job.open_main:
        raise Invalid("only the finalizers of the job are left")
    if len(job.nodes) + sum(node.node_id not in job.nodes for node in message.nodes) > changes.rules.max_fan_out:
        raise Invalid(f"a job may have {changes.rules.max_fan_out} nodes")
    planned: dict[str, tuple[str, ...]] = {}
    for node in message.nodes:
        known = job.nodes.get(node.node_id)
        if node.node_id in planned:
            raise Invalid(f"{node.node_id} is named twice")
        is_foreign = known is not None and (not known.is_added or known.added_by != adder_id)
        if is_foreign or not may_add(adder_id, node.node_id):
            raise Invalid(f"{adder_id or 'an external caller'} cannot add a node with the id {node.node_id}")
        _check_sources(job, node, planned, phase)
        if known is not None:
            _check_new_sources(job, known, node, planned)
        elif node.type == "task" and node.queue is None and adder is None:
            raise Invalid(f"{node.node_id} needs a queue")
        planned[node.node_id] = awaited(node)


def _check_sources(job: JobState, node: AddedNode, planned: Mapping[str, tuple[str, ...]], phase: Phase) -> None:
    for name in awaited(node):
        source = job.nodes.get(name)
        if name == node.node_id or (source is None and name not in planned):
            raise Invalid(f"{node.node_id} waits for {name}, which is not a node of the job")
        if source is not None and job.phase_of(source) is not phase:
            raise Invalid(f"{node.node_id} waits for {name}, which runs in another phase of the job")
        # A retry of selected nodes has left it out: its edges are never decided.
        if source is not None and source.status is NodeStatus.FAILED and not has_passed(job, source):
            raise Invalid(f"{node.node_id} waits for {name}, which has failed and is not being retried")


def _is_set_aside(job: JobState, node: NodeState) -> bool:
    """A finalizer that runs again may add again the nodes of its previous run."""
    return node.status is NodeStatus.SKIPPED and job.phase_of(node) is not Phase.MAIN


def _check_new_sources(
    job: JobState, node: NodeState, added: AddedNode, planned: Mapping[str, tuple[str, ...]]
) -> None:
    """An existing node may get more sources until it starts."""
    for source in _new_sources(node, added):
        if node.status is not NodeStatus.PENDING and not _is_set_aside(job, node):
            raise Invalid(f"{node.node_id} is {node.status}: it can no longer be made to wait for {source}")
        if waits_for(job, source, node.node_id, planned):
            raise Invalid(f"{node.node_id} and {source} would wait for each other")


def _new_sources(node: NodeState, added: AddedNode) -> tuple[str, ...]:
    existing = set(node.spec.all_of)
    return tuple(source for source in awaited(added) if source not in existing)


def _add(changes: ChangeSet, adder: NodeState | None, message: TasksAdded) -> None:
    job = changes.job
    fresh = [
        node.node_id
        for node in message.nodes
        if (known := job.nodes.get(node.node_id)) is None or _is_set_aside(job, known)
    ]
    if fresh or not message.nodes:
        added_by = adder.node_id if adder else message.actor
        data = {"added_by": added_by, "count": len(fresh), "node_ids": fresh[:SHOWN_IDS]}
        source_app = "worker" if adder else "orchestrator"
        changes.note("tasks_added", EventStatus.INFO, adder, data, source_app=source_app)
    for node in message.nodes:
        known = job.nodes.get(node.node_id)
        if known is None:
            _add_node(changes, adder, node)
        elif _is_set_aside(job, known):
            _add_again(changes, adder, known, node)
        else:
            _add_sources(changes, known, node)
    changes.groups += message.groups  # Stored groups are kept, as nodes are.
    changes.dependencies += _numbered(job, message.dependencies)


def _numbered(job: JobState, dependencies: Iterable[AddedDependency]) -> Iterator[AddedDependency]:
    """Use the snowflake ids of the first attempt: a repeated attempt brings new ones."""
    for dependency in dependencies:
        previous, following = _number_of(job, dependency.previous_id), _number_of(job, dependency.next_id)
        if previous is not None and following is not None:
            yield replace(dependency, previous_id=previous, next_id=following)


def _number_of(job: JobState, end: int | str) -> int | None:
    if isinstance(end, int):
        return end
    node = job.nodes.get(end)
    return node.snowflake if node is not None else None


def _add_node(changes: ChangeSet, adder: NodeState | None, added: AddedNode) -> None:
    job = changes.job
    node = _new_state(changes, adder, added)
    node.definition = encode_definition(added, node)
    job.nodes[node.node_id] = changes.created[node.node_id] = node
    job.count_open(node, 1)
    node.all_open = len(node.spec.all_of)
    _connect(job, node, node.spec.all_of)
    _ready_or_skip(changes, node)


def _new_state(changes: ChangeSet, adder: NodeState | None, added: AddedNode) -> NodeState:
    queue = added.queue or (adder.task_queue if adder is not None else "")
    timeout = added.timeout_seconds or changes.rules.default_timeout_seconds
    retry = added.retry or changes.rules.default_retry
    node = state_of(added, adder.node_id if adder else None, queue, timeout, retry)
    if node.has_params:
        node.params = orjson.dumps(added.params)
    return node


def _add_again(changes: ChangeSet, adder: NodeState | None, node: NodeState, added: AddedNode) -> None:
    """Add the node again, with its new definition and sources."""
    fresh = _new_state(changes, adder, added)
    for name in node.spec.all_of:
        unfollow(changes.job.nodes[name], node)
    node.spec = fresh.spec
    transitions.allow_retries(node, fresh.max_retries)
    if fresh.has_params:
        node.params, node.has_params = fresh.params, True
    node.definition = encode_definition(added, node)
    transitions.reopen(changes, node)
    node.all_open, node.live = len(node.spec.all_of), 0
    _connect(changes.job, node, node.spec.all_of)
    _ready_or_skip(changes, node)


def _add_sources(changes: ChangeSet, node: NodeState, added: AddedNode) -> None:
    more = _new_sources(node, added)
    if not more:
        return
    node.spec = replace(node.spec, all_of=(*node.spec.all_of, *more))
    node.definition = encode_definition(added, node)
    changes.touch(node)
    node.all_open += len(more)
    _connect(changes.job, node, more)
    _ready_or_skip(changes, node)


def _connect(job: JobState, node: NodeState, sources: Iterable[str]) -> None:
    for name in sources:
        source = job.nodes[name]
        follow(source, node)
        if source.status in NODE_TERMINAL and is_settled(job, source):
            count_edge(node, source, live=is_live(source, node.node_id))


def _ready_or_skip(changes: ChangeSet, node: NodeState) -> None:
    """The sources may have ended already."""
    if is_ready(node):
        make_ready(changes, node)
    elif is_dead(node):
        transitions.skip(changes, node, "conditional_branch_not_taken")
