"""Write the rows of a table to a file."""

import os
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyarrow import csv, ipc, parquet

from dagmaster.errors import Invalid

Open = Callable[[str, pa.Schema], Any]
WRITERS: dict[str, Open] = {"parquet": parquet.ParquetWriter, "csv": csv.CSVWriter, "arrow": ipc.new_file}


async def write_file(batches: AsyncIterator[pa.RecordBatch], path: Path, format: str | None, empty: pa.Table) -> Path:
    """Nobody sees half a file: it gets its name when it is complete. `empty` has the columns."""
    chosen = format or path.suffix.removeprefix(".").lower()
    if chosen not in WRITERS:
        raise Invalid(
            f"a table cannot be exported as {chosen!r}; name the file .parquet, .csv or .arrow, or say format="
        )
    if chosen == "csv" and (lists := [field.name for field in empty.schema if pa.types.is_nested(field.type)]):
        raise Invalid(f"column {lists[0]!r} holds lists, which CSV cannot; explode() it, or export as Parquet or Arrow")
    unfinished = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with WRITERS[chosen](str(unfinished), empty.schema) as writer:
            async for batch in batches:
                writer.write_table(pa.Table.from_batches([batch]).cast(empty.schema))
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)
    return path
