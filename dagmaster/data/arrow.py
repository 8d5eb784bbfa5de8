"""Arrow tables from Python values, their ClickHouse types, and the digests of their rows."""

from array import array
from collections.abc import Callable, Mapping, Sequence
from hashlib import sha256
from itertools import accumulate
from types import NoneType
from typing import Any, Final

import pyarrow as pa

from dagmaster.data.sql import check_names
from dagmaster.data.types import nullable
from dagmaster.errors import Invalid

VALUE = "value"  # the column name of a scalar or a list
INTEGERS = {f"{u}int{bits}": f"{u.upper()}Int{bits}" for u in ("", "u") for bits in (8, 16, 32, 64)}
# Arrow types and the ClickHouse types that store them, which return the first of their Arrow types.
SIMPLE_TYPES = {
    "bool": "Bool",
    **INTEGERS,
    "float": "Float32",
    "halffloat": "Float32",
    "double": "Float64",
    **dict.fromkeys(("string", "large_string", "string_view", "binary", "large_binary", "null"), "String"),
    "date32[day]": "Date32",
}
ANSWERED_TYPES = {stored: pa.type_for_alias(name) for name, stored in reversed(SIMPLE_TYPES.items())}
SECOND_DIGITS = {"s": 0, "ms": 3, "us": 6, "ns": 9}
SECOND_UNITS = {digits: unit for unit, digits in SECOND_DIGITS.items()}

# Beyond this, Arrow is faster, and the values take more memory than its libraries.
MAX_PLAIN_VALUES: Final = 100_000


def table_from_value(value: Any) -> pa.Table:
    """One column `value` for a scalar or a list; named columns for a dict, records or Arrow data."""
    table = _table(value)
    check_names(table.column_names)
    if not table.column_names:
        raise Invalid("a table needs at least one column")
    return table


def clickhouse_type(column: pa.ChunkedArray, name: str) -> str:
    """The type that stores the column; nullable if the column contains a null."""
    kind = _stored_type(column.type, name)
    if column.null_count == 0 and not pa.types.is_null(column.type):
        return kind
    if (nullable_kind := nullable(kind)) == kind:
        raise Invalid(f"column {name!r} holds lists or records and also None, which ClickHouse cannot store; use []")
    return nullable_kind


def clickhouse_types(schema: pa.Schema) -> dict[str, str]:
    """For columns whose values are not known yet: nullable unless the schema says otherwise."""
    check_names(schema.names)
    return {
        field.name: nullable(kind) if field.nullable else kind
        for field in schema
        for kind in [_stored_type(field.type, field.name)]
    }


def answered_schema(types: Mapping[str, str]) -> pa.Schema:
    """The schema in which ClickHouse returns columns of these types."""
    return pa.schema([_answered_field(name, kind) for name, kind in types.items()])


def digest_of(rows: pa.Table) -> str:
    """Independent of the chunks of the rows and of the table's metadata."""
    plain = rows.replace_schema_metadata(None).combine_chunks()
    file = _Hashing()
    with pa.ipc.new_stream(file, plain.schema) as writer:
        writer.write_table(plain)
    return file.hash.hexdigest()


class _Hashing:
    """A file that keeps only the digest of its content."""

    closed = False

    def __init__(self) -> None:
        self.hash = sha256()

    def write(self, data: Any) -> int:
        piece = memoryview(data).cast("B")
        self.hash.update(piece)
        return len(piece)

    def flush(self) -> None:
        pass


def _answered_field(name: str, kind: str) -> pa.Field:
    inner = kind.removeprefix("Nullable(").removesuffix(")") if kind.startswith("Nullable(") else kind
    return pa.field(name, _answered_type(inner), nullable=inner != kind)


def _answered_type(kind: str) -> pa.DataType:
    name, _, arguments = kind.partition("(")
    match name:
        case "Array":
            return pa.list_(_answered_field("item", arguments.removesuffix(")")))
        case "DateTime64":
            return pa.timestamp(SECOND_UNITS[int(arguments[0])], "UTC")
        case "Decimal":
            precision, scale = map(int, arguments.removesuffix(")").split(","))
            return pa.decimal128(precision, scale) if precision <= 38 else pa.decimal256(precision, scale)
        case _:
            return ANSWERED_TYPES[name]


def _table(value: Any) -> pa.Table:
    if isinstance(value, pa.Table):
        return value
    if isinstance(value, pa.RecordBatch):
        return pa.Table.from_batches([value])
    if hasattr(value, "__arrow_c_stream__"):
        return pa.table(value)
    match value:
        case Mapping():
            return _from_columns(value)
        case list() | tuple() if value and all(isinstance(row, Mapping) for row in value):
            return _from_records(value)
        case list() | tuple():
            return pa.table({VALUE: _array(VALUE, value)})
        case _:
            return pa.table({VALUE: _array(VALUE, [value])})


