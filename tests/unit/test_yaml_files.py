"""Workflow files as a whole: queues, loading, and arbitrary content."""

from pathlib import Path
from textwrap import dedent
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from yaml_bench import ECHO, QUEUES, node_problems, parse, parse_nodes

from dagmaster.authoring.yaml import QueueRules, load_workflow, read_workflow
from dagmaster.model.compile import compile_graph
from dagmaster.model.problems import InvalidWorkflow
from dagmaster.model.workflow import (
    FanOutNode,
    TaskNode,
    Workflow,
)

# Queues


@pytest.mark.parametrize(
    ("node_queue", "task_queue", "registered", "default", "expected"),
    [
        ("n", "t", "r", "d", "n"),
        (None, "t", "r", "d", "t"),
        (None, None, "r", "d", "r"),
        (None, None, None, "d", "d"),
    ],
)
def test_queues_are_chosen_by_precedence(
    node_queue: str | None, task_queue: str | None, registered: str | None, default: str, expected: str
) -> None:
    of_node = f"queue: {node_queue}, " if node_queue else ""
    of_task = f", queue: {task_queue}" if task_queue else ""
    rules = QueueRules({"h": registered, "x": None}, default)
    text = f"workflow_id: w\nnodes: {{f: {{type: fan_out, source: [1], {of_node}task: {{handler: h{of_task}}}}}}}"
    node = parse(text, rules).nodes["f"]
    assert isinstance(node, FanOutNode)
    assert node.task.queue == expected
    if task_queue is None:
        text = f"workflow_id: w\nnodes: {{f: {{{of_node}handler: h}}}}"
        plain = parse(text, rules).nodes["f"]
        assert isinstance(plain, TaskNode)
        assert plain.queue == expected


def test_a_child_templates_queue_is_used_unless_the_fan_out_has_one() -> None:
    text = "f: {{type: fan_out, source: [1], child_node: t{0}}}\nt: {{handler: h, queue: mine}}"
    for given_queue, expected in (("", "mine"), (", queue: first", "first")):
        node = parse_nodes(text.format(given_queue)).nodes["f"]
        assert isinstance(node, FanOutNode)
        assert node.task.queue == expected


def test_a_node_without_a_queue_is_named() -> None:
    (problem,) = node_problems("a: {handler: h}", QueueRules())
    assert problem.startswith("node 'a' has no queue: give it a 'queue'")


def test_handlers_are_checked_if_known() -> None:
    rules = QueueRules({"echo": "q"})
    assert node_problems("a: {handler: ecko}", rules) == [
        "node 'a' names an unknown handler 'ecko'; did you mean 'echo'?"
    ]
    assert node_problems("a: {handler: anything, queue: q}", QueueRules()) == []


def test_the_pinned_definition_is_self_contained() -> None:
    workflow = parse(ECHO)
    again = Workflow.model_validate_json(workflow.json_definition)
    assert again.content_hash == workflow.content_hash
    assert compile_graph(again).nodes.keys() == compile_graph(workflow).nodes.keys()


# Files


def test_a_loaded_file_is_named_in_its_problems(tmp_path: Path) -> None:
    good, bad = tmp_path / "good.yaml", tmp_path / "bad.yaml"
    good.write_text(dedent(ECHO))
    bad.write_text("workflow_id: w\n")
    assert load_workflow(good, queues=QUEUES).workflow_id == "echo_test"
    with pytest.raises(InvalidWorkflow, match=r"bad\.yaml:1:1: error: the workflow needs 'nodes'"):
        load_workflow(bad, queues=QUEUES)


def test_unreadable_files_are_problems(tmp_path: Path) -> None:
    binary, large = tmp_path / "binary.yaml", tmp_path / "large.yaml"
    binary.write_bytes(b"\xff\xfe\x00")
    large.write_text("#" * 1_100_000)
    for path, message in (
        (tmp_path / "absent.yaml", "the file cannot be read: No such file"),
        (binary, "the file is not UTF-8"),
        (large, "the file is larger than 1048576 bytes"),
    ):
        with pytest.raises(InvalidWorkflow, match=message):
            load_workflow(path, queues=QUEUES)


