"""Conditions of branches: parsed once, evaluated on typed values, never on rendered text."""

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Final

from dagmaster.model.comparisons import COMPARISONS, Warn, is_true, read_literal
from dagmaster.model.expressions import MAX_TEMPLATE_CHARS, Template, compile_template, find_closing
from dagmaster.model.operations import to_text
from dagmaster.model.problems import shorten
from dagmaster.model.references import PATH_PATTERN, Reference, Scope, parse_path
from dagmaster.model.sandbox import ExpressionSyntax, Incomparable

Read = Callable[[Scope, Warn], Any]
Judge = Callable[[Scope, Warn], tuple[bool, Any]]

MAX_NESTING: Final = 40


@dataclass(frozen=True, slots=True)
class Verdict:
    """`value` is the left side of a comparison, or the result of a combination."""

    matched: bool
    warning: str | None = None
    value: Any = None


@dataclass(frozen=True, slots=True)
class Condition:
    """`guarded` are the references that occur only under a default."""

    text: str
    references: frozenset[Reference]
    guarded: frozenset[Reference]
    _judge: Judge = field(repr=False, compare=False)

    def evaluate(self, scope: Scope) -> Verdict:
        """Raise ExpressionFailed for a missing reference. Values without an order do not match, with a warning."""
        warnings: list[str] = []
        matched, value = self._judge(scope, warnings.append)
        return Verdict(matched, "; ".join(warnings) or None, value)


def compile_condition(text: str, *, subject: str | None = None) -> Condition:
    """Raise ExpressionSyntax. With a subject, a comparison may leave out its left side: `> 10`."""
    if len(text) > MAX_TEMPLATE_CHARS:
        raise ExpressionSyntax(f"a condition may have at most {MAX_TEMPLATE_CHARS} characters, not {len(text)}")
    parser = _Parser(text, None if subject is None else _parse_subject(subject))
    judge = parser.parse()
    every = frozenset[Reference]().union(*(template.references for template in parser.templates))
    strict = {reference for template in parser.templates for reference in template.references - template.guarded}
    return Condition(text, every, every - strict, judge)


# Tokens

_TOKEN = re.compile(
    r"""(?P<string>'(?:\\.|[^'\\])*'|"(?:\\.|[^"\\])*")
      | (?P<operator>==|!=|<=|>=|<|>)
      | (?P<mark>[()\[\],])
      | (?P<check>is_null|is_not_null)\b(?:\(\))?
      | (?P<word>[^\s()\[\]<>=!'",{}]+)""",
    re.VERBOSE,
)
_KEYWORDS: Final = frozenset({"and", "or", "not", "in", "not_in", "contains", "starts_with", "ends_with"})
_MEANT: Final = {"&&": "and", "||": "or", "!": "not", "=": "=="}


@dataclass(frozen=True, slots=True)
class _Token:
    kind: str
    text: str
    start: int
    end: int


def _tokenize(text: str) -> list[_Token]:
    tokens: list[_Token] = []
    position = 0
    while position < len(text):
        if text[position].isspace():
            position += 1
        else:
            tokens.append(_next_token(text, position))
            position = tokens[-1].end
    return tokens


def _next_token(text: str, start: int) -> _Token:
    if text.startswith("{{", start):
        end = find_closing(text, start + 2) + 2
        return _Token("expression", text[start:end], start, end)
    if path := _find_bare_path(text, start):
        return _Token("expression", f"{{{{ {path} }}}}", start, start + len(path))
    match = _TOKEN.match(text, start)
    if not match or match[0] in _MEANT:
        raise _unexpected(match[0] if match else text[start], text)
    kind = str(match.lastgroup)
    if kind == "word" and match[0].lower() in _KEYWORDS:
        return _Token("keyword", match[0].lower(), start, match.end())
    return _Token(kind, match[kind], start, match.end())


def _find_bare_path(text: str, start: int) -> str | None:
    """A reference without braces. `inputs` alone and `inputs.a/b` are words."""
    path, word = PATH_PATTERN.match(text, start), _TOKEN.match(text, start)
    if not path or not word or path.end() < word.end():
        return None
    reference = parse_path(path[0])
    return path[0] if reference and reference.path else None


def _unexpected(part: str, text: str) -> ExpressionSyntax:
    hint = f"; use {_MEANT[part]!r}" if part in _MEANT else ""
    return ExpressionSyntax(f"{part!r} is not expected in the condition {shorten(text)!r}{hint}")


# Operands


@dataclass(frozen=True, slots=True)
class _Operand:
    read: Read
    template: Template | None = None
    is_bare_text: bool = False


def _parse_subject(subject: str) -> _Operand:
    text = subject.strip()
    reference = parse_path(text)
    if not reference and not text.startswith("{{"):
        raise ExpressionSyntax(f"{shorten(subject)!r} is not a reference; write '{{{{ nodes.<id>.output.<field> }}}}'")
    return _from_expression(f"{{{{ {text} }}}}" if reference else text)


def _from_expression(text: str) -> _Operand:
    template = compile_template(text)

    def read(scope: Scope, warn: Warn) -> Any:
        try:
            return template.resolve(scope)
        except Incomparable as error:
            warn(f"{error} and counts as false")
            return False

    return _Operand(read, template)


def _from_string(quoted: str) -> _Operand:
    text = re.sub(r"\\(.)", r"\1", quoted[1:-1])
    if "{{" not in text:
        return _constant(text)
    template = compile_template(text)
    return _Operand(lambda scope, warn: to_text(template.resolve(scope)), template)


