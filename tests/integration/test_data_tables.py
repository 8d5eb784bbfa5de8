"""Values and operators on every engine: what is computed is right, also where it is tempting to be wrong."""

from datetime import date
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from data_values import VALUES, table
from pyarrow import csv, ipc, parquet

from dagmaster.data import DataContext, aggregates, call, col, lit
from dagmaster.data.sql import table_name
from dagmaster.errors import Invalid, QueryFailed, TooLarge


@pytest.mark.parametrize("kind", VALUES)
async def test_values_of_every_type_come_back_and_none_stays_none(context: DataContext, kind: str) -> None:
    given_values = list(pa.array(VALUES[kind]).to_pylist())
    stored = await context.create_object_from_value({"v": VALUES[kind]})
    assert (await stored.data())["v"] == given_values
    assert not stored.schema()["v"].startswith("Nullable")
    holes = pa.array([*given_values, None], pa.array(VALUES[kind]).type)
    with_none = await context.create_object_from_value({"v": holes})
    assert (await with_none.data())["v"] == [*given_values, None]
    assert with_none.schema()["v"].startswith("Nullable(")
    assert await with_none.where(col("v").is_null()).count() == 1
    assert await with_none.where(col("v") == lit(given_values[1])).count() == 1


async def test_sums_of_small_integers_do_not_overflow(context: DataContext) -> None:
    numbers = await context.create_object_from_value({"x": pa.array([100] * 1000, pa.int8())})
    assert await numbers.agg(s=aggregates.sum("x")).scalar() == 100_000
    assert await numbers.limit(1).select(y=col("x") * 100).scalar() == 10_000
    assert await numbers.limit(1).select(y=col("x") + col("x")).scalar() == 200
    with pytest.raises(QueryFailed):
        await numbers.select(y=(col("x") * 100).cast("Int8")).collect()


async def test_remainders_are_those_of_python_for_every_type(context: DataContext) -> None:
    columns = {
        "a": pa.array([-128, -5, 127], pa.int8()),
        "b": pa.array([-(2**63), 2**63 - 1, -7], pa.int64()),
        "c": pa.array([2**64 - 1, 0, 255], pa.uint64()),
    }
    numbers = await context.create_object_from_value(columns)
    for divisor in (3, 255, 256, 65_536, 2**32):
        remainders = await numbers.select(**{name: col(name) % divisor for name in columns}).data()
        assert remainders == {name: [x % divisor for x in values.to_pylist()] for name, values in columns.items()}


async def test_empty_tables_have_columns_and_no_rows(context: DataContext) -> None:
    empty = await context.create_object_from_value(pa.table({"x": pa.array([], pa.int64())}))
    assert await empty.data() == {"x": []}
    assert await empty.count() == 0
    assert await empty.chunks(10) == ()
    assert (await (await empty.where(col("x") > 1).materialize()).collect()).column_names == ["x"]
    totals = empty.agg(n=aggregates.count(), s=aggregates.sum("x"), m=aggregates.max("x"))
    assert await totals.records() == [{"n": 0, "s": None, "m": None}]
    assert await empty.group_by("x").agg(n=aggregates.count()).data() == {"x": [], "n": []}
    with pytest.raises(Invalid, match="0 rows"):
        await empty.scalar()


async def test_any_name_can_be_that_of_a_column(context: DataContext) -> None:
    names = ["select", "from", "größe", "a b", "a`b", "a\\b", "'; DROP TABLE x", "t", "count()", "{p0:Int64}", "表"]
    odd = await context.create_object_from_value({name: [index] for index, name in enumerate(names)})
    view = odd.with_columns(**{name: col(name) + 1 for name in names}).where(col("select") == 1).order_by(*names)
    assert await view.records() == [{name: index + 1 for index, name in enumerate(names)}]
    assert list((await view.materialize()).schema()) == names


async def test_a_replaced_column_is_computed_from_the_old_ones(context: DataContext) -> None:
    numbers = await table(context, x=[1, 2, 3])
    view = numbers.with_columns(x=col("x") * 10, y=col("x") + 1).where(col("x") > 10)
    assert await view.data() == {"x": [20, 30], "y": [3, 4]}


async def test_nested_lists_are_stored_and_exploded(context: DataContext) -> None:
    nested = await table(context, k=["a", "b", "c"], v=[[[1, 2], []], [], [[None]]])
    assert (await nested.data())["v"] == [[[1, 2], []], [], [[None]]]
    exploded = nested.explode("v")
    assert await exploded.data() == {"k": ["a", "a", "c"], "v": [[1, 2], [], [None]]}
    assert await exploded.explode("v").data() == {"k": ["a", "a", "c"], "v": [1, 2, None]}


