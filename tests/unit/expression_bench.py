"""A scope for expressions, and helpers that evaluate in it."""

from collections.abc import Mapping
from typing import Any

import pytest

from dagmaster.errors import ExpressionFailed
from dagmaster.model.expressions import compile_template
from dagmaster.model.sandbox import ExpressionSyntax

SCOPE: dict[str, Any] = {
    "inputs": {
        "x": 1,
        "name": "Ada",
        "path": "in/tile.TIF",
        "flag": True,
        "nothing": None,
        "numbers": [3, 1, 2],
        "nested": {"list": [{"z": 9}], "my key": "spaced"},
        **{word: f"the {word}" for word in ("items", "keys", "values", "get", "update", "pop", "clear", "copy")},
        "setdefault": "the setdefault",
    },
    "nodes": {
        "a": {"status": "completed", "output": {"rows": [{"id": 1}, {"id": 2}], "0": "zero"}},
        "my-task": {"status": "completed", "output": {"n": 5}},
        "skipped": {"status": "skipped", "output": None},
    },
    "env": {"HOME": "/home/me"},
    "item": {"bbox": [1.5, 2.5], "a": {"b": "c"}},
    "index": 7,
    "fan_out": {"item": "i", "index": 7, "total": 9},
}


def resolve(raw: Any, scope: Mapping[str, Any] = SCOPE) -> Any:
    return compile_template(raw).resolve(scope)


def why_it_fails(raw: Any, scope: Mapping[str, Any] = SCOPE) -> str:
    with pytest.raises(ExpressionFailed) as caught:
        resolve(raw, scope)
    return str(caught.value)


def why_it_is_refused(raw: Any) -> str:
    with pytest.raises(ExpressionSyntax) as caught:
        compile_template(raw)
    return str(caught.value)
