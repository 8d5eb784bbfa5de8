"""Expressions that are more than a path: parsed by Jinja, run in its sandbox, both cut down to an allow-list.

There are no statements, no globals, no Python attributes, and no calls except a few methods of strings. Whatever could
grow beyond the size of the data (powers, repeated or joined texts) is bounded.
"""

import math
import operator
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import orjson
from jinja2 import TemplateRuntimeError, TemplateSyntaxError, Undefined, UndefinedError, nodes
from jinja2.environment import TemplateExpression
from jinja2.filters import FILTERS, do_float, do_int, do_round
from jinja2.parser import Parser
from jinja2.runtime import StrictUndefined
from jinja2.sandbox import SandboxedEnvironment
from jinja2.tests import TESTS
from jinja2.visitor import NodeTransformer

from dagmaster.errors import ExpressionFailed, Invalid
from dagmaster.model.problems import did_you_mean
from dagmaster.model.references import NOTHING, ROOTS, Key, Reference, Scope, describe, look_up, step

MAX_TEXT_CHARS: Final = 1024 * 1024
MAX_LIST_ITEMS: Final = 1_000_000
MAX_INTEGER: Final = 2**63 - 1
MAX_POWER_BITS: Final = 4096
MAX_DEPTH: Final = 40


class ExpressionSyntax(Invalid):
    """An expression cannot be parsed. `path` leads to it inside the value that was compiled."""

    def __init__(self, message: str, path: tuple[Key, ...] = ()) -> None:
        super().__init__(message)
        self.path = path


class Incomparable(ExpressionFailed):
    """Two values have no order."""


_NO_ORDER = re.compile(r"'(.+)' not supported between instances of '(\w+)' and '(\w+)'")
_KINDS: Final = {"NoneType": "null", "str": "string", "int": "number", "float": "number", "dict": "object"}


@dataclass(slots=True)
class Expression:
    """`guarded` are the references that a `default` or an `is defined` covers."""

    source: str
    strict: set[Reference] = field(default_factory=set)
    guarded: set[Reference] = field(default_factory=set)
    _run: TemplateExpression | None = None

    def __call__(self, scope: Scope) -> Any:
        if self._run is None:
            self._run = _generate(self.source)
        try:
            return to_plain(self._run(scope))
        except UndefinedError as error:
            raise self._failed(self._first_missing(scope) or str(error)) from None
        except (TemplateRuntimeError, TypeError, ValueError, ArithmeticError, LookupError) as error:
            raise self._failed(str(error)) from error

    def _first_missing(self, scope: Scope) -> str | None:
        for reference in sorted(self.strict, key=str):
            try:
                look_up(reference, scope)
            except ExpressionFailed as error:
                return str(error)
        return None

    def _failed(self, reason: str) -> ExpressionFailed:
        place = f"(in {{{{ {shorten(self.source)} }}}})"
        if disorder := _NO_ORDER.match(reason):
            operator, left, right = disorder.groups()
            return Incomparable(f"{_KINDS.get(left, left)} {operator} {_KINDS.get(right, right)} has no answer {place}")
        return ExpressionFailed(f"{reason} {place}")


def compile_expression(source: str) -> Expression:
    """Raise ExpressionSyntax. The Python code is generated when the expression is first evaluated."""
    expression = Expression(source)
    _inspect(_parse(source), expression, guarded=False, depth=0)
    return expression


def to_text(value: Any) -> str:
    """How a value reads in the middle of a text."""
    match value:
        case str():
            return value
        case None:
            return ""
        case bool():
            return "true" if value else "false"
        case int() | float():
            return str(value)
        case _:
            return _to_json(value)


def to_plain(value: Any) -> Any:
    """Only JSON leaves an expression: what Jinja computes lazily becomes a list."""
    match value:
        case Undefined():
            return value._fail_with_undefined_error()
        case Iterator() | tuple() | list():
            return [to_plain(item) if isinstance(item, Undefined | tuple) else item for item in value]
        case Mapping() if not isinstance(value, dict):
            return dict(value)
        case _:
            return value


