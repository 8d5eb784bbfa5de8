"""Stored tables, by their names: shown, queried, exported, dropped, and traced to their origin."""

import asyncio
import subprocess
import sys
from typing import Any

import orjson
import psycopg
import pyarrow as pa
import pytest
from command_line import call as run_command
from pyarrow import csv, feather, parquet

from dagmaster import task, workflow
from dagmaster.data import Object, aggregates, col, get_data_context
from dagmaster.errors import UnknownTable
from dagmaster.python.data_context import DataContext
from dagmaster.store import data_objects
from dagmaster.store.connect import Connection

pytestmark = pytest.mark.usefixtures("table_installation")


async def test_a_name_is_taken_over_by_the_newest_table(conn: Connection, dsn: str, monkeypatch: Any) -> None:
    monkeypatch.setenv("DAGMASTER_DATABASE_URL", dsn)
    async with DataContext(scope="global") as context:
        old = await context.create_object_from_value([1], name="prices")
        new = await context.create_object_from_value([2], name="prices")
        assert (await context.open("prices")).table_id == new.table_id
        assert await old.data() == [1]
        with pytest.raises(UnknownTable):
            await context.open("prices", "job")
    # What has expired is dropped when a context closes.
    assert [row["object_id"] for row in await data_objects.list_objects(conn)] == [new.table_id]
    async with DataContext() as context:
        assert await (await context.open("prices")).data() == [2]
        with pytest.raises(UnknownTable):
            await Object(old.table_id, context).data()


