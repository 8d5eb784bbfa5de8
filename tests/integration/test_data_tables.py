"""Tables on every engine: what is stored, computed and kept is right, also where it is tempting to be wrong."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator, Sequence
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import httpx
import pyarrow as pa
import pytest
from clickhouse_server import CLUSTER, Unavailable, run_servers
from hypothesis import given, settings
from hypothesis import strategies as st
from pyarrow import csv, ipc, parquet

from dagmaster.data import DataContext, Object, View, aggregates, call, col, get_data_context, lit
from dagmaster.data.cluster_engine import ClusterEngine
from dagmaster.data.engine import Limits, folder_of, folder_url
from dagmaster.data.references import ViewRef
from dagmaster.data.service import find_address
from dagmaster.data.sql import table_name
from dagmaster.data.sql_query import NamedTable, reading, run_query
from dagmaster.errors import Conflict, Invalid, QueryFailed, TooLarge, UnknownTable


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sequence[str]]:
    try:
        with run_servers(tmp_path_factory.mktemp("clickhouse"), 2) as addresses:
            yield addresses
    except Unavailable as error:
        pytest.skip(str(error))


# Servers are downloaded, and runs on two shards have lost connections: `make test-clickhouse` asks for them.
ENGINES = ["server", "shards"] if os.environ.get("DAGMASTER_TEST_CLICKHOUSE") else ["chdb", "service"]


@pytest.fixture(scope="module", params=ENGINES)
def url(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> str:
    if request.param in ("chdb", "service"):
        return folder_url(tmp_path_factory.mktemp("tables"), request.param)
    servers = request.getfixturevalue("servers")
    return f"http://{servers[0]}" if request.param == "server" else f"http://{','.join(servers)}?cluster={CLUSTER}"


@pytest.fixture(scope="module")
def context(url: str) -> Iterator[DataContext]:
    opened = DataContext(url)
    yield opened
    asyncio.run(opened.close())


async def table(context: DataContext, **columns: list[Any]) -> Object:
    return await context.create_object_from_value(columns)


VALUES = {
    "bool": [True, False],
    "int": [1, -(2**63)],
    "large": pa.array([2**63, 1], pa.uint64()),
    "small": pa.array([-128, 127], pa.int8()),
    "float": [1.5, -0.25],
    "text": ["", "ä\t'\\\n😀"],
    "date": [date(1950, 1, 1), date(2026, 2, 3)],
    "time": [datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=UTC), datetime(1999, 1, 1, tzinfo=UTC)],
    "decimal": [Decimal("1.25"), Decimal("-99999.99")],
}


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


SLEEPER = "SELECT sum(sleepEachRow(0.1)) AS slept FROM numbers(3000) SETTINGS max_block_size = 10"
SLEEPERS = "SELECT count() AS n FROM system.processes WHERE query LIKE '%AS slept%' AND query NOT LIKE '%processes%'"


class Names:
    """Tables by names, as a query sees them."""

    def __init__(self, **tables: Object) -> None:
        self._tables = {name.replace("__", "."): table for name, table in tables.items()}

    async def find(self, names: Sequence[str]) -> dict[str, NamedTable]:
        return {
            name: NamedTable(table.table_id, list(table.schema()))
            for name, table in self._tables.items()
            if name in names
        }

    async def known(self) -> Sequence[str]:
        return list(self._tables)


@pytest.fixture
async def reader(url: str) -> AsyncIterator[DataContext]:
    opened = DataContext(url, limits=reading(Limits()))
    yield opened
    await opened.close()


@pytest.fixture
async def names(context: DataContext) -> Names:
    sales = await table(context, shop=["a", "b", "a"], units=[1, 2, 3])
    return Names(sales=sales, **{"7__sales": sales})


QUERIES = {
    "SELECT shop, sum(units) AS n, sumIf(units, units > 1) AS m FROM sales GROUP BY shop ORDER BY n DESC -- all": [
        {"shop": "a", "n": 4, "m": 3},
        {"shop": "b", "n": 2, "m": 2},
    ],
    'WITH best AS (SELECT max(units) AS units FROM "7.sales") SELECT s.shop FROM sales s JOIN best USING units': [
        {"shop": "a"}
    ],
    "SELECT units FROM sales WHERE shop IN (SELECT shop FROM sales WHERE units = 2) OR units IN (1) ORDER BY units": [
        {"units": 1},
        {"units": 2},
    ],
    "SELECT row_number() OVER (ORDER BY units DESC) AS r, upper(shop) || '`' AS s FROM sales ORDER BY r LIMIT 1": [
        {"r": 1, "s": "A`"}
    ],
    "SELECT * FROM sales WHERE units > 5": [],
}


async def test_people_query_tables_by_their_names(reader: DataContext, names: Names) -> None:
    for sql, rows in QUERIES.items():
        assert (await run_query(reader, sql, names)).rows == rows, sql
    assert (await run_query(reader, "SELECT * FROM sales WHERE units > 5", names)).columns == ["shop", "units"]


OUTSIDE = [
    "SELECT * FROM system.tables",
    "SELECT * FROM outside",
    "SELECT * FROM default.outside",
    "WITH a AS (SELECT 1) SELECT * FROM system.tables",
    "WITH a AS (SELECT 1) SELECT * FROM outside",
    "SELECT * FROM outside, (WITH outside AS (SELECT 1 AS y) SELECT y FROM outside) AS inner",
    "SELECT units IN system.one FROM sales",
    "SELECT notIn(units, system.one) FROM sales",
    "SELECT units IN (SELECT dummy FROM system.one) FROM sales",
    "SELECT (SELECT count() FROM system.tables)",
    "SELECT * FROM file('/etc/hostname', 'LineAsString')",
    "SELECT * FROM url('http://127.0.0.1:1/', 'LineAsString')",
    "SELECT * FROM remote('127.0.0.1:1', 'system', 'one')",
    "SELECT * FROM merge('system', '.*')",
    "SELECT * FROM numbers(3)",
    "SELECT `file`('/etc/hostname')",
    "SELECT dictGet('d', 'x', 1)",
    "SELECT joinGet('default.outside', 'x', 1)",
    "SELECT hostName()",
    "SELECT sleep(3)",
    "SELECT * APPLY(file) FROM sales",
    "SELECT 1 SETTINGS readonly = 0",
    "SELECT 1 INTO OUTFILE 'x'",
    "SELECT 1) SETTINGS readonly = 0 --",
    "SELECT 1; DROP TABLE default.outside",
    "DROP TABLE default.outside",
    "INSERT INTO default.outside SELECT 1",
    "SHOW TABLES",
    "SELECT * FROM (EXPLAIN SELECT 1)",
    "SELECT `a\\n TableIdentifier sales` FROM system.tables",
    "SELECT 1 AS `a (alias b)`",
]


async def test_a_query_reaches_nothing_but_named_tables(
    context: DataContext, reader: DataContext, names: Names
) -> None:
    engine: Any = context.engine
    host = engine._hosts[0] if isinstance(engine, ClusterEngine) else engine
    host.create("default.outside", "`row_id` UInt64")
    try:
        for sql in OUTSIDE:
            with pytest.raises((Invalid, QueryFailed, UnknownTable)):
                pytest.fail(f"{sql} gave {await run_query(reader, sql, names)}")
        assert host.query("SELECT count() AS n FROM default.outside", {})["n"].to_pylist() == [0]
    finally:
        host.drop("default.outside")
    with pytest.raises(UnknownTable, match=r"no table is named 'shops'; known are sales, 7\.sales"):
        await run_query(reader, "SELECT * FROM shops", names)


async def test_what_checks_a_query_missed_the_engine_would_refuse(reader: DataContext, names: Names) -> None:
    for sql in ("CREATE DATABASE more", "SELECT * FROM file('/etc/hostname', 'LineAsString')"):
        with pytest.raises(QueryFailed, match=r"(?i)readonly|READONLY"):
            reader.engine.query(sql, {})


async def test_an_answer_that_is_cut_says_so(reader: DataContext, names: Names) -> None:
    whole = await run_query(reader, "SELECT * FROM sales", names, max_rows=3)
    assert (len(whole.rows), whole.truncated_by) == (3, None)
    short = await run_query(reader, "SELECT * FROM sales", names, max_rows=2)
    assert (len(short.rows), short.truncated_by) == (2, "rows")
    narrow = await run_query(reader, "SELECT repeat('x', 500) AS t FROM sales", names, max_bytes=1100)
    assert (len(narrow.rows), narrow.truncated_by) == (2, "bytes")


async def test_a_cancelled_task_kills_its_query(context: DataContext) -> None:
    def running() -> int:
        count: int = context.engine.query(SLEEPERS, {})["n"][0].as_py()
        return count

    sleeping = asyncio.create_task(context.run(lambda: context.engine.query(SLEEPER, {})))
    while not await context.run(running):
        assert not sleeping.done()
    sleeping.cancel()
    with pytest.raises(asyncio.CancelledError):
        await sleeping
    assert await context.run(running) == 0


async def test_a_query_that_reads_too_much_fails_alone(url: str) -> None:
    async with DataContext(url, limits=Limits(memory_bytes=1 << 30, seconds=600, rows_read=1000)) as context:
        numbers = await context.create_object_from_value(pa.table({"x": pa.array(range(1001))}))
        with pytest.raises(QueryFailed, match="TOO_MANY_ROWS"):
            await numbers.agg(s=aggregates.sum("x")).scalar()
        assert await (await table(context, x=[1, 2])).agg(s=aggregates.sum("x")).scalar() == 3


async def test_rows_of_one_token_are_appended_once(context: DataContext) -> None:
    log = await table(context, x=[1])
    for _ in range(3):
        await log.append({"x": [2, 3]}, token="task-1:step:0")
    await log.append({"x": [2, 3]}, token="task-1:step:1")
    await log.append((await table(context, x=[9])).where(col("x") > 1))
    assert await log.data() == {"x": [1, 2, 3, 2, 3, 9]}
    assert await log.limit(2, 4).data() == {"x": [3, 9]}
    with pytest.raises(Invalid, match="need the columns x, not y"):
        await log.append({"y": [1]})


async def test_appends_at_the_same_time_leave_no_gap(context: DataContext) -> None:
    log = await table(context, x=[-1])
    await asyncio.gather(*(log.append({"x": [index]}) for index in range(8)))
    ids = context.engine.query(f"SELECT row_id FROM {table_name(log.table_id)} ORDER BY row_id", {})
    assert ids["row_id"].to_pylist() == list(range(9))


async def test_chunks_cover_a_view_once_and_in_order(context: DataContext) -> None:
    numbers = await table(context, x=list(range(25)))
    chunks = await numbers.with_columns(y=col("x") * 2).chunks(10)
    assert [(await chunk.data())["y"] for chunk in chunks] == [  # type: ignore[attr-defined]
        list(range(0, 20, 2)),
        list(range(20, 40, 2)),
        list(range(40, 50, 2)),
    ]
    filtered = await numbers.where(col("x") > 19).chunks(3)
    assert [(await chunk.data())["x"] for chunk in filtered] == [[20, 21, 22], [23, 24]]  # type: ignore[attr-defined]


async def test_a_view_is_the_same_after_its_journey(context: DataContext) -> None:
    numbers = await table(context, x=[1, 2, 3])
    view = numbers.with_columns(y=col("x") * 2).where(col("y") > 2)
    again = View.from_reference(ViewRef.model_validate_json(view.reference().model_dump_json()))
    with pytest.raises(Conflict, match="no tables are open here"):
        await again.data()
    async with DataContext(context.url) as other:
        assert get_data_context() is other
        assert await again.data() == {"x": [2, 3], "y": [4, 6]}


async def test_temporary_tables_go_with_their_context(context: DataContext) -> None:
    async with DataContext(context.url) as other:
        gone = await other.create_object_from_value([1])
    with pytest.raises(UnknownTable, match="may have been dropped"):
        await Object(gone.table_id, context).data()


@pytest.mark.parametrize("url", ["service"], indirect=True)
async def test_the_service_is_started_again_after_a_kill_and_has_all_rows(context: DataContext) -> None:
    kept = await table(context, x=[1, 2, 3])
    address = find_address(folder_of(context.url))
    assert address is not None
    os.kill(address.pid, signal.SIGKILL)
    await kept.append({"x": [4]}, token="after the kill")
    assert await kept.data() == {"x": [1, 2, 3, 4]}
    after = find_address(folder_of(context.url))
    assert after is not None
    assert after.pid != address.pid


@pytest.mark.parametrize("url", ["service"], indirect=True)
async def test_a_stranger_is_not_served(context: DataContext) -> None:
    await table(context, x=[1])
    address = find_address(folder_of(context.url))
    assert address is not None
    for path in ("/", "/?query=SELECT+1", "/ping"):
        response = await asyncio.to_thread(httpx.get, f"http://127.0.0.1:{address.port}{path}")
        assert response.status_code == 403


async def test_without_a_catalog_nothing_can_be_kept(context: DataContext) -> None:
    with pytest.raises(Conflict, match=r"dagmaster\.DataContext"):
        await context.create_object_from_value([1], name="kept", scope="global")
    with pytest.raises(UnknownTable, match="dagmaster data list"):
        await context.open("kept")


@pytest.mark.parametrize("url", ["chdb"], indirect=True)
async def test_one_process_opens_a_folder_at_a_time(context: DataContext, tmp_path: Path) -> None:
    await table(context, x=[1])
    with pytest.raises(Conflict, match="one process can open one folder"):
        await DataContext(folder_url(tmp_path)).create_object_from_value([1])
    code = f"from dagmaster.data.engine import open_engine; open_engine({context.url!r})"
    ended = await asyncio.to_thread(subprocess.run, [sys.executable, "-c", code], capture_output=True, text=True)
    assert "open in another process (pid " in ended.stderr
    with pytest.raises(Invalid, match="not the URL of a data engine"):
        await DataContext("sqlite:///x").create_object_from_value([1])


NUMBERS = st.integers(-5, 5) | st.none()
ROWS = st.lists(st.tuples(NUMBERS, st.sampled_from(["a", "b", "c"])), max_size=12)
Row = tuple[int | None, str]
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("where"), st.integers(-5, 5)),
        st.tuples(st.just("limit"), st.integers(0, 6)),
        st.tuples(st.just("offset"), st.integers(0, 4)),
        st.tuples(st.just("order"), st.booleans()),
        st.tuples(st.just("add"), st.integers(-3, 3)),
        st.tuples(st.just("distinct"), st.none()),
        st.tuples(st.just("double"), st.none()),
    ),
    max_size=6,
)


def computed(rows: list[Row], step: tuple[str, Any]) -> list[Row]:
    match step:
        case "where", least:
            return [row for row in rows if row[0] is not None and row[0] > least]
        case "limit", count:
            return rows[:count]
        case "offset", count:
            return rows[count:]
        case "order", is_down:
            known = sorted((row for row in rows if row[0] is not None), key=lambda row: -row[0] if is_down else row[0])
            return [*known, *(row for row in rows if row[0] is None)]
        case "add", number:
            return [(None if x is None else x + number, g) for x, g in rows]
        case "distinct", _:
            return _first_of_each(rows)
        case _:
            return rows + rows


def _first_of_each(rows: list[Row]) -> list[Row]:
    first: dict[str, Row] = {}
    for row in rows:
        first.setdefault(row[1], row)
    return list(first.values())


def planned(view: View, step: tuple[str, Any]) -> View:
    match step:
        case "where", least:
            return view.where(col("x") > least)
        case "limit", count:
            return view.limit(count)
        case "offset", count:
            return view.offset(count)
        case "order", is_down:
            return view.order_by(col("x").desc() if is_down else "x")
        case "add", number:
            return view.with_columns(x=col("x") + number)
        case "distinct", _:
            return view.distinct("g")
        case _:
            return view.union(view)


@pytest.mark.parametrize("url", ["chdb"], indirect=True)
@settings(max_examples=60)
@given(ROWS, STEPS)
def test_random_plans_give_what_python_gives(url: str, rows: list[Row], steps: list[tuple[str, Any]]) -> None:
    async def run() -> tuple[list[Any], int, list[Any]]:
        async with DataContext(url) as context:
            source = pa.table(
                {"x": pa.array([x for x, _ in rows], pa.int64()), "g": pa.array([g for _, g in rows], pa.string())}
            )
            view: View = await context.create_object_from_value(source)
            for step in steps:
                view = planned(view, step)
            found = [tuple(row.values()) for row in await view.records()]
            stored = await view.materialize()
            return found, await view.count(), [tuple(row.values()) for row in await stored.records()]

    expected = rows
    for step in steps:
        expected = computed(expected, step)
    assert asyncio.run(run()) == (expected, len(expected), expected)
