"""Parse CQL2 text into CQL2 JSON."""

import re
from typing import Any, Final, NamedTuple

from dagmaster.errors import Invalid

MAX_CHARS: Final = 4000
MAX_DEPTH: Final = 30
COMPARISONS: Final = ("=", "<>", "<=", ">=", "<", ">")
_TOKEN: Final = re.compile(
    r"""\s*(?:
        (?P<number>[+-]?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?)
      | (?P<string>'(?:[^']|'')*')
      | (?P<quoted>"[^"]+")
      | (?P<name>[A-Za-z_][\w:.-]*)
      | (?P<sign><>|<=|>=|[=<>(),])
    )""",
    re.VERBOSE,
)


class Token(NamedTuple):
    kind: str
    text: str
    place: int

    @property
    def word(self) -> str:
        """Keywords are case-insensitive."""
        return self.text.upper() if self.kind == "name" else self.text


def parse_text(text: str) -> Any:
    """Raises Invalid with the position of the error."""
    if len(text) > MAX_CHARS:
        raise Invalid(f"filter: {len(text)} characters are too many; {MAX_CHARS} are allowed")
    parser = _Parser(_tokens(text))
    expression = parser.disjunction(0)
    parser.take("end")
    return expression


def _tokens(text: str) -> list[Token]:
    tokens, place = [], 0
    text = text.rstrip()
    while place < len(text):
        match = _TOKEN.match(text, place)
        if match is None or match.lastgroup is None:
            rest = text[place:].lstrip()
            raise Invalid(f"filter: {rest[:20]!r} at character {len(text) - len(rest) + 1} cannot be read")
        tokens.append(Token(match.lastgroup, match[match.lastgroup], match.start(match.lastgroup) + 1))
        place = match.end()
    return [*tokens, Token("end", "", len(text) + 1)]


class _Parser:
    """By recursive descent: OR binds less than AND, and AND less than NOT."""

    def __init__(self, tokens: list[Token]) -> None:
        self._tokens = tokens
        self._place = 0

    @property
    def next(self) -> Token:
        return self._tokens[self._place]

    def take(self, *words: str) -> Token:
        """The next token, which must be one of these words or kinds."""
        token = self.next
        if words and token.word not in words and token.kind not in words:
            word = repr(token.text) if token.text else "the end"
            raise Invalid(f"filter: expected {' or '.join(words)} at character {token.place}, not {word}")
        self._place += 1
        return token

    def disjunction(self, depth: int) -> Any:
        if depth > MAX_DEPTH:
            raise Invalid(f"filter: more than {MAX_DEPTH} levels of parentheses")
        return self._chain("OR", lambda: self._chain("AND", lambda: self._negation(depth)))

    def _chain(self, word: str, parse: Any) -> Any:
        parts = [parse()]
        while self.next.word == word:
            self.take()
            parts.append(parse())
        return parts[0] if len(parts) == 1 else {"op": word.lower(), "args": parts}

    def _negation(self, depth: int) -> Any:
        if self.next.word == "NOT":
            self.take()
            return {"op": "not", "args": [self._primary(depth)]}
        return self._primary(depth)

    def _primary(self, depth: int) -> Any:
        if self.next.word == "(":
            self.take()
            inner = self.disjunction(depth + 1)
            self.take(")")
            return inner
        return self._predicate()

    def _predicate(self) -> Any:
        operand = self._operand()
        token = self.take(*COMPARISONS, "IS", "NOT", "LIKE", "BETWEEN", "IN")
        if token.word in COMPARISONS:
            return {"op": token.text, "args": [operand, self._operand()]}
        if token.word == "IS":
            is_not = self._skip("NOT")
            self.take("NULL")
            return _negated({"op": "isNull", "args": [operand]}, is_not)
        is_not = token.word == "NOT"
        if is_not:
            token = self.take("LIKE", "BETWEEN", "IN")
        return _negated(self._advanced(token.word, operand), is_not)

    def _advanced(self, word: str, operand: Any) -> Any:
        if word == "LIKE":
            return {"op": "like", "args": [operand, self._operand()]}
        if word == "BETWEEN":
            low = self._operand()
            self.take("AND")
            return {"op": "between", "args": [operand, low, self._operand()]}
        self.take("(")
        values = [self._operand()]
        while self._skip(","):
            values.append(self._operand())
        self.take(")")
        return {"op": "in", "args": [operand, values]}

    def _skip(self, word: str) -> bool:
        if self.next.word != word:
            return False
        self.take()
        return True

    def _operand(self) -> Any:
        token = self.take("name", "quoted", "string", "number")
        match token.kind:
            case "number":
                return float(token.text) if any(sign in token.text for sign in ".eE") else int(token.text)
            case "string":
                return token.text[1:-1].replace("''", "'")
            case "quoted":
                return {"property": token.text[1:-1]}
        if token.word in ("TRUE", "FALSE"):
            return token.word == "TRUE"
        if token.word in ("TIMESTAMP", "DATE") and self.next.word == "(":
            self.take("(")
            moment = self.take("string").text[1:-1]
            self.take(")")
            return {token.word.lower(): moment}
        return {"property": token.text}


def _negated(expression: Any, is_not: bool) -> Any:
    return {"op": "not", "args": [expression]} if is_not else expression
