"""Expressions: native types, strictness, syntax and references."""

from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from expression_bench import SCOPE, resolve, why_it_fails, why_it_is_refused

from dagmaster.errors import Invalid
from dagmaster.model.expressions import Template, compile_template, split_expressions, walk_strings
from dagmaster.model.references import Reference
from dagmaster.model.sandbox import ExpressionSyntax, Incomparable

# Values


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("{{ inputs.x }}", 1),
        ("{{inputs.x}}", 1),
        ("  {{ inputs.x }}\n", 1),
        ("{{ inputs['x'] }}", 1),
        ('{{ inputs["nested"]["my key"] }}', "spaced"),
        ("{{ inputs.nested.list.0.z }}", 9),
        ("{{ inputs.nested.list[0].z }}", 9),
        ("{{ inputs.numbers[-1] }}", 2),
        ("{{ inputs.numbers }}", [3, 1, 2]),
        ("{{ inputs.flag }}", True),
        ("{{ inputs.nothing }}", None),
        ("{{ nodes.a.output.rows }}", [{"id": 1}, {"id": 2}]),
        ("{{ nodes.a.output.0 }}", "zero"),
        ("{{ nodes.a.status }}", "completed"),
        ("{{ nodes.skipped.status }}", "skipped"),
        ("{{ nodes.skipped.output }}", None),
        ("{{ nodes.my-task.output.n }}", 5),
        ("{{ nodes.my-task.output.n + 1 }}", 6),
        ("{{ 'nodes.my-task.x' }}", "nodes.my-task.x"),
        ("{{ env.HOME }}", "/home/me"),
        ("{{ item }}", SCOPE["item"]),
        ("{{ item.bbox.0 }}", 1.5),
        ("{{ item.a.b }}", "c"),
        ("{{ index }}", 7),
        ("{{ fan_out.item }}", "i"),
        ("{{ fan_out.total }}", 9),
        ("{{ true }}", True),
        ("{{ none }}", None),
        ("{{ 'text' }}", "text"),
        ("{{ [1, 'a', inputs.x] }}", [1, "a", 1]),
        ("{{ (1, 2) }}", [1, 2]),
        ("{{ {'a': {'b': inputs.x}} }}", {"a": {"b": 1}}),
        ("{{ inputs.numbers[1:] }}", [1, 2]),
        ("{{ inputs.x if inputs.flag else 0 }}", 1),
        ("{{ inputs.x + 2 * 3 - 1 }}", 6),
        ("{{ 7 // 2 }}", 3),
        ("{{ 7 % 4 }}", 3),
        ("{{ 2 ** 10 }}", 1024),
        ("{{ -inputs.x }}", -1),
        ("{{ inputs.x > 0 and not inputs.nothing }}", True),
        ("{{ 'da' in inputs.name }}", True),
        ("{{ inputs.name ~ '-' ~ inputs.x ~ inputs.nothing }}", "Ada-1"),
        ("{{ inputs.name + '!' }}", "Ada!"),
        ("{{ inputs.numbers + [4] }}", [3, 1, 2, 4]),
    ],
)
def test_a_single_expression_keeps_its_native_type(text: str, value: Any) -> None:
    resolved = resolve(text)
    assert resolved == value
    assert type(resolved) is type(value)


@pytest.mark.parametrize("text", ["007", "1_000", "[1, 2]", "None", "True", "{'a': 1}"])
def test_a_string_is_never_parsed_as_a_literal(text: str) -> None:
    assert resolve("{{ inputs.s }}", {"inputs": {"s": text}}) == text
    assert resolve("{{ inputs.s | trim }}", {"inputs": {"s": text}}) == text


@pytest.mark.parametrize(
    ("text", "rendered"),
    [
        ("x={{ inputs.x }}", "x=1"),
        ("{{ inputs.x }}{{ inputs.x }}", "11"),
        ("{{ inputs.nothing }}|", "|"),
        ("flag: {{ inputs.flag }}", "flag: true"),
        ("n: {{ inputs.numbers }}", "n: [3,1,2]"),
        ("o: {{ nodes.a.output.rows }}", 'o: [{"id":1},{"id":2}]'),
        ("{{ item.bbox.0 }} m", "1.5 m"),
        ("{{ '{{' }} and {{ '}}' }}", "{{ and }}"),
        ("{ {{ inputs.x }} }", "{ 1 }"),
        ("}} {{ inputs.x }}", "}} 1"),
    ],
)
def test_mixed_text_renders_to_a_string(text: str, rendered: str) -> None:
    assert resolve(text) == rendered