# Properties

SAMPLES = [
    dedent(ECHO).strip(),
    dedent(
        """
        workflow_id: w
        inputs: {x: string, l: {type: array, default: [1]}}
        nodes:
          c:
            type: conditional
            condition_field: "{{ inputs.x }}"
            branches:
              - {condition: "> 10", next: f}
              - {default: true, next: END}
          f: {type: fan_out, source: "{{ inputs.l }}", child_node: t, next: i}
          t: {handler: h, params: {a: "{{ item }}"}}
          i: {type: fan_in, source_node: t}
        """
    ).strip(),
]


@given(st.sampled_from(SAMPLES), st.data())
def test_a_damaged_file_is_a_problem(sample: str, data: st.DataObject) -> None:
    start = data.draw(st.integers(0, len(sample)))
    end = data.draw(st.integers(start, min(start + 20, len(sample))))
    inserted = data.draw(st.text(alphabet="{}[]:-&*!|>'\"%#,? \n~x1", max_size=6))
    workflow, problems = read_workflow(sample[:start] + inserted + sample[end:], queues=QUEUES)
    assert (workflow is None) is any(problem.is_error for problem in problems)
    if workflow is not None:
        compile_graph(workflow)


def test_an_invalid_child_node_is_one_problem() -> None:
    text = """
        workflow_id: w
        nodes:
          f: {type: fan_out, source: "{{ inputs.l }}", child_node: t, next: i}
          t: [handler, h]
          i: {type: fan_in, source_node: t}
    """
    workflow, problems = read_workflow(dedent(text), queues=QUEUES)
    assert workflow is None
    assert problems


@given(st.text(max_size=200))
def test_any_string_is_a_workflow_or_a_problem(text: str) -> None:
    workflow, problems = read_workflow(text, queues=QUEUES)
    assert workflow is not None or problems


VALUES: st.SearchStrategy[Any] = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-5, 5)
    | st.sampled_from(["a", "b", "task", "fan_out", "{{ inputs.x }}", "> 1", ""]),
    lambda children: (
        st.lists(children, max_size=3) | st.dictionaries(st.sampled_from(["next", "all_of", "x"]), children, max_size=2)
    ),
    max_leaves=6,
)
KEYS = st.sampled_from(
    (
        *("type", "handler", "next", "depends_on", "condition", "condition_field", "branches", "on_true", "default"),
        *("source", "task", "child_node", "max_parallel", "source_node", "aggregation", "retry", "params", "queue"),
    )
)


NODES = st.dictionaries(
    st.sampled_from(["a", "b", "START", "END"]), st.dictionaries(KEYS, VALUES, max_size=5), max_size=4
)
HEADS = st.dictionaries(
    st.sampled_from(["name", "version", "description", "inputs", "additional_inputs", "is_active", "globals", "nodes"]),
    VALUES | st.dictionaries(st.sampled_from(["a", "b"]), VALUES, max_size=2),
    max_size=3,
)


def read_json(document: dict[str, Any]) -> None:
    """JSON is YAML."""
    workflow, problems = read_workflow(orjson.dumps(document).decode(), queues=QUEUES)
    assert (workflow is None) is any(problem.is_error for problem in problems)
    if workflow is not None:
        compile_graph(workflow)
        assert b"(unread)" not in workflow.json_definition


@given(NODES)
def test_any_node_values_are_parsed_or_a_problem(nodes: dict[str, Any]) -> None:
    read_json({"workflow_id": "w", "nodes": nodes})


@given(HEADS)
def test_any_header_values_are_parsed_or_a_problem(head: dict[str, Any]) -> None:
    read_json({"workflow_id": "w", "nodes": {"a": {"handler": "h"}}, **head})
