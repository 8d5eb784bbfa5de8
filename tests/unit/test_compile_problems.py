"""Every problem of a workflow is found before a job runs."""

import time
from typing import Any

import pytest
from compile_bench import bare, choice, either, errors, fan_out, only_problem, task, warnings, workflow

from dagmaster.model.checks import find_problems
from dagmaster.model.compile import compile_graph
from dagmaster.model.edges import MAX_CYCLES, Inbound, find_cycles
from dagmaster.model.problems import InvalidWorkflow, Problem, did_you_mean
from dagmaster.model.workflow import (
    Branch,
    DependsOn,
    EndNode,
    FanInNode,
    InputSpec,
    InputType,
    Node,
    StartNode,
    Workflow,
)

# Problems of structure


@pytest.mark.parametrize(
    ("node", "path"),
    [
        (task("cleen"), ("next", 0)),
        (task("END", all_of=("cleen",)), ("depends_on", "all_of", 0)),
        (task("END", any_of=("START", "cleen")), ("depends_on", "any_of", 1)),
        (either("END", "cleen"), ("branches", 1, "next", 0)),
        (FanInNode(source_node="cleen", next=("END",)), ("source_node",)),
    ],
)
def test_an_unknown_name_is_one_problem_with_a_suggestion(node: Node, path: tuple[str | int, ...]) -> None:
    problem = only_problem(workflow(("a", "clean"), a=node, clean=task("END")))
    assert problem.message == "node 'a' names an unknown node 'cleen'; did you mean 'clean'?"
    assert problem.path == ("nodes", "a", *path)


def test_a_cycle_is_printed_in_its_direction() -> None:
    problem = only_problem(workflow(a=task("b", all_of=("START", "c")), b=task("c"), c=task("END")))
    assert problem.message == "these nodes wait for each other: a -> b -> c -> a"
    assert problem.path == ("nodes", "a")


def test_a_node_that_depends_on_itself_is_a_cycle() -> None:
    assert errors(workflow(a=task("END", all_of=("a",)))) == ["these nodes wait for each other: a -> a"]


def test_each_cycle_is_reported_once() -> None:
    definition = workflow(
        "z",
        z=task("END"),
        a=task(all_of=("b",)),
        b=task(all_of=("a",)),
        c=task(all_of=("d", "a")),
        d=task(all_of=("c",)),
        behind=task("END", all_of=("d",)),
    )
    assert errors(definition) == [
        "these nodes wait for each other: a -> b -> a",
        "these nodes wait for each other: c -> d -> c",
    ]


def test_very_many_cycles_are_cut_off() -> None:
    """The search for all 2,500 would take a minute."""
    inbound = {f"n{number}": Inbound((f"n{number ^ 1}",)) for number in range(5_000)}
    assert find_cycles(inbound)[:2] == [["n0", "n1", "n0"], ["n2", "n3", "n2"]]
    assert len(find_cycles(inbound)) == MAX_CYCLES


def test_an_unreachable_node_is_reported_without_its_descendants() -> None:
    definition = workflow(
        a=task("END"), lost=task("behind"), behind=task("END", params={"x": "{{ nodes.lost.output.y }}"})
    )
    problem = only_problem(definition)
    assert problem.path == ("nodes", "lost")
    assert problem.message.startswith("no node leads to 'lost': name it in the 'next'")


def test_a_node_without_a_path_to_the_end_is_a_warning() -> None:
    assert warnings(workflow(a=task("END"), b=task(all_of=("a",)))) == ["node 'b' does not lead to an end node"]
    assert compile_graph(workflow(a=task("END"), b=task(all_of=("a",)))).nodes["b"].targets == ()


def test_start_and_end_are_required() -> None:
    assert errors(bare(a=task("END"), END=EndNode())) == ["the workflow has no start node"]
    assert errors(bare(START=StartNode(next=("a",)), a=task())) == ["the workflow has no end node"]


def test_there_is_exactly_one_start() -> None:
    definition = bare(S=StartNode(next=("a",)), T=StartNode(next=("a",)), a=task("END"), END=EndNode())
    assert only_problem(definition).message == "'T' is a second start node; 'S' is the first"


