"""Arrow arrays of plain Python values, without the libraries that Arrow's own conversion loads."""

from array import array
from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate
from types import NoneType
from typing import Any, Final

import pyarrow as pa

# Beyond this, Arrow is faster, and the values take more memory than its libraries.
MAX_VALUES: Final = 100_000


def plain_array(values: Sequence[Any]) -> pa.Array | None:
    """An array of booleans, integers, floats or strings, with or without None; None for anything else.

    `pyarrow.array` infers the same, but loads pandas: 33 MB for a worker that does not use it.
    """
    kinds = set(map(type, values)) if len(values) <= MAX_VALUES else set()
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
