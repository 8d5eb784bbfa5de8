"""Expressions over columns: built with operators, and compiled to SQL later."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Annotated, Any, Literal, Self, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, field_validator

from dagmaster.data.functions import AGGREGATES, FUNCTIONS, RANKINGS
from dagmaster.data.types import check_type, nullable, text_of, type_of
from dagmaster.errors import Invalid
from dagmaster.model.problems import did_you_mean

Operand = Any  # an Expression, or a plain value that becomes a literal
Same = TypeVar("Same", bound="Operators")


def _checked_type(name: str) -> str:
    try:
        return check_type(name)
    except Invalid as error:
        raise ValueError(str(error)) from None


TypeName = Annotated[str, AfterValidator(_checked_type)]


class Node(BaseModel):
    """A part of an expression, serialisable."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Column(Node):
    op: Literal["column"] = "column"
    name: str


class OnlyColumn(Node):
    """The column of a table that has only one."""

    op: Literal["only_column"] = "only_column"


class Value(Node):
    """A bound value. A `None` text is NULL."""

    op: Literal["value"] = "value"
    type: TypeName
    text: str | None


class Call(Node):
    op: Literal["call"] = "call"
    function: str
    arguments: tuple["AnyNode", ...]

    @field_validator("function")
    @classmethod
    def _is_known(cls, name: str) -> str:
        known = {**FUNCTIONS, **AGGREGATES, **RANKINGS}
        if name not in known:
            raise ValueError(f"{name!r} is not a function of expressions{did_you_mean(name, known)}")
        return name


class Cast(Node):
    op: Literal["cast"] = "cast"
    argument: "AnyNode"
    type: TypeName


class SortKey(Node):
    argument: "AnyNode"
    descending: bool = False


class Over(Node):
    """A window function. Without an order its frame is the whole partition, with one it ends at the current row."""

    op: Literal["over"] = "over"
    argument: Call
    partition_by: tuple["AnyNode", ...] = ()
    order_by: tuple[SortKey, ...] = ()


AnyNode = Annotated[Column | OnlyColumn | Value | Call | Cast | Over, Field(discriminator="op")]

for _kind in (Call, Cast, SortKey, Over):
    _kind.model_rebuild()


def _binary(function: str) -> Callable[[Same, Operand], Same]:
    return lambda self, other: self._apply(function, self, other)


def _reflected(function: str) -> Callable[[Same, Operand], Same]:
    return lambda self, other: self._apply(function, other, self)


class Operators(ABC):
    """The operators and methods that expressions share with Objects of one column."""

    @abstractmethod
    def _apply(self, function: str, *arguments: Operand) -> Any: ...

    __add__, __radd__ = _binary("add"), _reflected("add")
    __sub__, __rsub__ = _binary("subtract"), _reflected("subtract")
    __mul__, __rmul__ = _binary("multiply"), _reflected("multiply")
    __truediv__, __rtruediv__ = _binary("divide"), _reflected("divide")
    __pow__, __rpow__ = _binary("power"), _reflected("power")
    __rmod__ = _reflected("modulo")
    __lt__, __le__ = _binary("less"), _binary("less_or_equals")
    __gt__, __ge__ = _binary("greater"), _binary("greater_or_equals")

    def __mod__(self, other: Operand) -> Self:
        return self._apply("modulo", self, _short_divisor(other))  # type: ignore[no-any-return]

    def __neg__(self) -> Self:
        return self._apply("negate", self)  # type: ignore[no-any-return]

    def __eq__(self, other: Operand) -> Self:  # type: ignore[override]
        return self._apply("equals", self, _not_none(other))  # type: ignore[no-any-return]

    def __ne__(self, other: Operand) -> Self:  # type: ignore[override]
        return self._apply("not_equals", self, _not_none(other))  # type: ignore[no-any-return]

    __hash__ = object.__hash__

    def __bool__(self) -> bool:
        raise TypeError(
            "a condition on a column has no truth value; combine conditions with &, | and ~, not and, or, not"
        )


