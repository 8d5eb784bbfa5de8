"""Sort the features of a layer that may be larger than the memory: a file of batches, and one of their order."""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pydantic import BaseModel

from dagmaster.geo.vector.cleaner import GEOMETRY, SORT_KEY
from dagmaster.geo.vector.row_order import RowOrder

DEFAULT_CHUNK_ROWS: Final = 50_000
# However few rows that is: Arrow arrays are limited to 2 GB, and a worker holds several chunks in memory.
MAX_CHUNK_BYTES: Final = 64 * 1024**2


class Chunk(BaseModel, frozen=True):
    """A row group of the GeoParquet file, and one transaction in PostGIS."""

    number: int
    first_row: int
    rows: int


class FeatureSorter:
    """`folder` takes the features and their order."""

    def __init__(self, folder: Path, schema: Any) -> None:
        self._path = folder / "features.arrow"
        self._order = RowOrder(folder / "order.bin")
        self._sink = pa.OSFile(str(self._path), "wb")
        self._writer = pa.ipc.new_file(self._sink, schema)

    def add(self, batch: Any) -> None:
        if not batch.num_rows:
            return
        lengths = pc.binary_length(batch.column(GEOMETRY)).to_numpy(zero_copy_only=False)
        others = (batch.nbytes - int(lengths.sum())) // batch.num_rows
        self._order.add(batch.column(SORT_KEY).to_numpy(), lengths.astype(np.int64) + others)
        self._writer.write_batch(batch)

    def close(self) -> None:
        self._order.close()
        self._writer.close()
        self._sink.close()

    def chunks(self, max_rows: int, max_bytes: int = MAX_CHUNK_BYTES) -> Iterator[tuple[Chunk, Any]]:
        """After `close`: the features along the curve, as tables without the key; at one place, as they were added."""
        first_row = 0
        with pa.memory_map(str(self._path)) as file:
            reader = pa.ipc.open_file(file)
            batches = [reader.get_batch(number) for number in range(reader.num_record_batches)]
            starts = np.cumsum([0, *(batch.num_rows for batch in batches)])
            for number, rows in enumerate(_divided(self._order.parts(), max_rows, max_bytes)):
                table = _take(batches, starts, rows)
                yield Chunk(number=number, first_row=first_row, rows=len(rows)), table.drop_columns([SORT_KEY])
                first_row += len(rows)


def _divided(parts: Iterable[tuple[Any, Any]], max_rows: int, max_bytes: int) -> Iterator[Any]:
    """The rows of each chunk. `parts` are rows and their sizes; a chunk may have rows of several of them."""
    rows, sizes = np.empty(0, np.int64), np.empty(0, np.int64)
    for more_rows, more_sizes in parts:
        rows, sizes = np.concatenate([rows, more_rows]), np.concatenate([sizes, more_sizes])
        *whole, (first, _) = _ranges(sizes, max_rows, max_bytes)
        for begin, end in whole:
            yield rows[begin:end]
        rows, sizes = rows[first:], sizes[first:]
    if len(rows):
        yield rows


def _ranges(sizes: Any, max_rows: int, max_bytes: int) -> Iterator[tuple[int, int]]:
    ends = np.cumsum(sizes)
    first = 0
    while first < len(sizes):
        before = int(ends[first - 1]) if first else 0
        fitting = int(np.searchsorted(ends, before + max_bytes, side="right"))
        last = min(max(fitting, first + 1), first + max_rows)
        yield first, last
        first = last


def _take(batches: list[Any], starts: Any, rows: Any) -> Any:
    """Batch by batch: taking from a column of many chunks would copy all of it."""
    owners = np.searchsorted(starts, rows, side="right") - 1
    grouping = np.argsort(owners, kind="stable")
    parts = []
    for owner in np.unique(owners):
        inside = rows[grouping][owners[grouping] == owner] - starts[owner]
        parts.append(batches[owner].take(pa.array(inside)))
    places = np.empty_like(grouping)
    places[grouping] = np.arange(len(grouping))
    return pa.Table.from_batches(parts).combine_chunks().take(pa.array(places))
