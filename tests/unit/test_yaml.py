"""Workflow files: every dialect loads, and every mistake is found where it was made."""

from pathlib import Path
from textwrap import dedent
from time import process_time
from timeit import timeit
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dagmaster.authoring.yaml import QueueRules, load_workflow, parse_workflow, read_workflow
from dagmaster.model.compile import compile_graph
from dagmaster.model.problems import InvalidWorkflow
from dagmaster.model.retry import Backoff
from dagmaster.model.workflow import (
    Aggregation,
    ConditionalNode,
    DependsOn,
    EndNode,
    FanInNode,
    FanOutNode,
    InputType,
    StartNode,
    TaskNode,
    Workflow,
)

QUEUES = QueueRules(default_queue="default")


def parse(text: str, queues: QueueRules = QUEUES) -> Workflow:
    return parse_workflow(dedent(text), queues=queues)


def parse_nodes(text: str, inputs: str = "") -> Workflow:
    """Only the nodes are given."""
    body = dedent(text).strip("\n")
    indented = "\n".join(f"  {line}" for line in body.splitlines())
    return parse(f"workflow_id: w\nadditional_inputs: true\n{inputs}\nnodes:\n{indented}\n")


def problems(text: str, queues: QueueRules = QUEUES) -> list[str]:
    """As printed, without the word for the severity of errors."""
    workflow, found = read_workflow(dedent(text).lstrip("\n"), queues=queues)
    assert (workflow is None) is any(problem.is_error for problem in found)
    return [str(problem).replace(" error:", "") for problem in found]


def node_problems(text: str, queues: QueueRules = QUEUES) -> list[str]:
    """Only the nodes are given; lines are counted from the first of them."""
    found = problems("{workflow_id: w, additional_inputs: true, nodes: {\n" + dedent(text).strip("\n") + "\n}}", queues)
    return [message.split(" ", 1)[1] for message in found]


# Dialects

ECHO = """
    workflow_id: echo_test
    name: Echo test
    version: 1
    description: The smallest useful workflow
    inputs:
      message: {type: string, required: true, description: what to say}
    nodes:
      START:
        type: start
        next: echo_handler
      echo_handler:
        type: task
        handler: echo
        queue: light
        timeout_seconds: 60
        retry: {max_attempts: 2, backoff: FIXED, initial_delay_seconds: 1}
        params:
          message: "{{ inputs.message }}"
        next: END
      END:
        type: end
"""


def test_the_canonical_form() -> None:
    workflow = parse(ECHO)
    assert (workflow.workflow_id, workflow.name, workflow.version) == ("echo_test", "Echo test", 1)
    assert workflow.inputs["message"].description == "what to say"
    node = workflow.nodes["echo_handler"]
    assert isinstance(node, TaskNode)
    assert (node.handler, node.queue, node.timeout_seconds, node.next) == ("echo", "light", 60, ("END",))
    assert node.retry is not None
    assert (node.retry.max_attempts, node.retry.backoff) == (2, Backoff.FIXED)
    assert node.params == {"message": "{{ inputs.message }}"}
    assert list(compile_graph(workflow).nodes) == ["START", "echo_handler", "END"]


def test_nearly_everything_may_be_left_out() -> None:
    workflow = parse("workflow_id: tiny\nnodes: {only: {handler: h}}")
    assert (workflow.name, workflow.version, workflow.is_active) == ("tiny", 1, True)
    assert workflow.nodes["only"] == TaskNode(handler="h", queue="default", next=("END",))
    assert workflow.nodes["START"] == StartNode(next=("only",))
    assert workflow.nodes["END"] == EndNode()


@pytest.mark.parametrize(("written", "version"), [("3", 3), ("'3'", 3), ('" 4 "', 4), ("2.0", 2), ("~", 1)])
def test_versions_are_whole_numbers_however_written(written: str, version: int) -> None:
    assert parse(f"workflow_id: w\nversion: {written}\nnodes: {{a: {{handler: h}}}}").version == version


def test_the_linear_pipeline_without_start_and_end() -> None:
    workflow = parse_nodes(
        """
        validate: {handler: v, next: reproject}
        reproject: {handler: r, next: clip}
        clip: {handler: c, next: analyze}
        analyze: {handler: a, next: END}
        """
    )
    assert list(compile_graph(workflow).nodes) == ["START", "validate", "reproject", "clip", "analyze", "END"]


def test_an_implicit_end_waits_for_every_last_node() -> None:
    workflow = parse_nodes("a: {handler: h, next: [b, c]}\nb: {handler: h}\nc: {handler: h}\nd: {handler: h}")
    nodes = compile_graph(workflow).nodes
    assert nodes["START"].targets == ("a", "d")
    assert set(nodes["END"].all_of) == {"b", "c", "d"}


def test_an_implicit_start_may_be_named() -> None:
    workflow = parse_nodes("a: {handler: h, depends_on: START, next: END}\nb: {handler: h}")
    assert set(compile_graph(workflow).nodes["START"].targets) == {"a", "b"}