async def test_a_filter_of_a_limit_of_a_filter_is_taken_in_that_order(context: DataContext) -> None:
    numbers = await table(context, x=list(range(100)))
    view = numbers.where(col("x") % 2 == 0).limit(5, 1).where(col("x") > 4)
    assert await view.data() == {"x": [6, 8, 10]}
    assert await view.offset(1).limit(1).data() == {"x": [8]}
    assert await numbers.limit(10, 5).where(col("x") > 12).offset(1).data() == {"x": [14]}


async def test_equal_rows_keep_their_order(context: DataContext) -> None:
    rows = 50_000
    shuffled = await table(context, key=[index * 7919 % 10 for index in range(rows)], place=list(range(rows)))
    expected = sorted(range(rows), key=lambda index: index * 7919 % 10)
    ordered = shuffled.order_by("key")
    assert (await ordered.data())["place"] == expected
    stored = await ordered.materialize()
    assert (await stored.data())["place"] == expected
    assert (await stored.limit(10, 777).data())["place"] == expected[777:787]
    down = shuffled.order_by(col("key").desc()).limit(3)
    assert (await down.data())["key"] == [9, 9, 9]
    assert (await down.data())["place"] == sorted((await down.data())["place"])


async def test_row_ids_are_dense_in_the_order_of_the_rows(context: DataContext) -> None:
    numbers = await table(context, x=[5, 3, 8, 1])
    stored = await numbers.where(col("x") > 1).order_by("x").materialize()
    ids = context.engine.query(f"SELECT row_id, x FROM {table_name(stored.table_id)} ORDER BY row_id", {})
    assert ids.to_pydict() == {"row_id": [0, 1, 2], "x": [3, 5, 8]}
    assert "PrimaryKey" in await stored.limit(1, 1).explain()


async def test_one_column_takes_operators(context: DataContext) -> None:
    numbers = await context.create_object_from_value([1, 2, None])
    assert await (numbers + 1).data() == [2, 3, None]
    assert await (10 - numbers * 2).data() == [8, 6, None]
    assert await (7 % numbers).data() == [0, 1, None]
    assert await (2**numbers).data() == [2, 4, None]
    assert await numbers.limit(1).scalar() == 1


@pytest.mark.parametrize(
    ("how", "rows"),
    [
        ("inner", [("a", 1, 10), ("b", 2, 20), ("b", 2, 21)]),
        ("left", [("a", 1, 10), ("b", 2, 20), ("b", 2, 21), ("c", 3, None), (None, 4, None)]),
        ("right", [("a", 1, 10), ("b", 2, 20), ("b", 2, 21), ("d", None, 40)]),
        ("full", [("a", 1, 10), ("b", 2, 20), ("b", 2, 21), ("c", 3, None), (None, 4, None), ("d", None, 40)]),
        ("semi", [("a", 1), ("b", 2)]),
        ("anti", [("c", 3), (None, 4)]),
    ],
)
async def test_joins_give_null_where_nothing_matches(context: DataContext, how: Any, rows: list[Any]) -> None:
    left = await table(context, k=["a", "b", "c", None], x=[1, 2, 3, 4])
    right = await table(context, k=["a", "b", "b", "d"], y=[10, 20, 21, 40])
    assert [tuple(row.values()) for row in await left.join(right, "k", how).records()] == rows


async def test_an_asof_join_takes_the_nearest_earlier_row(context: DataContext) -> None:
    trades = await table(context, s=["a", "a", "b"], t=[5, 9, 1])
    quotes = await table(context, s=["a", "a", "b"], t=[4, 8, 2], price=[40, 80, 20])
    joined = trades.join(quotes, ["s", "t"], "asof")
    assert (await joined.data())["price"] == [40, 80, None]


async def test_a_query_that_fails_halfway_leaves_nothing_for_the_next(context: DataContext) -> None:
    numbers = await table(context, x=[1, 2, 300])
    engine = context.engine
    for _ in range(3):
        with pytest.raises(QueryFailed, match="cannot be safely converted"):
            engine.query(numbers.select(y=col("x").cast("Int8")).sql(), {})
        assert engine.query(numbers.sql(), {}).to_pydict() == {"x": [1, 2, 300]}


