"""Hide secrets: values of fields with secret names, and secrets inside strings."""

import re
from collections.abc import Mapping
from typing import Any

HIDDEN = "***"
# A sealed secret (`dagmaster.model.sealed`). The brackets delimit it, whatever an expression writes around it.
SEALED = re.compile(r"dms1\[[A-Za-z0-9_-]{22,}\]")

_HUMP = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
# Matches names in snake case, at their end: `max_tokens` and `secret_name` are no secrets.
_SECRET_NAME = re.compile(
    r"((password|passwd|passphrase|secret|credential)s?|authorization|(api|access|account|private|signing|shared)_?keys?"
    r"|connection_?string|(^|_)(pass|pwd|cookie|sas(_?(url|uri))?)|(access|auth|refresh|bearer|api)_?tokens|token)"
    r"(_(hash|value|base64|b64))?$"
)
_TOKEN_NAME = re.compile(r"tokens?$")
_NAMES_IN_TEXT = (
    r"sig|signature|x-amz-signature|x-amz-credential|x-amz-security-token|x-api-key|authorization|token|api_?key"
    r"|password|passwd|pgpassword|pwd|secret|secret_?key|private_?key|access_?key|account_?key|shared_?access_?key"
    r"|sharedaccesssignature"
)
_IN_TEXT = (
    (SEALED, HIDDEN),
    # user:password@ in a URL. The length of the scheme is bounded, so that long strings of letters and dots stay cheap.
    (re.compile(r"(\b[a-z][a-z0-9+.-]{0,30}://[^\s/:@]{0,200}):[^\s/?#]+@", re.IGNORECASE), rf"\1:{HIDDEN}@"),
    # name=value in a query, a connection string or an environment
    (re.compile(rf"(?<![a-z0-9])({_NAMES_IN_TEXT})=(?!\*)[^&\s;\"',]+", re.IGNORECASE), rf"\1={HIDDEN}"),
    # "name": "value" in JSON or a printed dict
    (
        re.compile(
            rf"([\"'](?:[a-z0-9]{{1,30}}[_-])*(?:{_NAMES_IN_TEXT})[\"']\s*:\s*)"
            r"([\"'])(?:(?!\2)[^\\]|\\.)*\2",
            re.IGNORECASE | re.DOTALL,
        ),
        rf"\1\2{HIDDEN}\2",
    ),
    # Not every "basic something": only base64, tokens, and strings longer than a word.
    (
        re.compile(
            r"\b((?i:bearer|basic))\s+(?=\S*[\d=]|[A-Za-z]*[a-z][A-Z]|[A-Za-z]*[A-Z]{2}|\S{24})[A-Za-z0-9._~+/=-]{8,}"
        ),
        rf"\1 {HIDDEN}",
    ),
    (re.compile(r"\bdm_[a-z2-7]{12}_[A-Za-z0-9_-]{20,}"), f"dm_{HIDDEN}"),
    (re.compile(r"\bdmt_[A-Za-z0-9_-]{20,}"), f"dmt_{HIDDEN}"),
)
# Every pattern needs one of these characters; most strings are a single word.
_MARKS = re.compile(r"[\[:=_\s]")


def redact(value: Any) -> Any:
    """Replace secrets in the value."""
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
    if _MARKS.search(text) is None:
        return text
    for pattern, replacement in _IN_TEXT:
        text = pattern.sub(replacement, text)
    return text


def _is_hidden(key: object, value: object) -> bool:
    if not isinstance(key, str) or isinstance(value, bool) or value in (None, "", [], {}):
        return False
    name = _HUMP.sub("_", key).replace("-", "_").lower()
    if _SECRET_NAME.search(name) is None:
        return False
    # A number of tokens is a count; a number as a password is a password.
    return not (isinstance(value, int | float) and _TOKEN_NAME.search(name))