def test_end_and_start_name_the_nodes_of_these_types_whatever_their_ids() -> None:
    workflow = parse_nodes(
        """
        begin: {type: start}
        a: {handler: h, depends_on: START, next: END}
        c: {type: conditional, condition: "{{ inputs.x }}", on_true: END, depends_on: a}
        finish: {type: end}
        """
    )
    nodes = compile_graph(workflow).nodes
    assert nodes["a"].all_of == ("begin",)
    assert nodes["finish"].all_of == ("a", "c")


def test_types_and_end_ids_may_be_upper_case_or_left_out() -> None:
    workflow = parse_nodes("START: {next: a}\na: {type: TASK, handler: h, next: END}\nEND:")
    assert isinstance(workflow.nodes["START"], StartNode)
    assert isinstance(workflow.nodes["END"], EndNode)
    workflow = parse_nodes("start: {type: START, next: a}\na: {handler: h, next: end}\nend: {type: END}")
    assert list(compile_graph(workflow).nodes) == ["start", "a", "end"]


@pytest.mark.parametrize(
    ("written", "depends_on"),
    [
        ("a", DependsOn(all_of=("a",))),
        ("[a, b]", DependsOn(all_of=("a", "b"))),
        ("{all_of: a}", DependsOn(all_of=("a",))),
        ("{all_of: [a, b]}", DependsOn(all_of=("a", "b"))),
        ("{any_of: b}", DependsOn(any_of=("b",))),
        ("{all_of: [a], any_of: [b]}", DependsOn(all_of=("a",), any_of=("b",))),
        ("[]", None),
        ("~", None),
        ("{all_of: []}", None),
    ],
)
def test_depends_on_in_all_its_forms(written: str, depends_on: DependsOn | None) -> None:
    workflow = parse_nodes(f"a: {{handler: h}}\nb: {{handler: h}}\nc: {{handler: h, depends_on: {written}}}")
    assert workflow.nodes["c"].depends_on == depends_on


@pytest.mark.parametrize(
    ("written", "following"), [("b", ("b",)), ("[b, c]", ("b", "c")), ("'b'", ("b",)), ("[]", ("END",))]
)
def test_next_is_a_name_or_a_list(written: str, following: tuple[str, ...]) -> None:
    workflow = parse_nodes(f"a: {{handler: h, next: {written}}}\nb: {{handler: h}}\nc: {{handler: h}}")
    assert workflow.nodes["a"].next == following


def test_nodes_as_a_list_with_task_types() -> None:
    workflow = parse(
        """
        workflow_id: flood_impact
        nodes:
          - id: flood
            task_type: h3.load
            params: {layer: flood}
          - id: buildings
            task_type: h3.load
          - id: impact
            task_type: h3.join
            depends_on: [flood, buildings]
        """
    )
    impact = workflow.nodes["impact"]
    assert isinstance(impact, TaskNode)
    assert impact.handler == "h3.join"
    assert compile_graph(workflow).nodes["impact"].all_of == ("flood", "buildings")


def conditional(text: str) -> ConditionalNode:
    nodes = dedent(text).strip() + "\nyes_path: {handler: h}\nno_path: {handler: h}\nmaybe: {handler: h}"
    node = parse_nodes(nodes).nodes["c"]
    assert isinstance(node, ConditionalNode)
    return node


def test_a_conditional_with_on_true_and_on_false() -> None:
    node = conditional(
        """
        c:
          type: conditional
          condition: "{{ inputs.size }} > 10"
          on_true: yes_path
          on_false: [no_path, maybe]
        """
    )
    assert node.subject is None
    assert [(branch.name, branch.when, branch.next) for branch in node.branches] == [
        ("true", "{{ inputs.size }} > 10", ("yes_path",)),
        ("false", None, ("no_path", "maybe")),
    ]


@pytest.mark.parametrize(
    "keys",
    [
        "true: yes_path, false: no_path",
        "'true': yes_path, 'false': no_path",
        "True: yes_path, False: no_path",
        "yes: yes_path, no: no_path",
        "on: yes_path, off: no_path",
        "TRUE: [yes_path], FALSE: [no_path]",
    ],
)
def test_a_conditional_with_boolean_branch_keys(keys: str) -> None:
    node = conditional(f"c: {{type: conditional, condition: '{{{{ inputs.x }}}}', branches: {{{keys}}}}}")
    assert [(branch.name, branch.next) for branch in node.branches] == [
        ("true", ("yes_path",)),
        ("false", ("no_path",)),
    ]


def test_one_branch_may_be_missing() -> None:
    assert [b.next for b in conditional("c: {type: conditional, condition: true, on_true: yes_path}").branches] == [
        ("yes_path",),
        (),
    ]
    assert [b.next for b in conditional("c: {type: conditional, condition: false, on_false: no_path}").branches] == [
        (),
        ("no_path",),
    ]


