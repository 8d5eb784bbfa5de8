"""Small tables are stored in their entries, and become tables when SQL needs them."""

from datetime import datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
from data_values import VALUES
from pyarrow import ipc

from dagmaster.data import DataContext, Object
from dagmaster.data.sql import table_name
from dagmaster.service.data_catalog import DatabaseCatalog
from dagmaster.store import data_objects
from dagmaster.store.connect import opened

KINDS: dict[str, Any] = {
    **{kind: VALUES[kind] for kind in VALUES},
    "null": [None, None],
    "nullable": ["a", None],
    "bytes": [b"x", b"y"],
    "category": pa.array(["a", "b"]).dictionary_encode(),
    "naive": [datetime(2026, 1, 2, 3, 4, 5), datetime(1999, 1, 1)],
    "seconds": pa.array([1, 2], pa.timestamp("s")),
    "wide": pa.array([Decimal("1.25")] * 2, pa.decimal256(50, 3)),
    "lists": [[1], [2, None]],
    "nested": [[["a"]], [[]]],
}


def names_of_tables(context: DataContext) -> list[str]:
    sql = "SELECT concat(database, '.', name) AS name FROM system.tables WHERE database = 'dagmaster'"
    names: list[str] = context.engine.query(sql, {})["name"].to_pylist()
    return names


async def test_a_small_table_gets_a_table_when_sql_needs_one(engine_url: str, dsn: str, tmp_path: Path) -> None:
    catalog = DatabaseCatalog(lambda: opened(dsn, application="test"), engine_url)
    context = DataContext(engine_url, catalog=catalog, scope="global")
    small = await context.create_object_from_value(KINDS)
    other = await context.create_object_from_value({"int": [1], "n": [5]})
    name = table_name(small.table_id)
    # What needs no SQL is read from the entry.
    rows = await small.collect()
    assert (await small.count(), await small.limit(5, 1).count(), await small.offset(3).count()) == (2, 1, 0)
    types = small.schema()
    assert [chunk.plan.offset for chunk in await small.chunks(1)] == [0, 1]
    await small.export(tmp_path / "small.arrow")
    assert name not in names_of_tables(context)
    # A process that was killed on its way has left a table, with or without the rows.
    context._create(other.table_id, {"int": "Int64", "n": "Int64"})
    context._create(small.table_id, types)
    context._insert(small.table_id, rows, 0, f"{small.table_id}:0")
    joined = small.join(other, on="int", how="left").select("int", "n")
    assert list(joined.schema()) == ["int", "n"]
    assert await joined.data() == {"int": VALUES["int"], "n": [5, None]}
    # It is the same table, with the same types.
    stored = await small.collect()
    assert stored.equals(rows)
    assert stored.schema.equals(rows.schema)
    assert small.schema() == types
    assert ipc.open_file(tmp_path / "small.arrow").read_all().equals(stored)
    reader = DataContext(engine_url, catalog=catalog)
    assert await Object(small.table_id, reader).limit(1, 1).collect() == stored.slice(1)
    assert Object(small.table_id, reader).schema() == types
    await other.append({"int": [9], "n": [6]})
    assert (await Object(other.table_id, reader).data())["n"] == [5, 6]
    unused = await context.create_object_from_value([1])
    for table_id in (small.table_id, other.table_id, unused.table_id):
        await Object(table_id, reader).drop()
    assert name not in names_of_tables(context)
    async with catalog._connect() as conn:
        assert await data_objects.list_objects(conn) == []
    await context.close()
    await reader.close()


async def test_a_table_of_more_than_64_kib_is_not_small(engine_url: str, dsn: str) -> None:
    context = DataContext(engine_url, catalog=DatabaseCatalog(lambda: opened(dsn, application="test"), engine_url))
    for rows, has_table in ((8_000, False), (9_000, True)):
        table = await context.create_object_from_value({"x": list(range(rows))})
        assert (table_name(table.table_id) in names_of_tables(context)) is has_table
    await context.close()
