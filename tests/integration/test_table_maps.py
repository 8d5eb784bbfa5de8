"""Tables are mapped and reduced by tasks, one for each chunk of their rows."""

from typing import Any

import pyarrow as pa
import pytest

from dagmaster import apply, current_task, map, reduce, task, workflow
from dagmaster.data import Object, View, col, get_data_context
from dagmaster.data.table_store import TableStore
from dagmaster.python.context import session
from dagmaster.store import data_objects

pytestmark = pytest.mark.usefixtures("table_installation")


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
