"""YAML as values with line and column. Only plain data is ever constructed."""

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import yaml
from yaml.constructor import SafeConstructor

from dagmaster.model.problems import InvalidWorkflow, Problem

MAX_FILE_CHARS: Final = 1024 * 1024
MAX_VALUES: Final = 100_000
MAX_DEPTH: Final = 50
MAX_INTEGER: Final = 2**63 - 1


@dataclass(frozen=True, slots=True)
class Mark:
    """Counted from 1, as in editors."""

    line: int
    column: int


@dataclass(frozen=True, slots=True)
class Located:
    """`value` is a scalar, a list of Located, or a dict of Located by key. `text` is a scalar as it was written.

    A value that could not be read is `is_broken` and already has a problem; report nothing more about it.
    """

    value: Any
    mark: Mark
    text: str = ""
    key_mark: Mark | None = None
    is_broken: bool = False

    @property
    def plain(self) -> Any:
        match self.value:
            case dict() as entries:
                return {key: entry.plain for key, entry in entries.items()}
            case list() as items:
                return [item.plain for item in items]
            case scalar:
                return scalar


def read_yaml(text: str, file: str | None) -> tuple[Located, list[Problem]]:
    """The document and its problems. Raise InvalidWorkflow if it cannot be read at all."""
    if len(text) > MAX_FILE_CHARS:
        raise InvalidWorkflow([Problem(f"the file has more than {MAX_FILE_CHARS} characters", file=file)])
    try:
        _check_depth(text)
        root: yaml.Node | None = yaml.compose(text, Loader=_Loader)
    except yaml.YAMLError as error:
        raise InvalidWorkflow([_explain(error, text, file)]) from None
    except UnicodeEncodeError as error:
        raise InvalidWorkflow([Problem(f"the file cannot be encoded: {error.reason}", file=file)]) from None
    if root is None:
        raise InvalidWorkflow([Problem("the file is empty", file=file, line=1, column=1)])
    reader = _Reader(file)
    return reader.read(root, 0), reader.problems


# Composing

_TAGS: Final = "tag:yaml.org,2002:"
_MERGE: Final = f"{_TAGS}merge"


# The parser in C is many times faster; it is in every wheel of PyYAML, but not in every build.
_BASE: Final[Any] = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class _Loader(_BASE):  # type: ignore[misc]
    """Dates stay strings: JSON has no dates."""

    yaml_implicit_resolvers = {  # noqa: RUF012
        first: [(tag, pattern) for tag, pattern in resolvers if not tag.endswith(":timestamp")]
        for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }


def _check_depth(text: str) -> None:
    """Composing is recursive, reading events is not."""
    depth = 0
    for event in yaml.parse(text, Loader=_Loader):
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if depth > MAX_DEPTH:
            message = f"the file is nested more than {MAX_DEPTH} levels deep"
            raise yaml.composer.ComposerError(None, None, message, event.start_mark)


_UNQUOTED: Final = re.compile(r"(?:[:,\[-]\s+|^\s*)\{\{")
_QUOTE_HINT: Final = '; a value that begins with an expression must be in quotes: "{{ ... }}"'


def _explain(error: yaml.YAMLError, text: str, file: str | None) -> Problem:
    if not isinstance(error, yaml.MarkedYAMLError) or not (mark := error.problem_mark or error.context_mark):
        line = text.count("\n", 0, getattr(error, "position", 0)) + 1
        return Problem(f"not readable as YAML: {str(error).splitlines()[0]}", file=file, line=line)
    message = " ".join(filter(None, (error.context, error.problem)))
    lines = text.splitlines()
    if mark.line < len(lines) and lines[mark.line][mark.column : mark.column + 1] == "\t":
        message = "a tab is used for indentation; YAML allows only spaces"
    around = {mark.line, error.context_mark.line if error.context_mark else mark.line}
    hint = _QUOTE_HINT if any(_UNQUOTED.search(lines[n]) for n in around if n < len(lines)) else ""
    for context, sign in (("block scalar", ">"), ("scanning a tag", "!")):
        if not hint and context in message:
            hint = f"; a value that begins with {sign!r} must be in quotes"
    return Problem(f"not readable as YAML: {message}{hint}", file=file, line=mark.line + 1, column=mark.column + 1)


# Reading


