"""Failed attempts: retry the node, or fail the job."""

from collections.abc import Sequence
from datetime import timedelta
from random import Random
from typing import Any

from dagmaster.engine import transitions
from dagmaster.engine.change_set import ChangeSet
from dagmaster.engine.edges import propagate
from dagmaster.engine.job_end import fail_job
from dagmaster.engine.state import NodeState, is_executed
from dagmaster.model.finalizers import Phase
from dagmaster.model.retry import RETRY_REQUESTED, RetryPolicy, find_queue_after, find_rule_against, retry_delay
from dagmaster.model.states import EndedBy, JobEndedBy

MAX_TYPE_LENGTH = 128


def fail_attempt(
    changes: ChangeSet,
    node: NodeState,
    error: str,
    *,
    permanent: bool = False,
    delay_seconds: float | None = None,
    error_types: Sequence[str] | None = None,
    ended_by: EndedBy = EndedBy.FAILURE,
    **event: Any,
) -> None:
    """Close this attempt, then retry while the policy allows it, or fail the job.

    Without `error_types` no exception was raised, so no retry rule applies.
    """
    has_retries = not permanent and node.attempt < node.max_retries
    rule = _rule_against(node, error_types, is_requested=delay_seconds is not None)
    will_retry = has_retries and rule is None
    details: dict[str, Any] = {"error_type": error_types[0][:MAX_TYPE_LENGTH]} if error_types else {}
    details |= {"retry_rule": rule} if rule and has_retries else {}
    next_queue = find_queue_after(policy_of(node), error_types or ()) if is_executed(node) else None
    transitions.fail(changes, node, error, ended_by, next_queue=next_queue, will_retry=will_retry, **details, **event)
    if not will_retry:
        _fail_for_good(changes, node, f"node {node.node_id} failed: {error}")
        return
    if delay_seconds is None:
        # The policy counts neither retries before a manual retry nor those of tasks given back.
        used = max(policy_of(node).max_attempts - (node.max_retries - node.attempt), 0)
        # Seeded by the task: every owner computes the same jitter.
        delay = retry_delay(policy_of(node), used + 1, Random(changes.job.task_id(node)))
    else:
        delay = timedelta(seconds=delay_seconds)
    transitions.retry(changes, node, delay)


def _fail_for_good(changes: ChangeSet, node: NodeState, error: str) -> None:
    """Fail the job too, unless the node may fail. The other finalizers still run."""
    job, is_finalizer = changes.job, changes.job.phase_of(node) is not Phase.MAIN
    if not is_finalizer and not node.spec.allow_failure:
        fail_job(changes, error, failed_node=node.node_id)
        return
    if is_finalizer and not node.spec.allow_failure and job.error is None:
        transitions.begin_failing(changes, error, JobEndedBy.FAILURE, node.node_id)
    for name in job.awaited.pop(node.node_id, ()):
        if job.nodes[name].result_of == node.node_id:
            fail_with(changes, job.nodes[name], node)
    propagate(changes, node)


def fail_with(changes: ChangeSet, node: NodeState, other: NodeState) -> None:
    """Fail a node that was to return the result of another node, which has failed permanently."""
    fail_attempt(changes, node, f"its result is that of {other.node_id}, which failed", permanent=True)


def _rule_against(node: NodeState, error_types: Sequence[str] | None, *, is_requested: bool) -> str | None:
    """A handler that sets the delay requests a retry, as if it had raised `Retry`."""
    if error_types is None:
        return None
    types = (*error_types, RETRY_REQUESTED) if is_requested else error_types
    return find_rule_against(policy_of(node), types)


def policy_of(node: NodeState) -> RetryPolicy:
    return node.task.retry if is_executed(node) else node.spec.retry
