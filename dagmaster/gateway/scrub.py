"""Remove internals from results and errors: ids, host names, paths, SQL and tracebacks."""

import re
from collections.abc import Iterable, Mapping
from typing import Any, Final

from dagmaster.model.asset import EXPORT_OUTPUTS, VERSION_OUTPUTS
from dagmaster.model.redact import HIDDEN, redact_text

MAX_DEPTH: Final = 100
# The locations of a partner's data; paths in these fields are meant for the partner.
OUTPUTS: Final = frozenset({*VERSION_OUTPUTS, *EXPORT_OUTPUTS})

_HUMP = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
# Words in snake_case names.
_PLACES = (
    r"(\w+_)?(worker|owner|orchestrator|instance)_?ids?|owner|owner_epoch|worker|orchestrator"
    r"|(\w+_)?(host|host_?name|host_key)|pid|(\w+_)?(trace_?back|stack_?trace|stack)|log_path|callback_url"
)
_OPERATIONAL_NAME = re.compile(_PLACES)
_INTERNAL_NAME = re.compile(
    rf"{_PLACES}|(\w+_)?(job|task|node|correlation|trace|span|group|attempt)_?ids?|parent_(job|task|node|group)\w*"
    r"|_?provenance|(\w+_)?trace_?parent"
)
_TRACEBACK = re.compile(r"Traceback \(most recent call last\):\n?(?:[ \t]+.*(?:\n|$)|\n)*")
_FRAME = re.compile(r"^[ \t]*File \"[^\"\n]*\", line \d+.*(?:\n[ \t]{4,}.*)*\n?", re.MULTILINE)
_SQL_EXCERPT = re.compile(r"^(?:LINE \d+:.*|[ \t]*\^[ \t]*|CONTEXT: .*|QUERY: .*|STATEMENT: .*)\n?", re.MULTILINE)
_SQL = re.compile(
    r"(?:\bSELECT\b[^;]{0,2000}?\bFROM\b|\bINSERT\s+INTO\b|\bUPDATE\s+\S+\s+SET\b|\bDELETE\s+FROM\b|\bTRUNCATE\s+(?:TABLE\b)?"
    r"|\b(?:CREATE|ALTER|DROP)\s+(?:TABLE|INDEX|SCHEMA|VIEW|ROLE|FUNCTION|TYPE|DATABASE)\b|\bWITH\s+\w+\s+AS\s*\("
    r"|(?i:\bselect\s[^;]{0,2000}?\sfrom\s+\w+\.\w+|\binsert\s+into\s+\S+\s*(?:\(|values\b|select\b)"
    r"|\bupdate\s+\w+\.\w+\s+set\b|\bdelete\s+from\s+\w+\.\w+))[^;]*;?"
)
_TABLE = re.compile(r"\bdagapp\.\w+|\bdag_\w+")
_SERVER = re.compile(r"\b(?:postgres(?:ql)?|amqps?|rediss?|sb|mysql|clickhouse)://[^\s\"'<>]+", re.IGNORECASE)
_HOST = re.compile(
    r"\b[a-z0-9](?:[a-z0-9-]{0,62}\.){1,8}(?:internal|local|localdomain|lan|corp|intranet|svc|home\.arpa)\b(?::\d+)?"
    r"|\blocalhost(?::\d+)?|\b(?:\d{1,3}\.){3}\d{1,3}(?::\d+)?\b|(?<![\w:])\[?(?:[0-9a-f]{0,4}:){3,7}[0-9a-f]{0,4}\]?(?![\w:])",
    re.IGNORECASE,
)
_NAMED_HOST = re.compile(
    r"\b(host(?:name)?|server at|worker|orchestrator)([ =:]+)([\"']?)(?=\w*[\d-])[\w.-]+\3", re.IGNORECASE
)
_PATH = re.compile(r"(?<![\w:/.~*-])(?:file://)?/(?:[\w.@+~-]+/)+[\w.@+~-]*|\b[A-Za-z]:\\[^\s\"'<>|]+")
_TASK_ID = re.compile(r"(?<!\d)\d{15,19}_[^\s\"',;:)]+")
# A number of 15 to 19 digits may be an internal id, unless it is part of a hash or the decimals of a number.
_ID = re.compile(r"(?P<kept>(?<![0-9a-zA-Z])[0-9a-fA-F]{32,}(?![0-9a-zA-Z])|\d+\.\d+)|(?<!\d)\d{15,19}(?!\d)")
_FIRST_ID, _LAST_ID = 10**14, 10**19


class Scrubber:
    """Removes everything that looks internal, and the names of known machines.

    Operators need the ids of jobs, nodes and tasks: `hides_ids=False` keeps them.
    """

    def __init__(self, hosts: Iterable[str] = (), *, hides_ids: bool = True) -> None:
        self._hides_ids = hides_ids
        self._names = _INTERNAL_NAME if hides_ids else _OPERATIONAL_NAME
        names = sorted({host for host in hosts if len(host) > 1}, key=len, reverse=True)
        words = "|".join(re.escape(name) for name in names)
        self._hosts = re.compile(rf"(?<![\w.-])(?:{words})(?![\w-])", re.IGNORECASE) if words else None

    def value(self, value: Any) -> Any:
        """The data without internals, at any depth."""
        return self._value(value, "", MAX_DEPTH)

    def text(self, text: str) -> str:
        return self._text(text, is_output=False)

    def _value(self, value: Any, name: str, depth: int) -> Any:
        match value:
            case str():
                return self._text(value, is_output=name in OUTPUTS)
            case Mapping() | list() | tuple() if depth == 0:
                return HIDDEN
            case Mapping():
                return {
                    self.text(str(key)): self._value(inner, str(key), depth - 1)
                    for key, inner in value.items()
                    if not self.is_internal(str(key))
                }
            case list() | tuple():
                return [self._value(inner, name, depth - 1) for inner in value]
            case int() if self._hides_ids and not isinstance(value, bool) and _FIRST_ID <= value < _LAST_ID:
                return HIDDEN
            case _:
                return value

    def _text(self, text: str, *, is_output: bool) -> str:
        text = _TRACEBACK.sub("", redact_text(text))
        text = _SQL_EXCERPT.sub("", _FRAME.sub("", text))
        for pattern in (_SQL, _TABLE, _SERVER):
            text = pattern.sub(HIDDEN, text)
        if self._hides_ids:
            text = _ID.sub(lambda match: match["kept"] or HIDDEN, _TASK_ID.sub(HIDDEN, text))
            text = text if is_output else _PATH.sub(HIDDEN, text)
        text = _NAMED_HOST.sub(rf"\1\2{HIDDEN}", _HOST.sub(HIDDEN, text))
        return self._hosts.sub(HIDDEN, text) if self._hosts is not None else text

    def is_internal(self, name: str) -> bool:
        """Whether a field of this name is internal, whatever its value."""
        return self._names.fullmatch(_HUMP.sub("_", name).replace("-", "_").lower()) is not None