class _Reader:
    def __init__(self, file: str | None) -> None:
        self.problems: list[Problem] = []
        self._file = file
        self._count = 0

    def read(self, node: yaml.Node, depth: int, key_mark: Mark | None = None) -> Located:
        self._count_up(node, depth)
        match node:
            case yaml.MappingNode() if self._has_text_keys(node):
                entries = {key: self.read(value, depth + 1, mark) for key, mark, value in self._entries(node, depth)}
                return Located(entries, _mark(node), "", key_mark)
            case yaml.SequenceNode() if self._has_tag(node, "seq"):
                return Located([self.read(item, depth + 1) for item in node.value], _mark(node), "", key_mark)
            case yaml.ScalarNode():
                known = len(self.problems)
                value = self._scalar(node)
                return Located(value, _mark(node), node.value, key_mark, is_broken=len(self.problems) > known)
            case _:
                return Located(None, _mark(node), "", key_mark, is_broken=True)

    def _count_up(self, node: yaml.Node, depth: int) -> None:
        """Aliases can make a small file expand endlessly."""
        self._count += 1
        if self._count > MAX_VALUES or depth > MAX_DEPTH:
            too = "values" if self._count > MAX_VALUES else "levels"
            raise InvalidWorkflow([self._problem(f"the file has too many {too}", node)])

    def _has_tag(self, node: yaml.Node, kind: str) -> bool:
        if node.tag != f"{_TAGS}{kind}":
            self._report(f"the tag {node.tag!r} is not supported", node)
        return node.tag == f"{_TAGS}{kind}"

    def _has_text_keys(self, node: yaml.MappingNode) -> bool:
        wrong = [key for key, _ in node.value if not isinstance(key, yaml.ScalarNode)]
        for key in wrong[:1]:
            hint = _QUOTE_HINT if isinstance(key, yaml.MappingNode) else ""
            self._report(f"a key must be a string{hint}", key)
        return not wrong and self._has_tag(node, "map")

    def _entries(self, node: yaml.MappingNode, depth: int) -> Iterator[tuple[str, Mark, yaml.Node]]:
        """Keys are strings as written, so that `true`, `on` and `1` are not converted."""
        seen: dict[str, Mark] = {}
        merged: list[yaml.Node] = []
        for key, value in node.value:
            if key.tag == _MERGE:
                merged += value.value if isinstance(value, yaml.SequenceNode) else [value]
            elif fault := _find_fault(key.value):
                self._report(f"the key {key.value!r} {fault}", key)
            elif key.value in seen:
                self._report(f"the key {key.value!r} is given twice, first on line {seen[key.value].line}", key)
            else:
                seen[key.value] = _mark(key)
                yield key.value, _mark(key), value
        yield from self._merged(merged, set(seen), depth + 1)

    def _merged(self, merged: list[yaml.Node], seen: set[str], depth: int) -> Iterator[tuple[str, Mark, yaml.Node]]:
        for source in merged:
            self._count_up(source, depth)
            if not isinstance(source, yaml.MappingNode) or not self._has_text_keys(source):
                self._report("'<<' must name a mapping", source)
                continue
            for key, mark, value in self._entries(source, depth):
                if key not in seen:
                    seen.add(key)
                    yield key, mark, value

    def _scalar(self, node: yaml.Node) -> Any:
        kind = node.tag.removeprefix(_TAGS)
        if kind not in _SCALARS:
            hint = "; a value that begins with '!' must be in quotes" if node.tag.startswith("!") else ""
            self._report(f"the tag {node.tag!r} is not supported{hint}", node)
            return None
        try:
            value = _SCALARS[kind](node)
        except (ValueError, KeyError, yaml.YAMLError):
            self._report(f"{node.value[:40]!r} cannot be read as {kind}", node)
            return None
        if fault := _find_fault(value):
            self._report(f"{node.value[:40]!r} {fault}", node)
            return None
        return value

    def _report(self, message: str, node: yaml.Node) -> None:
        self.problems.append(self._problem(message, node))

    def _problem(self, message: str, node: yaml.Node) -> Problem:
        return Problem(message, file=self._file, line=_mark(node).line, column=_mark(node).column)


def _mark(node: yaml.Node) -> Mark:
    return Mark(node.start_mark.line + 1, node.start_mark.column + 1)


def _number(construct: Any) -> Any:
    # YAML 1.1 reads 12:30 as 750.
    return lambda node: node.value if ":" in node.value else construct(node)


_CONSTRUCTOR: Final = SafeConstructor()
_SCALARS: Final = {
    "null": lambda node: None,
    "str": lambda node: node.value,
    "bool": _CONSTRUCTOR.construct_yaml_bool,
    "int": _number(_CONSTRUCTOR.construct_yaml_int),
    "float": _number(_CONSTRUCTOR.construct_yaml_float),
    "value": lambda node: node.value,
}


_NOT_STORABLE: Final = re.compile("[\0\ud800-\udfff]")


def _find_fault(value: Any) -> str | None:
    """Why JSON or PostgreSQL cannot store the value, or None."""
    match value:
        case bool() | None:
            return None
        case int() if abs(value) > MAX_INTEGER:
            return "is too large a number"
        case float() if not math.isfinite(value):
            return "is not a number that JSON supports"
        case str() if _NOT_STORABLE.search(value):
            return "contains a character that cannot be stored"
        case _:
            return None