def test_the_start_has_no_predecessor_and_the_end_no_successor() -> None:
    assert errors(bare(S=StartNode(next=("a",)), a=task("E"), E=EndNode(next=("b",)), b=task("E2"), E2=EndNode())) == [
        "'b' follows the end node 'E'; no node can"
    ]
    definition = bare(S=StartNode(depends_on=DependsOn(all_of=("a",))), a=task("E"), E=EndNode())
    assert "'a' leads to the start node 'S'; no node can" in errors(definition)


@pytest.mark.parametrize("node_id", ["1a", "a__0", "_a", "a b", "ä", "a" * 49, "", "a.b"])
def test_invalid_ids_are_refused(node_id: str) -> None:
    definition = workflow(node_id, **{node_id: task("END")})
    assert only_problem(definition).path == ("nodes", node_id)


def test_the_number_of_nodes_is_limited() -> None:
    definition = workflow("n0", **{f"n{i}": task("END") for i in range(5001)})
    assert only_problem(definition).message == "a workflow may have at most 5000 nodes, not 5003"


def test_a_next_that_is_also_a_branch_is_a_warning() -> None:
    conditional = choice(Branch(name="t", when="true", next=("a",)), Branch(name="f"), following=("a",))
    assert warnings(workflow("c", c=conditional, a=task("END"))) == [
        "'a' is also in a branch of 'c': it follows whichever branch is taken"
    ]


# Problems of nodes


def test_a_task_requires_a_queue() -> None:
    problem = only_problem(workflow(a=task("f", queue=None), f=fan_out("END")))
    assert problem.path == ("nodes", "a")
    assert problem.message.startswith("node 'a' has no queue: give it a 'queue', register the handler 'h' with one")
    assert only_problem(workflow("f", f=fan_out("END", queue=None))).path == ("nodes", "f", "task")


def test_an_unloaded_handler_module_is_one_problem() -> None:
    definition = workflow(
        a=task("b", handler="raster.validate"), b=task("c", handler="raster.create_cog"), c=task("END", handler="x")
    )
    assert errors(definition, known_handlers=["echo"]) == [
        "node 'a' names an unknown handler 'raster.validate'; run `pip install 'dagmaster[geo]'` and load "
        "dagmaster.handlers.raster with --handlers or the setting 'handlers'",
        "node 'c' names an unknown handler 'x'; load its module with --handlers or the setting 'handlers'",
    ]


def test_unknown_handlers_are_reported_if_handlers_are_known() -> None:
    definition = workflow(a=task("f", handler="raster.validte"), f=fan_out("END", handler="nope", queue=None))
    assert errors(definition, known_handlers=["raster.validate"]) == [
        "node 'a' names an unknown handler 'raster.validte'; did you mean 'raster.validate'?",
        "node 'f' names an unknown handler 'nope'; load its module with --handlers or the setting 'handlers'",
    ]
    assert only_problem(definition).message.startswith("node 'f' has no queue")


def test_a_conditional_requires_branches_and_one_default() -> None:
    a, b = Branch(name="a", when="true", next=("END",)), Branch(name="b", next=("END",))
    assert errors(workflow("c", c=choice(), x=task("END", all_of=("c",)))) == [
        "no branch of the conditional 'c' leads anywhere"
    ]
    assert errors(workflow("c", c=choice(a))) == ["the conditional 'c' has no default branch"]
    assert errors(workflow("c", c=choice(a, b, Branch(name="d", next=("END",))))) == [
        "the conditional 'c' has a second default branch"
    ]
    assert errors(workflow("c", c=choice(a, b, a))) == ["two branches of the conditional 'c' are named 'a'"]


def test_a_fan_in_requires_a_fan_out() -> None:
    assert errors(workflow(a=task("i"), i=FanInNode(next=("END",)))) == ["no fan_out leads to the fan_in 'i'"]
    definition = workflow(a=task("i"), i=FanInNode(source_node="a", next=("END",)))
    assert errors(definition) == ["the source_node of 'i' must be a fan_out, and 'a' is not"]
    definition = workflow(("f", "i"), f=fan_out("END"), i=FanInNode(source_node="f", next=("END",)))
    assert errors(definition) == ["the fan_out 'f' does not lead to the fan_in 'i'"]


