"""SQL that people write: it reads the tables that it names, and reaches nothing else."""

from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest
from data_values import table

from dagmaster.data import DataContext, Object
from dagmaster.data.cluster_engine import ClusterEngine
from dagmaster.data.engine import Limits
from dagmaster.data.sql_query import NamedTable, reading, run_query
from dagmaster.errors import Invalid, QueryFailed, UnknownTable


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
async def reader(engine_url: str) -> AsyncIterator[DataContext]:
    opened = DataContext(engine_url, limits=reading(Limits()))
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
