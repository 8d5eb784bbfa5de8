"""References in expressions, and their lookup in a job's data."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from dagmaster.errors import ExpressionFailed

Key = str | int
Scope = Mapping[str, Any]

ROOTS: Final = ("inputs", "nodes", "env", "item", "index", "fan_out", "job")

NOTHING: Final = object()


@dataclass(frozen=True, slots=True)
class Reference:
    """`nodes.a.output.b` is Reference("nodes", ("a", "output", "b"))."""

    root: str
    path: tuple[Key, ...] = ()

    def __str__(self) -> str:
        return self.root + "".join(_spell(key) for key in self.path)


def look_up(reference: Reference, scope: Scope) -> Any:
    """Raise ExpressionFailed with the missing name and the available ones."""
    value: Any = scope
    seen: list[Key] = []
    for key in (reference.root, *reference.path):
        child = step(value, key)
        if child is NOTHING:
            raise ExpressionFailed(_explain(seen, key, value))
        value = child
        seen.append(key)
    return value


def step(value: Any, key: Any) -> Any:
    """One level down, or NOTHING. Only keys of objects and positions in lists count, never Python attributes."""
    if isinstance(value, Mapping):
        if key in value:
            return value[key]
        if isinstance(key, int) and str(key) in value:
            return value[str(key)]
    elif isinstance(value, list | tuple | str) and isinstance(key, int) and -len(value) <= key < len(value):
        return value[key]
    return NOTHING


# Node ids may contain hyphens; elsewhere a hyphen is a minus.
PATH_PATTERN: Final = re.compile(
    r"""(?:nodes\.[A-Za-z][\w-]*|[A-Za-z_]\w*)(?:\.\w+|\[-?\d+\]|\['[^'\\]*'\]|\["[^"\\]*"\])*""",
)
_KEY = re.compile(r"""\[(-?\d+)\]|\['([^']*)'\]|\["([^"]*)"\]|\.?([\w-]+)""")


def parse_path(source: str) -> Reference | None:
    """The reference, if the source is only a path from a known root."""
    if not PATH_PATTERN.fullmatch(source):
        return None
    first, *keys = (_key(match) for match in _KEY.finditer(source))
    return Reference(first, tuple(keys)) if isinstance(first, str) and first in ROOTS else None


def describe(value: Any) -> str:
    """The kind of a value, for error messages."""
    match value:
        case None:
            return "null"
        case bool():
            return "a boolean"
        case str():
            return "a string"
        case int() | float():
            return "a number"
        case list() | tuple():
            return f"a list of {len(value)}"
        case _:
            return "an object"


def _key(match: re.Match[str]) -> Key:
    number, single, double, word = match.groups()
    if number is not None:
        return int(number)
    if word is not None:
        return int(word) if word.isdecimal() else word
    return single if single is not None else double


def _spell(key: Key) -> str:
    return f".{key}" if isinstance(key, int) or re.fullmatch(r"[\w-]+", key) else f"[{key!r}]"


def _explain(seen: list[Key], key: Key, value: Any) -> str:
    if not seen:
        return f"{key} is not available here; available are: {_some_names(value)}"
    parent = Reference(str(seen[0]), tuple(seen[1:]))
    missing = f"{Reference(parent.root, (*parent.path, key))} is not defined"
    if parent == Reference("env"):
        return f"{missing}; only allowed environment variables can be read"
    if isinstance(value, dict):
        return f"{missing}; {parent} {'are' if parent in _PLURAL else 'has'}: {_some_names(value)}"
    # Other mappings may compute their values, so their keys are not listed.
    return missing if isinstance(value, Mapping) else f"{missing}; {parent} is {describe(value)}"


_PLURAL: Final = (Reference("inputs"), Reference("nodes"))


def _some_names(value: Any, most: int = 12) -> str:
    names = sorted(str(name)[:48] for name in value)
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return (", ".join(names[:most]) + more) or "none"
