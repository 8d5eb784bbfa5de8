"""Expressions that are more than a path: parsed by Jinja and run in its sandbox, both restricted to an allow-list.

There are no statements, no globals, no Python attributes, and no calls except a few methods of strings. Operations
that could exceed the size of the data (powers, repeated or joined strings) are bounded.
"""

import re
from dataclasses import dataclass, field
from typing import Any, Final

from jinja2 import TemplateRuntimeError, TemplateSyntaxError, Undefined, UndefinedError, nodes
from jinja2.environment import TemplateExpression
from jinja2.parser import Parser
from jinja2.runtime import StrictUndefined
from jinja2.sandbox import SandboxedEnvironment
from jinja2.visitor import NodeTransformer

from dagmaster.errors import ExpressionFailed, Invalid
from dagmaster.model.operations import (
    FILTERS,
    METHODS,
    OPERATORS,
    TESTS,
    check_number,
    is_storable,
    need_defined,
    to_plain,
)
from dagmaster.model.problems import did_you_mean, shorten
from dagmaster.model.references import NOTHING, ROOTS, Key, Reference, Scope, look_up, step

MAX_DEPTH: Final = 40


class ExpressionSyntax(Invalid):
    """An expression cannot be parsed. `path` leads to it inside the compiled value."""

    def __init__(self, message: str, path: tuple[Key, ...] = ()) -> None:
        super().__init__(message)
        self.path = path


class Incomparable(ExpressionFailed):
    """Two values have no order."""


_NO_ORDER = re.compile(r"'(.+)' not supported between instances of '(\w+)' and '(\w+)'")
_KINDS: Final = {"NoneType": "null", "str": "string", "int": "number", "float": "number", "dict": "object"}


@dataclass(slots=True)
class Expression:
    """`guarded` are the references under a `default` or an `is defined`."""

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
            compared = f"{_KINDS.get(left, left)} {operator} {_KINDS.get(right, right)}"
            return Incomparable(f"{compared} cannot be compared {place}")
        return ExpressionFailed(f"{reason} {place}")


def compile_expression(source: str) -> Expression:
    """Raise ExpressionSyntax. The Python code is generated when the expression is first evaluated."""
    expression = Expression(source)
    _inspect(_parse(source), expression, guarded=False, depth=0)
    return expression


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


def _inspect(node: nodes.Node, expression: Expression, *, guarded: bool, depth: int) -> None:
    """Reject syntax that is not allowed, and collect the references."""
    if depth > MAX_DEPTH:
        raise ExpressionSyntax("the expression is nested too deeply")
    if reference := _constant_path(node):
        (expression.guarded if guarded else expression.strict).add(reference)
        return
    _check_node(node)
    may_miss = _operand_that_may_miss(node, guarded)
    for child in node.iter_child_nodes():
        # The method of a call is not a key.
        target = child.node if isinstance(node, nodes.Call) and child is node.node else child  # type: ignore[attr-defined]
        _inspect(target, expression, guarded=child is may_miss, depth=depth + 1)


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
        case nodes.Filter(name=name) if name not in FILTERS:
            raise ExpressionSyntax(f"there is no filter {name!r}{did_you_mean(name, FILTERS)}")
        case nodes.Test(name=name) if name not in TESTS:
            raise ExpressionSyntax(f"there is no test {name!r}{did_you_mean(name, TESTS)}")
        case nodes.Call() if not isinstance(node.node, nodes.Getattr) or node.node.attr not in METHODS:
            raise ExpressionSyntax(f"functions cannot be called, only methods of strings: {', '.join(sorted(METHODS))}")
        case nodes.Const(value=int() | float() as number) if not is_storable(number):
            raise ExpressionSyntax(f"the number {shorten(str(number))} is too large")
        case nodes.Pair() if not isinstance(node.key, nodes.Const) or not isinstance(node.key.value, str):
            raise ExpressionSyntax("the keys of an object must be quoted strings")
        case _ if not isinstance(node, _ALLOWED):
            raise ExpressionSyntax(f"{type(node).__name__.lower()} is not allowed in an expression")


# Running


class _Missing(StrictUndefined):
    """An undefined value. Attributes of it are undefined too; any other use fails."""

    __slots__ = ()


class _Sandbox(SandboxedEnvironment):
    intercepted_binops = frozenset({"+", "-", "*", "/", "//", "%", "**"})

    def getattr(self, obj: Any, attribute: str) -> Any:
        if isinstance(obj, str) and attribute in METHODS:
            return getattr(obj, attribute)
        return self.getitem(obj, attribute)

    def getitem(self, obj: Any, argument: Any) -> Any:
        if isinstance(obj, Undefined):
            return obj
        value = step(obj, argument)
        return _Missing(f"{argument!r} is not defined") if value is NOTHING else value

    def is_safe_callable(self, obj: Any) -> bool:
        need_defined(obj)
        return isinstance(getattr(obj, "__self__", None), str) and obj.__name__ in METHODS

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        return check_number(OPERATORS[operator](left, right))


class _Strict(NodeTransformer):
    """Jinja passes undefined values into filters, tests and literals; here they fail at once, except for defaults."""

    def visit_Filter(self, node: nodes.Filter | nodes.Test) -> nodes.Expr:  # noqa: N802
        self.generic_visit(node)
        if node.node is not None and not _operand_that_may_miss(node, guarded=False):
            node.node = _filtered(node.node, _DEFINED)
        return node

    def visit_Test(self, node: nodes.Test) -> nodes.Expr:  # noqa: N802
        return self.visit_Filter(node)

    def visit_List(self, node: nodes.List) -> nodes.List:  # noqa: N802
        self.generic_visit(node)
        node.items = [_filtered(item, _PLAIN) for item in node.items]
        return node

    def visit_Tuple(self, node: nodes.Tuple) -> nodes.List:  # noqa: N802
        return self.visit_List(nodes.List(node.items, lineno=1))

    def visit_Pair(self, node: nodes.Pair) -> nodes.Pair:  # noqa: N802
        self.generic_visit(node)
        node.value = _filtered(node.value, _PLAIN)
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Filter:  # noqa: N802
        """`a ~ b` joins like mixed text, and is bounded like it."""
        return _filtered(self.visit_List(nodes.List(node.nodes, lineno=1)), "join")


# Not valid names, so no author can use them.
_DEFINED: Final = "(defined)"
_PLAIN: Final = "(plain)"


def _filtered(node: nodes.Expr, name: str) -> nodes.Filter:
    return nodes.Filter(node, name, [], [], None, None, lineno=1)


def _generate(source: str) -> TemplateExpression:
    tree = _Strict().visit(_parse(source))
    body: list[nodes.Node] = [nodes.Assign(nodes.Name("result", "store"), tree, lineno=1)]
    module = nodes.Template(body, lineno=1)
    module.set_environment(_SANDBOX)
    return TemplateExpression(_SANDBOX.from_string(module), undefined_to_none=False)


def _make_sandbox() -> _Sandbox:
    sandbox = _Sandbox(undefined=_Missing, autoescape=False, optimized=False, cache_size=0)
    sandbox.globals.clear()
    sandbox.filters = {**FILTERS, _DEFINED: need_defined, _PLAIN: to_plain}
    sandbox.tests = dict(TESTS)
    return sandbox


_SANDBOX: Final = _make_sandbox()