def _from_columns(columns: Mapping[Any, Any]) -> pa.Table:
    lists = {name: isinstance(values, list | tuple) or _is_array(values) for name, values in columns.items()}
    if not any(lists.values()):
        return _from_records([columns])
    if not all(lists.values()):
        single = ", ".join(repr(name) for name, is_list in lists.items() if not is_list)
        raise Invalid(f"a dict has a list for each column, or a value for each; {single} is not a list")
    if len({len(values) for values in columns.values()}) > 1:
        sizes = ", ".join(f"{name!r} has {len(values)}" for name, values in columns.items())
        raise Invalid(f"the columns of a table have the same length: {sizes}")
    return _named({name: _array(name, values) for name, values in columns.items()})


def _from_records(records: Sequence[Mapping[Any, Any]]) -> pa.Table:
    """A missing key is None."""
    names = dict.fromkeys(name for record in records for name in record)
    return _named({name: _array(name, [record.get(name) for record in records]) for name in names})


def _named(columns: Mapping[Any, Any]) -> pa.Table:
    if odd := [name for name in columns if not isinstance(name, str)]:
        raise Invalid(f"the names of columns are strings, not {odd[0]!r}")
    return pa.table(dict(columns))


def _is_array(values: Any) -> bool:
    return isinstance(values, pa.Array | pa.ChunkedArray) or hasattr(values, "__arrow_c_array__")


def _array(name: Any, values: Any) -> Any:
    if _is_array(values):
        return values
    if isinstance(values, list | tuple) and (plain := plain_array(values)) is not None:
        return plain
    try:
        return pa.array(values)
    except (pa.ArrowException, OverflowError, TypeError, ValueError) as error:
        raise Invalid(f"column {name!r} cannot be stored: its values need one type that fits all ({error})") from error


def _stored_type(kind: pa.DataType, name: str) -> str:
    if (simple := SIMPLE_TYPES.get(str(kind))) is not None:
        return simple
    if pa.types.is_timestamp(kind):
        # A time without a zone is taken as UTC: ClickHouse stores instants.
        return f"DateTime64({SECOND_DIGITS[kind.unit]}, 'UTC')"
    if pa.types.is_decimal(kind):
        return f"Decimal({kind.precision}, {kind.scale})"
    if pa.types.is_dictionary(kind):
        return _stored_type(kind.value_type, name)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        return f"Array({nullable(_stored_type(kind.value_type, name))})"
    raise Invalid(f"column {name!r} has the Arrow type {kind}, which cannot be stored; convert it before")


def plain_array(values: Sequence[Any]) -> pa.Array | None:
    """An array of booleans, integers, floats or strings, with or without None; None for anything else.

    `pyarrow.array` infers the same, but loads pandas: 33 MB for a worker that does not use it.
    """
    kinds = set(map(type, values)) if len(values) <= MAX_PLAIN_VALUES else set()
    has_nulls = NoneType in kinds
    kinds.discard(NoneType)
    if len(kinds) != 1:
        return None
    [kind] = kinds
    if kind not in BUFFERS:
        return None
    arrow_type, write = BUFFERS[kind]
    present = _bits([value is not None for value in values]) if has_nulls else None
    try:
        return _from_buffers(arrow_type, len(values), present, *write(values))
    except (OverflowError, UnicodeEncodeError):
        return None  # Arrow reports the problem, or has a larger type.


def row_numbers(first: int, count: int) -> pa.Array:
    return _from_buffers(pa.uint64(), count, None, array("Q", range(first, first + count)))


def _from_buffers(kind: pa.DataType, count: int, *buffers: Any) -> pa.Array:
    listed = [None if buffer is None else pa.py_buffer(buffer) for buffer in buffers]
    return pa.Array.from_buffers(kind, count, listed)


def _bits(flags: Sequence[Any]) -> bytes:
    written = "".join("1" if flag else "0" for flag in reversed(flags))
    return int(written, 2).to_bytes((len(flags) + 7) // 8, "little")


def _texts(values: Sequence[str | None]) -> tuple[Any, bytes]:
    texts = [value.encode() if value is not None else b"" for value in values]
    return array("i", accumulate(map(len, texts), initial=0)), b"".join(texts)


BUFFERS: Final[Mapping[type, tuple[pa.DataType, Callable[[Sequence[Any]], tuple[Any, ...]]]]] = {
    bool: (pa.bool_(), lambda values: (_bits(values),)),
    int: (pa.int64(), lambda values: (array("q", [value or 0 for value in values]),)),
    float: (pa.float64(), lambda values: (array("d", [0.0 if value is None else value for value in values]),)),
    str: (pa.string(), _texts),
}
