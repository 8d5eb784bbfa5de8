"""Retry rules in workflow files, and the reports of mistakes."""

from textwrap import dedent, indent

import pytest

from dagmaster.authoring.preparation import queues_of, tasks_of
from dagmaster.authoring.yaml import QueueRules, parse_workflow, read_workflow
from dagmaster.model.compile import compile_graph
from dagmaster.model.problems import InvalidWorkflow
from dagmaster.model.retry import OnOom, RetryPolicy
from dagmaster.model.workflow import FanOutNode, TaskNode, Workflow

QUEUES = QueueRules(default_queue="default")


def parse(nodes: str) -> Workflow:
    text = f"workflow_id: w\nadditional_inputs: true\nnodes:\n{indent(dedent(nodes), '  ')}"
    return parse_workflow(text, queues=QUEUES)


def policy(written: str) -> RetryPolicy:
    node = parse(f"a: {{handler: h, retry: {written}}}\n").nodes["a"]
    assert isinstance(node, TaskNode) and node.retry is not None
    return node.retry


def problems(nodes: str) -> list[str]:
    """Lines are counted from the first node."""
    _, problems = read_workflow(f"{{workflow_id: w, additional_inputs: true, nodes: {{\n{nodes}\n}}}}", queues=QUEUES)
    return [str(problem).partition(":")[2] for problem in problems]


def test_retry_rules_are_parsed() -> None:
    rules = policy("{on: [ConnectionError, httpx.HTTPError], never: [ssl.SSLError], on_oom: {queue: heavy}}")
    assert rules.on == ("ConnectionError", "httpx.HTTPError")
    assert rules.never == ("ssl.SSLError",)
    assert rules.on_oom == OnOom(queue="heavy")
    assert rules.max_attempts == 3


def test_a_single_name_needs_no_list() -> None:
    rules = policy("{on: OSError, never: ConnectionError, on_oom: heavy}")
    assert (rules.on, rules.never, rules.on_oom) == (("OSError",), ("ConnectionError",), OnOom(queue="heavy"))


@pytest.mark.parametrize("written", ["2024", "yes", "{queue: 2024}", "{queue: yes}"])
def test_a_queue_is_a_string_as_written(written: str) -> None:
    on_oom = policy(f"{{on_oom: {written}}}").on_oom
    assert on_oom is not None and on_oom.queue in ("2024", "yes")


NAME = "it must be the name of an exception, such as ConnectionError or httpx.HTTPStatusError"


@pytest.mark.parametrize(
    ("retry", "place", "message"),
    [
        ("{on: [OSError, 404]}", "404", "'retry.on.1' of node 'a': input should be a valid string, not 404"),
        ("{never: [OSError, time out]}", "time", f"'retry.never.1' of node 'a': {NAME}, not 'time out'"),
        ("{on: 4xx}", "4xx", f"'retry.on.0' of node 'a': {NAME}, not '4xx'"),
        (
            "{on: [OSError], never: [KeyError, OSError]}",
            "[KeyError",
            "'retry.never' of node 'a': it names OSError, which is also in 'on'; remove it from one of them",
        ),
        ("{on_oom: [heavy]}", "[heavy", "'retry.on_oom' of node 'a': it must be the name of a queue"),
        ("{on_oom: {quue: big}}", "quue", "unknown key 'quue' in 'on_oom' of node 'a'; did you mean 'queue'?"),
        ("{on_oom: {}}", "{}", "'retry.on_oom.queue' of node 'a': field required"),
        ("{on_oom: {queue: ''}}", "''", "'retry.on_oom.queue' of node 'a': field required"),
        ("{on_oom: {queue: [heavy]}}", "[heavy", "the queue of 'on_oom' of node 'a' must be a string"),
        ("{nevr: OSError}", "nevr", "unknown key 'nevr' in 'retry' of node 'a'; did you mean 'never'?"),
    ],
)
def test_mistakes_are_reported_at_their_place(retry: str, place: str, message: str) -> None:
    line = f"a: {{handler: h, retry: {retry}}}"
    assert problems(line) == [f"{line.index(place) + 1}: error: {message}"]


def test_nodes_run_by_the_engine_cannot_have_on_oom() -> None:
    line = "c: {type: conditional, condition: 'true', on_true: a, retry: {on_oom: big}}, a: {handler: h}"
    assert problems(line) == [f"{line.index('{on_oom') + 1}: warning: 'on_oom' has no effect on node 'c'"]


