"""Conditions: typed comparison, accepted forms and falsy values."""

from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dagmaster.errors import ExpressionFailed
from dagmaster.model.conditions import Verdict, compile_condition
from dagmaster.model.sandbox import ExpressionSyntax

SCOPE: dict[str, Any] = {
    "inputs": {
        "n": 5,
        "half": 0.5,
        "text_n": "5",
        "kind": "raster",
        "city": "New York",
        "tricky": "a > b",
        "flag": True,
        "off": False,
        "nothing": None,
        "list": [1, "two", None],
        "object": {"a": 1},
        "empty": "",
        "mime": "image/tiff",
        "dotted": "inputs.n",
    },
    "nodes": {"a": {"status": "completed", "output": {"size": 2000}}, "my-task": {"status": "skipped", "output": None}},
    "env": {"STAGE": "test"},
}


def judge(text: str, subject: str | None = None, scope: dict[str, Any] = SCOPE) -> Verdict:
    return compile_condition(text, subject=subject).evaluate(scope)


def refusal(text: str, subject: str | None = None) -> str:
    with pytest.raises(ExpressionSyntax) as caught:
        compile_condition(text, subject=subject)
    return str(caught.value)


@pytest.mark.parametrize(
    "text",
    [
        "{{ nodes.a.output.size }} > 1000",
        "{{ nodes.a.output.size }}>1000",
        "{{ inputs.n }} == {{ inputs.n }}",
        "{{ inputs.n }} == 5",
        "{{ inputs.n }} != 6",
        "{{ inputs.n }} < 5.5",
        "{{ inputs.n }} <= 5",
        "{{ inputs.n }} >= 5",
        "{{ inputs.half }} == .5",
        "{{ inputs.half }} < 1e3",
        "5 == {{ inputs.n }}",
        "{{ inputs.n > 4 }}",
        "{{ inputs.n > 4 and inputs.kind == 'raster' }}",
        "{{ inputs.kind }} == raster",
        "{{ inputs.kind }} == 'raster'",
        '{{ inputs.kind }} == "raster"',
        "'{{ inputs.kind }}' == 'raster'",
        "'{{ inputs.kind }}-x' == 'raster-x'",
        "raster == {{ inputs.kind }}",
        "{{ inputs.city }} == New York",
        "{{ inputs.mime }} == image/tiff",
        "{{ inputs.flag }} == true",
        "{{ inputs.flag }} == True",
        "{{ inputs.flag }} != false",
        "{{ inputs.nothing }} == null",
        "{{ inputs.nothing }} == none",
        "{{ inputs.nothing }} == None",
        "{{ inputs.n }} != null",
        "{{ inputs.missing | default(3) }} == 3",
        "inputs.n == 5",
        "inputs.flag",
        "inputs.list[0] == 1",
        "inputs.object['a'] == 1",
        "nodes.a.output.size > 3",
        "nodes.my-task.status == skipped",
        "env.STAGE == test",
        "inputs.n > 1 and inputs.n < 9",
        "inputs.n > 9 or inputs.kind == raster",
        "inputs.n > 9 OR inputs.kind == raster",
        "not inputs.off",
        "not inputs.n == 6",
        "not (inputs.n == 6 or inputs.off)",
        "inputs.off and inputs.off or inputs.flag",
        "(inputs.flag)",
        "{{ inputs.n }} in [1, 5, 9]",
        "{{ inputs.kind }} in [raster, vector]",
        "{{ inputs.kind }} in ['raster', \"vector\"]",
        "{{ inputs.n }} in [{{ inputs.n }}, 7]",
        "{{ inputs.n }} not_in [1, 2]",
        "{{ inputs.n }} not in []",
        "two in inputs.list",
        "null in inputs.list",
        "a in inputs.object",
        "{{ inputs.list }} contains two",
        "{{ inputs.kind }} contains ast",
        "{{ inputs.object }} contains a",
        "{{ inputs.kind }} starts_with ras",
        "{{ inputs.kind }} ends_with 'er'",
        "{{ inputs.text_n }} starts_with 5",
        "{{ inputs.nothing }} is_null()",
        "{{ inputs.nothing }} is_null",
        "inputs.n is_not_null()",
        "true",
        "True",
        "1",
        "1 == 1",
    ],
)
def test_conditions_that_hold(text: str) -> None:
    verdict = judge(text)
    assert verdict.matched
    assert verdict.warning is None