@pytest.mark.parametrize(
    "default", ["- {default: true, next: maybe}\n  default: ~", "default: maybe", "default: {next: [maybe]}"]
)
def test_a_conditional_with_ordered_branches(default: str) -> None:
    separator = "    " if default.startswith("-") else "  "
    node = conditional(
        "c:\n  type: conditional\n  condition_field: '{{ inputs.size }}'\n  branches:\n"
        "    - {condition: '> 10', next: yes_path, name: big}\n    - {condition: '<= 10', next: no_path}\n"
        f"{separator}{default.split(chr(10))[0]}"
    )
    assert node.subject == "{{ inputs.size }}"
    assert [(branch.name, branch.when, branch.next) for branch in node.branches] == [
        ("big", "> 10", ("yes_path",)),
        ("branch_2", "<= 10", ("no_path",)),
        ("default", None, ("maybe",)),
    ]


def test_ordered_branches_may_have_whole_conditions() -> None:
    node = conditional(
        """
        c:
          type: conditional
          branches:
            - {condition: "{{ inputs.a }} == 1", next: yes_path}
            - {condition: "not inputs.b", next: no_path}
            - {default: true, next: END}
        """
    )
    assert node.subject is None
    assert len(node.branches) == 3


@pytest.mark.parametrize(
    ("written", "when"), [("yes", "true"), ("off", "false"), ("True", "true"), ("1", "1"), ("'true'", "true")]
)
def test_a_condition_may_be_a_literal(written: str, when: str) -> None:
    node = conditional(f"c: {{type: conditional, condition: {written}, on_true: yes_path}}")
    assert node.branches[0].when == when


def test_a_fan_out_with_an_inline_task() -> None:
    workflow = parse_nodes(
        """
        split:
          type: fan_out
          source: "{{ inputs.tiles }}"
          max_parallel: 5
          task:
            {handler: tile, queue: heavy, timeout_seconds: 9, params: {t: "{{ item }}"}, retry: {max_attempts: 0}}
          next: collect
        collect: {type: fan_in, aggregation: CONCAT}
        """
    )
    node = workflow.nodes["split"]
    assert isinstance(node, FanOutNode)
    assert (node.task.handler, node.task.queue, node.task.timeout_seconds, node.max_parallel) == ("tile", "heavy", 9, 5)
    assert node.task.retry is not None
    collect = workflow.nodes["collect"]
    assert isinstance(collect, FanInNode)
    assert collect.aggregation is Aggregation.CONCAT


@pytest.mark.parametrize(
    "wiring",
    [
        ("next: collect", "", "", ""),
        ("next: tile", "next: collect", "", ""),
        ("", "next: collect", "", "source_node: tile"),
        ("", "", "depends_on: tile", ""),
        ("", "depends_on: split", "depends_on: {all_of: [tile]}", "source_node: split"),
        ("next: [tile, collect]", "next: collect", "", "source_node: tile"),
    ],
)
def test_a_child_node_is_folded_into_its_fan_out(wiring: tuple[str, str, str, str]) -> None:
    split, tile, collect, source = wiring
    workflow = parse_nodes(
        f"""
        split:
          type: fan_out
          source: "{{{{ inputs.tiles }}}}"
          child_node: tile
          max_parallel: 3
          {split}
        tile:
          type: task
          handler: tile
          params: {{item: "{{{{ fan_out.item }}}}", n: "{{{{ fan_out.total }}}}"}}
          {tile}
        collect:
          type: fan_in
          aggregation_mode: sum
          {collect}
          {source}
          next: END
        """
    )
    assert list(workflow.nodes) == ["START", "split", "collect", "END"]
    nodes = compile_graph(workflow).nodes
    assert nodes["split"].targets == ("collect",)
    assert nodes["split"].fan_out is not None
    assert nodes["split"].fan_out.child.handler == "tile"
    assert nodes["split"].fan_out.child.queue == "default"
    assert nodes["collect"].fan_in is not None
    assert nodes["collect"].fan_in.fan_out == "split"


def test_two_fan_outs_may_share_a_template() -> None:
    workflow = parse_nodes(
        """
        f: {type: fan_out, source: [1], child_node: t, next: g}
        g: {type: fan_out, source: [2], child_node: t, next: i}
        t: {handler: h}
        i: {type: fan_in}
        """
    )
    assert set(workflow.nodes) == {"START", "f", "g", "i", "END"}


def test_anchors_and_extensions() -> None:
    workflow = parse(
        """
        x-common: &common
          handler: h
          retry: {max_attempts: 1}
        workflow_id: w
        nodes:
          a:
            <<: *common
            next: b
          b:
            <<: [*common]
            handler: other
        """
    )
    a, b = workflow.nodes["a"], workflow.nodes["b"]
    assert isinstance(a, TaskNode)
    assert isinstance(b, TaskNode)
    assert a.retry == b.retry
    assert (a.handler, b.handler) == ("h", "other")


def test_yaml_surprises_do_not_surprise() -> None:
    workflow = parse_nodes(
        """
        yes: {handler: on, next: no}
        no:
          handler: h
          params: {date: 2024-01-31, time: 12:30, text: "yes", flag: yes, 1: one, on: switch, none: ~, exp: 1e3}
        """
    )
    assert compile_graph(workflow).nodes["yes"].targets == ("no",)
    node = workflow.nodes["no"]
    assert isinstance(node, TaskNode)
    assert node.params == {
        "date": "2024-01-31",
        "time": "12:30",
        "text": "yes",
        "flag": True,
        "1": "one",
        "on": "switch",
        "none": None,
        "exp": "1e3",
    }


