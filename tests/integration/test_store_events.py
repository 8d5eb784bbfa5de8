import asyncio
from datetime import UTC, datetime, timedelta

import psycopg
import pytest
from fleet import rows

from dagmaster.ids import JobId, NodeId
from dagmaster.store.audit import note_command
from dagmaster.store.connect import opened
from dagmaster.store.events import list_audit, list_events
from dagmaster.store.schema import ensure_partitions

INSERT = """INSERT INTO dagapp.dag_job_events (job_id, event_type, event_status, source_app, created_at)
            VALUES (%s, %s::dagapp.event_type, 'info', 'test', %s)"""


@pytest.fixture
def now() -> datetime:
    """The start of the test: its days stay the same if midnight passes while it runs."""
    return datetime.now(UTC)


async def add(dsn: str, at: datetime, event_type: str = "command", job_id: int = 1) -> None:
    await rows(dsn, INSERT, job_id, event_type, at)


async def partitions(dsn: str) -> set[str]:
    tables = await rows(
        dsn,
        "SELECT inhrelid::regclass::text AS name FROM pg_inherits WHERE inhparent = 'dagapp.dag_job_events'::regclass",
    )
    return {row["name"].removeprefix("dagapp.dag_job_events_") for row in tables}


def days(now: datetime, first: int, last: int) -> set[str]:
    return {(now + timedelta(days=day)).strftime("%Y%m%d") for day in range(first, last + 1)}


async def placed(dsn: str) -> dict[str, int]:
    tables = await rows(
        dsn, "SELECT tableoid::regclass::text AS name, count(*) AS n FROM dagapp.dag_job_events GROUP BY 1"
    )
    return {row["name"].removeprefix("dagapp.dag_job_events_"): row["n"] for row in tables}


async def test_partitions_are_created_ahead(dsn: str, now: datetime) -> None:
    async with opened(dsn, application="test") as conn:
        await ensure_partitions(conn, days_ahead=9)
        assert days(now, 0, 9) | {"default"} <= await partitions(dsn)
        before = await partitions(dsn)
        await ensure_partitions(conn, days_ahead=9)
        assert await partitions(dsn) == before


async def test_events_in_the_default_partition_are_moved_to_their_day(dsn: str, now: datetime) -> None:
    twentieth, next_day, long_ago = (now + timedelta(days=day) for day in (20, 21, -400))
    for moment in (twentieth, twentieth, next_day, long_ago):
        await add(dsn, moment)
    ids = await rows(dsn, "SELECT event_id, created_at FROM dagapp.dag_job_events ORDER BY event_id")
    assert await placed(dsn) == {"default": 4}
    async with opened(dsn, application="test") as conn:
        await ensure_partitions(conn, days_ahead=21)
    assert await placed(dsn) == {f"{twentieth:%Y%m%d}": 2, f"{next_day:%Y%m%d}": 1, "default": 1}
    assert await rows(dsn, "SELECT event_id, created_at FROM dagapp.dag_job_events ORDER BY event_id") == ids
    await add(dsn, twentieth)
    assert (await placed(dsn))[f"{twentieth:%Y%m%d}"] == 3


async def test_days_start_at_midnight_utc_in_any_session_time_zone(dsn: str, now: datetime) -> None:
    async with opened(dsn, application="test") as conn:
        await conn.execute(b"SET timezone = 'Pacific/Kiritimati'")
        await ensure_partitions(conn, days_ahead=30)
    day = (now + timedelta(days=30)).replace(hour=0, minute=0, second=0, microsecond=0)
    for moment in (day, day + timedelta(hours=23, minutes=59)):
        await rows(dsn, INSERT, 1, "command", moment)
    assert await placed(dsn) == {day.strftime("%Y%m%d"): 2}


async def test_partitions_can_be_created_concurrently_while_events_are_written(dsn: str, now: datetime) -> None:
    async def make() -> None:
        async with opened(dsn, application="test") as conn:
            for ahead in range(10, 22, 3):
                await ensure_partitions(conn, days_ahead=ahead)

    async def write() -> None:
        for day in range(8, 18):
            await add(dsn, now + timedelta(days=day))

    await asyncio.gather(make(), make(), make(), write(), write())
    assert sum((await placed(dsn)).values()) == 20
    assert days(now, 0, 19) <= await partitions(dsn)


async def test_events_can_have_any_timestamp(dsn: str, now: datetime) -> None:
    for day in (-5000, -1, 0, 1, 5000):
        await add(dsn, now + timedelta(days=day))
    assert sum((await placed(dsn)).values()) == 5


async def test_the_timeline_is_paged_oldest_first(dsn: str, now: datetime) -> None:
    for kind in ("job_created", "job_started", "node_started", "node_retrying", "node_started"):
        await add(dsn, now, kind)
    await add(dsn, now, "job_created", job_id=2)
    async with opened(dsn, application="test") as conn:
        events = await list_events(conn, JobId(1))
        assert [event["event_type"] for event in events] == [
            "job_created",
            "job_started",
            "node_started",
            "node_retrying",
            "node_started",
        ]
        ids = [event["event_id"] for event in events]
        assert ids == sorted(ids)
        page = await list_events(conn, JobId(1), after=ids[1], limit=2)
        assert [event["event_id"] for event in page] == ids[2:4]
        named = await list_events(conn, JobId(1), event_types=["node_running", "node_retry"])
        assert [event["event_type"] for event in named] == ["node_started", "node_retrying", "node_started"]
        assert await list_events(conn, JobId(1), node_id=NodeId("nothing")) == []


async def test_an_event_of_an_unknown_type_is_refused(dsn: str, now: datetime) -> None:
    with pytest.raises(psycopg.errors.InvalidTextRepresentation):
        await add(dsn, now, "something_else")


async def test_a_command_is_recorded_even_if_its_parameters_contain_a_nul(dsn: str) -> None:
    params = {"handler": "a\0\0b", "pattern": "\\u0000", "path": "\\\0"}
    async with opened(dsn, application="test") as conn:
        await note_command(conn, {"command": "cache.clear", "params": params})
        [event] = await list_audit(conn, ["command"], limit=10)
    shown = {"handler": "a\ufffd\ufffdb", "pattern": "\\u0000", "path": "\\\ufffd"}
    assert event["event_data"] == {"command": "cache.clear", "params": shown}