@pytest.mark.parametrize(
    "text",
    [
        "{{ nodes.a.output.size }} > 3000",
        "{{ inputs.kind }} == vector",
        "{{ inputs.n }} == 6",
        "{{ inputs.n }} != 5",
        "{{ inputs.nothing }} == ''",
        "{{ inputs.nothing }} == 0",
        "{{ inputs.flag }} == false",
        "{{ inputs.list }} contains three",
        "{{ inputs.n }} in [1, 2]",
        "{{ inputs.kind }} in [ras]",
        "{{ inputs.nothing }} is_not_null()",
        "not inputs.flag",
        "inputs.flag and inputs.off",
        "false",
        "0",
        "null",
    ],
)
def test_conditions_that_do_not_hold(text: str) -> None:
    verdict = judge(text)
    assert not verdict.matched
    assert verdict.warning is None


@pytest.mark.parametrize(
    ("left", "text"),
    [
        ("5", "== 5"),
        ("5", "> 4"),
        ("5.5", "< 6"),
        (" 5 ", "== 5"),
        ("true", "== true"),
        ("False", "== false"),
        (5, "== '5'"),
    ],
)
def test_a_string_compared_with_a_number_or_boolean_is_parsed_as_one(left: Any, text: str) -> None:
    assert judge(text, "inputs.x", {"inputs": {"x": left}}).matched


def test_two_strings_are_compared_as_strings() -> None:
    scope = {"inputs": {"x": "10", "y": "9"}}
    assert not judge("inputs.x > inputs.y", scope=scope).matched
    assert judge("inputs.x > 9", scope=scope).matched
    assert not judge("inputs.x == '10.0'", scope=scope).matched


def test_the_string_null_is_not_null() -> None:
    assert not judge("inputs.x == null", scope={"inputs": {"x": "null"}}).matched


@pytest.mark.parametrize("value", ["true", "True", "1", "yes", "YES", "anything", 1, -1, 0.1, [0], {"a": 0}, True])
def test_truthy_values(value: Any) -> None:
    assert judge("{{ inputs.x }}", scope={"inputs": {"x": value}}).matched


@pytest.mark.parametrize(
    "value", ["false", "False", "0", "no", "No", "none", "null", "", "  ", 0, 0.0, [], {}, None, False]
)
def test_falsy_values(value: Any) -> None:
    assert not judge("{{ inputs.x }}", scope={"inputs": {"x": value}}).matched


@pytest.mark.parametrize("text", ["a > b", "x == y", "1 or true", "not x", "{{ inputs.other }}", "' == '", "(", "and"])
def test_data_never_changes_how_a_condition_is_parsed(text: str) -> None:
    scope = {"inputs": {"x": text, "y": text}}
    assert judge("{{ inputs.x }} == {{ inputs.y }}", scope=scope).matched
    assert not judge("{{ inputs.x }} == other", scope=scope).matched


# With a subject


@pytest.mark.parametrize("subject", ["{{ nodes.a.output.size }}", "nodes.a.output.size", " {{nodes.a.output.size}} "])
@pytest.mark.parametrize(
    ("text", "matched"),
    [
        ("> 10", True),
        (">10", True),
        ("<= 10", False),
        ("== 2000", True),
        ("== '2000'", True),
        ("!= 2000", False),
        ("in [1, 2000]", True),
        ("not_in [1, 2000]", False),
        ("not in [1]", True),
        ("is_null()", False),
        ("is_not_null()", True),
        ("> 10 and < 3000", True),
        ("< 10 or > 3000", False),
        ("not > 10", False),
        ("2000", True),
        ("'x'", False),
        ("{{ inputs.flag }}", True),
        ("{{ inputs.n }} == 5", True),
        ("> {{ inputs.n }}", True),
    ],
)
def test_a_comparison_may_omit_its_left_side(subject: str, text: str, matched: bool) -> None:
    assert judge(text, subject).matched is matched


