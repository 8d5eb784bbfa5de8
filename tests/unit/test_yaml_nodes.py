"""Waits, approvals, calls, tolerated failures and finalizers in workflow files."""

from typing import Any

import pytest

from dagmaster.authoring.preparation import prepare
from dagmaster.authoring.yaml import QueueRules, parse_workflow, read_workflow
from dagmaster.errors import Invalid, UnknownWorkflow
from dagmaster.model.compile import compile_graph
from dagmaster.model.finalizers import Phase
from dagmaster.model.problems import Problem
from dagmaster.model.workflow import ApprovalNode, TaskNode, WaitNode, Workflow, WorkflowNode
from dagmaster.settings import load_settings

RULES = QueueRules(default_queue="q")


def parse(nodes: str, head: str = "") -> Workflow:
    return parse_workflow(f"workflow_id: w\n{head}nodes:\n{nodes}", queues=RULES)


def problems(nodes: str, head: str = "") -> list[Problem]:
    return list(read_workflow(f"workflow_id: w\n{head}nodes:\n{nodes}", queues=RULES)[1])


def messages(nodes: str, head: str = "") -> list[str]:
    return [problem.message for problem in problems(nodes, head)]


@pytest.mark.parametrize(
    ("written", "field", "value"),
    [
        ("seconds: 90", "seconds", 90),
        ("duration: 1h30m", "seconds", 5400),
        ("seconds: '{{ inputs.x }}'", "seconds", "{{ inputs.x }}"),
        ("until: 2030-01-31T08:00:00Z", "until", "2030-01-31T08:00:00Z"),
        ("signal: go", "signal", "go"),
    ],
)
def test_a_wait_has_exactly_one_condition(written: str, field: str, value: Any) -> None:
    node = parse(f"  a: {{type: wait, {written}}}", "inputs: {x: number}\n").nodes["a"]
    assert isinstance(node, WaitNode) and getattr(node, field) == value


@pytest.mark.parametrize(
    ("written", "message"),
    [
        ("type: wait", "the wait 'a' needs exactly one of 'until', 'seconds', 'duration' and 'signal'"),
        ("type: wait, seconds: 1, signal: go", "exactly one of"),
        ("type: wait, duration: soon", "'duration' of node 'a': 'soon' is not a duration; write for example 90s"),
        ("type: wait, seconds: -1", "'seconds' of node 'a': it must be from 0 to 31622400, not -1"),
        ("type: wait, seconds: soon", "it must be a number, or an expression that evaluates to one"),
        ("type: wait, until: tomorrow", "'tomorrow' is not a time; write it like"),
        ("type: wait, until: 2030-01-31T08:00:00", "has no time zone"),
        ("type: wait, signal: 'a b'", "'signal' of node 'a': string should match pattern"),
        ("type: wait, seconds: 1, timeout_seconds: 2", "it is only for a signal"),
        ("type: wait, signal: go, timeout_seconds: 0", "input should be greater than 0"),
        ("type: approval", "the approval 'a' needs a 'message'"),
        ("type: approval, message: 'x {{ inputs.y }}'", "the workflow declares no inputs and uses y"),
        ("type: workflow", "node 'a' needs a 'workflow'"),
        ("type: workflow, workflow: x, inputs: [1]", "'inputs' of node 'a' must be a mapping"),
        ("type: workflow, workflow: x, inputs: {y: '{{ nodes.z.output }}'}", "refers to an unknown node"),
        ("handler: h, allow_failure: maybe", "'allow_failure' of node 'a' must be true or false"),
        ("type: start, allow_failure: true", "'allow_failure' does not belong to the start 'a'"),
        ("type: wait, signal: go, handler: h", "'handler' has no effect on the wait 'a'"),
        ("signal: go", "node 'a' has no type; it looks like 'type: wait'"),
    ],
)
def test_each_mistake_is_reported_once_at_its_place(written: str, message: str) -> None:
    mistakes = problems(f"  a: {{{written}}}")
    assert len(mistakes) == 1 and message in mistakes[0].message
    assert mistakes[0].line == 3


def test_an_approval_names_its_approvers() -> None:
    node = parse("  a: {type: approval, message: ok?, approvers: ann, timeout_seconds: 60}").nodes["a"]
    assert isinstance(node, ApprovalNode) and (node.approvers, node.timeout_seconds) == (("ann",), 60)


def test_a_call_has_its_own_inputs_and_retry_policy() -> None:
    node = parse("  a: {type: workflow, workflow: other, inputs: {x: 1}, retry: {max_attempts: 2}}").nodes["a"]
    assert isinstance(node, WorkflowNode) and node.inputs == {"x": 1}
    assert node.retry is not None and node.retry.max_attempts == 2


def test_these_nodes_are_not_retried_unless_a_call_says_so() -> None:
    nodes = "  a: {type: wait, seconds: 1}\n  b: {type: approval, message: m}\n  c: {type: workflow, workflow: o}"
    graph = compile_graph(parse(nodes))
    assert [graph.nodes[name].retry.max_attempts for name in "abc"] == [0, 0, 0]


LAST = """  a: {handler: h}
  alarm: {handler: h, params: {why: '{{ job.error }}'}, next: siren}
  siren: {handler: h, params: {x: '{{ nodes.alarm.output }}'}}
  clean: {handler: h, params: {how: '{{ job.status }}', a: '{{ nodes.a.output }}', s: '{{ nodes.siren.status }}'}}
"""
HEAD = "on_failure: alarm\nfinally: [clean]\n"


