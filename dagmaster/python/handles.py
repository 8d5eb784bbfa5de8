"""What stands for the result of a task while a workflow is written down, and the draft in which it is noted."""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, NoReturn

from dagmaster.model.workflow import CHILD_SEPARATOR, DependsOn, Node
from dagmaster.python.values import encode

ID_LIMIT = 48
RESERVED = ("START", "END")
_OUTPUT = re.compile(r"\bnodes\.([A-Za-z][\w-]*)\.output\b")
NOT_YET = (
    "{name} stands for a value that is known only when the job runs: it cannot {what} in a workflow function. "
    "Pass it to a task that does so"
)


@dataclass(slots=True)
class _Planned:
    """A node without its edges: `>>` may add some until the function ends."""

    node: Node
    after: dict[str, None]


@dataclass(slots=True, eq=False)
class Draft:
    """The nodes that a workflow function has made so far."""

    title: str
    planned: dict[str, _Planned] = field(default_factory=dict)
    called: dict[str, Any] = field(default_factory=dict)  # the workflows, by id

    def add(self, wanted: str, node: Node, after: Iterable[str]) -> str:
        """The id under which the node was noted: the wanted one, numbered if it is taken."""
        node_id = self.free_id(wanted)
        self.planned[node_id] = _Planned(node, dict.fromkeys(after))
        return node_id

    def free_id(self, wanted: str) -> str:
        base = _as_id(wanted)
        node_id, number = base, 1
        while node_id in self.planned or node_id in RESERVED:
            number += 1
            node_id = f"{base[: ID_LIMIT - len(str(number)) - 1]}_{number}"
        return node_id

    def encode(self, value: Any) -> tuple[Any, list[str]]:
        """The value with expressions in it, and the nodes that these refer to."""
        found: dict[str, None] = {}

        def place(part: Any) -> Any:
            match part:
                case Handle():
                    found.update(dict.fromkeys(self.nodes_of(part)))
                    return f"{{{{ {part._expression} }}}}"
                case str() if any(mark in part for mark in ("{{", "{%", "{#")):
                    return f"{{{{ {quoted(part)} }}}}"
                case _:
                    return None

        return encode(value, place), list(found)

    def nodes_of(self, handle: "Handle") -> tuple[str, ...]:
        if handle._draft is not self:
            raise TypeError(f"{handle!r} belongs to workflow {handle._draft.title!r}, not to {self.title!r}")
        return handle._nodes

    def nodes(self) -> dict[str, Node]:
        """With what they wait for."""
        return {
            node_id: one.node.model_copy(update={"depends_on": DependsOn(all_of=tuple(one.after))})
            if one.after
            else one.node
            for node_id, one in self.planned.items()
        }


_draft: ContextVar[Draft | None] = ContextVar("dagmaster_draft", default=None)


def find_draft() -> Draft | None:
    """None outside of workflow functions, when these are written down."""
    return _draft.get()


@contextmanager
def drafting(draft: Draft) -> Iterator[None]:
    token = _draft.set(draft)
    try:
        yield
    finally:
        _draft.reset(token)


class Handle:
    """The result of a task, or an input. `handle.field` and `handle["key"]` refer into it; `a >> b` lets b wait.

    Whoever uses it waits for `_nodes`; `_first` is the node that waits when the handle is told to.
    """

    __slots__ = ("_draft", "_expression", "_first", "_nodes")
    __hash__ = object.__hash__

    def __init__(self, draft: Draft, expression: str, nodes: tuple[str, ...] = (), first: str | None = None) -> None:
        self._draft, self._expression, self._nodes = draft, expression, nodes
        self._first = first or (nodes[0] if nodes else None)

    def __repr__(self) -> str:
        return f"<{self._expression}>"

    def __getattr__(self, name: str) -> "Handle":
        if name.startswith("_"):
            raise AttributeError(f"{self!r} has no attribute {name!r}")
        return Handle(self._draft, f"{_grouped(self._expression)}.{name}", self._nodes, self._first)

    def __getitem__(self, key: Any) -> "Handle":
        if isinstance(key, bool) or not isinstance(key, str | int):
            what = "be sliced" if isinstance(key, slice) else f"be looked into by {key!r}, only by a text or a number,"
            raise TypeError(NOT_YET.format(name=repr(self), what=what))
        written = str(key) if isinstance(key, int) else quoted(key)
        return Handle(self._draft, f"{_grouped(self._expression)}[{written}]", self._nodes, self._first)

    # Order without a value. The other side may be a list, which has no such operators of its own.

    def __rshift__(self, later: Any) -> Any:
        for one in _each(later):
            _wait(one, self)
        return later

    def __lshift__(self, earlier: Any) -> "Handle":
        for one in _each(earlier):
            _wait(self, one)
        return self

    def __rrshift__(self, earlier: Any) -> "Handle":
        return self.__lshift__(earlier)

    def __rlshift__(self, later: Any) -> Any:
        return self.__rshift__(later)