@pytest.mark.parametrize(
    "text", ["contains ast", "starts_with ras", "ends_with er", "== raster", "raster", "in [raster]"]
)
def test_strings_can_be_the_subject(text: str) -> None:
    assert judge(text, "inputs.kind").matched


def test_the_subject_must_be_a_reference() -> None:
    assert refusal("> 10", "size") == "'size' is not a reference; write '{{ nodes.<id>.output.<field> }}'"


# Warnings and failures


@pytest.mark.parametrize(
    ("text", "warning"),
    [
        ("{{ inputs.nothing }} > 3", "null > a number cannot be compared and counts as false"),
        ("{{ inputs.nothing }} <= {{ inputs.nothing }}", "null <= null cannot be compared and counts as false"),
        ("{{ inputs.kind }} > 3", "a string > a number cannot be compared and counts as false"),
        ("{{ inputs.flag }} >= 1", "a boolean >= a number cannot be compared and counts as false"),
        ("{{ inputs.list }} < 3", "a list of 3 < a number cannot be compared and counts as false"),
        (
            "{{ inputs.nothing > 3 }}",
            "null > number cannot be compared (in {{ inputs.nothing > 3 }}) and counts as false",
        ),
        ("{{ inputs.n }} in {{ inputs.nothing }}", "null cannot contain a number; this counts as false"),
        ("{{ inputs.n }} not_in {{ inputs.nothing }}", "null cannot contain a number; this counts as false"),
        ("{{ inputs.nothing }} starts_with a", "null starts_with a string cannot be compared and counts as false"),
    ],
)
def test_incomparable_values_do_not_match_and_cause_a_warning(text: str, warning: str) -> None:
    assert judge(text) == Verdict(False, warning, judge(text).value)


def test_warnings_of_a_combination_are_joined() -> None:
    verdict = judge("inputs.nothing > 1 or inputs.nothing < 1 or inputs.flag")
    assert verdict.matched
    assert verdict.warning is not None
    assert verdict.warning.count("cannot be compared") == 2


def test_a_missing_reference_fails() -> None:
    for text in ("{{ inputs.missing }} == 1", "inputs.missing is_null()", "inputs.missing", "{{ inputs.missing > 1 }}"):
        with pytest.raises(ExpressionFailed, match=r"inputs\.missing is not defined"):
            judge(text)


def test_evaluation_short_circuits() -> None:
    assert judge("inputs.flag or inputs.missing").matched
    assert not judge("inputs.off and inputs.missing").matched


def test_the_verdict_contains_the_judged_value() -> None:
    assert judge("{{ nodes.a.output.size }} > 1000").value == 2000
    assert judge("> 1000", "nodes.a.output.size").value == 2000
    assert judge("{{ inputs.kind }}").value == "raster"
    assert judge("inputs.flag and inputs.off").value is False