def test_inputs_in_all_their_forms() -> None:
    workflow = parse(
        """
        workflow_id: w
        additional_inputs: true
        is_active: false
        globals: {region: "{{ inputs.a }}"}
        inputs:
          a: string
          b: {type: integer, default: 3.0}
          c: {type: array, required: false}
          d: {type: OBJECT, required: true, description: a thing}
          e: {default: 1.5}
          f: {default: [1]}
          g:
          h: {type: boolean, required: true, default: false}
        nodes: {n: {handler: h}}
        """
    )
    assert {name: (spec.type, spec.required, spec.default) for name, spec in workflow.inputs.items()} == {
        "a": (InputType.STRING, True, None),
        "b": (InputType.INTEGER, False, 3),
        "c": (InputType.ARRAY, False, None),
        "d": (InputType.OBJECT, True, None),
        "e": (InputType.NUMBER, False, 1.5),
        "f": (InputType.ARRAY, False, [1]),
        "g": (InputType.STRING, True, None),
        "h": (InputType.BOOLEAN, False, False),
    }
    assert type(workflow.inputs["b"].default) is int
    assert not workflow.is_active
    assert workflow.additional_inputs
    assert workflow.globals == {"region": "{{ inputs.a }}"}


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
def test_the_first_queue_that_is_given_is_taken(
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


def test_a_child_template_brings_its_queue_unless_the_fan_out_has_one() -> None:
    text = "f: {{type: fan_out, source: [1], child_node: t{0}}}\nt: {{handler: h, queue: mine}}"
    for given_queue, expected in (("", "mine"), (", queue: first", "first")):
        node = parse_nodes(text.format(given_queue)).nodes["f"]
        assert isinstance(node, FanOutNode)
        assert node.task.queue == expected


def test_without_any_queue_the_node_is_named() -> None:
    (problem,) = node_problems("a: {handler: h}", QueueRules())
    assert problem.startswith("node 'a' has no queue: give it a 'queue'")


def test_handlers_are_checked_where_they_are_known() -> None:
    rules = QueueRules({"echo": "q"})
    assert node_problems("a: {handler: ecko}", rules) == [
        "node 'a' names an unknown handler 'ecko'; did you mean 'echo'?"
    ]
    assert node_problems("a: {handler: anything, queue: q}", QueueRules()) == []


def test_the_pinned_definition_is_self_contained() -> None:
    workflow = parse(ECHO)
    again = Workflow.model_validate_json(workflow.to_json())
    assert again.content_hash == workflow.content_hash
    assert compile_graph(again).nodes.keys() == compile_graph(workflow).nodes.keys()


# Mistakes


def test_a_mistake_is_reported_with_file_line_and_column() -> None:
    with pytest.raises(InvalidWorkflow) as caught:
        parse_workflow("workflow_id: w\nnodes:\n  clean:\n    hander: h\n", file="flows/a.yaml", queues=QUEUES)
    assert str(caught.value) == (
        "flows/a.yaml:4:5: error: unknown key 'hander' in node 'clean'; did you mean 'handler'?"
    )


def test_all_mistakes_are_reported_sorted_and_each_once() -> None:
    assert problems(
        """
        workflow_id: bad
        vesion: 2
        inputs:
          message: strin
          count: {type: int, default: 3}
          size: {type: integer, default: big}
        nodes:
          START: {type: start, next: ech}
          echo:
            type: task
            hander: echo
            params: {msg: "{{ inputs.mesage }}"}
            timeout_seconds: 0
            retry: {max_atempts: 4, backoff: slow}
            next: END
          cond:
            type: conditional
            condition: {{ inputs.message }}
            on_true: echo
            on_false: [END, nowhere]
          fo:
            type: fan_out
            source: "{{ nodes.echo.output.items }}"
            child_node: tile
            next: fi
          tile:
            handler: t
            params: {a: "{{ item }}", b: "{{ fan_out.idx }}"}
          fi: {type: fan_in, aggregation: conct, source_node: tile, next: END}
          END: {type: end}
        """
    ) == [
        "2:1: unknown key 'vesion' in the workflow; did you mean 'version'?",
        "4:12: unknown type 'strin' of input 'message'; did you mean 'string'?",
        "5:17: unknown type 'int' of input 'count'; did you mean 'integer'?",
        "6:34: the default of input 'size' must be an integer, not a string ('big')",
        "8:30: node 'START' names an unknown node 'ech'; did you mean 'echo'?",
        "11:5: unknown key 'hander' in node 'echo'; did you mean 'handler'?",
        "12:19: inputs.mesage refers to an unknown input; did you mean 'message'?",
        "13:22: 'timeout_seconds' of node 'echo': input should be greater than or equal to 1, not 0",
        "14:13: unknown key 'max_atempts' in 'retry' of node 'echo'; did you mean 'max_attempts'?",
        "14:38: 'retry.backoff' of node 'echo': input should be 'fixed', 'linear' or 'exponential', not 'slow'",
        '18:17: a key must be a text; a value that begins with an expression must be in quotes: "{{ ... }}"',
        "20:21: node 'cond' names an unknown node 'nowhere'",
        "28:34: fan_out.idx is unknown: fan_out has item, index, total",
        "29:35: unknown aggregation 'conct' in node 'fi'; did you mean 'concat'?",
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "1:1: the file is empty"),
        ("# nothing\n", "1:1: the file is empty"),
        ("- a\n- b\n", "1:1: the file must be a mapping with 'workflow_id' and 'nodes'"),
        ("just text", "1:1: the file must be a mapping with 'workflow_id' and 'nodes'"),
        (
            "a: [1, 2\nb: 3\n",
            "2:2: not readable as YAML: while parsing a flow sequence",
        ),
        ("a:\n\tb: 1\n", "2:1: not readable as YAML: a tab is used for indentation; YAML allows only spaces"),
        ("a: 1\n---\nb: 2\n", "2:1: not readable as YAML: expected a single document in the stream but found another"),
        ("a: {{ inputs.x }} > 5\n", "1:21: not readable as YAML: while scanning a block scalar"),
        ("a: > 5\n", "1:6: not readable as YAML: while scanning a block scalar"),
        ("a: \x01\n", "1: not readable as YAML: unacceptable character"),
        ("[" * 100, "1:51: not readable as YAML: the file is nested more than 50 levels deep"),
        ("a: *nope\n", "1:4: not readable as YAML: found undefined alias"),
        ("a: \ud800\n", "the text cannot be encoded"),
        ("x" * 1_100_000, "the file has more than 1048576 characters"),
        ("a: &a [*a]\n", "1:4: the file has too many levels"),
        ("a: &a {<<: *a, b: 1}\n", "1:4: the file has too many levels"),
    ],
)
def test_files_that_cannot_be_read(text: str, message: str) -> None:
    (problem,) = problems(text)
    assert problem.removeprefix("error: ").startswith(message)


