"""Small tables as bytes in their entries, and as values in references: most never need a table of their own."""

from collections.abc import Mapping
from typing import Any, Final

import pyarrow as pa

from dagmaster.data.arrow import answered_schema, table_from_value
from dagmaster.data.plans import Scan, Slice
from dagmaster.data.references import MAX_INLINE_BYTES, InlineRows
from dagmaster.errors import Invalid
from dagmaster.model.problems import shorten

# Less is not worth the time that it takes to compress.
COMPRESSED_BYTES: Final = 1024
COMPRESSION: Final = "zstd"


def encode_rows(rows: pa.Table, types: Mapping[str, str]) -> bytes | None:
    """The rows as ClickHouse would return them; None if there are too many, or if only ClickHouse can convert them."""
    if rows.nbytes > MAX_INLINE_BYTES:
        return None
    schema = answered_schema(types)
    try:
        answered = _converted(rows, schema)
    except pa.ArrowException:
        return None
    plain = _written(answered)
    if len(plain) > MAX_INLINE_BYTES:
        return None
    if len(plain) < COMPRESSED_BYTES:
        return plain
    return min(plain, _written(answered, COMPRESSION), key=len)


def _converted(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    """Casts only if types differ: to cast, pyarrow loads modules that take 7 MB."""
    return pa.table(rows.columns, schema=schema) if rows.schema.types == schema.types else rows.cast(schema)


def decode_rows(written: bytes) -> pa.Table:
    with pa.ipc.open_stream(pa.py_buffer(written)) as reader:
        return reader.read_all()


def inline_values(rows: pa.Table, types: Mapping[str, str]) -> InlineRows | None:
    """The rows for a reference; None if they are too many, or if JSON has no such values."""
    if rows.nbytes > MAX_INLINE_BYTES:
        return None
    columns = [column.to_pylist() for column in rows.columns]
    try:
        written = InlineRows(columns=rows.column_names, values=columns, types=list(types.values()))
        inline = InlineRows.model_validate_json(written.model_dump_json())
        return inline if rows_of_reference(inline).to_pydict() == rows.to_pydict() else None
    except (ValueError, TypeError, Invalid):
        return None


def rows_of_reference(inline: InlineRows) -> pa.Table:
    """Raises Invalid for values that do not make a table."""
    rows = table_from_value(dict(zip(inline.columns, inline.values, strict=True)))
    if inline.types is None:
        return rows
    try:
        return _converted(rows, answered_schema(dict(zip(inline.columns, inline.types, strict=True))))
    except (pa.ArrowException, ValueError, LookupError, RecursionError) as error:
        raise Invalid(f"the inline rows are not of the types {shorten(', '.join(inline.types))}") from error


def range_of(plan: Any) -> tuple[int, tuple[Slice, ...]] | None:
    """The table and the slices of a plan that is only a range of a table's rows."""
    slices: tuple[Slice, ...] = ()
    while isinstance(plan, Slice):
        slices, plan = (plan, *slices), plan.source
    return (plan.table_id, slices) if isinstance(plan, Scan) else None


def _written(rows: pa.Table, compression: str | None = None) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema, options=pa.ipc.IpcWriteOptions(compression=compression)) as writer:
        writer.write_table(rows.combine_chunks())
    written: bytes = sink.getvalue().to_pybytes()
    return written