def join_bounded(texts: list[str], separator: str = "") -> str:
    _check_length(sum(map(len, texts)) + len(separator) * len(texts))
    return separator.join(texts)


def shorten(text: str) -> str:
    return text if len(text) <= 120 else f"{text[:117]}..."


# Parsing

# Jinja would read `nodes.my-task.output` as a subtraction.
_HYPHENATED = re.compile(r"""('(?:\\.|[^'\\])*'|"(?:\\.|[^"\\])*")|\bnodes\.([A-Za-z]\w*(?:-\w+)+)(?=[.\[])""")

_ALLOWED: Final = (
    *(nodes.Const, nodes.List, nodes.Tuple, nodes.Dict, nodes.Pair, nodes.Name, nodes.Getattr, nodes.Getitem),
    *(nodes.Slice, nodes.Filter, nodes.Test, nodes.Keyword, nodes.Compare, nodes.Operand, nodes.And, nodes.Or),
    *(nodes.Not, nodes.Neg, nodes.Pos, nodes.Add, nodes.Sub, nodes.Mul, nodes.Div, nodes.FloorDiv, nodes.Mod),
    *(nodes.Pow, nodes.Concat, nodes.CondExpr, nodes.Call),
)


def _parse(source: str) -> nodes.Expr:
    spelled = _HYPHENATED.sub(lambda match: match[1] or f"nodes['{match[2]}']", source)
    try:
        parser = Parser(_SANDBOX, spelled, state="variable")
        if parser.stream.eos:
            raise ExpressionSyntax("the expression is empty")
        tree = parser.parse_expression()
        if not parser.stream.eos:
            raise ExpressionSyntax(f"{parser.stream.current.value!r} is not expected in {shorten(source)!r}")
    except TemplateSyntaxError as error:
        raise ExpressionSyntax(f"{error.message} in {shorten(source)!r}") from None
    except RecursionError:  # the parser descends into every bracket
        raise ExpressionSyntax("the expression is nested too deeply") from None
    return tree


def _inspect(node: nodes.Node, found: Expression, *, guarded: bool, depth: int) -> None:
    """Refuse what is not allowed, and collect the references."""
    if depth > MAX_DEPTH:
        raise ExpressionSyntax("the expression is nested too deeply")
    if reference := _constant_path(node):
        (found.guarded if guarded else found.strict).add(reference)
        return
    _check_node(node)
    may_miss = _operand_that_may_miss(node, guarded)
    for child in node.iter_child_nodes():
        # The method of a call is not a key.
        target = child.node if isinstance(node, nodes.Call) and child is node.node else child  # type: ignore[attr-defined]
        _inspect(target, found, guarded=child is may_miss, depth=depth + 1)


def _constant_path(node: nodes.Node) -> Reference | None:
    keys: list[Key] = []
    while isinstance(node, nodes.Getattr | nodes.Getitem):
        key = node.attr if isinstance(node, nodes.Getattr) else _constant_key(node.arg)
        if key is None:
            return None
        keys.append(key)
        node = node.node
    if not isinstance(node, nodes.Name):
        return None
    if node.name not in ROOTS:
        raise ExpressionSyntax(f"unknown name {node.name!r}; known are {', '.join(ROOTS)}")
    return Reference(node.name, tuple(reversed(keys)))


def _constant_key(node: nodes.Node) -> Key | None:
    match node:
        case nodes.Const(value=str(key)):
            return key
        case nodes.Const(value=int(key)) | nodes.Neg(node=nodes.Const(value=int(key))) if not isinstance(key, bool):
            return -key if isinstance(node, nodes.Neg) else key
        case _:
            return None


def _operand_that_may_miss(node: nodes.Node, guarded: bool) -> nodes.Node | None:
    match node:
        case nodes.Filter(name="default" | "d") | nodes.Test(name="defined" | "undefined"):
            return node.node
        case nodes.Getattr() | nodes.Getitem() if guarded:
            return node.node
        case _:
            return None