def test_hints_for_values_that_must_be_quoted() -> None:
    assert problems("a: {{ inputs.x }} > 5\n")[0].endswith('must be in quotes: "{{ ... }}"')
    assert problems("a: > 5\n")[0].endswith("a value that begins with '>' must be in quotes")
    assert node_problems("a: {handler: h, params: {x: !=5}}")[0].endswith("begins with '!' must be in quotes")
    assert node_problems("a: {handler: h, params: {x: != 5}}")[0].endswith("begins with '!' must be in quotes")


def test_a_small_file_cannot_grow_by_aliases() -> None:
    levels = "".join(f"l{i}: &l{i} [{', '.join([f'*l{i - 1}'] * 9)}]\n" for i in range(1, 10))
    found: list[str] = []
    seconds = timeit(lambda: found.extend(problems("l0: &l0 [x]\n" + levels)), number=1, timer=process_time)
    assert found[0].endswith("the file has too many values")
    assert len(found) == 1
    assert seconds < 10


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (
            "!!python/object/apply:os.system [ls]",
            "the tag 'tag:yaml.org,2002:python/object/apply:os.system' is not supported",
        ),
        ("!!python/name:os.system x", "is not supported"),
        ("!custom {a: 1}", "the tag '!custom' is not supported"),
        ("!!binary aGk=", "is not supported"),
        ("!!set {a, b}", "is not supported"),
        ("!!int abc", "'abc' cannot be read as int"),
        (".nan", "'.nan' is not a number that JSON knows"),
        ("99999999999999999999", "is too large a number"),
        ('"\\0"', "holds a character that cannot be stored"),
        ('"\\ud800"', "haracter"),
        ("{a: 1, a: 2}", "the key 'a' is given twice, first on line 2"),
        ("{<<: 5}", "'<<' must name a mapping"),
        ("{[1]: 2}", "a key must be a text"),
    ],
)
def test_values_that_are_not_plain_data(value: str, message: str) -> None:
    (problem,) = node_problems(f"a: {{handler: h, params: {{x: {value}}}}}")
    assert message in problem


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("nodes: {a: {handler: h}}", "1:1: the workflow needs a 'workflow_id'"),
        ("workflow_id: w", "1:1: the workflow needs 'nodes'"),
        ("workflow_id: w\nnodes: {}", "2:8: the workflow needs 'nodes'"),
        ("workflow_id: w\nnodes: 5", "2:8: 'nodes' must be a mapping of ids to nodes"),
        ("workflow_id: w\nnodes: text", "2:8: 'nodes' must be a mapping of ids to nodes"),
        ("workflow_id: ''\nnodes: {a: {handler: h}}", "1:1: the workflow needs a 'workflow_id'"),
        ("workflow_id: [w]\nnodes: {a: {handler: h}}", "1:14: 'workflow_id' must be a text"),
        (
            f"workflow_id: {'w' * 65}\nnodes: {{a: {{handler: h}}}}",
            "1:14: 'workflow_id': string should have at most 64 characters",
        ),
        ("workflow_id: w\nversion: 1.5\nnodes: {a: {handler: h}}", "2:10: 'version' must be a whole number"),
        ("workflow_id: w\nversion: one\nnodes: {a: {handler: h}}", "2:10: 'version' must be a whole number"),
        ("workflow_id: w\nis_active: maybe\nnodes: {a: {handler: h}}", "2:12: 'is_active' must be true or false"),
        ("workflow_id: w\ninputs: [a]\nnodes: {a: {handler: h}}", "2:9: 'inputs' must be a mapping of names to types"),
        (
            "workflow_id: w\ninputs: {a: {typ: string}}\nnodes: {a: {handler: h}}",
            "2:14: unknown key 'typ' in input 'a'; did you mean 'type'?",
        ),
        (
            "workflow_id: w\ninputs: {a: wibble}\nnodes: {a: {handler: h}}",
            "2:13: unknown type 'wibble' of input 'a'; types are string,",
        ),
        (
            "workflow_id: w\ninputs: {a: {default: x, type: 5}}\nnodes: {a: {handler: h}}",
            "2:32: unknown type '5' of input 'a'",
        ),
        (
            "workflow_id: w\nglobals: 5\nnodes: {a: {handler: h}}",
            "2:10: 'globals' must be a mapping of names to values",
        ),
        (
            "workflow_id: w\ntags: [a]\nnodes: {a: {handler: h}}",
            "2:1: unknown key 'tags' in the workflow; known are workflow_id,",
        ),
        ("workflow_id: w\nnodes: [{task_type: h}]", "2:9: each node in the list must be a mapping with an 'id'"),
        ("workflow_id: w\nnodes: [text]", "2:9: each node in the list must be a mapping with an 'id'"),
        (
            "workflow_id: w\nnodes:\n- {id: a, handler: h}\n- {id: a, handler: h}",
            "4:8: the node id 'a' is used twice, first on line 3",
        ),
        (
            "workflow_id: w\nnodes:\n  a: {handler: h}\n  a: {handler: h}",
            "4:3: the key 'a' is given twice, first on line 3",
        ),
        ("workflow_id: w\nnodes: {a: {handler: h}}\nglobals: {x: '{{ oops'}", "3:14: the braces are never closed"),
    ],
)
def test_mistakes_in_the_head(text: str, message: str) -> None:
    (problem,) = problems(text)
    assert problem.startswith(message)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: {type: task}", "node 'a' needs a 'handler'"),
        ("a: {handler: ~}", "node 'a' needs a 'handler'"),
        ("a: {handler: ''}", "node 'a' needs a 'handler'"),
        ("a: {handler: h, next: ['']}", "a name in 'next' of node 'a' is empty"),
        ("a: {handler: h, next: [~]}", "a name in 'next' of node 'a' is empty"),
        ("a: {handler: [h]}", "the handler of node 'a' must be a text"),
        ("a: text", "node 'a' must be a mapping of keys to values"),
        ("a: [handler, h]", "node 'a' must be a mapping of keys to values"),
        ("a: {handler: h, params: [1]}", "'params' of node 'a' must be a mapping of names to values"),
        ("a: {handler: h, next: {b: c}}", "each name in 'next' of node 'a' must be a text"),
        (
            "b: {handler: h}, a: {handler: h, depends_on: {all: b}}",
            "unknown key 'all' in 'depends_on' of node 'a'; did you mean 'all_of'?",
        ),
        ("a: {handler: h, timeout_seconds: soon}", "'timeout_seconds' of node 'a': input should be a valid number"),
        (
            "a: {handler: h, timeout_seconds: 100000}",
            "'timeout_seconds' of node 'a': input should be less than or equal to 86400",
        ),
        ("a: {handler: h, retry: 3}", "'retry' of node 'a' must be a mapping of keys to values"),
        (
            "a: {handler: h, retry: {max_attempts: -1}}",
            "'retry.max_attempts' of node 'a': input should be greater than or equal to 0",
        ),
        (
            "a: {handler: h, retry: {initial_delay_seconds: 9, max_delay_seconds: 1}}",
            "'retry' of node 'a': initial_delay_seconds is larger than max_delay_seconds",
        ),
        (f"a: {{handler: {'h' * 129}}}", "'handler' of node 'a': string should have at most 128 characters"),
        ("a: {tpye: task, handler: h}", "unknown key 'tpye' in node 'a'; did you mean 'type'?"),
        ("a: {type: taks, handler: h}", "unknown type 'taks' of node 'a'; did you mean 'task'?"),
        ("a: {type: wibble, handler: h}", "unknown type 'wibble' of node 'a'; types are task,"),
        ("a: {type: fan_out_target, handler: h}", "unknown type 'fan_out_target' of node 'a'; it was withdrawn"),
        ("a: {handler: h, condition: x}", "'condition' does not belong to the task 'a'"),
        ("a: {handler: h, wibble: x}", "unknown key 'wibble' in node 'a'; known are type, description,"),
        ("a: {condition: true, on_true: END}", "node 'a' has no type; it looks like 'type: conditional'"),
        ("a: {source: [1], task: {handler: h}}", "node 'a' has no type; it looks like 'type: fan_out'"),
        ("a: {handler: h, next: a__1}", "node 'a' names an unknown node 'a__1'"),
        ("a__1: {handler: h}", "the node id 'a__1' is not allowed"),
        ("a: {handler: h, next: b}, b: {handler: h, next: a}", "these nodes wait for each other: a -> b -> a"),
        ("START: {type: start}, END: {type: end}, a: {handler: h, next: END}", "nothing leads to node 'a'"),
        ("a: {handler: h, params: {x: '{{ nodes.b.output }}'}}, b: {handler: h}", "nodes.b.output is not known here"),
    ],
)
def test_mistakes_in_tasks_give_one_problem(text: str, message: str) -> None:
    found = node_problems(text)
    assert found[0].startswith(message)
    assert len(found) == 1 or (message.startswith("nothing leads") and len(found) == 2)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ("on_true: END", "the conditional 'c' needs a 'condition'"),
        ("condition: '', on_true: END", "the conditional 'c' needs a 'condition'"),
        ("condition: ' ', on_true: END", "the condition is empty"),
        (
            "condition_field: '', branches: [{condition: '> 1', next: END}], default: END",
            "node 'c' needs a 'condition_field'",
        ),
        ("condition: [a], on_true: END", "the condition of node 'c' must be a text"),
        ("condition: true", "no branch of the conditional 'c' leads anywhere"),
        ("condition: '{{ oops', on_true: END", "the braces are never closed"),
        ("condition: raster, on_true: END", "the condition 'raster' refers to nothing"),
        ("condition: true, on_tru: END", "unknown key 'on_tru' in node 'c'; did you mean 'on_true'?"),
        (
            "condition: true, branches: {maybe: END, true: END}",
            "a branch of node 'c' must be true or false, not 'maybe'",
        ),
        ("condition: true, branches: END", "the branches of node 'c' must be a list, or true and false"),
        ("condition: true, on_true: END, branches: {true: END}", "node 'c' has 'on_true' or 'on_false' and 'branches'"),
        ("branches: [{condition: '> 1', next: END}, {default: true}]", "node 'c' needs a 'condition_field'"),
        (
            "condition_field: inputs.x, branches: [{condition: '> 1', next: END}]",
            "the conditional 'c' has no default branch",
        ),
        (
            "condition_field: inputs.x, branches: [{next: END}], default: END",
            "branch 1 of node 'c' needs a 'condition'",
        ),
        (
            "condition_field: inputs.x, branches: [{default: true, condition: '> 1', next: END}]",
            "branch 1 of node 'c' is the default and cannot have a condition",
        ),
        (
            "condition_field: inputs.x, branches: [{conditon: '> 1', next: END}], default: END",
            "unknown key 'conditon' in branch 1 of node 'c'; did you mean 'condition'?",
        ),
        ("condition_field: inputs.x, branches: [text], default: END", "branch 1 of node 'c' must be a mapping"),
        ("condition_field: size, branches: [{condition: '> 1', next: END}], default: END", "'size' is not a reference"),
        (
            "condition_field: inputs.x, branches: [{condition: '>', next: END}], default: END",
            "the condition '>' is not complete",
        ),
        (
            "condition_field: inputs.x, branches: [{condition: '> 1', next: END}], default: true",
            "the default of node 'c' must name a node; 'default: true' belongs in a branch",
        ),
    ],
)
def test_mistakes_in_conditionals_give_one_problem(fields: str, message: str) -> None:
    found = node_problems(f"c: {{type: conditional, {fields}}}")
    assert len(found) == 1, found
    assert found[0].startswith(message)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("f: {type: fan_out, task: {handler: h}}", "the fan_out 'f' needs a 'source', the list to work through"),
        ("f: {type: fan_out, source: [1]}", "the fan_out 'f' needs either a 'task' or a 'child_node'"),
        (
            "f: {type: fan_out, source: [1], task: {handler: h}, child_node: t}, t: {handler: h}",
            "the fan_out 'f' needs either a 'task' or a 'child_node'",
        ),
        ("f: {type: fan_out, source: [1], task: {queue: q}}", "the task of node 'f' needs a 'handler'"),
        ("f: {type: fan_out, source: [1], task: h}", "the task of node 'f' must be a mapping with a 'handler'"),
        (
            "f: {type: fan_out, source: [1], task: {handlr: h}}",
            "unknown key 'handlr' in the task of node 'f'; did you mean 'handler'?",
        ),
        (
            "f: {type: fan_out, source: [1], task: {handler: h}, max_parallel: 0}",
            "'max_parallel' of node 'f': input should be greater",
        ),
        (
            "f: {type: fan_out, source: [1], child_node: tt}, t: {handler: h}",
            "the child_node 'tt' of the fan_out 'f' is unknown",
        ),
        (
            "f: {type: fan_out, source: [1], child_node: g}, g: {type: fan_out, source: [1], task: {handler: h}}",
            "the child_node 'g' of the fan_out 'f' is not a task",
        ),
        (
            "f: {type: fan_out, source: [1], child_node: t, next: END}, t: {handler: h}, a: {handler: h, next: t}",
            "node 'a' cannot lead to 't', the child_node of 'f'",
        ),
        ("f: {type: fan_out, source: '{{ item }}', task: {handler: h}}", "item is only known in the task of a fan_out"),
        (
            "f: {type: fan_out, source: [1], child_node: t}, t: {handler: h, params: {x: '{{ oops'}}",
            "the braces are never closed",
        ),
        (
            "f: {type: fan_out, source: [1], child_node: t}, t: {handler: h, next: nowhere}",
            "node 'f' names an unknown node 'nowhere'",
        ),
        (
            "f: {type: fan_out, source: '', task: {handler: h}}",
            "the fan_out 'f' needs a 'source', the list to work through",
        ),
        ("i: {type: fan_in}", "no fan_out leads to the fan_in 'i'"),
        (
            "f: {type: fan_out, source: [1], task: {handler: h}, next: i}, i: {type: fan_in, source: f}",
            "'source' does not belong to the fan_in 'i'; did you mean 'source_node'?",
        ),
        (
            "f: {type: fan_out, source: [1], task: {handler: h}, next: i}, i: {type: fan_in, aggregation: zip}",
            "unknown aggregation 'zip' in node 'i'; known are collect,",
        ),
        (
            "f: {type: fan_out, source: [1], child_node: t, next: g}, t: {handler: h}, "
            "g: {type: fan_out, source: [1], child_node: t, next: i}, i: {type: fan_in, source_node: t}",
            "several fan_outs use 't': name one of f, g",
        ),
    ],
)
def test_mistakes_in_fan_outs_and_fan_ins_give_one_problem(text: str, message: str) -> None:
    found = node_problems(text)
    assert len(found) == 1, found
    assert found[0].startswith(message)