@pytest.mark.parametrize("word", ["items", "keys", "values", "get", "update", "pop", "clear", "copy", "setdefault"])
def test_keys_named_like_dict_methods_are_keys(word: str) -> None:
    assert resolve(f"{{{{ inputs.{word} }}}}") == f"the {word}"
    assert resolve(f"{{{{ (inputs).{word} ~ '' }}}}") == f"the {word}"


def test_expressions_are_found_at_any_depth() -> None:
    raw = {"a": ["{{ inputs.x }}", {"b": "<{{ item.a.b }}>"}], "c": 5, "d": "plain", "e": None}
    assert resolve(raw) == {"a": [1, {"b": "<c>"}], "c": 5, "d": "plain", "e": None}
    assert list(resolve(raw)) == list(raw)


def test_a_value_without_expressions_is_returned_unchanged() -> None:
    raw = {"a": [1, {"b": "c"}], "brace": "{", "json": '{"a": {"b": 1}}', "percent": "100 {%"}
    assert resolve(raw) is raw


def test_constant_parts_are_shared_and_the_raw_value_is_unchanged() -> None:
    raw = {"constant": {"big": [1, 2]}, "changing": ["{{ inputs.x }}", {"deep": 1}]}
    resolved = resolve(raw)
    assert resolved["constant"] is raw["constant"]
    assert raw["changing"] == ["{{ inputs.x }}", {"deep": 1}]


def test_data_is_never_rendered_twice() -> None:
    scope = {"inputs": {"evil": "{{ inputs.secret }}", "secret": "s3cret"}}
    for text in ("{{ inputs.evil }}", "{{ inputs.evil | trim }}", "{{ inputs['evil'] ~ '' }}"):
        assert resolve(text, scope) == "{{ inputs.secret }}"
    assert resolve("> {{ inputs.evil }}", scope) == "> {{ inputs.secret }}"


class Lazy(Mapping[str, Any]):
    """A mapping that can be read but not listed."""

    def __getitem__(self, key: str) -> Any:
        return {"status": "completed", "output": {"n": 4}}[key]

    def __contains__(self, key: object) -> bool:
        return key in ("status", "output")

    def __iter__(self) -> Iterator[str]:
        raise AssertionError("a lazy mapping was listed")

    def __len__(self) -> int:
        raise AssertionError("a lazy mapping was counted")


def test_nodes_may_be_lazy_mappings() -> None:
    scope = {"nodes": {"a": Lazy()}}
    assert resolve("{{ nodes.a.output.n }}", scope) == 4
    assert resolve("{{ nodes.a.output.n + 1 }}", scope) == 5
    assert why_it_fails("{{ nodes.a.outptu }}", scope) == "nodes.a.outptu is not defined"


# Missing values


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{{ inputs.tile }}", "inputs.tile is not defined; inputs are: a, b"),
        ("{{ inputs.tile.x.y }}", "inputs.tile is not defined; inputs are: a, b"),
        ("{{ inputs.a.b }}", "inputs.a.b is not defined; inputs.a is a number"),
        ("{{ inputs.b.3 }}", "inputs.b.3 is not defined; inputs.b is a list of 2"),
        ("{{ nodes.n.output.y }}", "nodes.n.output.y is not defined; nodes.n.output has: x"),
        ("{{ nodes.n.output.x.z }}", "nodes.n.output.x.z is not defined; nodes.n.output.x is null"),
        ("{{ nodes.m.output }}", "nodes.m is not defined; nodes are: n"),
        ("{{ env.PATH }}", "env.PATH is not defined; only allowed environment variables can be read"),
        ("{{ item }}", "item is not available here; available are: env, inputs, nodes"),
        ("{{ inputs['my key'] }}", "inputs['my key'] is not defined; inputs are: a, b"),
    ],
)
def test_a_missing_reference_error_lists_the_known_names(text: str, message: str) -> None:
    scope = {"inputs": {"a": 1, "b": [1, 2]}, "nodes": {"n": {"output": {"x": None}}}, "env": {}}
    assert why_it_fails(text, scope) == message
    assert why_it_fails(f"mixed {text}", scope) == message
    source = text.strip("{} ")
    assert why_it_fails(f"{{{{ {source} | upper }}}}", scope) == f"{message} (in {{{{ {source} | upper }}}})"


def test_long_lists_of_names_are_truncated() -> None:
    scope = {"inputs": {f"name_{i:02}": i for i in range(40)}}
    assert why_it_fails("{{ inputs.x }}", scope).endswith("name_11 and 28 more")


