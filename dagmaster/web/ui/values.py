"""JSON values for pages: as a tree if they are small enough."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from dagmaster.model.redact import redact
from dagmaster.web.ui.filters import pretty

MAX_TREE: Final = 200_000  # characters
MAX_DEPTH: Final = 40


@dataclass(frozen=True, slots=True)
class Value:
    """Without secrets. `is_tree` is false if the value is too large or too deep; then `text` may be cut."""

    value: Any
    text: str
    is_tree: bool
    is_cut: bool

    @property
    def is_empty(self) -> bool:
        return self.value in (None, {}, [], "")


def value_of(value: Any) -> Value:
    # Pretty printing recurses once per level, so a value that is too deep is not shown.
    if is_deeper(value, MAX_DEPTH):
        return Value(None, f"nested deeper than {MAX_DEPTH} levels; the API returns it", is_tree=False, is_cut=True)
    visible = redact(value)
    text = pretty(visible)
    is_large = len(text) > MAX_TREE
    return Value(visible, text[:MAX_TREE], is_tree=not is_large, is_cut=is_large)


def is_deeper(value: Any, depth: int) -> bool:
    if not isinstance(value, Mapping | list | tuple):
        return False
    inner = value.values() if isinstance(value, Mapping) else value
    return depth == 0 or any(is_deeper(member, depth - 1) for member in inner)
