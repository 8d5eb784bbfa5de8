"""Sort the features of a layer that may be larger than the memory: a file of batches, and one of their order."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pydantic import BaseModel

from dagmaster.geo.vector.cleaner import GEOMETRY, SORT_KEY

DEFAULT_CHUNK_ROWS: Final = 50_000
# However few rows that is: Arrow arrays are limited to 2 GB, and a worker holds several chunks in memory.
MAX_CHUNK_BYTES: Final = 64 * 1024**2
RUN_ROWS: Final = 500_000
# The keys are places on the curve, below 2**62.
_KEY_BITS: Final = 62


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


@dataclass(frozen=True, slots=True)
class _Run:
    """Arrays of one length, along the keys."""

    keys: Any
    rows: Any
    sizes: Any

    def part(self, selected: Any) -> "_Run":
        return _Run(self.keys[selected], self.rows[selected], self.sizes[selected])

    def sorted(self) -> "_Run":
        return self.part(np.argsort(self.keys, kind="stable"))


class RowOrder:
    """The order of rows by their keys, in memory that does not grow with their number: sorted runs in a file, merged.

    Rows are numbered as they are added. `size` is any number that goes with a row.
    """

    def __init__(self, path: Path, run_rows: int = RUN_ROWS) -> None:
        self._path = path
        self._run_rows = run_rows
        self._file = path.open("wb")
        self._waiting: list[_Run] = []
        self._lengths: list[int] = []
        self._rows = 0

    def add(self, keys: Any, sizes: Any) -> None:
        self._waiting.append(_Run(keys, np.arange(self._rows, self._rows + len(keys)), sizes))
        self._rows += len(keys)
        if self._rows - sum(self._lengths) >= self._run_rows:
            self._write_run()

    def _write_run(self) -> None:
        run = _joined(self._waiting).sorted()
        for column in (run.keys, run.rows, run.sizes):
            column.astype("<i8").tofile(self._file)
        self._lengths.append(len(run.keys))
        self._waiting.clear()

    def close(self) -> None:
        """Before `parts`."""
        if self._waiting:
            self._write_run()
        self._file.close()

    def parts(self) -> Iterator[tuple[Any, Any]]:
        """The rows and sizes along the keys, at most `run_rows` at a time; where keys are equal, as they were added."""
        runs = self._stored_runs() if self._rows else []
        while any(len(run.keys) for run in runs):
            lengths = self._next_lengths([run.keys for run in runs])
            pairs = list(zip(runs, lengths, strict=True))
            part = _joined([run.part(slice(length)) for run, length in pairs]).sorted()
            yield part.rows, part.sizes
            runs = [run.part(slice(length, None)) for run, length in pairs]

    def _stored_runs(self) -> list[_Run]:
        stored = np.memmap(self._path, "<i8", "r")
        ends = np.cumsum(np.repeat(self._lengths, 3))
        columns = np.split(stored, ends[:-1])
        return [_Run(columns[at].view("<u8"), columns[at + 1], columns[at + 2]) for at in range(0, len(columns), 3)]

    def _next_lengths(self, runs: Sequence[Any]) -> list[int]:
        """How much of each run comes before all the rest: the keys below the largest one for which that fits."""
        if sum(map(len, runs)) <= self._run_rows:
            return list(map(len, runs))
        key = 0
        for bit in reversed(range(_KEY_BITS)):
            if sum(_below(runs, key | 1 << bit)) <= self._run_rows:
                key |= 1 << bit
        lengths = _below(runs, key)
        return lengths if any(lengths) else self._filled(_below(runs, key + 1))

    def _filled(self, lengths: Sequence[int]) -> list[int]:
        """More rows than fit have one key: those of the earlier runs were added before."""
        before = np.cumsum([0, *lengths[:-1]])
        return [int(length) for length in np.clip(self._run_rows - before, 0, lengths)]


def _joined(runs: Sequence[_Run]) -> _Run:
    return _Run(*(np.concatenate([getattr(run, name) for run in runs]) for name in ("keys", "rows", "sizes")))


def _below(runs: Sequence[Any], key: int) -> list[int]:
    return [int(np.searchsorted(run, np.uint64(key))) for run in runs]