def test_finalizers_are_separate_from_other_nodes() -> None:
    graph = compile_graph(parse(LAST, HEAD))
    phases = {name: node.phase for name, node in graph.nodes.items() if node.phase is not Phase.MAIN}
    assert phases == {"alarm": Phase.ON_FAILURE, "siren": Phase.ON_FAILURE, "clean": Phase.FINALLY}
    assert graph.roots == ("START",)
    assert graph.nodes["START"].targets == ("a",)
    assert graph.nodes["END"].all_of == ("a",)
    assert list(graph.nodes)[-3:] == ["alarm", "siren", "clean"]


@pytest.mark.parametrize(
    ("nodes", "head", "message"),
    [
        ("  a: {handler: h}", "finally: b\n", "'finally' names an unknown node 'b'"),
        ("  a: {handler: h, next: b}\n  b: {handler: h}", "finally: b\n", "'a' leads to 'b'"),
        (
            "  a: {handler: h, next: c}\n  b: {handler: h, next: c}\n  c: {handler: h}",
            "finally: b\n",
            "'c' is in a chain of 'finally', and 'a', which is not, leads to it",
        ),
        ("  a: {handler: h}\n  b: {handler: h}", "on_failure: b\nfinally: b\n", "cannot be in 'on_failure' and in"),
        (
            "  a: {handler: h}\n  b: {type: fan_out, source: [1], task: {handler: h}}",
            "finally: b\n",
            "the fan_out 'b' cannot be in a chain of 'finally': use a workflow node whose workflow has one",
        ),
        (
            "  a: {handler: h, next: e}\n  b: {handler: h, next: e}\n  e: {type: end}",
            "finally: b\n",
            "leads to the end node 'e'",
        ),
        ("  a: {handler: h, params: {x: '{{ job.error }}'}}", "", "job.error is only known in the nodes of on_failure"),
        (
            "  a: {handler: h}\n  b: {handler: h, params: {x: '{{ job.name }}'}}",
            "finally: b\n",
            "job.name is unknown: job has status, error, failed_node",
        ),
        (
            "  a: {handler: h}\n  b: {handler: h, params: {x: '{{ nodes.c.output }}'}}\n  c: {handler: h}",
            "on_failure: b\nfinally: c\n",
            "node 'c' does not lead to node 'b'",
        ),
    ],
)
def test_finalizers_connected_to_other_nodes_are_refused(nodes: str, head: str, message: str) -> None:
    assert any(message in text for text in messages(nodes, head)), messages(nodes, head)


def test_unused_features_do_not_change_a_definitions_hash() -> None:
    plain = parse("  a: {handler: h}")
    written = plain.json_definition
    assert b"allow_failure" not in written and b"finally" not in written and b"on_failure" not in written
    same = plain.model_copy(update={"nodes": {**plain.nodes, "a": TaskNode(handler="h", queue="q", next=("END",))}})
    assert same.content_hash == plain.content_hash
    forgiving = parse("  a: {handler: h, allow_failure: true}")
    assert forgiving.content_hash != plain.content_hash
    for workflow in (forgiving, parse(LAST, HEAD)):
        assert Workflow.model_validate_json(workflow.json_definition).content_hash == workflow.content_hash


# Called workflows.

KNOWN = {
    "leaf": "  a: {handler: h}",
    "middle": "  a: {type: workflow, workflow: leaf}",
    "top": "  a: {type: workflow, workflow: middle, next: b}\n  b: {type: workflow, workflow: leaf}",
    "round": "  a: {type: workflow, workflow: about}",
    "about": "  a: {type: workflow, workflow: round}",
}


def find(name: str) -> Workflow:
    if name not in KNOWN:
        raise UnknownWorkflow(f"no workflow is named {name!r}")
    return parse_workflow(f"workflow_id: {name}\nnodes:\n{KNOWN[name]}", queues=RULES)


def test_called_workflows_are_pinned_with_their_caller() -> None:
    graph = prepare(find("top"), load_settings(), {}, find)
    by_name = {called.workflow.workflow_id: called.workflow.content_hash for called in graph.called}
    assert set(by_name) == {"leaf", "middle"}
    specs = [graph.nodes[name].child_job for name in ("a", "b")]
    assert [spec.workflow_hash for spec in specs if spec] == [by_name["middle"], by_name["leaf"]]


def test_a_change_of_a_called_workflow_changes_its_callers_hash() -> None:
    before = prepare(find("middle"), load_settings(), {}, find)
    other = parse_workflow("workflow_id: leaf\nnodes:\n  a: {handler: other}", queues=RULES)
    after = prepare(find("middle"), load_settings(), {}, lambda name: other)
    assert before.workflow.content_hash != after.workflow.content_hash


def test_call_cycles_are_refused() -> None:
    with pytest.raises(Invalid, match="in a cycle: round -> about -> round"):
        prepare(find("round"), load_settings(), {}, find)


def test_a_call_of_an_unknown_workflow_is_refused() -> None:
    workflow = parse("  a: {type: workflow, workflow: nowhere}")
    with pytest.raises(Invalid, match="node 'a' of workflow 'w' calls 'nowhere': no workflow is named"):
        prepare(workflow, load_settings(), {}, find)
    with pytest.raises(Invalid, match="no other workflows are loaded here"):
        prepare(workflow, load_settings(), {})
