"""References that have the rows of a small table with them."""

from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import orjson
import pyarrow as pa
import pytest

from dagmaster.data.arrow import clickhouse_type, table_from_value
from dagmaster.data.inline import inline_values, rows_of_reference
from dagmaster.data.references import InlineRows, ObjectRef, ViewRef, find_reference
from dagmaster.errors import Invalid
from dagmaster.model.table_references import tables_in
from dagmaster.python.map_reduce import _views

INLINE = {"columns": ["x", "s"], "values": [[1, None], ["a", "b"]]}


def written(values: Any) -> InlineRows | None:
    rows = table_from_value({"v": values})
    return inline_values(rows, {"v": clickhouse_type(rows["v"], "v")})


def test_a_caller_writes_rows_into_a_reference() -> None:
    reference = find_reference({"object_type": "object", "inline": INLINE})
    assert isinstance(reference, ObjectRef)
    assert reference.inline is not None
    assert rows_of_reference(reference.inline).to_pydict() == {"x": [1, None], "s": ["a", "b"]}
    view = find_reference({"object_type": "view", "table_id": "7", "limit": 1, "inline": INLINE})
    assert isinstance(view, ViewRef)
    assert "inline" not in ObjectRef(table_id=7).model_dump()


@pytest.mark.parametrize(
    "values",
    [
        [1, None],
        [True, False],
        [1.5, -0.25],
        pa.array([1, 2], pa.int8()),
        ["", "ä\n😀"],
        [None, None],
        [date(1950, 1, 1), None],
        [datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=UTC)],
        [[1], [2, None], []],
        [],
    ],
)
def test_values_are_the_same_after_their_journey_with_their_types(values: Any) -> None:
    inline = written(values)
    assert inline is not None
    rows = table_from_value({"v": values})
    for limit in (None, 0):
        journey = InlineRows.model_validate_json(orjson.dumps(inline.part(0, limit).model_dump()))
        received = rows_of_reference(journey)["v"]
        assert received.to_pylist() == rows["v"].to_pylist()[:limit]
        assert received.type == rows_of_reference(inline)["v"].type


@pytest.mark.parametrize("values", [[Decimal("1.25")], [b"\xff"], [float("nan")], ["x" * 70_000], list(range(9_000))])
def test_what_json_cannot_say_and_what_is_large_stays_in_its_table(values: Any) -> None:
    assert written(values) is None


@pytest.mark.parametrize(
    ("inline", "problem"),
    [
        ({"columns": ["x"], "values": []}, "a list of values for each column"),
        ({"columns": ["x"], "values": [[1]], "types": ["Int64", "Int64"]}, "a type if there are types"),
        ({"columns": [], "values": []}, "at least 1 item"),
        ({"columns": ["x", "y"], "values": [[1], []]}, "differ in length"),
        ({"columns": ["x"], "values": [["a" * 70_000]]}, "at most 65,536 bytes, not 70,0"),
    ],
)
def test_inline_rows_that_are_no_small_table_are_refused(inline: Any, problem: str) -> None:
    with pytest.raises(Invalid, match=problem):
        find_reference({"object_type": "object", "inline": inline})


@pytest.mark.parametrize("kind", ["Foo", "DateTime64", "Decimal(x)", "Array(" * 5_000, "Date32"])
def test_inline_rows_of_other_types_are_refused(kind: str) -> None:
    with pytest.raises(Invalid, match="the inline rows are not of the types"):
        rows_of_reference(InlineRows(columns=["x"], values=[["text"]], types=[kind]))


def test_a_plan_has_no_inline_rows() -> None:
    with pytest.raises(Invalid, match="a plan names the tables that it reads"):
        find_reference({"object_type": "view", "plan": {}, "inline": INLINE})
    with pytest.raises(ValueError, match="names a table, or has inline rows"):
        ObjectRef()


def test_a_reference_with_rows_names_no_table() -> None:
    inline = {"object_type": "object", "table_id": 7, "inline": INLINE}
    assert tables_in(orjson.dumps([inline, {"object_type": "object", "table_id": 8}])) == {8}


def test_inline_rows_are_mapped_in_parts() -> None:
    reference = ObjectRef(inline=InlineRows(columns=["x"], values=[[1, 2, 3]]))
    assert [view.inline.values for view in _views(reference, 2) if view.inline] == [[[1, 2]], [[3]]]
