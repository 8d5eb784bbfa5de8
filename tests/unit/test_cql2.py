"""CQL2 filters are parsed from text and become conditions in which all values are parameters."""

from typing import Any

import pytest

from dagmaster.errors import Invalid
from dagmaster.web.cql2 import compile_filter
from dagmaster.web.cql2_text import parse_text

X: dict[str, Any] = {"property": "x"}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("x = 1", {"op": "=", "args": [X, 1]}),
        ("x <> 'it''s'", {"op": "<>", "args": [X, "it's"]}),
        ("1.5e3 >= x", {"op": ">=", "args": [1500.0, X]}),
        ('"x" < -2', {"op": "<", "args": [X, -2]}),
        ("x = true", {"op": "=", "args": [X, True]}),
        ("x is null", {"op": "isNull", "args": [X]}),
        ("x IS NOT NULL", {"op": "not", "args": [{"op": "isNull", "args": [X]}]}),
        ("x IN ('a', 'b')", {"op": "in", "args": [X, ["a", "b"]]}),
        ("x NOT IN (1)", {"op": "not", "args": [{"op": "in", "args": [X, [1]]}]}),
        ("x BETWEEN 1 AND 2", {"op": "between", "args": [X, 1, 2]}),
        ("x LIKE 'a%'", {"op": "like", "args": [X, "a%"]}),
        ("x > TIMESTAMP('2026-01-01T00:00:00Z')", {"op": ">", "args": [X, {"timestamp": "2026-01-01T00:00:00Z"}]}),
        (
            "x = 1 OR x = 2 AND NOT (x = 3)",
            {
                "op": "or",
                "args": [
                    {"op": "=", "args": [X, 1]},
                    {
                        "op": "and",
                        "args": [
                            {"op": "=", "args": [X, 2]},
                            {"op": "not", "args": [{"op": "=", "args": [X, 3]}]},
                        ],
                    },
                ],
            },
        ),
    ],
)
def test_text_is_parsed_to_json(text: str, expected: Any) -> None:
    assert parse_text(text) == expected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "at character 1, not the end"),
        ("x =", "at character 4, not the end"),
        ("x = 1 y", "expected end at character 7, not 'y'"),
        ("x ~ 1", "'~ 1' at character 3 cannot be read"),
        ("x = 'open", "cannot be read"),
        ("(x = 1", "expected )"),
        ("x BETWEEN 1 OR 2", "expected AND"),
        ("x IN ()", "expected name or quoted or string or number"),
        ("(" * 40 + "x = 1" + ")" * 40, "levels of parentheses"),
        ("x = 1 OR " * 500 + "x = 1", "characters are too many"),
    ],
)
def test_a_syntax_error_names_its_place(text: str, message: str) -> None:
    with pytest.raises(Invalid) as refusal:
        parse_text(text)
    assert message in str(refusal.value)


@pytest.mark.parametrize(
    ("expression", "message"),
    [
        ("x = 1", "object with 'op' and 'args'"),
        ({"op": "="}, "object with 'op' and 'args'"),
        ({"op": "=", "args": [X]}, "takes 2 arguments, not 1"),
        ({"op": "=", "args": [1, 2]}, "must be a property"),
        ({"op": "=", "args": [X, None]}, "a value is"),
        ({"op": "=", "args": [X, {"timestamp": "yesterday"}]}, "not an RFC 3339 timestamp"),
        ({"op": "s_intersects", "args": [X, {}]}, "the operator 's_intersects' is not known"),
        ({"op": "in", "args": [X, []]}, "list of values"),
        ({"op": "in", "args": [X, list(range(501))]}, "more than 500 values"),
        ({"op": "like", "args": [X, "%" * 11]}, "at most 10 of them %"),
        ({"op": "and", "args": []}, "takes conditions"),
        ({"op": "isNull", "args": [{"property": "x" * 201}]}, "printable characters"),
    ],
)
def test_an_invalid_filter_is_refused(expression: Any, message: str) -> None:
    with pytest.raises(Invalid) as refusal:
        compile_filter(expression)
    assert message in str(refusal.value)


def test_values_are_variables_and_names_are_quoted() -> None:
    hostile = 'x" ? (@ == 1) || true'
    condition = compile_filter({"op": "=", "args": [{"property": hostile}, '") || true']})
    assert condition.values == {"v0": '") || true'}
    assert '"x\\" ? (@ == 1) || true"' in condition.path