def test_equally_near_fan_outs_require_source_node() -> None:
    definition = workflow(("f", "g"), f=fan_out("i"), g=fan_out("i"), i=FanInNode(next=("END",)))
    assert errors(definition) == ["'f' and 'g' are equally near to the fan_in 'i': choose one with 'source_node'"]


def test_a_default_must_have_the_type_of_its_input() -> None:
    definition = workflow(a=task("END")).model_copy(
        update={"inputs": {"x": InputSpec(type=InputType.INTEGER, default="many", required=False)}}
    )
    problem = only_problem(definition)
    assert problem.message == "the default of input 'x' must be an integer, not a string ('many')"
    assert problem.path == ("inputs", "x", "default")


# Problems of expressions


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{{ inputs.flagg }}", "inputs.flagg refers to an unknown input; did you mean 'flag'?"),
        ("{{ inputs.zzz }}", "inputs.zzz refers to an unknown input; inputs are: list, flag, n"),
        ("{{ nodes.befor.output.x }}", "nodes.befor.output.x refers to an unknown node; did you mean 'before'?"),
        (
            "{{ nodes.after.output.x }}",
            "nodes.after.output.x is not known here: node 'after' does not lead to node 'a'",
        ),
        ("{{ nodes.a.output.x }}", "nodes.a.output.x is not known here: node 'a' does not lead to node 'a'"),
        ("{{ nodes.after.output.x | default(1) }}", "nodes.after.output.x is not known here"),
        ("{{ nodes.before }}", "nodes.before is incomplete: write nodes.before.output or nodes.before.status"),
        ("{{ nodes.before.result }}", "nodes.before.result is incomplete"),
        ("{{ nodes }}", "nodes is incomplete: write nodes.<id>.output or nodes.<id>.status"),
        ("{{ nodes[inputs.n].output }}", "nodes is incomplete"),
        ("{{ env }}", "env cannot be read as a whole"),
        ("{{ item }}", "item is only known in the task of a fan_out"),
        ("{{ index + 1 }}", "index is only known in the task of a fan_out"),
        ("{{ fan_out.item }}", "fan_out.item is only known in the task of a fan_out"),
        ("{{ inputs.n", "the braces are never closed"),
        ("{{ inputs.n | uper }}", "there is no filter 'uper'; did you mean 'upper'?"),
        ("{% if inputs.n %}", "{% if inputs.n %} is not supported"),
    ],
)
def test_invalid_expressions_are_reported(text: str, message: str) -> None:
    definition = workflow("before", before=task("a"), a=task("after", params={"x": ["ok", text]}), after=task("END"))
    problem = only_problem(definition)
    assert problem.message.startswith(message)
    assert problem.path == ("nodes", "a", "params", "x", 1)


def test_every_invalid_expression_is_reported() -> None:
    params = {"a": "{{ inputs.x }} {{ inputs.y }}", "b": "{{ oops", "c": {"d": "{{ item }}"}}
    assert len(errors(workflow(a=task("END", params=params)))) == 4


def test_ancestors_env_and_all_inputs_can_be_referenced() -> None:
    params = {
        "far": "{{ nodes.a.output.x.y[0] }}",
        "skipped": "{{ nodes.b.status }}",
        "start": "{{ nodes.START.status }}",
        "all": "{{ inputs }}",
        "env": "{{ env.HOME }}",
    }
    assert not find_problems(workflow(a=task("b"), b=task("c"), c=task("END", params=params)))


def test_a_default_makes_an_unknown_input_a_warning() -> None:
    definition = workflow(a=task("END", params={"x": "{{ inputs.zzz | default(1) }}"}))
    assert warnings(definition) == ["inputs.zzz refers to an unknown input; inputs are: list, flag, n"]
    assert not errors(definition)


def test_additional_inputs_allow_any_name() -> None:
    definition = workflow(a=task("END", params={"x": "{{ inputs.zzz }}"}))
    assert not find_problems(definition.model_copy(update={"additional_inputs": True}))


