"""The compiler of plans: names, values and ranges, without any engine."""

from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any
from uuid import UUID

import orjson
import pytest

from dagmaster.data import Object, View, aggregates, call, col, lit
from dagmaster.data.arrow import clickhouse_type, table_from_value
from dagmaster.data.plans import MAX_DEPTH, read_plan, tables_of, write_plan
from dagmaster.data.references import ObjectRef, ViewRef, find_reference, plan_of
from dagmaster.data.sql import Query, compile_rows, compile_stored, quote
from dagmaster.data.types import check_type, text_of, type_of
from dagmaster.errors import Invalid

COLUMNS = {7: ["x", "name"], 8: ["name", "total"]}
sales, totals = Object(7), Object(8)


def compiled(view: View, compile: Callable[..., Query] = compile_rows) -> Query:
    return compile(view.plan, lambda table_id: COLUMNS[table_id])


def test_a_range_of_rows_is_a_range_of_keys_not_an_offset() -> None:
    query = compiled(sales.offset(100).limit(50).offset(10))
    assert "OFFSET" not in query.sql
    assert "LIMIT" not in query.sql
    assert sorted(query.parameters.values(), key=int) == ["100", "100", "110", "150", "150"]


def test_a_range_beyond_its_parent_is_empty() -> None:
    assert list(compiled(sales.limit(5).offset(9)).parameters.values())[-2:] == ["5", "5"]


def test_rows_of_an_object_keep_their_row_ids() -> None:
    assert "row_number" not in compiled(sales.with_columns(y=col("x")).limit(9, 4), compile_stored).sql
    assert "row_number" in compiled(sales.where(col("x") > 1), compile_stored).sql


def test_values_are_parameters_not_sql() -> None:
    evil = "'; DROP TABLE x; --"
    query = compiled(sales.where((col("name") == evil) & col("x").is_in([1, 2])).with_columns(note=lit(evil)))
    assert "DROP" not in query.sql
    assert evil in query.parameters.values()
    assert "[1,2]" in query.parameters.values()


def test_names_are_quoted() -> None:
    assert quote("a`b\\") == "`a\\`b\\\\`"
    assert "AS `select ``" not in compiled(sales.rename({"x": "select `; DROP"})).sql
    assert "`select \\`; DROP`" in compiled(sales.rename({"x": "select `; DROP"})).sql


@pytest.mark.parametrize(
    "view",
    [
        sales.select("nam"),
        sales.where(col("nam") == "a"),
        sales.order_by("nam"),
        sales.distinct("nam"),
        sales.explode("nam"),
        sales.rename({"nam": "y"}),
        sales.group_by("nam").agg(n=aggregates.count()),
        sales.join(totals, left_on="nam", right_on="name"),
    ],
)
def test_an_unknown_column_error_lists_the_known_ones(view: View) -> None:
    with pytest.raises(Invalid, match=r"no column 'nam'; did you mean 'name'\? The columns are x, name"):
        compiled(view)


@pytest.mark.parametrize("name", ["row_id", "__dm_1", "", "a\0"])
def test_reserved_row_order_names_are_refused(name: str) -> None:
    with pytest.raises((Invalid, ValueError)):
        compiled(sales.rename({"x": name}))
    with pytest.raises(Invalid):
        table_from_value({name: [1]})


def test_duplicate_column_names_are_refused() -> None:
    with pytest.raises(Invalid, match="same name: name"):
        compiled(sales.rename({"x": "name"}))


def test_columns_of_both_sides_get_a_suffix_and_keys_appear_once() -> None:
    assert compiled(sales.join(totals, "name")).columns == ("x", "name", "total")
    assert compiled(sales.join(sales, "name")).columns == ("x", "name", "x_right")
    assert compiled(sales.join(totals, "name", "semi")).columns == ("x", "name")


