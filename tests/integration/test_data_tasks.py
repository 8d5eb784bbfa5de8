"""Tables between tasks: made in one, read in another, passed by reference and kept as long as they are needed."""

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson
import psycopg
import pyarrow as pa
import pytest
from command_line import call as run_command
from psycopg.rows import dict_row
from pyarrow import csv, feather, parquet

from dagmaster import JobFailed, apply, current_task, map, reduce, task, workflow
from dagmaster.data import Object, View, aggregates, col, get_data_context
from dagmaster.data.table_store import TableStore
from dagmaster.errors import UnknownTable
from dagmaster.python.context import session
from dagmaster.python.data_context import DataContext, release_engines
from dagmaster.python.local import LocalFleet
from dagmaster.store import data_objects
from dagmaster.store.connect import Connection


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """One folder for all tests of the module: an engine takes half a second to open."""
    yield tmp_path_factory.mktemp("tables")
    release_engines()


@pytest.fixture(autouse=True)
def installation(shared_dsn: str, tables: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DAGMASTER_DATABASE_URL", shared_dsn)
    monkeypatch.setenv("DAGMASTER_DATA_URL", f"chdb://{tables}")
    monkeypatch.setenv("DAGMASTER_POLL_INTERVAL_SECONDS", "0.1")
    monkeypatch.setenv("DAGMASTER_WORKER_QUEUE", "q")
    yield
    LocalFleet.close_shared()


def entries(dsn: str) -> list[dict[str, Any]]:
    with psycopg.connect(dsn, row_factory=dict_row) as conn:
        return conn.execute("SELECT * FROM dagapp.data_objects ORDER BY object_id").fetchall()


def uses(dsn: str, table_id: int) -> dict[str, bool]:
    """The nodes that use a table, and whether they passed it on."""
    with psycopg.connect(dsn) as conn:
        sql = "SELECT node_id, is_passed_on FROM dagapp.data_object_uses WHERE object_id = %s"
        return dict(conn.execute(sql, [table_id]).fetchall())


@task
async def make_sales(count: int) -> Object:
    context = get_data_context()
    scratch = await context.create_object_from_value([1, 2, 3])
    assert await scratch.count() == 3
    return await context.create_object_from_value({"x": list(range(count)), "shop": ["a", "b"] * (count // 2)})


@task
async def double(sales: Object) -> View:
    return sales.with_columns(y=col("x") * 2).where(col("x") > 0)


@task
async def total(view: View) -> dict[str, Any]:
    by_shop = view.group_by("shop").agg(total=aggregates.sum("y"))
    return {"sums": await by_shop.data(), "rows": await view.count()}


@task
def total_in_a_thread(view: View) -> int:
    value: int = asyncio.run(view.agg(total=aggregates.sum("y")).scalar())
    return value


@workflow
def summary(count: int) -> dict[str, Any]:
    view = double(make_sales(count))
    return {"async": total(view), "sync": total_in_a_thread(view), "view": view}


def test_a_view_crosses_tasks_with_its_computed_columns(shared_dsn: str) -> None:
    done = summary.run(6)
    assert done["async"] == {"sums": {"shop": ["a", "b"], "total": [12, 18]}, "rows": 5}
    assert done["sync"] == 30
    # The scratch table went with its task; the one that was passed on belongs to the job.
    [entry] = entries(shared_dsn)
    assert (entry["scope"], entry["state"], entry["row_count"]) == ("job", "ready", 6)
    assert entry["columns"] == [{"name": "x", "type": "Int64"}, {"name": "shop", "type": "String"}]
    assert done["view"]["table_id"] == entry["object_id"]
    # Written with the tasks. The one that passed it on keeps it for the others of its job.
    assert uses(shared_dsn, entry["object_id"]) == {"double": True, "total": False, "total_in_a_thread": False}


@task
async def refused(view) -> None:
    raise AssertionError("it must not be called")


@workflow
def untrusted(view: dict[str, Any]) -> None:
    refused(view)


def test_sql_text_of_a_caller_is_refused() -> None:
    with pytest.raises(JobFailed, match="`where` is not SQL text"):
        untrusted.run({"object_type": "view", "table_id": 1, "where": "1 = 1"})


def test_a_reference_to_a_table_of_another_job_is_refused() -> None:
    table_id = summary.run(2)["view"]["table_id"]
    with pytest.raises(JobFailed, match=f"has no table {table_id}: a reference may name tables of its own job"):
        selected.run(table_id)


@task
async def first_rows(view) -> list[int]:
    values: list[int] = (await view.data())["x"]
    return values


@workflow
def selected(table_id: int) -> list[int]:
    return first_rows.options(retries=0)(
        {"object_type": "view", "table_id": table_id, "offset": 2, "limit": 3, "where": ["x", ">", 2]}
    )


@workflow
def first_rows_of(table: dict[str, Any]) -> list[int]:
    return first_rows(table)


def test_a_view_can_be_written_by_hand(shared_dsn: str) -> None:
    async def make() -> int:
        async with DataContext() as context:
            return (await context.create_object_from_value({"x": list(range(9))}, name="nine", scope="global")).table_id

    table_id = asyncio.run(make())
    assert selected.run(table_id) == [3, 4]
    assert uses(shared_dsn, table_id) == {"first_rows": False}
    assert first_rows_of.run({"object_type": "object", "table_id": table_id}) == list(range(9))
    assert uses(shared_dsn, table_id) == {"": True, "first_rows": False}


@workflow
def doubled(table: dict[str, Any]) -> dict[str, Any]:
    return total(double(table))  # type: ignore[arg-type]


def test_a_caller_passes_a_small_table_with_its_rows(shared_dsn: str) -> None:
    before = entries(shared_dsn)
    rows = {"columns": ["x", "shop"], "values": [[1, 2, 3], ["b", "a", "b"]]}
    done = doubled.run({"object_type": "object", "inline": rows})
    assert done == {"sums": {"shop": ["a", "b"], "total": [4, 8]}, "rows": 3}
    # The View of it that was passed on is a table of the job.
    [entry] = [entry for entry in entries(shared_dsn) if entry not in before]
    assert (entry["scope"], entry["row_count"]) == ("job", 3)
    part = {"object_type": "view", "table_id": entry["object_id"], "where": ["x", ">", 1], "inline": rows}
    assert first_rows_of.run(part) == [2, 3]
    with pytest.raises(JobFailed, match="the lists of values differ in length"):
        first_rows_of.run({"object_type": "object", "inline": {"columns": ["x", "y"], "values": [[1], []]}})


@task
async def spread(rows: int) -> Any:
    """Its table outlives it: the tasks that it adds read it."""
    source = await get_data_context().create_object_from_value({"x": list(range(rows))})
    mapped = map(square, await source.chunks(4))
    return await apply(mapped)


@task
async def square(chunk: View) -> Object:
    return await chunk.select(y=col("x") * col("x")).materialize()


@task
async def gather(parts: list[Object]) -> list[int]:
    values: list[int] = (await parts[0].union(*parts[1:]).data())["y"]
    return values


@workflow
def squares_in_chunks(rows: int) -> list[int]:
    return gather(spread(rows))


def test_a_table_is_mapped_in_chunks_and_collected_in_order() -> None:
    assert squares_in_chunks.run(10) == [number * number for number in range(10)]


@task
def halve(chunk: pa.Table, divisor: int) -> pa.Table:
    return pa.table({"half": [x // divisor for x in chunk["x"].to_pylist()]})


@task(retries=1, retry_delay=0.01)
async def halve_at_second_try(chunk: View, divisor: int) -> View:
    half = await chunk.select(half=(col("x") / divisor).cast("Int64")).materialize()
    if current_task().retry_count == 0:
        raise OSError("the first attempt fails after it has stored its rows")
    return half.limit(1000)


@task
async def spread_table(rows: int, callback: str) -> Any:
    numbers = await get_data_context().create_object_from_value(pa.table({"x": pa.array(range(0, 2 * rows, 2))}))
    return await apply(map(callback, numbers.where(col("x") >= 0), chunk_rows=4, divisor=2))


@task
async def rows_of(halves: Object) -> list[int]:
    values: list[int] = (await halves.data())["half"]
    return values


@workflow
def halves(rows: int, callback: str) -> list[int]:
    return rows_of(spread_table(rows, callback))


def test_a_function_is_mapped_over_a_table_into_one_table() -> None:
    for callback, rows in ((halve, 10), (halve_at_second_try, 6), (halve, 0)):
        assert halves.run(rows, callback.handler) == list(range(rows))


@task
def smallest(parts: list[View]) -> View:
    return parts[0].union(*parts[1:]).order_by("x").limit(2)


@task
async def spread_reduction(numbers: list[int]) -> Any:
    table = await get_data_context().create_object_from_value({"x": numbers})
    return await apply(reduce(smallest, table, chunk_rows=2, fan_in=2))


@task
async def values_of(view: View) -> list[int]:
    values: list[int] = (await view.data())["x"]
    return values


@workflow
def two_smallest(numbers: list[int]) -> list[int]:
    return values_of(spread_reduction(numbers))


def test_a_table_is_reduced_in_layers() -> None:
    assert two_smallest.run([7, 3, 9, 1, 8, 2, 6, 5, 4]) == [1, 2]


@task
async def load_file(reference: str) -> list[Any]:
    table = await get_data_context().create_object_from_url(reference)
    return [table.schema(), await table.data()]


@workflow
def loaded(reference: str) -> list[Any]:
    return load_file.options(retries=0)(reference)


def test_files_of_the_storage_become_tables(tmp_path: Path) -> None:
    folder = tmp_path / ".dagmaster" / "storage" / "bronze"
    folder.mkdir(parents=True)
    rows = pa.table({"x": pa.array([1, None, 3]), "s": ["a", "b,c", "d"]})
    writers: dict[str, Any] = {"parquet": parquet.write_table, "csv": csv.write_csv, "arrow": feather.write_feather}
    for ending, write in writers.items():
        write(rows, str(folder / f"t.{ending}"))
        types, data = loaded.run(f"bronze/t.{ending}")
        assert types == {"x": "Nullable(Int64)", "s": "Nullable(String)"}
        assert data == rows.to_pydict()
    for reference, problem in (
        ("/etc/passwd.csv", "outside of the storage zones"),
        ("https://example.com/t.csv", "not accepted"),
        ("bronze/t.xls", "format='parquet', 'csv' or 'arrow'"),
    ):
        with pytest.raises(JobFailed, match=problem):
            loaded.run(reference)


@task
async def scopes_around_apply(rows: int) -> list[str]:
    source = await get_data_context().create_object_from_value({"x": list(range(rows))})
    mapped = map(square, await source.chunks(4))
    before = await scope_of(source)
    await apply(mapped)
    return [before, await scope_of(source)]


async def scope_of(table: Object) -> str:
    async with session() as conn:
        scope: str = (await data_objects.get_object(conn, str(table.table_id)))["scope"]
        return scope


@workflow
def applied(rows: int) -> list[str]:
    return scopes_around_apply(rows)


def test_a_table_belongs_to_the_job_before_the_tasks_that_read_it_can_start() -> None:
    """Not only when the task that adds them ends: its worker may die before."""
    assert applied.run(5) == ["temp", "job"]


def test_a_reaper_in_the_middle_of_a_map_takes_nothing_that_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    stored = TableStore.store_plan

    async def store_and_reap(context: TableStore, plan: Any, **options: Any) -> int:
        table_id = await stored(context, plan, **options)
        async with session() as conn:
            await data_objects.expire_ended(conn, retention_days=0, grace_seconds=0)
        await context.sweep()
        return table_id

    monkeypatch.setattr(TableStore, "store_plan", store_and_reap)
    assert squares_in_chunks.run(10) == [number * number for number in range(10)]


@task(retries=2, retry_delay=0.01)
async def flaky(sales: Object, name: str) -> list[int]:
    log = await get_data_context().open(name)
    await log.append({"x": [100 + current_task().retry_count]})
    await log.append(sales.select("x").limit(1))
    await log.append(sales.select("x"))
    await log.append({"x": [7]})
    await log.append({"x": [7]})
    if current_task().retry_count == 0:
        raise OSError("the first attempt fails after its appends")
    return sorted((await log.data())["x"])


@workflow
def retried(name: str) -> list[int]:
    return flaky(make_sales(4), name)


def test_a_retry_finds_its_input_doubles_no_row_and_keeps_what_is_new() -> None:
    async def make() -> None:
        async with DataContext() as context:
            await context.create_object_from_value(
                pa.table({"x": pa.array([], pa.int64())}), name="log", scope="global"
            )

    asyncio.run(make())
    assert retried.run("log") == [0, 0, 1, 2, 3, 7, 7, 100, 101]


@task
async def fail_with_tables() -> None:
    await get_data_context().create_object_from_value([1])
    raise ValueError("no")


@workflow
def failing() -> None:
    fail_with_tables.options(retries=0)()


def test_a_task_that_fails_leaves_no_table_behind(shared_dsn: str) -> None:
    before = entries(shared_dsn)
    with pytest.raises(JobFailed):
        failing.run()
    assert entries(shared_dsn) == before


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