@pytest.mark.parametrize(
    "broken",
    [
        "next: {b: c}",
        "next: {{ x }}",
        "next: [{}]",
        "goes_to: b",
        "type: conditional, condition: true, branches: {{ x }}",
    ],
)
def test_a_link_that_cannot_be_read_is_not_reported_as_missing(broken: str) -> None:
    ends = "START: {type: start, next: a}, END: {type: end}, b: {handler: h, next: END}, "
    found = node_problems(ends + f"a: {{handler: h, {broken}}}")
    errors = [message for message in found if not message.startswith("warning")]
    assert len(errors) == 1, errors


def test_problems_of_a_folded_template_point_into_the_template() -> None:
    found = problems(
        """
        workflow_id: w
        nodes:
          f: {type: fan_out, source: [1], child_node: t}
          t:
            handler: h
            params:
              x: "{{ inputs.nope }}"
            next: nowhere
        """
    )
    assert [message.split()[0] for message in found] == ["7:10:", "8:11:"]


def test_keys_without_effect_are_warnings() -> None:
    text = "c: {type: conditional, condition: true, on_true: END, queue: q, timeout_seconds: 5}"
    assert node_problems(text) == [
        "warning: 'queue' has no effect on the conditional 'c'",
        "warning: 'timeout_seconds' has no effect on the conditional 'c'",
    ]
    assert parse_nodes(text)


