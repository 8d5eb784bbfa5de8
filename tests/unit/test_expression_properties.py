"""Properties of expressions for any data."""

from contextlib import suppress
from time import process_time
from timeit import timeit
from typing import Any

from expression_bench import SCOPE, resolve
from hypothesis import given
from hypothesis import strategies as st

from dagmaster.errors import ExpressionFailed
from dagmaster.model.expressions import compile_template, walk_strings
from dagmaster.model.operations import to_text
from dagmaster.model.references import Reference
from dagmaster.model.sandbox import ExpressionSyntax

JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda children: st.lists(children, max_size=4) | st.dictionaries(st.text(), children, max_size=4),
    max_leaves=12,
)
NAMES = st.from_regex(r"[a-z_][a-z0-9_]{0,8}", fullmatch=True)


@given(JSON)
def test_any_value_without_braces_is_a_constant(raw: Any) -> None:
    if not any("{" in text for _, text in walk_strings(raw)) and "{{" not in str(raw):
        assert compile_template(raw).resolve({}) is raw


@given(st.dictionaries(NAMES, JSON, min_size=1, max_size=3), st.data())
def test_a_path_returns_any_data_unchanged(inputs: dict[str, Any], data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(sorted(inputs)))
    scope = {"inputs": inputs}
    assert resolve(f"{{{{ inputs.{name} }}}}", scope) is inputs[name]
    assert resolve(f"{{{{ inputs['{name}'] | default(1) }}}}", scope) == inputs[name]


@given(
    st.recursive(st.integers(), lambda c: st.lists(c, max_size=3) | st.dictionaries(NAMES, c, max_size=3)),
    st.lists(NAMES | st.integers(0, 3), max_size=4),
)
def test_direct_lookup_and_jinja_agree(tree: Any, path: list[str | int]) -> None:
    """Brackets prevent the direct lookup."""
    source = str(Reference("inputs", tuple(path)))
    assert _outcome(f"{{{{ {source} }}}}", tree) == _outcome(f"{{{{ ({source}) }}}}", tree)


def _outcome(text: str, tree: Any) -> tuple[str, Any]:
    try:
        return "value", resolve(text, {"inputs": tree})
    except ExpressionFailed as error:
        return "failure", str(error).split(" (in {{")[0]


@given(st.text(alphabet="{}%#'\"inputs.x |()[]~+-*/0123,:_\\=<>", max_size=60))
def test_any_string_compiles_or_is_refused(text: str) -> None:
    for candidate in (text, f"{{{{ {text} }}}}"):
        try:
            template = compile_template(candidate)
        except ExpressionSyntax:
            continue
        with suppress(ExpressionFailed):
            template.resolve(SCOPE)


@given(JSON, JSON)
def test_two_values_in_a_string_are_concatenated(first: Any, second: Any) -> None:
    scope = {"inputs": {"a": first, "b": second}}
    assert resolve("{{ inputs.a }}|{{ inputs.b }}", scope) == f"{to_text(first)}|{to_text(second)}"


def test_three_dotted_paths_resolve_in_microseconds() -> None:
    template = compile_template(
        {"a": "{{ inputs.x }}", "b": "{{ nodes.a.output.rows }}", "c": "{{ item.a.b }}", "d": 5}
    )
    seconds = min(timeit(lambda: template.resolve(SCOPE), number=1000, timer=process_time) for _ in range(5)) / 1000
    assert seconds < 20e-6  # Measured 1.5 microseconds; the slack is for busy machines.