@pytest.mark.parametrize(
    "text",
    [
        "{{ inputs.missing | default('d') }}",
        "{{ inputs.missing | d('d') }}",
        "{{ inputs.missing.deeper.still | default('d') }}",
        "{{ inputs.missing[0]['x'] | default('d') }}",
        "{{ inputs.nothing.x | default('d') }}",
        "{{ nodes.absent.output.rows.0 | default('d') }}",
        "{{ inputs.nested[inputs.name] | default('d') }}",
        "{{ inputs.nothing | default('d', true) }}",
        "{{ (inputs.missing) | default(inputs.alsomissing) | default('d') }}",
        "{{ inputs.numbers[99] | default('d') }}",
        "{{ inputs.x if inputs.missing is defined else 'd' }}",
        "{{ item.missing | default('d') }}",
    ],
)
def test_default_works_at_any_depth(text: str) -> None:
    assert resolve(text) == "d"


def test_default_keeps_existing_values() -> None:
    assert resolve("{{ inputs.x | default('d') }}") == 1
    assert resolve("{{ inputs.nothing | default('d') }}") is None
    assert resolve("{{ inputs.missing | default('', true) }}") == ""


@pytest.mark.parametrize(
    "expression", ["1 if inputs.nothing", "[] | first", "inputs.numbers[9]", "inputs[inputs.name]"]
)
def test_a_missing_value_is_never_silently_null(expression: str) -> None:
    assert why_it_fails(f"{{{{ {expression} }}}}")


@pytest.mark.parametrize(
    "expression",
    [
        "inputs.missing or 1",
        "not inputs.missing",
        "inputs.missing == 1",
        "inputs.missing in [1]",
        "1 in inputs.missing",
        "inputs.missing + 1",
        "-inputs.missing",
        "inputs.missing ~ 'x'",
        "[inputs.missing]",
        "[[inputs.missing]]",
        "(1, inputs.missing)",
        "{'a': {'b': inputs.missing}}",
        "inputs.missing is none",
        "inputs.missing is string",
        "inputs.missing | abs",
        "inputs.missing | string",
        "inputs.missing | tojson",
        "inputs.missing | first",
        "inputs.missing.split('/')",
        "inputs.x | default(1) + inputs.missing",
        "inputs.other | default(inputs.missing)",
        "1 if inputs.missing else 2",
    ],
)
def test_every_use_of_a_missing_reference_names_it(expression: str) -> None:
    assert why_it_fails(f"{{{{ {expression} }}}}").startswith("inputs.missing is not defined; inputs are:")


def test_a_list_with_missing_values_is_refused() -> None:
    assert "'x' is not defined" in why_it_fails("{{ nodes.a.output.rows | map(attribute='x') | list }}")
    assert "'x' is not defined" in why_it_fails("{{ nodes.a.output.rows | map(attribute='x') | join(',') }}")


# Filters, tests and methods


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("inputs.name | upper", "ADA"),
        ("inputs.name | lower", "ada"),
        ("'a b' | title", "A B"),
        ("inputs.nothing | upper", ""),
        ("' a ' | trim", "a"),
        ("inputs.name | length", 3),
        ("inputs.numbers | count", 3),
        ("'12' | int", 12),
        ("'1.5' | float", 1.5),
        ("12 | string", "12"),
        ("inputs.flag | string", "true"),
        ("(-3) | abs", 3),
        ("2.567 | round(1)", 2.6),
        ("2.1 | round(0, 'ceil') | int", 3),
        ("inputs.numbers | min", 1),
        ("inputs.numbers | max", 3),
        ("inputs.numbers | sum", 6),
        ("inputs.numbers | sort", [1, 2, 3]),
        ("inputs.numbers | sort(reverse=true)", [3, 2, 1]),
        ("[1, 1, 2] | unique", [1, 2]),
        ("inputs.numbers | first", 3),
        ("inputs.numbers | last", 2),
        ("inputs.numbers | reverse", [2, 1, 3]),
        ("inputs.numbers | join('-')", "3-1-2"),
        ("[none, true, 1] | join('|')", "|true|1"),
        ("'a-b' | replace('-', '+')", "a+b"),
        ("{'a': [1]} | tojson", '{"a":[1]}'),
        ("inputs.name | tojson", '"Ada"'),
        ("nodes.a.output.rows | map(attribute='id')", [1, 2]),
        ("nodes.a.output.rows | selectattr('id', 'gt', 1) | list", [{"id": 2}]),
        ("inputs.numbers | select('odd') | list", [3, 1]),
        ("['a', 'b'] | map('upper') | list", ["A", "B"]),
        ("inputs.path.split('/')[-1]", "tile.TIF"),
        ("inputs.path.lower().endswith('.tif')", True),
        ("inputs.path.removeprefix('in/')", "tile.TIF"),
        ("inputs.x is number", True),
        ("inputs.nothing is none", True),
        ("inputs.missing is undefined", True),
        ("inputs.numbers is sequence", True),
        ("4 is divisibleby 2", True),
    ],
)
def test_filters_tests_and_methods(expression: str, value: Any) -> None:
    assert resolve(f"{{{{ {expression} }}}}") == value


