"""Defaults are written into a workflow before it is pinned."""

from typing import Any, TypeVar

from dagmaster.authoring.preparation import settle_defaults
from dagmaster.model.contracts import Contract
from dagmaster.model.retry import RetryPolicy
from dagmaster.model.workflow import ChildTask, EndNode, FanInNode, FanOutNode, StartNode, TaskNode, Workflow

Settled = TypeVar("Settled", TaskNode, FanOutNode, FanInNode)


def settled(node: Settled, **options: Any) -> Settled:
    nodes = {"START": StartNode(next=("a",)), "a": node, "END": EndNode()}
    workflow = Workflow(workflow_id="w", name="w", nodes=nodes)
    options_given: dict[str, Any] = {
        "known": {"quick": Contract("quick", timeout_seconds=5.0)},
        "timeout_seconds": 60.0,
        "max_retries": 2,
        **options,
    }
    outcome = settle_defaults(workflow, **options_given).nodes["a"]
    assert isinstance(outcome, type(node))
    return outcome


def test_a_nodes_timeout_overrides_its_handlers_which_overrides_the_setting() -> None:
    assert settled(TaskNode(handler="quick", timeout_seconds=7)).timeout_seconds == 7
    assert settled(TaskNode(handler="quick")).timeout_seconds == 5
    assert settled(TaskNode(handler="other")).timeout_seconds == 60


def test_every_node_type_gets_the_retries_of_the_setting() -> None:
    fan_out = settled(FanOutNode(source=[1], task=ChildTask(handler="echo")))
    assert fan_out.retry.max_attempts == fan_out.task.retry.max_attempts == 2
    assert settled(TaskNode(handler="echo")).retry.max_attempts == 2
    assert settled(FanInNode()).retry.max_attempts == 2


def test_children_inherit_the_fan_outs_retry_policy_unless_they_have_their_own() -> None:
    never, once = RetryPolicy(max_attempts=0), RetryPolicy(max_attempts=1)
    assert settled(FanOutNode(source=[1], task=ChildTask(handler="echo"), retry=never)).task.retry == never
    assert settled(FanOutNode(source=[1], task=ChildTask(handler="echo", retry=once), retry=never)).task.retry == once
