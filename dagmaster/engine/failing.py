"""An attempt has failed: try again, or give up the job."""

from datetime import timedelta
from typing import Any

from dagmaster.engine.ending import fail_job
from dagmaster.engine.messages import TimerKind
from dagmaster.engine.state import NodeState, is_executed
from dagmaster.engine.turn import Turn
from dagmaster.model.graph import NodeType
from dagmaster.model.retry import RetryPolicy, retry_delay
from dagmaster.model.states import NODE_RETRYING


def fail_attempt(
    turn: Turn,
    node: NodeState,
    error: str,
    *,
    permanent: bool = False,
    delay_seconds: float | None = None,
    **event: Any,
) -> None:
    """Close this attempt, then retry while the policy allows it, or fail the job."""
    will_retry = not permanent and node.attempt < node.max_retries
    turn.fail(node, error, will_retry=will_retry, **event)
    if not will_retry:
        fail_job(turn, f"node {node.node_id} failed: {error}", failed=[node.node_id])
        return
    if delay_seconds is None:
        delay = retry_delay(policy_of(node), node.attempt + 1, turn.rules.rng)
    else:
        delay = timedelta(seconds=delay_seconds)
    retry(turn, node, delay)


def retry(turn: Turn, node: NodeState, delay: timedelta) -> None:
    """The next attempt, after the pause; it has a task id of its own."""
    failed_because = node.error
    node.attempt += 1
    node.dispatched_at = node.started_at = node.completed_at = node.error = None
    if node.spec.type is not NodeType.FAN_OUT or node.is_child:  # A fan-out goes on with the children it has.
        node.output = None
    node.not_before = turn.now + delay if delay else None
    turn.move_node(
        node,
        NODE_RETRYING,
        attempt=node.attempt,
        max_retries=node.max_retries,
        not_before=node.not_before,
        after_error=failed_because[:200] if failed_because else None,
    )
    if node.not_before is None:
        turn.ready.append(node)
    else:
        turn.arm(TimerKind.RETRY, node.not_before, node)


def policy_of(node: NodeState) -> RetryPolicy:
    return node.task.retry if is_executed(node) else node.spec.retry