class Expression(Operators):
    """A computation for each row, such as `col("x") * 2`; nothing runs before rows are requested."""

    def __init__(self, node: Any, name: str | None = None) -> None:
        self.node = node
        self.name = name

    def __repr__(self) -> str:
        return f"Expression({self.node!r})"

    def __and__(self, other: Operand) -> "Expression":
        return call("and", self, other)

    def __or__(self, other: Operand) -> "Expression":
        return call("or", self, other)

    def __invert__(self) -> "Expression":
        return call("not", self)

    def _apply(self, function: str, *arguments: Operand) -> "Expression":
        return call(function, *arguments)

    def alias(self, name: str) -> "Expression":
        """The same expression under another name."""
        return Expression(self.node, name)

    def cast(self, type: str) -> "Expression":
        """Cast to another ClickHouse type. A value that does not fit is an error; NULL stays NULL."""
        return Expression(Cast(argument=self.node, type=check_type(type)), self.name)

    def is_null(self) -> "Expression":
        return call("is_null", self)

    def is_not_null(self) -> "Expression":
        return call("is_not_null", self)

    def fill_null(self, value: Operand) -> "Expression":
        return call("fill_null", self, value)

    def is_in(self, values: Sequence[Any]) -> "Expression":
        return call("is_in", self, list(values))

    def between(self, low: Operand, high: Operand) -> "Expression":
        return call("and", call("greater_or_equals", self, low), call("less_or_equals", self, high))

    def over(self, partition_by: Any = (), order_by: Any = ()) -> "Expression":
        """The aggregate or ranking over a window of rows instead of a group."""
        if not isinstance(self.node, Call) or self.node.function not in {**AGGREGATES, **RANKINGS}:
            raise Invalid("only aggregates and rankings have a window: write sum(col('x')).over('key')")
        partition = tuple(as_expression(key, column=True).node for key in listed(partition_by))
        return Expression(Over(argument=self.node, partition_by=partition, order_by=sort_keys(order_by)), self.name)

    def desc(self) -> "Descending":
        """The descending sort key."""
        return Descending(self)


class Descending:
    def __init__(self, expression: Expression) -> None:
        self.expression = expression


def col(name: str) -> Expression:
    """The column with this name."""
    return Expression(Column(name=name), name)


def lit(value: Any, type: str | None = None) -> Expression:
    """A constant with the given ClickHouse type, or the one that its Python type implies."""
    if value is None:
        return Expression(Value(type=nullable(check_type(type or "String")), text=None))
    return Expression(Value(type=check_type(type) if type else type_of(value), text=text_of(value)))


def call(function: str, *arguments: Operand) -> Expression:
    nodes = tuple(as_expression(argument).node for argument in arguments)
    return Expression(Call(function=function, arguments=nodes), _name_of(arguments))


def as_expression(value: Operand, *, column: bool = False) -> Expression:
    """The expression for a plain value: a literal or, where columns are named, a column."""
    if isinstance(value, Expression):
        return value
    if isinstance(value, Operators):
        raise Invalid("two Objects cannot be combined in an expression; join them")
    return col(value) if column and isinstance(value, str) else lit(value)


def sort_keys(keys: Any) -> tuple[SortKey, ...]:
    """From names, expressions and `expression.desc()`."""
    found = []
    for key in listed(keys):
        descending = isinstance(key, Descending)
        expression = key.expression if isinstance(key, Descending) else as_expression(key, column=True)
        found.append(SortKey(argument=expression.node, descending=descending))
    return tuple(found)


def listed(values: Any) -> Sequence[Any]:
    return list(values) if isinstance(values, list | tuple) else [values]


def _name_of(arguments: Sequence[Operand]) -> str | None:
    """`col("x") * 2` keeps the name x."""
    return next((argument.name for argument in arguments if isinstance(argument, Expression) and argument.name), None)


def _short_divisor(value: Operand) -> Operand:
    """Bind the divisor with its shortest type, because the remainder has it too: grouping and comparing is faster."""
    if type(value) is not int or not 0 < value < 2**32:
        return value
    return lit(value, next(f"UInt{bits}" for bits in (8, 16, 32) if value < 2**bits))


def _not_none(value: Operand) -> Operand:
    if value is None:
        raise Invalid("nothing equals NULL; use is_null() or is_not_null()")
    return value
