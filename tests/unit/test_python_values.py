from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from enum import Enum, IntEnum
from pathlib import Path
from typing import Any
from uuid import UUID

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from dagmaster.data import Object, View, col
from dagmaster.data.references import ObjectRef, ViewRef, plan_of
from dagmaster.errors import Invalid
from dagmaster.handlers import encode_output
from dagmaster.python.values import decode, encode


class Colour(Enum):
    RED = "red"


class Level(IntEnum):
    HIGH = 3


@dataclass
class Point:
    x: int
    at: datetime


class Box(BaseModel):
    name: str
    corners: list[Point] = []


NOON = datetime(2026, 3, 29, 12, tzinfo=UTC)
EXAMPLES: list[tuple[Any, Any]] = [
    (Point(3, NOON), Point),
    (Box(name="b", corners=[Point(1, NOON)]), Box),
    ([Box(name="b")], list[Box]),
    ({"a": Point(1, NOON)}, dict[str, Point]),
    ({1: "one"}, dict[int, str]),
    ((1, "a"), tuple[int, str]),
    ({3, 1}, set[int]),
    (Colour.RED, Colour),
    (Level.HIGH, Level),
    (NOON, datetime),
    (date(2026, 2, 28), date),
    (timedelta(minutes=90), timedelta),
    (Path("a/b"), Path),
    (UUID(int=7), UUID),
    (b"\x00\xff", bytes),
    (None, int | None),
    (ObjectRef(table_id=12), ObjectRef),
    (ViewRef(table_id=12, offset=5, limit=10, where={"a": 1}), ObjectRef | ViewRef),
]


@pytest.mark.parametrize(("value", "annotation"), EXAMPLES, ids=lambda value: type(value).__name__)
def test_a_value_is_decoded_to_its_annotation(value: Any, annotation: Any) -> None:
    encoded = encode(value)
    assert orjson.loads(orjson.dumps(encoded)) == encoded, "it is plain JSON"
    assert decode(encoded, annotation) == value


@pytest.mark.parametrize(("value", "annotation"), EXAMPLES, ids=lambda value: type(value).__name__)
def test_a_result_is_decoded_like_an_argument(value: Any, annotation: Any) -> None:
    stored = orjson.loads(encode_output({"result": value}, 10_000))
    assert decode(stored["result"], annotation) == value


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(JSON)
def test_json_is_passed_unchanged(value: Any) -> None:
    assert encode(value) == value
    assert decode(value, Any) == value


def test_references_are_recognised_without_an_annotation() -> None:
    view = ViewRef(table_id="42", where=["a", "=", 1])
    assert encode(view) == {"object_type": "view", "table_id": "42", "where": ["a", "=", 1]}
    [table] = decode({"parts": [encode(view)]}, Any)["parts"]
    assert isinstance(table, View)
    assert table.plan == plan_of(view)


def test_sql_in_a_reference_is_refused() -> None:
    with pytest.raises(Invalid, match="`where` is not SQL text"):
        decode([{"object_type": "view", "table_id": 1, "where": "1 = 1"}], Any)
    with pytest.raises(Invalid, match="`where` is not SQL text"):
        decode({"object_type": "view", "table_id": 1, "where": "1 = 1"}, View)


def test_tables_are_passed_as_references() -> None:
    view = Object(12).with_columns(y=col("x") * 2)
    assert decode(encode({"a": (Object(12), view)}), dict[str, list[View]])["a"][1].plan == view.plan
    assert encode(Object(12)) == {"object_type": "object", "table_id": 12}
    with pytest.raises(Invalid, match="annotate the parameter as View"):
        decode(encode(view), Object)


def test_data_that_resembles_a_reference_stays_data() -> None:
    data = {"object_type": "view", "table_id": 1, "colour": "red"}
    assert decode(data, Any) == data


@pytest.mark.parametrize("value", [object(), lambda: None, {"a": open}], ids=["object", "function", "inside"])
def test_values_that_cannot_be_serialized_are_refused_with_advice(value: Any | Callable[[], None]) -> None:
    with pytest.raises(Invalid, match="cannot be passed to a task: pass JSON data"):
        encode(value)


@pytest.mark.parametrize(
    ("value", "fault"),
    [
        (3**50, "717897987691852588770249 cannot be passed to a task: Integer exceeds 64-bit range"),
        (["\ud800"], r"'\\ud800' cannot be passed to a task: str is not valid UTF-8"),
        (test_json_is_passed_unchanged, "Is the call of .* missing?"),
    ],
    ids=["integer", "text", "function"],
)
def test_values_that_cannot_be_stored_are_named(value: Any, fault: str) -> None:
    with pytest.raises(Invalid, match=fault):
        encode(value)


def test_a_value_of_another_type_is_refused() -> None:
    with pytest.raises(Invalid, match="Point does not fit"):
        decode({"x": "many"}, Point)
