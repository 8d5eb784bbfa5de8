"""Secret values in rows: sealed references that only a worker opens, right before it calls the handler.

A reference is a string, so that expressions can pass it on, whole or inside a longer string.
"""

import json
import re
from base64 import b64encode
from collections.abc import Iterable, Mapping
from typing import Any, Final
from urllib.parse import quote

import orjson

from dagmaster.model.redact import HIDDEN, SEALED

MIN_LENGTH: Final = 4
"""A shorter value occurs by chance in any string, and cannot be hidden."""

_LIKE_SEALED: Final = re.compile(r"dms1\[", re.IGNORECASE)
_LIKE_SEALED_BYTES: Final = re.compile(rb"dms1\[", re.IGNORECASE)


class BrokenSeal(ValueError):
    """A reference that was changed, for example by a filter of an expression, or sealed with another key."""


def is_sealed(value: object) -> bool:
    return isinstance(value, str) and SEALED.fullmatch(value) is not None


def holds_sealed(value: Any) -> bool:
    """Whether a reference, or the remains of one, is anywhere in the value, at any depth."""
    stack = [value]
    while stack:
        match stack.pop():
            case str() as text if _LIKE_SEALED.search(text):
                return True
            case Mapping() as mapping:
                stack += [*mapping, *mapping.values()]
            case (list() | tuple()) as several:
                stack += several
    return False


def may_hold_sealed(*texts: bytes | None) -> bool:
    """Like `holds_sealed`, for JSON that is not decoded."""
    return any(_LIKE_SEALED_BYTES.search(text) for text in texts if text)


def references_in(*texts: bytes | None) -> set[str]:
    """All references in these JSON documents."""
    return {match[0] for text in texts if text for match in SEALED.finditer(text.decode(errors="replace"))}


def open_all(value: Any, opened: Mapping[str, str]) -> Any:
    """Replace the references by their values. Raises BrokenSeal for a reference that was changed."""
    match value:
        case str() if _LIKE_SEALED.search(value):
            references = SEALED.findall(value)
            if len(references) != len(_LIKE_SEALED.findall(value)) or not opened.keys() >= set(references):
                raise BrokenSeal(
                    "an expression changed a secret; pass it on unchanged, alone or within a longer string"
                )
            return SEALED.sub(lambda match: opened[match[0]], value)
        case Mapping():
            return {key: open_all(item, opened) for key, item in value.items()}
        case list():
            return [open_all(item, opened) for item in value]
        case _:
            return value


class Mask:
    """Removes the secrets of one task from everything that leaves it."""

    def __init__(self, opened: Mapping[str, str]) -> None:
        # Longest first: one secret may contain another.
        self._secrets = sorted(((clear, ref) for ref, clear in opened.items()), key=lambda pair: -len(pair[0]))
        self.hidden = tuple(sorted({form for clear, _ in self._secrets for form in _forms(clear)}, key=len)[::-1])

    def seal(self, encoded: bytes) -> bytes:
        """Replace the values in JSON by their references, which workers can open again."""
        for clear, reference in self._secrets:
            for form in dict.fromkeys((orjson.dumps(clear)[1:-1], json.dumps(clear)[1:-1].encode())):
                encoded = encoded.replace(form, reference.encode())
        return encoded

    def hide(self, text: str) -> str:
        for form in self.hidden:
            text = text.replace(form.decode(), HIDDEN)
        return text


def _forms(clear: str) -> Iterable[bytes]:
    """The secret as it may be printed, logged, quoted or sent."""
    yield clear.encode()
    yield orjson.dumps(clear)[1:-1]
    yield json.dumps(clear)[1:-1].encode()
    yield repr(clear)[1:-1].encode()
    yield quote(clear, safe="").encode()
    yield b64encode(clear.encode())