# Syntax


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "the condition is empty"),
        ("   ", "the condition is empty"),
        ("flag == true", "the condition 'flag == true' refers to nothing"),
        ("raster", "the condition 'raster' refers to nothing"),
        ("{{ inputs.n }} = 1", "'=' is not expected in the condition '{{ inputs.n }} = 1'; use '=='"),
        ("{{ inputs.n }} && 1", "'&&' is not expected in the condition '{{ inputs.n }} && 1'; use 'and'"),
        ("{{ inputs.n }} || 1", "'||' is not expected in the condition '{{ inputs.n }} || 1'; use 'or'"),
        ("!inputs.n", "'!' is not expected in the condition '!inputs.n'; use 'not'"),
        ("{{ inputs.n }} ==", "the condition '{{ inputs.n }} ==' is not complete"),
        ("{{ inputs.n }} and", "the condition '{{ inputs.n }} and' is not complete"),
        ("> 5", "'>' is not expected in the condition '> 5'"),
        ("( inputs.n", "')' is missing in the condition '( inputs.n'"),
        ("inputs.n in [1, 2", "']' is missing in the condition 'inputs.n in [1, 2'"),
        ("inputs.n in [1 'a']", "',' is missing"),
        ("inputs.n )", "')' is not expected in the condition 'inputs.n )'"),
        ("{{ inputs.n }} + 1 > 2", "'+' is not expected"),
        ("{{ inputs.n", "the braces are never closed"),
        ("{{ inptus.n }}", "unknown name 'inptus'"),
        ("inputs.n == 'open", '"\'" is not expected'),
        ("{{ inputs.n }} == a == b", "'==' is not expected"),
    ],
)
def test_syntax_errors_name_the_problem(text: str, message: str) -> None:
    assert refusal(text).startswith(message)


def test_the_length_and_depth_of_conditions_are_limited() -> None:
    assert "40 brackets" in refusal("not " * 3000 + "inputs.n")
    assert "40 brackets" in refusal("(" * 3000)
    assert "16384 characters" in refusal("inputs.n == " + "a" * 20_000)
    assert judge("(" * 40 + "inputs.n" + ")" * 40).matched


def test_references_are_collected() -> None:
    condition = compile_condition("> {{ inputs.n }} and {{ inputs.x | default(1) }}", subject="nodes.a.output.size")
    assert {str(reference) for reference in condition.references} == {"nodes.a.output.size", "inputs.n", "inputs.x"}
    assert {str(reference) for reference in condition.guarded} == {"inputs.x"}
    assert (
        compile_condition("{{ inputs.a }} in [{{ inputs.b }}]").references
        == compile_condition("inputs.a == inputs.b").references
    )


# Properties

SCALARS = st.none() | st.booleans() | st.integers(-1000, 1000) | st.floats(-1e6, 1e6) | st.text(max_size=8)


@given(SCALARS, SCALARS)
def test_equal_and_unequal_are_opposites(left: Any, right: Any) -> None:
    scope = {"inputs": {"a": left, "b": right}}
    assert judge("inputs.a == inputs.b", scope=scope).matched is not judge("inputs.a != inputs.b", scope=scope).matched


@given(SCALARS, SCALARS)
def test_comparisons_are_symmetric(left: Any, right: Any) -> None:
    scope = {"inputs": {"a": left, "b": right}}
    for operator, other in (("==", "=="), ("<", ">"), ("<=", ">="), ("in [{{ inputs.b }}] or inputs.a ==", "==")):
        assert (
            judge(f"inputs.a {operator} inputs.b", scope=scope).matched
            is judge(f"inputs.b {other} inputs.a", scope=scope).matched
        )


@given(SCALARS)
def test_every_value_equals_itself(value: Any) -> None:
    assert judge("inputs.a == inputs.a and inputs.a in [{{ inputs.a }}]", scope={"inputs": {"a": value}}).matched


@given(st.text(max_size=30).filter(lambda text: "{{" not in text))
def test_a_quoted_string_equals_itself(text: str) -> None:
    quoted = "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"
    assert judge(f"inputs.a == {quoted}", scope={"inputs": {"a": text}}).matched


@given(st.text(alphabet="inputs.n {}()[]'\"<>=!,andort _15\\", max_size=40))
def test_any_string_compiles_or_is_refused(text: str) -> None:
    with suppress(ExpressionSyntax, ExpressionFailed):
        judge(text)
    with suppress(ExpressionSyntax, ExpressionFailed):
        judge(text, "inputs.n")
