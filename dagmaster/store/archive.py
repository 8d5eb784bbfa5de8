"""Archive jobs to Parquet files before retention removes them."""

import asyncio
import os
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing
from importlib import import_module
from pathlib import Path
from typing import Any, Final, cast

from psycopg import Column
from psycopg.rows import DictRow
from psycopg.types.json import set_json_loads

from dagmaster.errors import Misconfigured
from dagmaster.store.connect import Connection
from dagmaster.store.retention import Removal
from dagmaster.store.statements import SQL, Statement

KINDS: Final = {
    "jobs": "export_jobs",
    "nodes": "export_nodes",
    "results": "export_results",
    "events": "export_events",
    "checkpoints": "export_checkpoints",
    "groups": "export_groups",
    "dependencies": "export_dependencies",
}
ROWS_AT_ONCE: Final = 5000
# PostgreSQL's type OIDs; all other types become strings.
_TYPES: Final = {16: "bool", 20: "int64", 21: "int16", 23: "int32", 700: "float32", 701: "float64"}
_TIMESTAMPTZ: Final = 1184


Columns = Sequence[Column]
Rows = Sequence[DictRow]


class Archive:
    """One file per batch and kind; the same batch always has the same name."""

    def __init__(self, folder: Path) -> None:
        try:
            self._arrow, self._parquet = import_module("pyarrow"), import_module("pyarrow.parquet")
        except ImportError as error:
            raise Misconfigured("archives need pyarrow: install it with `pip install 'dagmaster[archive]'`") from error
        self._folder = folder

    async def export(self, conn: Connection, removal: Removal) -> None:
        """Write the files; they are synced to disk when this returns."""
        for kind in KINDS:
            await self._export(conn, removal, kind)

    async def _export(self, conn: Connection, removal: Removal, kind: str) -> None:
        path = self._folder / kind / f"date={removal.day.isoformat()}" / f"{removal.batch}.parquet"
        partial = path.with_name(f".{path.name}.partial")
        writer: Any = None
        try:
            async with aclosing(_chunks(conn, SQL[KINDS[kind]], removal)) as chunks:
                async for columns, rows in chunks:
                    schema = self._schema(columns)
                    writer = writer or await asyncio.to_thread(self._open, partial, schema)
                    await asyncio.to_thread(self._write, writer, rows, schema)
        finally:
            if writer is not None:
                await asyncio.to_thread(writer.close)
        if writer is not None:
            await asyncio.to_thread(_publish, partial, path)

    def _schema(self, columns: Columns) -> Any:
        return self._arrow.schema([(column.name, self._type(column.type_code)) for column in columns])

    def _type(self, code: int) -> Any:
        if code == _TIMESTAMPTZ:
            return self._arrow.timestamp("us", tz="UTC")
        return self._arrow.type_for_alias(_TYPES.get(code, "string"))

    def _open(self, partial: Path, schema: Any) -> Any:
        partial.parent.mkdir(parents=True, exist_ok=True)
        return self._parquet.ParquetWriter(partial, schema, compression="zstd")

    def _write(self, writer: Any, rows: Rows, schema: Any) -> None:
        writer.write_table(self._arrow.Table.from_pylist(rows, schema=schema))


async def _chunks(
    conn: Connection, statement: Statement, removal: Removal
) -> AsyncGenerator[tuple[Columns, Rows], None]:
    """Read the rows in chunks: those of a large job do not fit into memory."""
    async with conn.cursor() as cursor:
        set_json_loads(_as_text, cursor)
        stream = cast(AsyncGenerator[DictRow, None], cursor.stream(statement.text, [list(removal.job_ids)]))
        async with aclosing(stream):  # An open stream would block the connection.
            async for rows in _by_chunk(stream):
                yield cursor.description or (), rows


async def _by_chunk(stream: AsyncGenerator[DictRow, None]) -> AsyncIterator[Rows]:
    rows: list[DictRow] = []
    async for row in stream:
        rows.append(row)
        if len(rows) == ROWS_AT_ONCE:
            yield rows
            rows = []
    if rows:
        yield rows


def _publish(partial: Path, path: Path) -> None:
    """Sync the file, rename it, then sync the folders."""
    _sync(partial)
    partial.replace(path)
    for folder in (path.parent, path.parent.parent, path.parent.parent.parent):
        _sync(folder)


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _as_text(value: str | bytes) -> str:
    return value if isinstance(value, str) else bytes(value).decode()
