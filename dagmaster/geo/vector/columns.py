"""The columns of a layer: names and types that GeoParquet, vector tiles and PostgreSQL all accept."""

import json
from collections.abc import Sequence
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from pydantic import BaseModel

# PostgreSQL truncates longer names.
MAX_NAME_BYTES: Final = 63
MAX_COLUMNS: Final = 1000
# The names of columns that are added to the layer's own.
RESERVED: Final = frozenset({"geometry", "bbox", "feature_id"})


class Column(BaseModel, frozen=True):
    name: str
    type: str


def safe_names(names: Sequence[str]) -> list[str]:
    """Unique ignoring case, not empty, at most 63 bytes, without control characters."""
    taken = set(RESERVED)
    result = []
    for number, name in enumerate(names, start=1):
        plain = "".join(char if char.isprintable() else "_" for char in name).strip() or f"column_{number}"
        candidate, suffix = _shortened(plain), 1
        while candidate.lower() in taken:
            suffix += 1
            candidate = _shortened(plain, f"_{suffix}")
        taken.add(candidate.lower())
        result.append(candidate)
    return result


def _shortened(name: str, suffix: str = "") -> str:
    room = MAX_NAME_BYTES - len(suffix.encode())
    return name.encode()[:room].decode(errors="ignore") + suffix


def simple_type(kind: Any) -> Any:
    """The stored type of a column. Nested types become JSON."""
    types = pa.types
    if types.is_dictionary(kind):
        return simple_type(kind.value_type)
    if types.is_boolean(kind) or types.is_date32(kind) or types.is_float32(kind) or types.is_float64(kind):
        return kind
    if types.is_integer(kind):
        return pa.int32() if kind in (pa.int8(), pa.int16(), pa.int32(), pa.uint8(), pa.uint16()) else pa.int64()
    if types.is_float16(kind):
        return pa.float32()
    if types.is_decimal(kind):
        return pa.float64()
    if types.is_date(kind):
        return pa.date32()
    if types.is_timestamp(kind):
        return pa.timestamp("us", tz="UTC" if kind.tz else None)
    if types.is_time(kind):
        return pa.time64("us")
    if types.is_binary(kind) or types.is_large_binary(kind) or types.is_fixed_size_binary(kind):
        return pa.binary()
    return pa.string()


def simplify_column(values: Any, kind: Any) -> Any:
    """Convert the values to their simple type. Raises ArrowInvalid for values that do not fit."""
    source = values.type
    values.validate(full=True)  # Readers may pass invalid UTF-8.
    if pa.types.is_nested(source):
        return pa.array([None if value is None else _to_json(value) for value in values.to_pylist()], kind)
    # Seconds are cut to microseconds, and uint64 may be too large for PostgreSQL: fail instead of wrapping around.
    is_time = pa.types.is_temporal(source)
    values = pc.cast(values, kind, safe=not is_time)
    if kind == pa.string() and pc.any(pc.match_substring(values, "\0")).as_py():
        values = pc.replace_substring(values, "\0", "")
    return values


def _to_json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, default=str)
