"""Workflow files: every accepted form loads."""

from textwrap import dedent

import pytest
from yaml_bench import ECHO, parse, parse_nodes

from dagmaster.authoring.yaml import QueueRules, read_workflow
from dagmaster.model.compile import compile_graph
from dagmaster.model.inputs import check_inputs
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
)


def test_the_canonical_form_is_parsed() -> None:
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


def test_nearly_everything_is_optional() -> None:
    workflow = parse("workflow_id: tiny\nnodes: {only: {handler: h}}")
    assert (workflow.name, workflow.version, workflow.is_active) == ("tiny", 1, True)
    assert workflow.nodes["only"] == TaskNode(handler="h", queue="default", next=("END",))
    assert workflow.nodes["START"] == StartNode(next=("only",))
    assert workflow.nodes["END"] == EndNode()


RULES = QueueRules(None, "default")


def test_without_an_inputs_section_any_input_is_accepted_with_a_warning() -> None:
    nodes = "nodes: {a: {handler: h, params: {x: '{{ inputs.y }}', z: '{{ inputs.b }}'}}}"
    workflow, [problem] = read_workflow(f"workflow_id: w\n{nodes}", queues=RULES)
    assert workflow is not None
    assert workflow.additional_inputs
    assert check_inputs(workflow, {"y": 1, "other": [2]}) == {"y": 1, "other": [2]}
    assert (problem.severity, problem.line) == ("warning", 2)
    assert problem.message.startswith("the workflow declares no inputs and uses b, y: any input is accepted")
    parsed, problems = read_workflow(f"workflow_id: w\nadditional_inputs: true\n{nodes}", queues=RULES)
    assert (parsed is not None, problems) == (True, ())


@pytest.mark.parametrize("section", ["inputs: {}", "inputs:", "additional_inputs: false"])
def test_an_empty_inputs_section_declares_no_inputs(section: str) -> None:
    workflow, [problem] = read_workflow(
        f"workflow_id: w\n{section}\nnodes: {{a: {{handler: h, params: {{x: '{{{{ inputs.y }}}}'}}}}}}", queues=RULES
    )
    assert workflow is None
    assert problem.message == "inputs.y refers to an unknown input; inputs are: none"


@pytest.mark.parametrize(
    ("written", "version"), [("3", 3), ("'3'", 3), ('" 4 "', 4), ("2.0", 2), ("~", 1), ('"1.0"', 1), ('"12.00"', 12)]
)
def test_versions_are_integers_however_written(written: str, version: int) -> None:
    assert parse(f"workflow_id: w\nversion: {written}\nnodes: {{a: {{handler: h}}}}").version == version


def test_a_linear_pipeline_needs_no_start_and_end() -> None:
    workflow = parse_nodes(
        """
        validate: {handler: v, next: reproject}
        reproject: {handler: r, next: clip}
        clip: {handler: c, next: analyze}
        analyze: {handler: a, next: END}
        """
    )
    assert list(compile_graph(workflow).nodes) == ["START", "validate", "reproject", "clip", "analyze", "END"]


def test_an_implicit_end_waits_for_all_leaf_nodes() -> None:
    workflow = parse_nodes("a: {handler: h, next: [b, c]}\nb: {handler: h}\nc: {handler: h}\nd: {handler: h}")
    nodes = compile_graph(workflow).nodes
    assert nodes["START"].targets == ("a", "d")
    assert set(nodes["END"].all_of) == {"b", "c", "d"}


def test_an_implicit_start_can_be_referenced() -> None:
    workflow = parse_nodes("a: {handler: h, depends_on: START, next: END}\nb: {handler: h}")
    assert set(compile_graph(workflow).nodes["START"].targets) == {"a", "b"}


def test_end_and_start_reference_nodes_of_these_types_whatever_their_ids() -> None:
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


def test_types_and_end_ids_may_be_upper_case_or_omitted() -> None:
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
def test_depends_on_is_accepted_in_all_forms(written: str, depends_on: DependsOn | None) -> None:
    workflow = parse_nodes(f"a: {{handler: h}}\nb: {{handler: h}}\nc: {{handler: h, depends_on: {written}}}")
    assert workflow.nodes["c"].depends_on == depends_on


@pytest.mark.parametrize(
    ("written", "following"), [("b", ("b",)), ("[b, c]", ("b", "c")), ("'b'", ("b",)), ("[]", ("END",))]
)
def test_next_is_a_name_or_a_list(written: str, following: tuple[str, ...]) -> None:
    workflow = parse_nodes(f"a: {{handler: h, next: {written}}}\nb: {{handler: h}}\nc: {{handler: h}}")
    assert workflow.nodes["a"].next == following


def test_nodes_can_be_a_list_with_task_types() -> None:
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


def test_a_conditional_can_have_on_true_and_on_false() -> None:
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
def test_a_conditional_can_have_boolean_branch_keys(keys: str) -> None:
    node = conditional(f"c: {{type: conditional, condition: '{{{{ inputs.x }}}}', branches: {{{keys}}}}}")
    assert [(branch.name, branch.next) for branch in node.branches] == [
        ("true", ("yes_path",)),
        ("false", ("no_path",)),
    ]


def test_one_branch_can_be_omitted() -> None:
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
def test_a_conditional_can_have_ordered_branches(default: str) -> None:
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


def test_ordered_branches_can_have_whole_conditions() -> None:
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
def test_a_condition_can_be_a_literal(written: str, when: str) -> None:
    node = conditional(f"c: {{type: conditional, condition: {written}, on_true: yes_path}}")
    assert node.branches[0].when == when


def test_a_fan_out_can_have_an_inline_task() -> None:
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
def test_a_child_node_is_merged_into_its_fan_out(wiring: tuple[str, str, str, str]) -> None:
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


def test_two_fan_outs_can_share_a_template() -> None:
    workflow = parse_nodes(
        """
        f: {type: fan_out, source: [1], child_node: t, next: g}
        g: {type: fan_out, source: [2], child_node: t, next: i}
        t: {handler: h}
        i: {type: fan_in}
        """
    )
    assert set(workflow.nodes) == {"START", "f", "g", "i", "END"}


def test_anchors_and_extension_keys_are_supported() -> None:
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


def test_yaml_pitfalls_are_avoided() -> None:
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


def test_inputs_are_accepted_in_all_forms() -> None:
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
