"""Engines at work: cancelled, limited, appended to at once, killed, and closed."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from datetime import date
from pathlib import Path

import httpx
import pyarrow as pa
import pytest
from data_values import table
from pydantic import TypeAdapter

from dagmaster.data import DataContext, Object, View, aggregates, col, get_data_context, table_store
from dagmaster.data.engine import Limits, folder_of, folder_url
from dagmaster.data.references import ObjectRef, Reference, TaggedReference, ViewRef
from dagmaster.data.service import LAUNCH, LOG, ServiceHold, find_address
from dagmaster.data.sql import table_name
from dagmaster.errors import Conflict, Invalid, QueryFailed, TooLarge, UnknownTable

TABLE: TypeAdapter[Reference] = TypeAdapter(TaggedReference)
SLEEPER = "SELECT sum(sleepEachRow(0.1)) AS slept FROM numbers(3000) SETTINGS max_block_size = 10"
SLEEPERS = "SELECT count() AS n FROM system.processes WHERE query LIKE '%AS slept%' AND query NOT LIKE '%processes%'"


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
    async with asyncio.timeout(60):  # A server answers shortly before it forgets the query.
        while await context.run(running):  # noqa: ASYNC110 - the other end is a server
            await asyncio.sleep(0.01)


async def test_a_query_that_reads_too_much_fails_alone(engine_url: str) -> None:
    async with DataContext(engine_url, limits=Limits(memory_bytes=1 << 30, seconds=600, rows_read=1000)) as context:
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


async def test_an_append_is_one_insert_however_many_rows_it_has(
    context: DataContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = await table(context, x=[-1])
    insert = context.engine.insert
    inserted: list[int] = []

    def insert_once(name: str, rows: pa.Table, token: str | None = None) -> None:
        assert not inserted, "whoever is killed between two inserts leaves a part of the rows"
        insert(name, rows, token)
        inserted.append(rows.num_rows)

    monkeypatch.setattr(context.engine, "insert", insert_once)
    for _ in range(2):
        await log.append(pa.table({"x": pa.array(range(1_200_000), pa.int64())}), token="all")
        inserted.clear()
    parts = f"SELECT count() AS n, uniqExact(_part) AS parts FROM {table_name(log.table_id)} WHERE row_id > 0"
    assert context.engine.query(parts, {}).to_pylist() == [{"n": 1_200_000, "parts": 1}]


async def test_an_append_has_a_limit_of_bytes(context: DataContext, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table_store, "MAX_APPEND_BYTES", 79)
    log = await table(context, x=[1])
    with pytest.raises(TooLarge, match=r"the rows have 80 bytes, and one append adds at most 79: append them in parts"):
        await log.append({"x": list(range(10))})
    assert await log.count() == 1


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
    by_count = await numbers.chunks(count=4)
    assert [(await chunk.data())["x"] for chunk in by_count] == [  # type: ignore[attr-defined]
        list(range(6)),
        list(range(6, 12)),
        list(range(12, 18)),
        list(range(18, 25)),
    ]
    assert len(await numbers.chunks(count=100)) == 25
    for wrong in ({"rows": 0}, {"count": 0}, {"rows": 5, "count": 5}):
        with pytest.raises(Invalid, match="chunk"):
            await numbers.chunks(**wrong)
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


async def test_without_a_catalog_a_small_table_travels_with_its_rows(context: DataContext) -> None:
    small = await table(context, x=[1, None, 3], d=[date(2026, 1, 1)] * 3)
    references = [view.reference().model_dump_json() for view in (small, small.offset(1).limit(1), small.limit(0))]
    assert "inline" not in repr(small)
    async with DataContext(context.url):
        received, part, nothing = [View.from_reference(TABLE.validate_json(reference)) for reference in references]
        assert isinstance(received, Object)
        assert received.table_id != small.table_id
        assert await received.where(col("x") > 1).data() == {"x": [3], "d": [date(2026, 1, 1)]}
        assert await part.data() == {"x": [None], "d": [date(2026, 1, 1)]}
        assert nothing.schema() == {"x": "Int64", "d": "Date32"}
        # At home it is the table itself.
        again = View.from_reference(received.reference())
        assert again.plan == received.plan
    await small.append({"x": [4], "d": [date(2026, 1, 2)]})
    assert small.reference() == ObjectRef(table_id=small.table_id)


async def test_temporary_tables_go_with_their_context(context: DataContext) -> None:
    async with DataContext(context.url) as other:
        gone = await other.create_object_from_value([1])
    with pytest.raises(UnknownTable, match="may have been dropped"):
        await Object(gone.table_id, context).data()


@pytest.mark.parametrize("engine_url", ["service"], indirect=True)
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


def test_the_service_serves_others_when_its_starter_was_killed(tmp_path: Path) -> None:
    reading, writing = os.pipe()
    os.close(reading)  # As the kernel does for a process that is killed.
    hold = ServiceHold(tmp_path)
    with (tmp_path / LOG).open("wb") as log:
        subprocess.run([sys.executable, "-c", LAUNCH, str(tmp_path)], stdout=writing, stderr=log, check=True)
    os.close(writing)
    while (address := find_address(tmp_path)) is None:
        time.sleep(0.05)
    assert hold.address() == address
    hold.release()


@pytest.mark.parametrize("engine_url", ["service"], indirect=True)
async def test_a_stranger_is_not_served(context: DataContext) -> None:
    await table(context, x=[1])
    address = find_address(folder_of(context.url))
    assert address is not None
    for path in ("/", "/?query=SELECT+1", "/ping"):
        response = await asyncio.to_thread(httpx.get, f"http://127.0.0.1:{address.port}{path}", timeout=60)
        assert response.status_code == 403


async def test_without_a_catalog_nothing_can_be_kept(context: DataContext) -> None:
    with pytest.raises(Conflict, match=r"dagmaster\.DataContext"):
        await context.create_object_from_value([1], name="kept", scope="global")
    with pytest.raises(UnknownTable, match="dagmaster data list"):
        await context.open("kept")


@pytest.mark.parametrize("engine_url", ["chdb"], indirect=True)
async def test_one_process_opens_a_folder_at_a_time(context: DataContext, tmp_path: Path) -> None:
    await table(context, x=[1])
    with pytest.raises(Conflict, match="one process can open one folder"):
        await DataContext(folder_url(tmp_path)).create_object_from_value([1])
    code = f"from dagmaster.data.engine import open_engine; open_engine({context.url!r})"
    ended = await asyncio.to_thread(subprocess.run, [sys.executable, "-c", code], capture_output=True, text=True)
    assert "open in another process (pid " in ended.stderr
    with pytest.raises(Invalid, match="not the URL of a data engine"):
        await DataContext("sqlite:///x").create_object_from_value([1])