async def test_groups_windows_and_unions(context: DataContext) -> None:
    sales = await table(context, shop=["b", "a", "b", "a"], x=[1, 2, 3, None])
    by_shop = sales.group_by("shop").agg(
        total=aggregates.sum("x"), rows=aggregates.count(), known=aggregates.count("x"), mean=aggregates.mean("x")
    )
    assert await by_shop.records() == [
        {"shop": "a", "total": 2, "rows": 2, "known": 1, "mean": 2.0},
        {"shop": "b", "total": 4, "rows": 2, "known": 2, "mean": 2.0},
    ]
    ranked = sales.with_columns(
        place=aggregates.row_number().over("shop", "x"),
        before=aggregates.lag("x").over("shop", "x"),
        total=aggregates.sum("x").over("shop"),
    )
    assert await ranked.select("place", "before", "total").data() == {
        "place": [1, 1, 2, 2],
        "before": [None, None, 1, 2],
        "total": [4, 2, 4, 2],
    }
    assert await sales.select("x").union(sales.select("x").order_by(col("x").desc()).limit(1)).data() == {
        "x": [1, 2, 3, None, 3]
    }
    assert (await sales.distinct("shop").data())["x"] == [1, 2]


async def test_functions_of_texts_times_nulls_and_arrays(context: DataContext) -> None:
    data = await table(context, s=["Grün, rot", None], d=[date(2026, 3, 31), None], n=[None, 5])
    [row, nothing] = await data.select(
        length=call("length", col("s")),
        upper=call("upper", col("s")),
        has=call("contains", col("s"), "rot"),
        first=call("substring", col("s"), 1, 4),
        month=call("month", col("d")),
        later=call("add_months", col("d"), 1),
        filled=col("n").fill_null(0),
        chosen=call("when", col("n").is_null(), "none", "some"),
        member=col("n").is_in([5, 6]),
        number=col("n").cast("Float64"),
    ).records()
    assert row == {
        "length": 9,
        "upper": "GRÜN, ROT",
        "has": True,
        "first": "Grün",
        "month": 3,
        "later": date(2026, 4, 30),
        "filled": 0,
        "chosen": "none",
        "member": None,
        "number": None,
    }
    assert [nothing[name] for name in ("length", "upper", "has", "first", "month", "later")] == [None] * 6
    assert (nothing["filled"], nothing["chosen"], nothing["member"], nothing["number"]) == (5, "some", True, 5.0)
    lists = await table(context, v=[[3, 1], []])
    arrays = lists.select(
        n=call("array_length", col("v")), s=call("array_sort", col("v")), h=call("array_contains", col("v"), 3)
    )
    assert await arrays.data() == {"n": [2, 0], "s": [[1, 3], []], "h": [1, 0]}


async def test_nothing_is_truncated_silently(context: DataContext) -> None:
    numbers = await table(context, x=list(range(11)))
    assert len((await numbers.data(max_rows=11))["x"]) == 11
    with pytest.raises(TooLarge, match="more than 10 rows"):
        await numbers.data(max_rows=10)
    with pytest.raises(Invalid, match="more than 1 row"):
        await numbers.scalar()


async def test_rows_come_in_batches(context: DataContext) -> None:
    numbers = await context.create_object_from_value(pa.table({"x": pa.array(range(300_000))}))
    batches = [batch async for batch in numbers.batches()]
    assert sum(batch.num_rows for batch in batches) == 300_000
    assert pa.Table.from_batches(batches)["x"].to_pylist() == list(range(300_000))


async def test_tables_are_exported(context: DataContext, tmp_path: Path) -> None:
    data = await table(context, x=[1, None], s=["a,b", 'c"d'])
    for name, read in (("t.parquet", parquet.read_table), ("t.csv", csv.read_csv)):
        assert read(await data.export(tmp_path / name)).to_pydict() == {"x": [1, None], "s": ["a,b", 'c"d']}
    with ipc.open_file(await data.where(col("x") > 5).export(tmp_path / "t.arrow")) as reader:
        assert reader.read_all().to_pydict() == {"x": [], "s": []}
    with pytest.raises(Invalid, match=r"\.parquet, \.csv or \.arrow"):
        await data.export(tmp_path / "t.xls")
    with pytest.raises(Invalid, match="column 'v' holds lists"):
        await (await table(context, v=[[1]])).export(tmp_path / "v.csv")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["t.arrow", "t.csv", "t.parquet"]