def test_too_many_nodes_are_refused() -> None:
    text = "workflow_id: w\nnodes: [" + "1, " * 5001 + "]"
    assert problems(text) == ["2:8: a workflow may have 5000 nodes, not 5001"]


# Files


def test_a_file_is_loaded_and_named_in_its_problems(tmp_path: Path) -> None:
    good, bad = tmp_path / "good.yaml", tmp_path / "bad.yaml"
    good.write_text(dedent(ECHO))
    bad.write_text("workflow_id: w\n")
    assert load_workflow(good, queues=QUEUES).workflow_id == "echo_test"
    with pytest.raises(InvalidWorkflow, match=r"bad\.yaml:1:1: error: the workflow needs 'nodes'"):
        load_workflow(bad, queues=QUEUES)


def test_files_that_cannot_be_opened_are_problems(tmp_path: Path) -> None:
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
def test_a_damaged_file_is_explained_and_nothing_else_happens(sample: str, data: st.DataObject) -> None:
    start = data.draw(st.integers(0, len(sample)))
    end = data.draw(st.integers(start, min(start + 20, len(sample))))
    inserted = data.draw(st.text(alphabet="{}[]:-&*!|>'\"%#,? \n~x1", max_size=6))
    workflow, found = read_workflow(sample[:start] + inserted + sample[end:], queues=QUEUES)
    assert (workflow is None) is any(problem.is_error for problem in found)
    if workflow is not None:
        compile_graph(workflow)


@given(st.text(max_size=200))
def test_any_text_is_a_workflow_or_is_explained(text: str) -> None:
    workflow, found = read_workflow(text, queues=QUEUES)
    assert workflow is not None or found


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
    workflow, found = read_workflow(orjson.dumps(document).decode(), queues=QUEUES)
    assert (workflow is None) is any(problem.is_error for problem in found)
    if workflow is not None:
        compile_graph(workflow)
        assert b"(unread)" not in workflow.to_json()


@given(NODES)
def test_any_values_under_the_keys_of_nodes_are_read_or_explained(nodes: dict[str, Any]) -> None:
    read_json({"workflow_id": "w", "nodes": nodes})


@given(HEADS)
def test_any_values_under_the_keys_of_the_head_are_read_or_explained(head: dict[str, Any]) -> None:
    read_json({"workflow_id": "w", "nodes": {"a": {"handler": "h"}}, **head})