def _check_node(node: nodes.Node) -> None:
    match node:
        case nodes.Filter(name=name) if name not in _FILTERS:
            raise ExpressionSyntax(f"there is no filter {name!r}{did_you_mean(name, _FILTERS)}")
        case nodes.Test(name=name) if name not in _TESTS:
            raise ExpressionSyntax(f"there is no test {name!r}{did_you_mean(name, _TESTS)}")
        case nodes.Call() if not isinstance(node.node, nodes.Getattr) or node.node.attr not in _METHODS:
            raise ExpressionSyntax(
                f"functions cannot be called, only methods of strings: {', '.join(sorted(_METHODS))}"
            )
        case nodes.Const(value=int() | float() as number) if not _is_storable(number):
            raise ExpressionSyntax(f"the number {shorten(str(number))} is too large")
        case nodes.Pair() if not isinstance(node.key, nodes.Const) or not isinstance(node.key.value, str):
            raise ExpressionSyntax("the keys of an object must be quoted strings")
        case _ if not isinstance(node, _ALLOWED):
            raise ExpressionSyntax(f"{type(node).__name__.lower()} is not allowed in an expression")


# Running


class _Missing(StrictUndefined):
    """Nothing, which stays nothing however deep one looks into it; anything else that is done with it fails."""

    __slots__ = ()


class _Sandbox(SandboxedEnvironment):
    intercepted_binops = frozenset({"+", "-", "*", "/", "//", "%", "**"})

    def getattr(self, obj: Any, attribute: str) -> Any:
        return (
            getattr(obj, attribute) if isinstance(obj, str) and attribute in _METHODS else self.getitem(obj, attribute)
        )

    def getitem(self, obj: Any, argument: Any) -> Any:
        if isinstance(obj, Undefined):
            return obj
        found = step(obj, argument)
        return _Missing(f"{argument!r} is not defined") if found is NOTHING else found

    def is_safe_callable(self, obj: Any) -> bool:
        return isinstance(getattr(obj, "__self__", None), str) and obj.__name__ in _METHODS

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        return _check_number(_OPERATORS[operator](left, right))


class _ConcatIsJoin(NodeTransformer):
    """`a ~ b` joins texts as mixed text does, and as bounded."""

    def visit_Concat(self, node: nodes.Concat) -> nodes.Filter:  # noqa: N802
        self.generic_visit(node)
        return nodes.Filter(nodes.List(node.nodes, lineno=1), "join", [], [], None, None, lineno=1)


def _generate(source: str) -> TemplateExpression:
    tree = _ConcatIsJoin().visit(_parse(source))
    body: list[nodes.Node] = [nodes.Assign(nodes.Name("result", "store"), tree, lineno=1)]
    module = nodes.Template(body, lineno=1)
    module.set_environment(_SANDBOX)
    return TemplateExpression(_SANDBOX.from_string(module), undefined_to_none=False)


def _need_numbers(operation: str, *values: Any) -> None:
    for value in map(to_plain, values):
        if not isinstance(value, int | float):
            raise TypeError(f"{operation} needs numbers, not {describe(value)}")


def _check_number(value: Any) -> Any:
    if isinstance(value, int | float) and not _is_storable(value):
        raise ValueError("the number is too large")
    return value


def _is_storable(number: int | float) -> bool:
    """JSON and the database hold 64 bits, and neither infinity nor what comes of it."""
    return -MAX_INTEGER <= number <= MAX_INTEGER if isinstance(number, int) else math.isfinite(number)


def _check_length(chars: int) -> None:
    if chars > MAX_TEXT_CHARS:
        raise ExpressionFailed(f"the text would have more than {MAX_TEXT_CHARS} characters")


def _add(left: Any, right: Any) -> Any:
    if isinstance(left, str) and isinstance(right, str):
        return join_bounded([left, right])
    if not isinstance(left, list) or not isinstance(right, list):
        _need_numbers("+", left, right)
    elif len(left) + len(right) > MAX_LIST_ITEMS:
        raise ValueError(f"the list would have more than {MAX_LIST_ITEMS} items")
    return left + right