def test_item_is_defined_only_in_the_task_of_a_fan_out() -> None:
    params = {"a": "{{ item.x }}", "b": "{{ index }}", "c": "{{ fan_out.total }}", "d": "{{ inputs.n }}"}
    assert not find_problems(workflow("f", f=fan_out("END", params=params)))
    assert only_problem(workflow("f", f=fan_out("END", source="{{ item }}"))).path == ("nodes", "f", "source")
    problem = only_problem(workflow("f", f=fan_out("END", params={"a": "{{ fan_out.idx }}"})))
    assert problem.message == "fan_out.idx is unknown: fan_out has item, index, total"


def test_globals_can_reference_only_inputs_and_env() -> None:
    definition = workflow(a=task("b"), b=task("END")).model_copy(
        update={"globals": {"ok": "{{ inputs.n }} {{ env.HOME }}", "bad": "{{ nodes.a.output }}"}}
    )
    problem = only_problem(definition)
    assert problem.path == ("globals", "bad")
    assert "cannot be used in globals" in problem.message


def test_conditions_are_checked_at_their_place() -> None:
    node = choice(
        Branch(name="a", when="> {{ inputs.zz }}", next=("END",)),
        Branch(name="b", when="oops(", next=("END",)),
        Branch(name="d", next=("END",)),
        subject="inputs.n",
    )
    assert [problem.path[2:] for problem in find_problems(workflow("c", c=node))] == [
        ("branches", 0, "when"),
        ("branches", 1, "when"),
    ]


@pytest.mark.parametrize("subject", ["inputs.zz", "{{ inputs.zz }}", "size", "{{ oops"])
def test_an_invalid_subject_is_reported_once(subject: str) -> None:
    branches = [Branch(name=str(i), when=f"> {i}", next=("END",)) for i in range(3)]
    node = choice(*branches, Branch(name="d", next=("END",)), subject=subject)
    assert only_problem(workflow("c", c=node)).path == ("nodes", "c", "subject")


def test_an_expression_in_a_key_is_reported() -> None:
    problem = only_problem(workflow(a=task("END", params={"{{ inputs.n }}": "x"})))
    assert "only values can" in problem.message


def test_a_value_nested_too_deeply_is_reported() -> None:
    deep: Any = "x"
    for _ in range(150):
        deep = [deep]
    assert "levels deep" in only_problem(workflow(a=task("END", params={"x": deep}))).message


# Problems themselves


def test_compiling_raises_with_all_problems() -> None:
    with pytest.raises(InvalidWorkflow) as caught:
        compile_graph(workflow(a=task("END", "nope", queue=None, params={"x": "{{ oops"})))
    assert len(caught.value.problems) == 3
    assert str(caught.value).count("\n") == 2


def test_a_problem_prints_its_place() -> None:
    assert str(Problem("no", ("nodes", "a", 0))) == "nodes.a.0: error: no"
    assert str(Problem("no", ("nodes",), "f.yaml", 3, 5, "warning")) == "f.yaml:3:5: warning: no"
    assert str(Problem("no", file="f.yaml")) == "f.yaml: error: no"
    assert str(Problem("no")) == "error: no"


def test_suggestions_ignore_case_and_need_to_be_close() -> None:
    assert did_you_mean("Handler", ["handler"]) == "; did you mean 'handler'?"
    assert did_you_mean("xyz", ["handler"]) == ""


def test_a_name_is_suggested_among_thousands() -> None:
    names = [f"task_number_{number}" for number in range(5_000)]
    assert did_you_mean("task_numbr_1234", names) == "; did you mean 'task_number_1234'?"


def test_thousands_of_unknown_names_are_reported_in_seconds() -> None:
    """To compare each of them with all nodes would take many minutes."""
    nodes: dict[str, Node] = {f"task_number_{number}": task(f"task_numbr_{number}x") for number in range(4_000)}
    definition = workflow("task_number_0", **nodes)
    began = time.process_time()
    assert sum("names an unknown node" in message for message in errors(definition)) == 4_000
    assert time.process_time() - began < 30


def test_a_copy_of_a_workflow_has_its_own_hash() -> None:
    original = workflow(a=task("END"))
    assert original.content_hash != original.model_copy(update={"version": 2}).content_hash
    assert Workflow.model_validate_json(original.json_definition).content_hash == original.content_hash