def _constant(value: Any, *, is_bare_text: bool = False) -> _Operand:
    return _Operand(lambda scope, warn: value, is_bare_text=is_bare_text)


# Judgements


def _check(operand: _Operand, is_met: Callable[[Any], bool]) -> Judge:
    def judge(scope: Scope, warn: Warn) -> tuple[bool, Any]:
        value = operand.read(scope, warn)
        return is_met(value), value

    return judge


def _comparison(left: _Operand, operator: str, right: _Operand) -> Judge:
    compare = COMPARISONS[operator]

    def judge(scope: Scope, warn: Warn) -> tuple[bool, Any]:
        value = left.read(scope, warn)
        return compare(value, right.read(scope, warn), warn), value

    return judge


def _negation(part: Judge) -> Judge:
    def judge(scope: Scope, warn: Warn) -> tuple[bool, Any]:
        matched = not part(scope, warn)[0]
        return matched, matched

    return judge


# The grammar, from weak to strong: or, and, not, comparison, operand


class _Parser:
    def __init__(self, text: str, subject: _Operand | None) -> None:
        self.templates: list[Template] = []
        self._text = text
        self._subject = self._noted(subject) if subject else None
        self._tokens = _tokenize(text)
        self._position = 0

    def parse(self) -> Judge:
        if not self._tokens:
            raise ExpressionSyntax("the condition is empty")
        if sum(token.text in ("(", "[", "not") for token in self._tokens) > MAX_NESTING:
            raise ExpressionSyntax(f"the condition has more than {MAX_NESTING} brackets and negations")
        judge = self._either()
        if extra := self._peek():
            raise _unexpected(extra.text, self._text)
        return judge

    def _either(self) -> Judge:
        return self._combined("or", self._both, any)

    def _both(self) -> Judge:
        return self._combined("and", self._not, all)

    def _combined(self, keyword: str, parse: Callable[[], Judge], combine: Callable[[Iterable[bool]], bool]) -> Judge:
        parts = [parse()]
        while self._take("keyword", keyword):
            parts.append(parse())
        if len(parts) == 1:
            return parts[0]

        def judge(scope: Scope, warn: Warn) -> tuple[bool, Any]:
            matched = combine(part(scope, warn)[0] for part in parts)
            return matched, matched

        return judge

    def _not(self) -> Judge:
        return _negation(self._not()) if self._take("keyword", "not") else self._comparison()

    def _comparison(self) -> Judge:
        if self._take("mark", "("):
            judge = self._either()
            self._expect(")")
            return judge
        left = self._subject if self._subject and self._at_operator() else self._operand()
        if check := self._take("check"):
            is_expected = check.text == "is_null"
            return _check(left, lambda value: (value is None) is is_expected)
        if operator := self._operator():
            right = self._operand()
            self._refuse_constant(left, right)
            return _comparison(left, operator, right)
        if self._subject and not left.template:
            return _comparison(self._subject, "==", left)
        self._refuse_constant(left, left)
        return _check(left, is_true)

    def _refuse_constant(self, left: _Operand, right: _Operand) -> None:
        if left.is_bare_text and not right.template:
            example = "'{{ inputs.kind }} == raster'"
            raise ExpressionSyntax(
                f"the condition {shorten(self._text)!r} refers to nothing; write for example {example}"
            )

    def _at_operator(self) -> bool:
        token = self._peek()
        return token is not None and (token.kind in ("operator", "check") or _is_comparing(token))

    def _operator(self) -> str | None:
        token, following = self._peek(), self._peek(1)
        if token and (token.kind == "operator" or _is_comparing(token)):
            self._position += 1
            return token.text
        if token and token.text == "not" and following and following.text == "in":
            self._position += 2
            return "not_in"
        return None

    def _operand(self) -> _Operand:
        if self._take("mark", "["):
            return self._list()
        if token := self._take("expression"):
            return self._noted(_from_expression(token.text))
        if token := self._take("string"):
            return self._noted(_from_string(token.text))
        return self._bare()

    def _list(self) -> _Operand:
        members: list[_Operand] = []
        while not self._take("mark", "]"):
            if members:
                self._expect("," if self._peek() else "]")
            members.append(self._operand())
        return _Operand(lambda scope, warn: [member.read(scope, warn) for member in members])

    def _bare(self) -> _Operand:
        """Unquoted words up to the next operator are one string."""
        words = []
        while word := self._take("word"):
            words.append(word)
        if not words:
            if extra := self._peek():
                raise _unexpected(extra.text, self._text)
            raise ExpressionSyntax(f"the condition {shorten(self._text)!r} is not complete")
        value = read_literal(self._text[words[0].start : words[-1].end])
        return _constant(value, is_bare_text=isinstance(value, str))

    def _noted(self, operand: _Operand) -> _Operand:
        if operand.template:
            self.templates.append(operand.template)
        return operand

    def _peek(self, ahead: int = 0) -> _Token | None:
        position = self._position + ahead
        return self._tokens[position] if position < len(self._tokens) else None

    def _take(self, kind: str, text: str | None = None) -> _Token | None:
        token = self._peek()
        if token is None or token.kind != kind or text not in (None, token.text):
            return None
        self._position += 1
        return token

    def _expect(self, mark: str) -> None:
        if not self._take("mark", mark):
            raise ExpressionSyntax(f"{mark!r} is missing in the condition {shorten(self._text)!r}")


def _is_comparing(token: _Token) -> bool:
    return token.kind == "keyword" and token.text in COMPARISONS