@pytest.mark.parametrize(
    ("make", "fault"),
    [
        (lambda: sales.join(totals), "as many keys"),
        (lambda: sales.join(totals, left_on=["x", "name"], right_on="name"), "as many keys"),
        (lambda: sales.join(totals, "name", "asof"), "key that is ordered"),
        (lambda: sales.join(totals, "name", "cross"), "not a join"),  # type: ignore[arg-type]
        (lambda: sales.where("x > 1"), "never text"),  # type: ignore[arg-type]
        (lambda: sales.limit(-1), "0 or more"),
        (lambda: sales.select(lit(1)), "has no name"),
        (lambda: col("x") == None, "is_null"),  # noqa: E711
        (lambda: col("x").over("name"), "only aggregates"),
        (lambda: lit(object()), "cannot be used"),
        (lambda: lit([1, "a"]), "one type"),
        (lambda: col("x").cast("Int64}'"), "not a ClickHouse type"),
        (lambda: compiled(sales.with_columns(r=aggregates.row_number())), "needs a window"),
        (lambda: compiled(sales.with_columns(r=aggregates.rank().over("name"))), "needs an order"),
        (lambda: compiled(sales + 1), "need one column, and this has x, name"),
        (lambda: compiled(sales.union(totals)), "same columns"),
    ],
)
def test_errors_say_what_to_do(make: Callable[[], Any], fault: str) -> None:
    with pytest.raises(Invalid, match=fault):
        make()


def test_a_condition_has_no_truth_value() -> None:
    with pytest.raises(TypeError, match="&"):
        bool(col("x") > 1)


def test_only_known_functions_can_be_called() -> None:
    with pytest.raises(ValueError, match="not a function of expressions"):
        call("file", "/etc/passwd")
    written = write_plan(sales.where(call("contains", col("name"), "a")).plan)
    tampered = orjson.loads(orjson.dumps(written).replace(b'"contains"', b'"url"'))
    with pytest.raises(Invalid, match="not a function of expressions"):
        read_plan(tampered)


def test_a_plan_is_serialized_as_json() -> None:
    view = (
        sales.with_columns(y=col("x") * 2, r=aggregates.row_number().over("name", col("x").desc()))
        .join(totals.limit(3), "name", "left")
        .where(col("y") > Decimal("1.5"))
        .group_by("name")
        .agg(s=aggregates.sum("y"))
        .order_by(col("s").desc())
        .union(totals.select("name", s=col("total").cast("Int64")))
    )
    again = read_plan(orjson.loads(orjson.dumps(write_plan(view.plan))))
    assert again == view.plan
    assert tables_of(again) == {7, 8}


@pytest.mark.parametrize(
    "written", [None, {}, {"version": 2, "root": {}}, {"version": 1, "root": {"op": "drop"}}, {"version": 1, "root": 5}]
)
def test_an_invalid_plan_is_refused(written: Any) -> None:
    with pytest.raises(Invalid):
        read_plan(written)


def test_plans_without_end_are_refused() -> None:
    view: View = sales
    for _ in range(MAX_DEPTH):
        view = view.where(col("x") > 1)
    with pytest.raises(Invalid, match="materialize"):
        compiled(view)


def test_references_have_their_wire_format() -> None:
    assert sales.reference().model_dump() == {"object_type": "object", "table_id": 7}
    assert sales.limit(5, 2).reference().model_dump() == {
        "object_type": "view",
        "table_id": 7,
        "offset": 2,
        "limit": 5,
    }
    computed = sales.with_columns(y=col("x") * 2)
    assert plan_of(ViewRef.model_validate(computed.reference().model_dump())) == computed.plan


@pytest.mark.parametrize(
    ("where", "values"),
    [
        ({"x": 1, "name": "a"}, ["1", "a"]),
        ({"x": [1, 2], "name": None}, ["[1,2]"]),
        (["x", ">=", 3], ["3"]),
        ([["x", ">", 3], ["name", "!=", "a"]], ["3", "a"]),
    ],
)
def test_where_clauses_are_structured_data(where: Any, values: list[str]) -> None:
    view = View(plan_of(ViewRef(table_id=7, offset=1, where=where, columns=["x"], order_by=["name"])))
    query = compiled(view)
    assert list(query.parameters.values()) == ["1", *values]
    assert query.columns == ("x",)


