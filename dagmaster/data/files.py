"""Table files, read and written in batches."""

import os
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
from pyarrow import ipc

from dagmaster.errors import Invalid

FORMATS: Final = {".parquet": "parquet", ".csv": "csv", ".arrow": "arrow", ".feather": "arrow"}
BATCH_ROWS: Final = 500_000
CSV_BLOCK_BYTES: Final = 16 * 1024 * 1024
# Loaded by name: a worker that exports nothing does not need them.
WRITERS: Final = {
    "parquet": ("pyarrow.parquet", "ParquetWriter"),
    "csv": ("pyarrow.csv", "CSVWriter"),
    "arrow": ("pyarrow.ipc", "new_file"),
}


@dataclass(frozen=True, slots=True)
class TableFile:
    schema: pa.Schema
    batches: Iterator[pa.RecordBatch]


def format_of(name: str, format: str | None = None) -> str:
    """The given format, or that of the file's extension."""
    chosen = format or FORMATS.get(Path(name.partition("?")[0]).suffix.lower())
    if chosen is None or chosen not in FORMATS.values():
        raise Invalid(
            f"the format of {name.partition('?')[0][:200]!r} is not known; name it: format='parquet', 'csv' or 'arrow'"
        )
    return chosen


@contextmanager
def opened_file(path: Path, format: str) -> Iterator[TableFile]:
    """Raises Invalid for a file of another format, possibly during the read."""
    try:
        with _opened(path, format) as file:
            yield file
    except (pa.ArrowException, UnicodeDecodeError) as error:
        raise Invalid(f"the file cannot be read as {format}: {error}") from error


@contextmanager
def _opened(path: Path, format: str) -> Iterator[TableFile]:
    match format:
        case "parquet":
            parquet: Any = import_module("pyarrow.parquet")
            with parquet.ParquetFile(path) as file:
                yield TableFile(file.schema_arrow, file.iter_batches(BATCH_ROWS))
        case "csv":
            csv: Any = import_module("pyarrow.csv")
            with csv.open_csv(path, read_options=csv.ReadOptions(block_size=CSV_BLOCK_BYTES)) as reader:
                yield TableFile(reader.schema, iter(reader))
        case _:
            with pa.memory_map(str(path)) as source, _arrow_reader(source) as reader:
                yield TableFile(reader.schema, _arrow_batches(reader))


def _arrow_reader(source: Any) -> Any:
    """A random-access file starts with a magic word, a stream does not."""
    is_file = source.read(6) == b"ARROW1"
    source.seek(0)
    return ipc.open_file(source) if is_file else ipc.open_stream(source)


def _arrow_batches(reader: Any) -> Iterator[pa.RecordBatch]:
    if isinstance(reader, ipc.RecordBatchFileReader):
        return (reader.get_batch(number) for number in range(reader.num_record_batches))
    return iter(reader)


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
