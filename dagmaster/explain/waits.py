"""Waits for events outside the job's own nodes, in words."""

from datetime import UTC, datetime
from typing import Any, Literal, NamedTuple, assert_never

from dagmaster.engine.state import JobState, NodeState
from dagmaster.explain.facts import Facts, Kind
from dagmaster.model.finalizers import Phase
from dagmaster.model.states import JobStatus, NodeStatus

WaitKind = Literal[
    Kind.WAITING_FOR_TIME,
    Kind.WAITING_FOR_SIGNAL,
    Kind.WAITING_FOR_APPROVAL,
    Kind.WAITING_FOR_JOB,
    Kind.WAITING_FOR_END,
]


class Words(NamedTuple):
    """The predicate of a sentence about a node: `Node x {text}.`"""

    text: str
    data: dict[str, Any]


def describe_wait(kind: WaitKind, node: NodeState, facts: Facts) -> Words:
    data = {"since": iso(node.started_at), "until": iso(node.not_before)}
    match kind:
        case Kind.WAITING_FOR_TIME:
            return Words(f"waits until {clock(node.not_before)}", data)
        case Kind.WAITING_FOR_SIGNAL:
            assert node.spec.wait is not None
            name = node.spec.wait.signal
            text = f"has been waiting for the signal `{name}` since {clock(node.started_at)}{_at_most(node)}"
            return Words(text, {**data, "signal": name})
        case Kind.WAITING_FOR_APPROVAL:
            assert node.spec.approval is not None
            approvers = node.spec.approval.approvers
            by = f" by {' or '.join(approvers)}" if approvers else ""
            text = f"has been waiting for approval{by} since {clock(node.started_at)}{_at_most(node)}"
            return Words(text, {**data, "approvers": list(approvers)})
        case Kind.WAITING_FOR_JOB:
            return _for_job(node, facts, data)
        case Kind.WAITING_FOR_END:
            when = "fails" if node.spec.phase is Phase.ON_FAILURE else "ends"
            return Words(f"runs when the rest of the job {when}", {"phase": str(node.spec.phase)})
        case _:
            assert_never(kind)


def find_skip_reason(job: JobState, node: NodeState) -> str | None:
    """Why a finalizer was skipped; None if the end of the job was the reason."""
    if job.phase_of(node) is Phase.MAIN or job.status is JobStatus.CANCELLED:
        return None
    skipped = [node]
    while skipped:
        node = skipped[0]
        before = [job.nodes[name] for name in node.spec.sources]
        if failed := [source.node_id for source in before if source.status is NodeStatus.FAILED]:
            return f"`{failed[0]}` before it failed"
        skipped = [source for source in before if source.status is NodeStatus.SKIPPED]
    if node.is_added:
        return _not_again(job, node)
    return "the job did not fail" if node.spec.phase is Phase.ON_FAILURE else None


def _not_again(job: JobState, node: NodeState) -> str | None:
    """A rerun finalizer has not added it again, unless it was open when the job ended."""
    if job.completed_at is not None and node.completed_at is not None and node.completed_at >= job.completed_at:
        return None
    return f"`{node.added_by}`, which added it before, has not added it again"


def _for_job(node: NodeState, facts: Facts, data: dict[str, Any]) -> Words:
    assert node.spec.child_job is not None
    workflow_id, child = node.spec.child_job.workflow_id, facts.children.get(node.node_id)
    details = {**data, "workflow_id": workflow_id, "job_id": None if child is None else str(child)}
    if child is None:
        return Words(f"starts the child workflow `{workflow_id}`; its job is about to be submitted", details)
    since = f"since {clock(node.started_at)}{_at_most(node)}"
    return Words(f"has been waiting for job {child} of the workflow `{workflow_id}` {since}", details)


def _at_most(node: NodeState) -> str:
    return f", until {clock(node.not_before)} at the latest" if node.not_before is not None else ""


def clock(at: datetime | None) -> str:
    return f"{at.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC" if at is not None else "now"


def iso(at: datetime | None) -> str | None:
    return at.isoformat() if at is not None else None