@pytest.mark.parametrize("where", ["1 = 1", "x > 1; DROP TABLE y", ["x", "LIKE", "a"], 5, [1, 2, 3]])
def test_where_clauses_as_sql_strings_are_refused(where: Any) -> None:
    with pytest.raises(ValueError, match="where"):
        ViewRef(table_id=7, where=where)
    with pytest.raises(Invalid, match="where"):
        find_reference({"object_type": "view", "table_id": 7, "where": where})


def test_a_table_id_is_a_number() -> None:
    with pytest.raises(Invalid, match="not the id of a table"):
        plan_of(ObjectRef(table_id="7; DROP"))


NOON = datetime(2026, 1, 2, 12, tzinfo=timezone(timedelta(hours=1)))


@pytest.mark.parametrize(
    ("value", "kind", "text"),
    [
        (True, "Bool", "true"),
        (-5, "Int64", "-5"),
        (2**63, "UInt64", str(2**63)),
        (2**64, "Int128", str(2**64)),
        (1.5, "Float64", "1.5"),
        ("a\tb\\", "String", "a\\tb\\\\"),
        (date(1950, 1, 2), "Date32", "1950-01-02"),
        (NOON, "DateTime64(6, 'UTC')", "2026-01-02 11:00:00.000000"),
        (Decimal("-12.50"), "Decimal(4, 2)", "-12.50"),
        (Decimal("1E+3"), "Decimal(4, 0)", "1000"),
        (UUID(int=5), "UUID", "00000000-0000-0000-0000-000000000005"),
        ([1, None], "Array(Nullable(Int64))", "[1,NULL]"),
        (["it's", "b"], "Array(String)", "['it\\'s','b']"),
        ([[1], []], "Array(Array(Int64))", "[[1],[]]"),
        ([1, 2.5], "Array(Float64)", "[1,2.5]"),
    ],
)
def test_values_have_types_and_string_forms(value: Any, kind: str, text: str) -> None:
    assert (type_of(value), text_of(value)) == (kind, text)


def test_types_cannot_break_out_of_their_placeholder() -> None:
    assert check_type("Array(Nullable(Decimal(10, 2)))")
    for evil in ("Int64} + (SELECT 1) + {x:Int64", "", "1Int", "Int64;"):
        with pytest.raises(Invalid):
            check_type(evil)


@pytest.mark.parametrize(
    ("value", "types"),
    [
        (5, {"value": "Int64"}),
        ([1, None], {"value": "Nullable(Int64)"}),
        ([[1, None], []], {"value": "Array(Nullable(Int64))"}),
        ({"a": 1, "b": "x"}, {"a": "Int64", "b": "String"}),
        ([{"a": 1}, {"b": 2.5}], {"a": "Nullable(Int64)", "b": "Nullable(Float64)"}),
        ([None, None], {"value": "Nullable(String)"}),
        ([datetime(2026, 1, 1, tzinfo=UTC)], {"value": "DateTime64(6, 'UTC')"}),
        ([Decimal("1.25")], {"value": "Decimal(3, 2)"}),
    ],
)
def test_python_values_are_converted_to_columns(value: Any, types: dict[str, str]) -> None:
    table = table_from_value(value)
    assert {name: clickhouse_type(table[name], name) for name in table.column_names} == types


@pytest.mark.parametrize(
    ("value", "fault"),
    [
        ({"a": [1, 2], "b": [1]}, "same length: 'a' has 2, 'b' has 1"),
        ({"a": [1], "b": 2}, "'b' is not a list"),
        ([1, "a"], "one type that fits all"),
        ([2**70], "one type that fits all"),
        ({}, "at least one column"),
        ({1: [2]}, "strings, not 1"),
    ],
)
def test_values_that_are_not_a_table_are_refused(value: Any, fault: str) -> None:
    with pytest.raises(Invalid, match=fault):
        table_from_value(value)


def test_none_in_a_column_of_lists_is_refused() -> None:
    table = table_from_value({"a": [[1], None]})
    with pytest.raises(Invalid, match=r"use \[\]"):
        clickhouse_type(table["a"], "a")
