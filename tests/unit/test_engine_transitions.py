"""Nodes and jobs change their state only in `engine/transitions.py`, and only by a legal move."""

import ast
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path

import pytest
from engine_bench import Bench, end, task

import dagmaster
from dagmaster.engine import transitions
from dagmaster.engine.change_set import ChangeSet
from dagmaster.engine.state import NodeState
from dagmaster.engine.values import JobResult
from dagmaster.errors import IllegalMove
from dagmaster.model.states import (
    JOB_CANCELLED,
    JOB_COMPLETED,
    JOB_FAILED,
    JOB_MOVES,
    JOB_REOPENED,
    JOB_STARTED,
    NODE_COMPLETED,
    NODE_DISPATCHED,
    NODE_FAILED,
    NODE_MOVES,
    NODE_READY,
    NODE_REOPENED,
    NODE_RETRYING,
    NODE_SKIPPED,
    NODE_STARTED,
    JobStatus,
    Move,
    NodeStatus,
)

PACKAGE = Path(dagmaster.__file__).parent
# Of a node, then of a job.
FIELDS = frozenset(
    {
        "status",
        "ended_by",
        "error",
        "attempt",
        "max_retries",
        "times_lost",
        "dispatched_at",
        "started_at",
        "completed_at",
        "not_before",
        "queue",
        "result_of",
        "failed_node",
        "result",
        "deadline_at",
        "paused_at",
        "paused_by",
        "resumed_at",
        "idle_seconds",
        "last_progress_at",
    }
)


def assigned(tree: ast.AST) -> Iterator[ast.Attribute]:
    """Each place where one of the fields is assigned or deleted, in any syntax."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and node.attr in FIELDS and not isinstance(node.ctx, ast.Load):
            yield node


def assigned_elsewhere(root: Path) -> list[str]:
    """In the engine any; in the orchestrator all except fields of its own objects."""
    places = []
    for path in sorted([*root.glob("engine/*.py"), *root.glob("orchestrator/*.py")]):
        if path.name == "transitions.py":
            continue
        for target in assigned(ast.parse(path.read_text())):
            is_own = path.parent.name == "orchestrator" and ast.unparse(target.value) == "self"
            if not is_own:
                places.append(f"{path.parent.name}/{path.name}:{target.lineno} {ast.unparse(target)}")
    return places


def test_only_transitions_assigns_state_fields():
    assert assigned_elsewhere(PACKAGE) == []


@pytest.mark.parametrize(
    "statement",
    [
        "node.status = 1",
        "job.nodes[name].attempt += 1",
        "node.output, node.error = None, None",
        "node.params = node.started_at = now",
        "self.job.paused_at: object = now",
        "del node.not_before",
        "for node.error in errors: pass",
        "with clock as job.deadline_at: pass",
    ],
)
def test_an_assignment_elsewhere_is_detected(tmp_path, statement):
    (tmp_path / "engine").mkdir()
    (tmp_path / "engine" / "edges.py").write_text(f"def propagate(node):\n    {statement}\n")
    [place] = assigned_elsewhere(tmp_path)
    assert place.startswith("engine/edges.py:2 ")


def test_reading_and_own_fields_are_allowed(tmp_path):
    for package in ("engine", "orchestrator"):
        (tmp_path / package).mkdir()
    (tmp_path / "engine" / "transitions.py").write_text("node.status = 1\n")
    (tmp_path / "engine" / "edges.py").write_text("at = node.status\nnode.params = node.error\n")
    (tmp_path / "orchestrator" / "clock.py").write_text("self.started_at = 1\n")
    assert assigned_elsewhere(tmp_path) == []


NODE_TRANSITIONS: dict[Move[NodeStatus], Callable[[ChangeSet, NodeState], None]] = {
    NODE_READY: lambda changes, node: transitions.ready(changes, node, []),
    NODE_DISPATCHED: lambda changes, node: transitions.dispatch(changes, node, "q", "work"),
    NODE_STARTED: lambda changes, node: transitions.start(changes, node, "worker"),
    NODE_COMPLETED: lambda changes, node: transitions.complete(changes, node, b"{}"),
    NODE_FAILED: lambda changes, node: transitions.fail(changes, node, "no luck"),
    NODE_RETRYING: lambda changes, node: transitions.retry(changes, node, timedelta()),
    NODE_SKIPPED: lambda changes, node: transitions.skip(changes, node, "because"),
    NODE_REOPENED: transitions.reopen,
}
JOB_TRANSITIONS: dict[Move[JobStatus], Callable[[ChangeSet], None]] = {
    JOB_STARTED: lambda changes: transitions.start_job(changes, "a", None),
    JOB_COMPLETED: lambda changes: transitions.complete_job(changes, JobResult(b"{}"), []),
    JOB_FAILED: lambda changes: transitions.fail_job(changes, []),
    JOB_CANCELLED: lambda changes: transitions.cancel_job(changes, None, None),
    JOB_REOPENED: lambda changes: transitions.reopen_job(changes, None),
}


@pytest.fixture
def changes() -> ChangeSet:
    return Bench(a=task(), end=end("a")).changes


def test_each_move_has_its_transition():
    assert set(NODE_TRANSITIONS) == set(NODE_MOVES) and set(JOB_TRANSITIONS) == set(JOB_MOVES)


@pytest.mark.parametrize("source", NodeStatus)
@pytest.mark.parametrize("move", NODE_MOVES, ids=lambda move: move.event)
def test_a_node_moves_only_along_legal_moves(changes, move, source):
    node = changes.job.nodes["a"]
    node.status = source
    if source in move.sources:
        NODE_TRANSITIONS[move](changes, node)
        assert node.status is move.target and changes.touched == {"a": node}
        assert changes.events[-1].event_type == move.event
    else:
        with pytest.raises(IllegalMove):
            NODE_TRANSITIONS[move](changes, node)
        assert node.status is source and not changes.events


@pytest.mark.parametrize("source", JobStatus)
@pytest.mark.parametrize("move", JOB_MOVES, ids=lambda move: move.event)
def test_a_job_moves_only_along_legal_moves(changes, move, source):
    changes.job.status = source
    if source in move.sources:
        JOB_TRANSITIONS[move](changes)
        assert changes.job.status is move.target and changes.job_touched
        assert changes.events[-1].event_type == move.event
    else:
        with pytest.raises(IllegalMove):
            JOB_TRANSITIONS[move](changes)
        assert changes.job.status is source and not changes.events


def test_an_ended_node_has_no_not_before(changes):
    """A time that it waited for while it ran must not be read as a retry delay."""
    node = changes.job.nodes["a"]
    for status, transition in ((NodeStatus.RUNNING, NODE_FAILED), (NodeStatus.READY, NODE_SKIPPED)):
        node.status, node.not_before = status, changes.now
        NODE_TRANSITIONS[transition](changes, node)
        assert node.not_before is None
