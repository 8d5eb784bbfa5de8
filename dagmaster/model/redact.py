"""What must not be shown: values of fields that are named like secrets, and secrets inside of addresses."""

import re
from collections.abc import Mapping
from typing import Any

HIDDEN = "***"
_NAMES = re.compile(
    r"(pass(word|wd|phrase)?|secret|token|api_?key|access_?key|account_?key|private_?key|signing_?key|credentials?"
    r"|authorization|cookie|connection_?string|sas(_?(url|token))?|(?<![a-z])pwd)$",
    re.IGNORECASE,
)
_IN_TEXT = (
    # user:password@ in an address
    (re.compile(r"(\b[a-z][a-z0-9+.-]*://[^\s/:@]*):[^\s/@]+@", re.IGNORECASE), rf"\1:{HIDDEN}@"),
    # signatures and tokens in a query or a connection string
    (
        re.compile(
            r"\b(sig|signature|x-amz-signature|x-amz-credential|token|access_token|api_?key|password|pwd|secret"
            r"|accountkey|sharedaccesskey|sharedaccesssignature)=([^&\s;\"']+)",
            re.IGNORECASE,
        ),
        rf"\1={HIDDEN}",
    ),
    (re.compile(r"\b(Bearer|Basic)\s+[A-Za-z0-9._~+/=-]{8,}", re.IGNORECASE), rf"\1 {HIDDEN}"),
    (re.compile(r"\bdm_[a-z2-7]{12}_[A-Za-z0-9_-]{20,}"), f"dm_{HIDDEN}"),
)


def redact(value: Any) -> Any:
    """The same value with secrets replaced; what holds none is given back as it is."""
    match value:
        case str():
            return redact_text(value)
        case Mapping():
            return {key: HIDDEN if _is_hidden(key, inner) else redact(inner) for key, inner in value.items()}
        case list() | tuple():
            return [redact(inner) for inner in value]
        case _:
            return value


def redact_text(text: str) -> str:
    for pattern, replacement in _IN_TEXT:
        text = pattern.sub(replacement, text)
    return text


def _is_hidden(key: object, value: object) -> bool:
    return isinstance(key, str) and bool(_NAMES.search(key)) and value not in (None, "", [], {})
