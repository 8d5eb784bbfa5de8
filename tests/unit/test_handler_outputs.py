"""The output of a handler as JSON."""

import enum
import sys
import threading
import uuid
from collections import deque, namedtuple
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from types import MappingProxyType
from typing import Any

import orjson
import pytest
from pydantic import BaseModel

from dagmaster.handlers import Permanent, encode_output

LIMIT = 1_000_000


class Size(BaseModel):
    width: int
    height: int = 1


class Colour(enum.Enum):
    RED = "red"


@dataclass
class Point:
    x: float
    label: Any = None


Pair = namedtuple("Pair", "left right")


@pytest.mark.parametrize(
    "value, stored",
    [
        ("a\0b", "a\ufffdb"),
        ("\0\0", "\ufffd\ufffd"),
        ("speaks of \\u0000", "speaks of \\u0000"),
        ("\\\0", "\\\ufffd"),
        ("lone \ud800", "lone \ufffd"),
        ("pair \ud83d\ude00", "pair 😀"),
        (float("nan"), None),
        (float("-inf"), None),
        (datetime(2024, 5, 6, 7, 8, tzinfo=UTC), "2024-05-06T07:08:00+00:00"),
        (timedelta(minutes=1), 60.0),
        (uuid.UUID(int=1), "00000000-0000-0000-0000-000000000001"),
        (Path("/data/a.tif"), "/data/a.tif"),
        (Decimal("1.10"), 1.1),
        (Decimal("NaN"), None),
        (Decimal("1E+9999"), "1E+9999"),
        ({3, 1, 2}, [1, 2, 3]),
        (frozenset({"b", 1}), ["b", 1]),
        (b"\xff\x00", "/wA="),
        (Colour.RED, "red"),
        (Point(1.0, Path("p")), {"x": 1.0, "label": "p"}),
        (Size(width=1), {"width": 1, "height": 1}),
        (Pair(1, 2), {"left": 1, "right": 2}),
        (MappingProxyType({"a": 1}), {"a": 1}),
        (deque([1, 2]), [1, 2]),
        (range(3), [0, 1, 2]),
        ((1, (2,)), [1, [2]]),
        ({1: "a", None: "b", False: "c"}, {"1": "a", "null": "b", "false": "c"}),
        ({Path("k"): 1}, {"k": 1}),
        ({"a\0": {"\ud800": 1}}, {"a\ufffd": {"\ufffd": 1}}),
        (Point(1.0, "\ud800"), {"x": 1.0, "label": "\ufffd"}),
        ([{"deep": ("\ud800", {1}, Decimal(2))}], [{"deep": ["\ufffd", [1], 2]}]),
    ],
)
def test_output_is_converted_to_json(value, stored):
    assert orjson.loads(encode_output({"value": value}, LIMIT)) == {"value": stored}


def test_numbers_keep_full_precision():
    assert encode_output({"a": Decimal("0.10"), "b": 2**64 - 1}, LIMIT) == b'{"a":0.10,"b":18446744073709551615}'


def test_an_integer_beyond_double_precision_is_refused():
    with pytest.raises(Permanent, match=r"output\.b\[1\]: an integer of more than 64 bits"):
        encode_output({"b": [1, 3**50]}, LIMIT)


@pytest.mark.parametrize(
    "output, message",
    [
        ({"a": [{"model": object()}]}, r"cannot store output\.a\[0\]\.model: a object is not JSON"),
        ({"a": threading.Lock()}, r"cannot store output\.a: a lock"),
        ({"a": {(1, 2): 3}}, r"cannot store output\.a: a tuple cannot be a key"),
        ({"a": Point(1, Path)}, r"cannot store output\.a\.label: a type"),
        ({"a": sys.modules}, "is not JSON"),
    ],
)
def test_a_value_that_is_not_json_fails_permanently_and_is_named(output, message):
    with pytest.raises(Permanent, match=message):
        encode_output(output, LIMIT)


def test_a_circular_structure_is_refused():
    circle: list[Any] = []
    circle.append({"again": circle})
    with pytest.raises(Permanent, match="in a circle"):
        encode_output({"circle": circle}, LIMIT)


def test_an_output_over_the_limit_is_refused_with_both_sizes():
    assert len(encode_output({"a": "x" * 992}, 1000)) == 1000
    with pytest.raises(Permanent, match=r"the output has 1,001 bytes; the limit is 1,000. Store large results"):
        encode_output({"a": "x" * 993}, 1000)


def test_numpy_values_are_converted_to_numbers_and_lists():
    np = pytest.importorskip("numpy")
    output = {
        "scalar": np.float32(0.5),
        "array": np.arange(6).reshape(2, 3),
        "strided": np.arange(6)[::2],
        "text": np.array(["a"]),
        np.int64(3): np.nan,
    }
    expected = {"scalar": 0.5, "array": [[0, 1, 2], [3, 4, 5]], "strided": [0, 2, 4], "text": ["a"], "3": None}
    assert orjson.loads(encode_output(output, LIMIT)) == expected