def seen_from_outside(returned: Any, draft: Draft, node_id: str) -> Any:
    """What the inner workflow returns, seen from the outer one."""
    match returned:
        case Handle() if not returned._nodes:
            raise TypeError(f"{returned!r} is an input of the inner workflow; only results of its tasks can be used")
        case Handle():
            expression = _OUTPUT.sub(rf"nodes.{node_id}.output.result['\1']", returned._expression)
            return Handle(draft, expression, (node_id,))
        case dict():
            return {key: seen_from_outside(one, draft, node_id) for key, one in returned.items()}
        case list() | tuple():
            return [seen_from_outside(one, draft, node_id) for one in returned]
        case None:
            return Handle(draft, f"nodes.{node_id}.output.result", (node_id,))
        case _:
            return returned


def wait_for(draft: Draft, earlier: Any) -> list[str]:
    """The nodes behind one handle or several."""
    return [node for one in _each(earlier) for node in draft.nodes_of(one)]


def quoted(text: str) -> str:
    """The text as a literal of an expression."""
    escaped = text.replace("\\", "\\\\").replace("'", "\\'").replace("\n", "\\n").replace("\r", "\\r")
    return f"'{escaped}'"


def _wait(later: Handle, earlier: Handle) -> None:
    if later._first is None:
        raise TypeError(f"{later!r} is an input; only tasks can wait")
    draft = later._draft
    draft.planned[later._first].after.update(dict.fromkeys(draft.nodes_of(earlier)))


def _each(given: Any) -> Iterable[Handle]:
    several = given if isinstance(given, list | tuple) else [given]
    for one in several:
        if not isinstance(one, Handle):
            raise TypeError(f"only what a task has returned in this workflow can be ordered, not {one!r}")
    return several


def _grouped(expression: str) -> str:
    return f"({expression})" if "|" in expression and not expression.endswith((")", "]")) else expression


def _as_id(name: str) -> str:
    """Of a function's name: ids begin with a letter and have no double underscore."""
    allowed = "".join(one if one.isascii() and (one.isalnum() or one in "_-") else "_" for one in name).strip("_")
    while CHILD_SEPARATOR in allowed:
        allowed = allowed.replace(CHILD_SEPARATOR, "_")
    return (allowed if allowed[:1].isalpha() else f"n{allowed}")[:ID_LIMIT]


def _refuse(what: str) -> Callable[..., NoReturn]:
    def refuse(self: Handle, *_: object) -> NoReturn:
        raise TypeError(NOT_YET.format(name=repr(self), what=what))

    return refuse


ARITHMETIC = ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "matmul", "and", "or", "xor")
# What people try with a value that is not there yet.
REFUSED: Mapping[str, tuple[str, ...]] = {
    "be a condition": ("bool",),
    "be iterated over (its length is not known; `task.map(values)` makes a task of each)": ("iter", "reversed"),
    "be measured": ("len",),
    "be searched": ("contains",),
    "be compared": ("eq", "ne", "lt", "le", "gt", "ge"),
    "be formatted into a text": ("str", "format"),
    "be converted": ("int", "float", "index", "complex", "bytes"),
    "be called": ("call",),
    "be awaited": ("await",),
    "be calculated with": ("neg", "pos", "abs", "invert", "round", *ARITHMETIC, *(f"r{name}" for name in ARITHMETIC)),
}
for _what, _names in REFUSED.items():
    for _name in _names:
        setattr(Handle, f"__{_name}__", _refuse(_what))
