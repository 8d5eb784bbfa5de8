"""Removed jobs are archived first."""

from datetime import UTC
from pathlib import Path
from typing import Any

import orjson
import pyarrow.parquet
import pytest
from expired_jobs import TABLES, add_groups, counts, ended, exported, left, remove
from fleet import fan, rows

from dagmaster.store import archive, retention
from dagmaster.store.archive import KINDS, Archive
from dagmaster.store.connect import Connection

SOURCES = dict(zip(KINDS, TABLES[:-1], strict=True))


def as_written(row: dict[str, Any]) -> dict[str, Any]:
    """JSON as read back from the file."""
    names = (
        "input_params",
        "result_data",
        "metadata",
        "output",
        "checkpoint_data",
        "event_data",
        "state_data",
        "signals",
    )
    return {name: orjson.loads(value) if name in names and value else value for name, value in row.items()}


async def test_exported_files_contain_the_rows(dsn: str, conn: Connection, tmp_path: Path) -> None:
    [job_id] = await ended(dsn, fan(), items=[{"a": 1.5}, "ü", None])
    await rows(
        dsn,
        "INSERT INTO dagapp.dag_checkpoints (checkpoint_id, job_id, node_id, task_id, phase_name, state_data) "
        """VALUES (1, %s, 'spread__0', 'a task', 'read', '{"rows": 3}')""",
        job_id,
    )
    await add_groups(dsn, job_id)
    rows_before = {kind: await rows(dsn, f"SELECT * FROM dagapp.{table}") for kind, table in SOURCES.items()}
    await remove(conn, export=Archive(tmp_path).export)
    assert await left(dsn) == set()
    day = rows_before["jobs"][0]["completed_at"].astimezone(UTC).date()
    for kind, before in rows_before.items():
        [path] = (tmp_path / kind).iterdir()
        assert path.name == f"date={day}"
        [name] = path.iterdir()
        written = [as_written(row) for row in exported(tmp_path, kind)]
        assert sorted(written, key=str) == sorted(before, key=str), kind
        schema = pyarrow.parquet.read_schema(name)
        assert str(schema.field("job_id").type) == "int64"
        times = {str(schema.field(name).type) for name in ("created_at", "reported_at") if name in schema.names}
        assert times == ({"timestamp[us, tz=UTC]"} if kind != "dependencies" else set())


async def test_jobs_are_exported_to_a_folder_per_day(dsn: str, conn: Connection, tmp_path: Path) -> None:
    await ended(dsn, days_ago=40)
    await ended(dsn, days_ago=42)  # Another day even if midnight has passed in between.
    await remove(conn, export=Archive(tmp_path).export)
    assert len(list((tmp_path / "jobs").iterdir())) == 2
    for path in (tmp_path / "jobs").rglob("*.parquet"):
        for row in pyarrow.parquet.ParquetFile(path).read().to_pylist():
            assert path.parent.name == f"date={row['completed_at'].date()}"


async def test_an_interruption_after_the_export_leaves_each_job_in_the_archive_once(
    dsn: str, conn: Connection, tmp_path: Path
) -> None:
    first = await ended(dsn, times=2)
    files = Archive(tmp_path)

    async def killed(conn: Connection, removal: retention.Removal) -> None:
        await files.export(conn, removal)
        raise InterruptedError

    with pytest.raises(InterruptedError):
        await remove(conn, export=killed)
    assert await left(dsn) == set(first)
    names = sorted(path.name for path in (tmp_path / "jobs").rglob("*.parquet"))
    more = await ended(dsn, days_ago=50)  # Would otherwise have been removed with the first ones.
    await remove(conn, export=files.export)
    assert await left(dsn) == set()
    assert sorted(row["job_id"] for row in exported(tmp_path, "jobs")) == sorted([*first, *more])
    assert set(names) < {path.name for path in (tmp_path / "jobs").rglob("*.parquet")}
    assert not list(tmp_path.rglob("*.partial"))


async def test_a_job_marked_for_export_is_not_removed_without_it(dsn: str, conn: Connection, tmp_path: Path) -> None:
    job_ids = await ended(dsn)

    async def killed(*_: Any) -> None:
        raise InterruptedError

    with pytest.raises(InterruptedError):
        await remove(conn, export=killed)
    assert (await remove(conn)).jobs == 0
    assert await left(dsn) == set(job_ids)
    assert (await remove(conn, export=Archive(tmp_path).export)).jobs == 1
    assert len(exported(tmp_path, "jobs")) == 1


async def test_a_job_that_could_not_be_exported_is_not_removed(dsn: str, conn: Connection, tmp_path: Path) -> None:
    job_ids = await ended(dsn)
    (tmp_path / "jobs").write_text("not a folder")
    before = await counts(dsn)
    with pytest.raises(OSError):
        await remove(conn, export=Archive(tmp_path).export)
    assert await left(dsn) == set(job_ids)
    assert await counts(dsn) == before


async def test_a_full_disk_during_export_removes_nothing_and_the_next_run_succeeds(
    dsn: str, conn: Connection, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archive, "ROWS_AT_ONCE", 4)
    job_ids = await ended(dsn, fan(), items=list(range(10)))
    before = await counts(dsn)
    write, written = Archive._write, []

    def fill(self: Archive, writer: Any, some: Any, schema: Any) -> None:
        written.append(len(some))
        if len(written) == 3:
            raise OSError("no space left on device")
        write(self, writer, some, schema)

    monkeypatch.setattr(Archive, "_write", fill)
    with pytest.raises(OSError, match="no space"):
        await remove(conn, export=Archive(tmp_path).export)
    assert (await left(dsn), await counts(dsn)) == (set(job_ids), before)
    assert (await remove(conn, export=Archive(tmp_path).export)).jobs == 1
    assert len(exported(tmp_path, "nodes")) == before["dag_node_states"]


async def test_an_interrupted_removal_resumes(
    dsn: str, conn: Connection, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retention, "ROWS_AT_ONCE", 7)
    [large] = await ended(dsn, fan(), items=list(range(30)))
    before = await counts(dsn)
    files = Archive(tmp_path)
    repeat = retention._repeat

    async def fail(conn: Connection, name: str, values: Any) -> int:
        if name == "remove_some_nodes":
            raise InterruptedError
        return await repeat(conn, name, values)

    monkeypatch.setattr(retention, "_repeat", fail)
    with pytest.raises(InterruptedError):
        await remove(conn, export=files.export)
    assert await left(dsn) == {large}
    monkeypatch.setattr(retention, "_repeat", repeat)
    await remove(conn, export=files.export)
    assert await left(dsn) == set()
    assert len(exported(tmp_path, "results")) == before["dag_task_results"]
    assert len(exported(tmp_path, "nodes")) == before["dag_node_states"]