@pytest.mark.parametrize(
    "expression",
    ["inputs.name | int + inputs.nothing", "'a' - 1", "1 / 0", "inputs.nothing | length", "['a', 1] | sum", "1 in 2"],
)
def test_a_failed_computation_names_the_expression(expression: str) -> None:
    assert why_it_fails(f"{{{{ {expression} }}}}").endswith(f"(in {{{{ {expression} }}}})")


def test_incomparable_values_have_their_own_error() -> None:
    with pytest.raises(Incomparable, match="null > number cannot be compared"):
        resolve("{{ inputs.nothing > 5 }}")


# Syntax


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{{ inputs.x", "the braces are never closed in '{{ inputs.x'"),
        ("{{ }}", "the expression is empty"),
        ("{{ inputs. }}", "expected name or number in 'inputs.'"),
        ("{{ inputs.x y }}", "'y' is not expected in 'inputs.x y'"),
        ("{{ inputs.x | uper }}", "there is no filter 'uper'; did you mean 'upper'?"),
        ("{{ inputs.x is definde }}", "there is no test 'definde'; did you mean 'defined'?"),
        ("{{ foo.bar }}", "unknown name 'foo'; known are inputs, nodes, env, item, index, fan_out"),
        ("{% if inputs.x %}a{% endif %}", "{% if inputs.x %} is not supported, only {{ expressions }} are"),
        ("{# comment #}", "{# comment #} is not supported, only {{ expressions }} are"),
        ("{{ {1: 2} }}", "the keys of an object must be quoted strings"),
        ("{{ 'open }}", "unexpected char"),
        ("{{ 99999999999999999999 }}", "the number 99999999999999999999 is too large"),
        ("{{ [1e999] }}", "the number inf is too large"),
    ],
)
def test_syntax_errors_say_what_to_do(text: str, message: str) -> None:
    assert why_it_is_refused(text).startswith(message)


def test_a_syntax_error_has_the_path_to_its_place() -> None:
    with pytest.raises(ExpressionSyntax) as caught:
        compile_template({"a": [1, {"b": "{{ nope }}"}]})
    assert caught.value.path == ("a", 1, "b")
    assert isinstance(caught.value, Invalid)


def test_a_key_cannot_be_an_expression() -> None:
    assert "only values can" in why_it_is_refused({"{{ inputs.x }}": 1})


def test_splitting_respects_quotes_and_brackets() -> None:
    pieces = split_expressions("a {{ {'k': '}}'} }} b {{ \"{{\" }}")
    assert [(piece.text, piece.is_expression) for piece in pieces] == [
        ("a ", False),
        ("{'k': '}}'}", True),
        (" b ", False),
        ('"{{"', True),
    ]


# References


def refs(raw: Any) -> set[str]:
    return {str(reference) for reference in compile_template(raw).references}


def test_references_are_collected_from_everywhere() -> None:
    assert compile_template("{{ nodes.a.output.b }}").references == {Reference("nodes", ("a", "output", "b"))}
    assert compile_template("{{ item }}").references == {Reference("item")}
    assert refs({"a": ["{{ env.HOME }}", "x {{ inputs.x }} {{ index }}"]}) == {"env.HOME", "inputs.x", "index"}
    assert refs("{{ inputs.a[inputs.b].c + nodes.n.output['k'][0] | int }}") == {
        "inputs.a",
        "inputs.b",
        "nodes.n.output.k.0",
    }
    assert refs("{{ inputs.p.split(inputs.q)[0] }}") == {"inputs.p", "inputs.q"}
    assert refs("{{ inputs.a if nodes.b.status == 'skipped' else inputs.c }}") == {
        "inputs.a",
        "nodes.b.status",
        "inputs.c",
    }
    assert refs("plain") == set()


def test_guarded_references_are_those_with_a_default_everywhere() -> None:
    template = compile_template(["{{ inputs.a | default(inputs.b) }}", "{{ inputs.c is defined }}", "{{ inputs.c }}"])
    assert {str(reference) for reference in template.guarded} == {"inputs.a"}
    assert {str(reference) for reference in template.references} == {"inputs.a", "inputs.b", "inputs.c"}


def test_a_template_is_frozen_and_compares_by_its_value() -> None:
    template = compile_template("{{ inputs.x }}")
    with pytest.raises(AttributeError):
        template.raw = "other"  # type: ignore[misc]
    assert template == compile_template("{{ inputs.x }}")
    assert isinstance(template, Template)


def test_iterating_over_strings_yields_their_paths() -> None:
    assert dict(walk_strings({"a": ["x", {"b": "y"}], "c": 1})) == {("a", 0): "x", ("a", 1, "b"): "y"}