def test_tables_are_listed_shown_and_dropped_from_the_command_line(dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DAGMASTER_DATABASE_URL", dsn)

    async def make() -> int:
        async with DataContext(scope="global") as context:
            source = await context.create_object_from_value({"x": [1, 2, 3], "s": ["[a]", None, "c"]}, name="letters")
            await source.where(col("x") > 1).materialize(name="some")
            return source.table_id

    table_id = asyncio.run(make())
    listed = orjson.loads(run_command("data", "list", "--json").out)
    assert [(row["name"], row["row_count"]) for row in listed] == [("some", 2), ("letters", 3)]
    assert "letters" in run_command("data", "list", "--scope", "global").out
    assert "x Int64, s Nullable(String)" in run_command("data", "show", "letters").out
    assert "WHERE" in run_command("data", "show", "some").out
    shown = run_command("data", "head", str(table_id), "-n", "2")
    assert "[a]" in shown.out
    assert "the first 2 of 3 rows" in shown.err
    assert orjson.loads(run_command("data", "head", "some", "--json").out) == [
        {"x": 2, "s": None},
        {"x": 3, "s": "c"},
    ]
    counted = run_command("data", "query", f'SELECT count() AS n FROM letters JOIN "{table_id}" USING x', "--json")
    assert orjson.loads(counted.out) == {"columns": ["n"], "rows": [{"n": 3}], "truncated_by": None}
    cut = run_command("data", "query", "SELECT s FROM letters ORDER BY x", "-n", "1")
    assert "[a]" in cut.out
    assert "truncated: the first 1 rows, by the limit of rows" in cut.err
    unknown = run_command("data", "query", "SELECT * FROM lettres")
    assert "no table is named 'lettres'; known are some, letters" in unknown.err
    for name, read in (("l.parquet", parquet.read_table), ("l.csv", csv.read_csv), ("l.arrow", feather.read_table)):
        assert run_command("data", "export", "letters", name).out == f"Wrote 3 rows to {name}\n"
        assert read(name)["x"].to_pylist() == [1, 2, 3]
    assert "l.csv exists" in run_command("data", "export", "letters", "l.csv").err
    assert run_command("data", "export", "some", "l.csv", "--overwrite").code == 0
    assert csv.read_csv("l.csv").num_rows == 2
    assert "there is no folder none" in run_command("data", "export", "letters", "none/l.csv").err
    assert "cannot be exported as 'xlsx'" in run_command("data", "export", "letters", "l.xlsx").err
    assert run_command("data", "drop", "letters").out == f"Dropped table {table_id}\n"
    assert "no table has the id or the global name 'letters'" in run_command("data", "show", "letters").err
    with psycopg.connect(dsn) as conn:
        assert conn.execute("SELECT name FROM dagapp.data_objects").fetchall() == [("some",)]


@task
async def make_sales(count: int) -> Object:
    return await get_data_context().create_object_from_value(
        {"x": list(range(count)), "shop": ["a", "b"] * (count // 2)}
    )


@task
async def shop_totals(sales: Object) -> Object:
    return await sales.group_by("shop").agg(n=aggregates.count()).materialize()


@task
def as_arrow(totals: pa.Table) -> pa.Table:
    return totals.append_column("label", pa.array(["x"] * totals.num_rows))


@task
async def publish(labels: Object) -> int:
    return (await labels.materialize(name="shop_labels", scope="global")).table_id


@workflow
def published(count: int) -> int:
    return publish(as_arrow(shop_totals(make_sales(count))))


def test_a_table_tells_the_tables_and_tasks_it_comes_from() -> None:
    table_id = published.run(10)
    rows = orjson.loads(run_command("data", "lineage", "shop_labels", "--json").out)
    assert rows[0]["object_id"] == str(table_id)
    by_id = {row["object_id"]: row for row in rows}
    chain = [rows[0]]
    while chain[-1]["inputs"]:
        [source] = chain[-1]["inputs"]
        chain.append(by_id[source])
    assert [row["row_count"] for row in chain] == [2, 2, 2, 10]
    tasks = ("publish", "as_arrow", "shop_totals", "make_sales")
    assert all(name in row["task_id"] for name, row in zip(tasks, chain, strict=True))
    assert {row["workflow_id"] for row in chain} == {"published"}
    assert [row["sql"] is not None for row in chain] == [True, False, True, False]
    assert chain[2]["plan"]["version"] == 1
    text = run_command("data", "lineage", str(table_id)).out
    assert text.startswith(f"shop_labels ({table_id}), 2 rows, by task ")
    assert text.splitlines()[-1].lstrip("│└─ ").startswith(chain[-1]["object_id"])
    assert f"aggregate({chain[3]['object_id']})" in text
    assert chain[2]["column_sources"] == {"shop": [{"object_id": chain[3]["object_id"], "column": "shop"}], "n": []}
    columns = run_command("data", "lineage", str(table_id), "--columns").out
    assert f"shop from {chain[3]['object_id']}.shop" in columns
    assert "n from no column" in columns
    asyncio.run(drop(int(chain[2]["object_id"])))
    assert f"{chain[2]['object_id']} (dropped)" in run_command("data", "lineage", "shop_labels").out


async def drop(table_id: int) -> None:
    async with DataContext() as context:
        await context.drop([table_id])


WITHOUT = """
import sys

sys.modules.update(dict.fromkeys(("chdb", "pyarrow", "pandas")))
import dagmaster.cli.app, dagmaster.fleet
from dagmaster import apply, create_task, map, task, workflow
from dagmaster.data import ObjectRef, col
from dagmaster.data.engine import open_engine
from dagmaster.errors import Misconfigured
from dagmaster.python.signatures import Signature

def echo(table):
    return [table]

read = Signature(echo).read({"table": {"object_type": "object", "table_id": 5}}, print)
assert read == ([], {"table": ObjectRef(table_id=5)}), read
try:
    open_engine("chdb:///nowhere")
except Misconfigured as error:
    print(error)
"""


def test_the_core_works_without_the_extra() -> None:
    ended = subprocess.run([sys.executable, "-c", WITHOUT], capture_output=True, text=True)
    assert ended.stderr == ""
    assert "pip install 'dagmaster[data]'" in ended.stdout
