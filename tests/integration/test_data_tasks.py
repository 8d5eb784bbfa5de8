"""Tables between tasks: made in one, read in another, passed by reference and kept as long as they are needed."""

import asyncio
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pytest
from psycopg.rows import dict_row
from pyarrow import csv, feather, parquet
from pydantic import BaseModel

from dagmaster import JobFailed, current_task, task, workflow
from dagmaster.data import Object, View, aggregates, col, get_data_context
from dagmaster.python.data_context import DataContext

pytestmark = pytest.mark.usefixtures("table_installation")


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
    before = entries(shared_dsn)
    done = summary.run(6)
    assert done["async"] == {"sums": {"shop": ["a", "b"], "total": [12, 18]}, "rows": 5}
    assert done["sync"] == 30
    # The scratch table went with its task; the one that was passed on belongs to the job.
    [entry] = [entry for entry in entries(shared_dsn) if entry not in before]
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
def inline_doubled(table: dict[str, Any]) -> dict[str, Any]:
    return total(double(table))  # type: ignore[arg-type]


def test_a_caller_passes_a_small_table_with_its_rows(shared_dsn: str) -> None:
    before = entries(shared_dsn)
    rows = {"columns": ["x", "shop"], "values": [[1, 2, 3], ["b", "a", "b"]]}
    done = inline_doubled.run({"object_type": "object", "inline": rows})
    assert done == {"sums": {"shop": ["a", "b"], "total": [4, 8]}, "rows": 3}
    # The View of it that was passed on is a table of the job.
    [entry] = [entry for entry in entries(shared_dsn) if entry not in before]
    assert (entry["scope"], entry["row_count"]) == ("job", 3)
    part = {"object_type": "view", "table_id": entry["object_id"], "where": ["x", ">", 1], "inline": rows}
    assert first_rows_of.run(part) == [2, 3]
    with pytest.raises(JobFailed, match="the lists of values differ in length"):
        first_rows_of.run({"object_type": "object", "inline": {"columns": ["x", "y"], "values": [[1], []]}})


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


@dataclass
class Sales:
    region: str
    tables: list[View]


class SalesModel(BaseModel):
    sales: Sales


@task
async def make_dataclass() -> Sales:
    return Sales("north", [await get_data_context().create_object_from_value([1, 2])])


@task
async def make_model(sales: Sales) -> SalesModel:
    more = await get_data_context().create_object_from_value([1, 2, 3])
    return SalesModel(sales=Sales(sales.region, [*sales.tables, more]))


@task
async def count_model(model: SalesModel) -> dict[str, list[int]]:
    return {model.sales.region: [await table.count() for table in model.sales.tables]}


@workflow
def tables_in_records() -> dict[str, list[int]]:
    return count_model(make_model(make_dataclass()))


def test_tables_in_dataclasses_and_models_are_kept_for_the_next_task() -> None:
    assert tables_in_records.run() == {"north": [2, 3]}