def _power(left: Any, right: Any) -> Any:
    _need_numbers("**", left, right)
    if isinstance(left, int) and isinstance(right, int) and left.bit_length() * abs(right) > MAX_POWER_BITS:
        raise ValueError("the number is too large")
    if left < 0 and not float(right).is_integer():
        raise ValueError("a negative number has no such power")
    return left**right


def _numeric(sign: str, compute: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    def apply(left: Any, right: Any) -> Any:
        _need_numbers(sign, left, right)
        return compute(left, right)

    return apply


_OPERATORS: Final[Mapping[str, Callable[[Any, Any], Any]]] = {
    "+": _add,
    "-": _numeric("-", operator.sub),
    "*": _numeric("*", operator.mul),
    "/": _numeric("/", operator.truediv),
    "//": _numeric("//", operator.floordiv),
    "%": _numeric("%", operator.mod),
    "**": _power,
}


# Filters, tests and methods


def _join(values: Iterable[Any], separator: str = "") -> str:
    return join_bounded([to_text(value) for value in values], separator)


def _replace(value: Any, old: str, new: str) -> str:
    text = to_text(value)
    _check_length(len(text) + text.count(old) * len(new))
    return text.replace(old, new)


def _round(value: Any, precision: int = 0, method: Any = "common") -> Any:
    _need_numbers("round", value, precision)
    return do_round(value, max(-20, min(precision, 20)), method)


def _sum(values: Iterable[Any]) -> Any:
    numbers = list(values)
    _need_numbers("sum", *numbers)
    return _check_number(sum(numbers))


def _to_json(value: Any) -> str:
    return orjson.dumps(to_plain(value), default=to_plain, option=orjson.OPT_NON_STR_KEYS).decode()


_JINJA_FILTERS: Final = (
    *("default", "d", "length", "count", "abs", "min", "max", "first", "last", "sort", "unique"),
    *("reverse", "list", "map", "select", "reject", "selectattr", "rejectattr"),
)
_FILTERS: Final[Mapping[str, Callable[..., Any]]] = {
    **{name: FILTERS[name] for name in _JINJA_FILTERS},
    "upper": lambda value: to_text(value).upper(),
    "lower": lambda value: to_text(value).lower(),
    "title": lambda value: to_text(value).title(),
    "capitalize": lambda value: to_text(value).capitalize(),
    "trim": lambda value, chars=None: to_text(value).strip(chars),
    "string": to_text,
    "int": lambda value, *args, **options: _check_number(do_int(value, *args, **options)),
    "float": lambda value, *args, **options: _check_number(do_float(value, *args, **options)),
    "join": _join,
    "replace": _replace,
    "round": _round,
    "sum": _sum,
    "tojson": _to_json,
}
_TESTS: Final = {
    name: TESTS[name]
    for name in (
        *("defined", "undefined", "none", "boolean", "true", "false", "integer", "float", "number", "string"),
        *("mapping", "sequence", "even", "odd", "divisibleby", "in", "eq", "equalto", "ne", "lt", "le", "gt", "ge"),
    )
}
# None of them makes a text that is much longer than the one it is given.
_METHODS: Final = frozenset(
    {"upper", "lower", "title", "capitalize", "strip", "lstrip", "rstrip", "split", "rsplit", "splitlines"}
    | {"startswith", "endswith", "removeprefix", "removesuffix", "find", "count", "isdigit", "isalpha", "isalnum"}
)


def _make_sandbox() -> _Sandbox:
    sandbox = _Sandbox(undefined=_Missing, autoescape=False, optimized=False, cache_size=0)
    sandbox.globals.clear()
    sandbox.filters = dict(_FILTERS)
    sandbox.tests = dict(_TESTS)
    return sandbox


_SANDBOX: Final = _make_sandbox()