FANS = """
  a: {handler: h, queue: q, retry: {on_oom: heavy}}
  own: {type: fan_out, source: [1], retry: {on_oom: unused}, task: {handler: i, queue: q, retry: {on_oom: huge}}}
  inherited: {type: fan_out, source: [1], retry: {on_oom: large}, task: {handler: j, queue: q}}
"""


def test_on_oom_queues_are_queues_of_the_workflow() -> None:
    """The queues of a workflow are known before it runs."""
    workflow = parse(FANS)
    assert queues_of(workflow) == {"q", "heavy", "huge", "large"}
    assert tasks_of(workflow) == {
        ("q", "h"),
        ("heavy", "h"),
        ("q", "i"),
        ("huge", "i"),
        ("q", "j"),
        ("large", "j"),
    }


def test_children_inherit_the_fan_outs_rules_unless_they_have_their_own() -> None:
    graph = compile_graph(parse(FANS))
    children = {name: node.fan_out.child.retry.on_oom for name, node in graph.nodes.items() if node.fan_out}
    assert children == {"own": OnOom(queue="huge"), "inherited": OnOom(queue="large")}


def test_a_template_includes_its_rules() -> None:
    workflow = parse(
        """
          f: {type: fan_out, source: [1], child_node: t}
          t: {handler: h, retry: {never: ValueError, on_oom: heavy}}
        """
    )
    node = workflow.nodes["f"]
    assert isinstance(node, FanOutNode) and node.task.retry is not None
    assert (node.task.retry.never, node.task.retry.on_oom) == (("ValueError",), OnOom(queue="heavy"))


@pytest.mark.parametrize(
    "written", ["retries: 2", "retry: {retries: 2}", "retry: {max_attempts: 2}", "retry: {retries: 2, backoff: fixed}"]
)
def test_retries_is_an_alias(written: str) -> None:
    node = parse(f"a: {{handler: h, {written}}}\n").nodes["a"]
    assert isinstance(node, TaskNode) and node.retry is not None
    assert node.retry.max_attempts == 2


@pytest.mark.parametrize(
    ("written", "message"),
    [
        ("retry: {retries: 2, max_attempts: 3}", "'retries' and 'max_attempts' mean the same: use only one of them"),
        ("retries: 2, retry: {backoff: fixed}", "node 'a' has both 'retry' and 'retries'; put 'retries' into 'retry'"),
        ("retries: many", "should be a valid integer"),
    ],
)
def test_the_number_of_retries_can_be_given_once(written: str, message: str) -> None:
    assert any(message in problem for problem in problems(f"a: {{handler: h, {written}}}"))


def test_retries_of_other_nodes_are_written_the_same_way() -> None:
    nodes = """
        f: {type: fan_out, source: "{{ inputs.l }}", retries: 1, task: {handler: h, retries: 4}, next: g}
        g: {type: fan_in, retries: 0}
    """
    parsed = parse(nodes).nodes
    fan = parsed["f"]
    assert isinstance(fan, FanOutNode) and fan.retry is not None and fan.task.retry is not None
    assert (fan.retry.max_attempts, fan.task.retry.max_attempts) == (1, 4)


@pytest.mark.parametrize(
    ("use", "is_known"),
    [
        ("nodes.g.output.failed", True),
        ("nodes.g.output.results", True),
        ("nodes.g.output.total", False),
        ("nodes.f.output.fan_out_count", True),
        ("nodes.f.output.results", False),
        ("nodes.g.output.total | default(0)", True),
        ("nodes.g.output", True),
    ],
)
def test_keys_of_known_output_shapes_are_checked_at_load(use: str, is_known: bool) -> None:
    nodes = f"""
        f: {{type: fan_out, source: "{{{{ inputs.l }}}}", task: {{handler: h}}, next: g}}
        g: {{type: fan_in, next: a}}
        a: {{handler: h, params: {{x: "{{{{ {use} }}}}"}}}}
    """
    text = f"workflow_id: w\nadditional_inputs: true\nnodes:\n{indent(dedent(nodes), '  ')}"
    workflow, problems = read_workflow(text, queues=QUEUES)
    messages = [*map(str, problems)]
    if workflow is not None:
        try:
            compile_graph(workflow)
        except InvalidWorkflow as error:
            messages.append(str(error))
    assert any("is unknown: the output of" in problem for problem in messages) is not is_known
