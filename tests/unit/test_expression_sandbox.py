"""Expressions can access only their data, and their results are limited."""

from time import process_time
from timeit import timeit
from typing import Any

import pytest
from expression_bench import resolve, why_it_fails, why_it_is_refused


@pytest.mark.parametrize(
    "expression",
    [
        "inputs.__class__",
        "inputs.name.__class__.__mro__",
        "inputs['__class__']",
        "''.__class__",
        "[].__class__.__base__",
        "inputs.name.format",
        "inputs.numbers.append",
        "inputs.numbers.__len__",
        "(1).__class__",
        "inputs.name.upper.__self__",
        "inputs.x.split('/')",
    ],
)
def test_python_attributes_do_not_exist(expression: str) -> None:
    assert "is not defined" in why_it_fails(f"{{{{ {expression} }}}}")


@pytest.mark.parametrize(
    "expression",
    [
        "range(10)",
        "dict(a=1)",
        "lipsum()",
        "cycler(1)",
        "namespace()",
        "joiner()",
        "self",
        "self._TemplateReference__context",
        "inputs()",
        "inputs.numbers.append(1)",
        "inputs.name.format(1)",
        "inputs.name.__init__()",
        "inputs.name.upper.__call__()",
        "''.join(['a'])",
        "'a'.zfill(1000000000)",
        "'a'.ljust(1000000000)",
        "'a'.encode()",
        "inputs | attr('__class__')",
        "inputs | pprint",
        "'%s' | format(1)",
        "'a' | center(1000000000)",
        "[1] | batch(1000000000)",
        "inputs | xmlattr",
        "inputs.name is callable",
        "inputs.name is filter",
        "loop",
        "caller()",
        "__import__('os')",
    ],
)
def test_anything_not_on_the_allow_list_is_refused_before_it_runs(expression: str) -> None:
    assert why_it_is_refused(f"{{{{ {expression} }}}}")


def test_a_callable_in_the_data_is_not_called() -> None:
    scope = {"inputs": {"upper": print}}
    assert "not safely callable" in why_it_fails("{{ inputs.upper() }}", scope)


@pytest.mark.parametrize(
    "expression",
    [
        "'x' * 1000000000",
        "[0] * 1000000000",
        "10 ** 10000000",
        "9 ** 9 ** 9 ** 9",
        "'%1000000000d' % 1",
        "inputs.big + inputs.big",
        "inputs.big ~ inputs.big",
        "[inputs.big, inputs.big] | join",
        "inputs.numbers | join(inputs.big)",
        "inputs.big | replace('a', inputs.big)",
        "inputs.big | replace('', inputs.big)",
        "inputs.list + inputs.list",
        "[[1], [2]] | sum",
        "(-8) ** 0.5",
        "9223372036854775807 + 1",
        "-9223372036854775807 - 2",
        "[9223372036854775807, 1] | sum",
        "'9' * 9",
        "['99999999999999999999' | int]",
        "['inf' | float]",
        "1e300 * 1e300",
        "1e300 / 1e-300",
        "1e300 * 1e300 - 1e300 * 1e300",
    ],
)
def test_the_size_of_results_is_limited(expression: str) -> None:
    scope = {"inputs": {"big": "a" * 600_000, "numbers": [1, 2, 3], "list": [0] * 600_000}}
    seconds = timeit(lambda: why_it_fails(f"{{{{ {expression} }}}}", scope), number=1, timer=process_time)
    assert seconds < 1


def test_the_size_of_rendered_strings_is_limited() -> None:
    scope = {"inputs": {"big": "a" * 600_000}}
    assert "more than 1048576 characters" in why_it_fails("{{ inputs.big }}{{ inputs.big }}", scope)


def test_precision_is_limited() -> None:
    assert resolve("{{ 2.5 | round(1000000000, 'floor') }}") == 2.5


@pytest.mark.parametrize(
    "text",
    [
        "{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}",
        "{{ " + "not " * 3000 + "1 }}",
        "{{ " + "-" * 3000 + "1 }}",
        "{{ 1" + " + 1" * 3000 + " }}",
        "{{ 1" + " | abs" * 2000 + " }}",
        "{{ " + "[" * 100 + "]" * 100 + " }}",
    ],
)
def test_deep_expressions_are_refused(text: str) -> None:
    assert "nested too deeply" in why_it_is_refused(text)


def test_a_method_is_not_a_value() -> None:
    assert "not plain data" in why_it_fails("{{ (inputs.name).upper }}")
    assert "not plain data" in why_it_fails("{{ [inputs.name.upper] }}")


def test_lazy_results_are_converted_to_lists() -> None:
    assert resolve("{{ [[1, 2] | reverse] }}") == [[2, 1]]
    assert resolve("{{ {'a': [1, 2] | map('string')} }}") == {"a": ["1", "2"]}
    assert resolve("{{ [[1, 2], [3]] | map('reverse') }}") == [[2, 1], [3]]
    assert resolve("{{ [(1, (2, 3))] }}") == [[1, [2, 3]]]


@pytest.mark.parametrize(
    "expression",
    [
        "[" * 19 + "]" * 19,
        "1" + " | abs" * 38,
        "{'a': " * 12 + "1" + "}" * 12,
        "'a'" + ".upper()" * 38,
        "1" + " ~ 1" * 500,
    ],
)
def test_values_of_the_maximum_depth_are_rendered(expression: str) -> None:
    resolve(f"{{{{ {expression} }}}}")


def test_expressions_of_the_maximum_depth_run() -> None:
    assert resolve("{{ 1" + " + 1" * 38 + " }}") == 39
    assert resolve("{{ " + "(" * 38 + "1" + ")" * 38 + " }}") == 1


def test_long_templates_are_refused_and_long_strings_are_not() -> None:
    assert "16384 characters" in why_it_is_refused("{{ inputs.x }}" + "a" * 20_000)
    assert resolve("a" * 20_000) == "a" * 20_000


def test_deep_values_are_refused() -> None:
    deep: Any = "{{ inputs.x }}"
    for _ in range(200):
        deep = [deep]
    assert "levels deep" in why_it_is_refused(deep)
