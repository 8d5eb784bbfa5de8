"""Columns are traced to the stored columns that they are computed from."""

from typing import Any

from dagmaster.data import View, aggregates, call, col
from dagmaster.data.column_lineage import ColumnSource, columns_by_source, sources_of_column
from dagmaster.data.plans import Scan, write_plan

TABLES = {1: ["k", "x", "tags"], 2: ["k", "x", "y"]}
sales, shops = View(Scan(table_id=1)), View(Scan(table_id=2))
dropped = View(Scan(table_id=3))


def traced(view: View, name: str) -> set[tuple[int, str]]:
    return {(source.object_id, source.column) for source in sources_of_column(view.plan, name, TABLES.get)}


def test_a_computed_column_has_all_its_sources() -> None:
    view = sales.with_columns(total=col("x") * 2 + call("length", col("k")), one=1).where(col("tags").is_not_null())
    assert traced(view, "total") == {(1, "x"), (1, "k")}
    assert traced(view, "x") == {(1, "x")}
    assert traced(view, "one") == set()
    again = view.select(z=col("total").cast("String")).rename({"z": "text"}).order_by("text").limit(3)
    assert traced(again, "text") == {(1, "x"), (1, "k")}


def test_aggregates_and_windows_have_their_arguments_as_sources() -> None:
    grouped = sales.group_by(shop=col("k")).agg(best=aggregates.max("x"), rows=aggregates.count())
    assert [traced(grouped, name) for name in ("shop", "best", "rows")] == [{(1, "k")}, {(1, "x")}, set()]
    ranked = sales.with_columns(place=aggregates.rank().over("k", "x"))
    assert traced(ranked, "place") == {(1, "k"), (1, "x")}


def test_columns_of_joins_and_unions_have_both_sides_as_sources() -> None:
    joined = sales.join(shops, "k")
    assert [traced(joined, name) for name in ("k", "x", "x_right", "y")] == [
        {(1, "k")},
        {(1, "x")},
        {(2, "x")},
        {(2, "y")},
    ]
    assert traced(sales.join(shops, "k", "full"), "k") == {(1, "k"), (2, "k")}
    assert traced(sales.join(shops, "k", "anti"), "x") == {(1, "x")}
    assert traced(joined.join(shops.select("k", "y"), "k"), "y_right") == {(2, "y")}
    both = sales.select("k", "x").union(shops.select("k", "x"))
    assert traced(both, "x") == {(1, "x"), (2, "x")}
    assert traced(sales.select("x") + 1, "value") == {(1, "x")}
    assert traced(sales.explode("tags"), "tags") == {(1, "tags")}


def test_dropped_tables_are_traced_as_far_as_the_plan_goes() -> None:
    assert traced(dropped.with_columns(b=col("a") + 1), "b") == {(3, "a")}
    assert traced(dropped.join(shops, "k"), "anything") == {(3, "anything")}
    assert traced(shops.join(dropped, "k"), "z") == {(3, "z")}


def test_a_lineage_is_traced_table_by_table() -> None:
    def row(object_id: int, columns: list[str], plan: Any = None) -> dict[str, Any]:
        types = [{"name": name, "type": "Int64"} for name in columns]
        return {"object_id": object_id, "columns": types or None, "plan": plan}

    rows = [
        row(9, ["y"], write_plan(sales.select(y=col("x") + 1).plan)),
        row(8, ["z"], {"version": 99, "root": {}}),
        row(1, TABLES[1]),
        row(7, []),
    ]
    assert columns_by_source(rows) == {9: {"y": [ColumnSource(1, "x")]}}
