"""Write the rows of a table to a file."""

import os
from collections.abc import AsyncIterator
from importlib import import_module
from pathlib import Path

import pyarrow as pa

from dagmaster.errors import Invalid

# Loaded by name: a worker that exports nothing does not need them.
WRITERS = {
    "parquet": ("pyarrow.parquet", "ParquetWriter"),
    "csv": ("pyarrow.csv", "CSVWriter"),
    "arrow": ("pyarrow.ipc", "new_file"),
}


async def write_file(batches: AsyncIterator[pa.RecordBatch], path: Path, format: str | None, empty: pa.Table) -> Path:
    """The file is renamed when it is complete, so that it is never seen half written. `empty` has the columns."""
    chosen = format or path.suffix.removeprefix(".").lower()
    if chosen not in WRITERS:
        raise Invalid(
            f"a table cannot be exported as {chosen!r}; name the file .parquet, .csv or .arrow, or say format="
        )
    if chosen == "csv" and (lists := [field.name for field in empty.schema if pa.types.is_nested(field.type)]):
        raise Invalid(f"column {lists[0]!r} holds lists, which CSV cannot; explode() it, or export as Parquet or Arrow")
    unfinished = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        module, name = WRITERS[chosen]
        with getattr(import_module(module), name)(str(unfinished), empty.schema) as writer:
            async for batch in batches:
                writer.write_table(pa.Table.from_batches([batch]).cast(empty.schema))
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)
    return path
