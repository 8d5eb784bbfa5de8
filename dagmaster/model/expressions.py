"""Values with `{{ expressions }}` inside: compiled once, resolved against a job's data.

A string that is exactly one expression keeps the native type of its value; white space around it does not count. In
mixed text `null` becomes the empty string, booleans become `true` and `false`, lists and objects become JSON.
Inserted text is never rendered again.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from dagmaster.model.operations import join_bounded, to_text
from dagmaster.model.problems import shorten
from dagmaster.model.references import Key, Reference, Scope, look_up, parse_path
from dagmaster.model.sandbox import ExpressionSyntax, compile_expression

Path = tuple[Key, ...]
Evaluate = Callable[[Scope], Any]

MAX_TEMPLATE_CHARS: Final = 16 * 1024
MAX_VALUE_DEPTH: Final = 100


@dataclass(frozen=True, slots=True)
class Template:
    """A value of any JSON shape. `guarded` are the references that occur only under a default."""

    raw: Any = field(hash=False)
    references: frozenset[Reference] = frozenset()
    guarded: frozenset[Reference] = frozenset()
    _evaluate: Evaluate | None = field(default=None, repr=False, compare=False)

    def resolve(self, scope: Scope) -> Any:
        """Raise ExpressionFailed. Constant parts are shared between results: do not modify the returned value."""
        return self.raw if self._evaluate is None else self._evaluate(scope)


def compile_template(raw: Any) -> Template:
    """Raise ExpressionSyntax with the path of the first wrong expression."""
    usage = _Usage()
    evaluate = _compile_value(raw, (), usage)
    return Template(raw, frozenset(usage.strict | usage.guarded), frozenset(usage.guarded - usage.strict), evaluate)


def returned_value(returns: Any, outputs: Mapping[str, Any], inputs: Mapping[str, Any]) -> Any:
    """The return value of a workflow function, with the outputs of nodes in place of its tasks.

    Raises ExpressionFailed for missing results.
    """
    nodes = {name: {"output": output} for name, output in outputs.items()}
    return compile_template(returns).resolve({"inputs": inputs, "nodes": nodes})


def walk_strings(raw: Any, path: Path = ()) -> Iterator[tuple[Path, str]]:
    """Every string in the value with its path, down to the depth that a template may have."""
    match raw:
        case str():
            yield path, raw
        case dict() | list() | tuple() if len(path) > MAX_VALUE_DEPTH:
            return
        case dict():
            for key, value in raw.items():
                yield from walk_strings(value, (*path, key))
        case list() | tuple():
            for index, value in enumerate(raw):
                yield from walk_strings(value, (*path, index))


# Values


@dataclass(slots=True)
class _Usage:
    strict: set[Reference] = field(default_factory=set)
    guarded: set[Reference] = field(default_factory=set)


def _compile_value(raw: Any, path: Path, usage: _Usage) -> Evaluate | None:
    """None for a value without expressions."""
    if len(path) > MAX_VALUE_DEPTH:
        raise ExpressionSyntax(f"the value is nested more than {MAX_VALUE_DEPTH} levels deep", path[:1])
    match raw:
        case str():
            return _compile_text(raw, path, usage) if "{" in raw else None
        case dict():
            return _filled(dict, raw, _compile_parts(raw.items(), path, usage))
        case list() | tuple():
            return _filled(list, raw, _compile_parts(enumerate(raw), path, usage))
        case _:
            return None


def _compile_parts(parts: Any, path: Path, usage: _Usage) -> list[tuple[Key, Evaluate]]:
    compiled = []
    for key, value in parts:
        if isinstance(key, str) and "{{" in key:
            raise ExpressionSyntax(f"the key {key!r} contains an expression; only values can", (*path, key))
        if evaluate := _compile_value(value, (*path, key), usage):
            compiled.append((key, evaluate))
    return compiled


def _filled(kind: Callable[[Any], Any], raw: Any, parts: list[tuple[Key, Evaluate]]) -> Evaluate | None:
    """A copy of the value; only the parts with expressions are evaluated."""
    if not parts:
        return None

    def evaluate(scope: Scope) -> Any:
        filled = kind(raw)
        for key, part in parts:
            filled[key] = part(scope)
        return filled

    return evaluate


def _compile_text(text: str, path: Path, usage: _Usage) -> Evaluate | None:
    try:
        pieces = split_expressions(text)
        if not any(piece.is_expression for piece in pieces):
            return None
        meaningful = [piece for piece in pieces if piece.is_expression or piece.text.strip()]
        if len(meaningful) == 1:
            return _compile_piece(meaningful[0], usage)
        return _joined([_compile_piece(piece, usage) if piece.is_expression else piece.text for piece in pieces])
    except ExpressionSyntax as error:
        error.path = path
        raise


def _joined(pieces: list[str | Evaluate]) -> Evaluate:
    def evaluate(scope: Scope) -> str:
        return join_bounded([piece if isinstance(piece, str) else to_text(piece(scope)) for piece in pieces])

    return evaluate


def _compile_piece(piece: "Piece", usage: _Usage) -> Evaluate:
    if reference := parse_path(piece.text):
        usage.strict.add(reference)
        return _path_reader(reference)
    expression = compile_expression(piece.text)
    usage.strict |= expression.strict
    usage.guarded |= expression.guarded
    return expression


def _path_reader(reference: Reference) -> Evaluate:
    keys = (reference.root, *reference.path)

    def evaluate(scope: Scope) -> Any:
        value: Any = scope
        try:
            for key in keys:
                value = value[key]
        except (KeyError, IndexError, TypeError):
            return look_up(reference, scope)
        return value

    return evaluate


# Splitting a string into its expressions


@dataclass(frozen=True, slots=True)
class Piece:
    """An expression between double braces, or the text between two expressions."""

    text: str
    is_expression: bool


_STATEMENT = re.compile(r"\{%.*?%\}|\{#.*?#\}", re.DOTALL)
_INSIDE = re.compile(r"""'(?:\\.|[^'\\])*'|"(?:\\.|[^"\\])*"|[{}]""", re.DOTALL)


def split_expressions(text: str) -> list[Piece]:
    """The pieces in order. Joined, they are the original string, except for white space inside the braces."""
    pieces: list[Piece] = []
    position = 0
    while (start := text.find("{{", position)) >= 0:
        end = find_closing(text, start + 2)
        pieces += _literal(text[position:start])
        pieces.append(Piece(text[start + 2 : end].strip(), True))
        position = end + 2
    pieces += _literal(text[position:])
    if pieces and position and len(text) > MAX_TEMPLATE_CHARS:
        raise ExpressionSyntax(
            f"a string with expressions may have at most {MAX_TEMPLATE_CHARS} characters, not {len(text)}"
        )
    return pieces


def _literal(text: str) -> list[Piece]:
    if statement := _STATEMENT.search(text):
        raise ExpressionSyntax(f"{shorten(statement[0])} is not supported, only {{{{ expressions }}}} are")
    return [Piece(text, False)] if text else []


def find_closing(text: str, start: int) -> int:
    """The position of the braces that close those opened before `start`."""
    depth = 0
    for token in _INSIDE.finditer(text, start):
        if token[0] == "{":
            depth += 1
        elif token[0] == "}" and depth:
            depth -= 1
        elif token[0] == "}" and text.startswith("}}", token.start()):
            return token.start()
    raise ExpressionSyntax(f"the braces are never closed in {shorten(text[start - 2 :])!r}")
