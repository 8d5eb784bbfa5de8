"""Handles: placeholders for the results of tasks while the graph of a workflow function is built."""

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
    "{name} has no value until the job runs: it cannot {use} in a workflow function. Pass it to a task that does so"
)


@dataclass(slots=True, eq=False)
class Draft:
    """The nodes that a workflow function has created so far, and the nodes that they wait for.

    `>>` may add some until the function ends.
    """

    title: str
    planned: dict[str, Node] = field(default_factory=dict)
    after: dict[str, dict[str, None]] = field(default_factory=dict)
    called: dict[str, Any] = field(default_factory=dict)  # workflows by id

    def add(self, name: str, node: Node, after: Iterable[str]) -> str:
        """Add a node; returns its id, which is the name, numbered if it is taken."""
        node_id = self._free_id(name)
        self.planned[node_id], self.after[node_id] = node, dict.fromkeys(after)
        return node_id

    def _free_id(self, name: str) -> str:
        base = _as_id(name)
        node_id, number = base, 1
        while node_id in self.planned or node_id in RESERVED:
            number += 1
            node_id = f"{base[: ID_LIMIT - len(str(number)) - 1]}_{number}"
        return node_id

    def encode(self, value: Any) -> tuple[Any, list[str]]:
        """The value with expressions in place of handles, and the nodes that these refer to."""
        sources: dict[str, None] = {}

        def place(part: Any) -> Any:
            match part:
                case Handle():
                    sources.update(dict.fromkeys(self.nodes_of(part)))
                    return f"{{{{ {part._expression} }}}}"
                case str() if any(mark in part for mark in ("{{", "{%", "{#")):
                    return f"{{{{ {quoted(part)} }}}}"
                case _:
                    return None

        return encode(value, place), list(sources)

    def nodes_of(self, handle: "Handle") -> tuple[str, ...]:
        if handle._draft is not self:
            raise TypeError(f"{handle!r} belongs to workflow {handle._draft.title!r}, not to {self.title!r}")
        return handle._nodes

    def nodes(self) -> dict[str, Node]:
        """The nodes with their dependencies."""
        return {
            node_id: node.model_copy(update={"depends_on": DependsOn(all_of=tuple(after))}) if after else node
            for (node_id, node), after in zip(self.planned.items(), self.after.values(), strict=True)
        }


_draft: ContextVar[Draft | None] = ContextVar("dagmaster_draft", default=None)


def find_draft() -> Draft | None:
    """The draft that is being built; None outside workflow functions."""
    return _draft.get()


@contextmanager
def drafting(draft: Draft) -> Iterator[None]:
    token = _draft.set(draft)
    try:
        yield
    finally:
        _draft.reset(token)


class Handle:
    """A task's result or an input. `handle.field` and `handle["key"]` refer to parts; `a >> b` makes b wait for a.

    A node that uses it waits for `_nodes`. `_first` is the node that waits in `a >> handle`.
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
            use = "be sliced" if isinstance(key, slice) else f"be indexed by {key!r}, only by a string or a number,"
            raise TypeError(NOT_YET.format(name=repr(self), use=use))
        written = str(key) if isinstance(key, int) else quoted(key)
        return Handle(self._draft, f"{_grouped(self._expression)}[{written}]", self._nodes, self._first)

    # Order without a value. The other operand may be a list, which lacks these operators.

    def __rshift__(self, later: Any) -> Any:
        for handle in _each(later):
            _wait(handle, self)
        return later

    def __lshift__(self, earlier: Any) -> "Handle":
        for handle in _each(earlier):
            _wait(self, handle)
        return self

    __rrshift__, __rlshift__ = __lshift__, __rshift__


def seen_from_outside(returned: Any, draft: Draft, node_id: str) -> Any:
    """The return value of a called workflow, as handles of the calling one."""
    match returned:
        case Handle() if not returned._nodes:
            raise TypeError(f"{returned!r} is an input of the called workflow; only results of its tasks can be used")
        case Handle():
            expression = _OUTPUT.sub(rf"nodes.{node_id}.output.result['\1']", returned._expression)
            return Handle(draft, expression, (node_id,))
        case dict():
            return {key: seen_from_outside(part, draft, node_id) for key, part in returned.items()}
        case list() | tuple():
            return [seen_from_outside(part, draft, node_id) for part in returned]
        case None:
            return Handle(draft, f"nodes.{node_id}.output.result", (node_id,))
        case _:
            return returned


def wait_for(draft: Draft, earlier: Any) -> list[str]:
    """The nodes of one handle or several."""
    return [node for handle in _each(earlier) for node in draft.nodes_of(handle)]


def quoted(text: str) -> str:
    """The string as a literal in an expression."""
    escaped = text.replace("\\", "\\\\").replace("'", "\\'").replace("\n", "\\n").replace("\r", "\\r")
    return f"'{escaped}'"


def _wait(later: Handle, earlier: Handle) -> None:
    if later._first is None:
        raise TypeError(f"{later!r} is an input; only tasks can wait")
    draft = later._draft
    draft.after[later._first].update(dict.fromkeys(draft.nodes_of(earlier)))


def _each(value: Any) -> Iterable[Handle]:
    several = value if isinstance(value, list | tuple) else [value]
    for handle in several:
        if not isinstance(handle, Handle):
            raise TypeError(f"only results of tasks in this workflow can be ordered, not {handle!r}")
    return several


def _grouped(expression: str) -> str:
    return f"({expression})" if "|" in expression and not expression.endswith((")", "]")) else expression


def _as_id(name: str) -> str:
    """A valid id from a function's name: it begins with a letter and has no double underscore."""
    allowed = "".join(char if char.isascii() and (char.isalnum() or char in "_-") else "_" for char in name).strip("_")
    while CHILD_SEPARATOR in allowed:
        allowed = allowed.replace(CHILD_SEPARATOR, "_")
    return (allowed if allowed[:1].isalpha() else f"n{allowed}")[:ID_LIMIT]


def _refuse(use: str) -> Callable[..., NoReturn]:
    def refuse(self: Handle, *_: object) -> NoReturn:
        raise TypeError(NOT_YET.format(name=repr(self), use=use))

    return refuse


UNARY = ("neg", "pos", "abs", "invert", "round")
ARITHMETIC = ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "matmul", "and", "or", "xor")
# Operations that need the value, which does not exist yet.
REFUSED: Mapping[str, tuple[str, ...]] = {
    "be a condition": ("bool",),
    "be iterated over (its length is not known; `task.map(values)` makes a task of each)": ("iter", "reversed"),
    "be measured": ("len",),
    "be searched": ("contains",),
    "be compared": ("eq", "ne", "lt", "le", "gt", "ge"),
    "be formatted into a string": ("str", "format"),
    "be converted": ("int", "float", "index", "complex", "bytes"),
    "be called": ("call",),
    "be awaited": ("await",),
    "be used in a calculation": (*UNARY, *ARITHMETIC, *(f"r{name}" for name in ARITHMETIC)),
}
for _use, _names in REFUSED.items():
    for _name in _names:
        setattr(Handle, f"__{_name}__", _refuse(_use))
