"""The order of rows by their keys, in memory that does not grow with their number: sorted runs in a file, merged."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

RUN_ROWS: Final = 500_000
# The keys are places on the curve, below 2**62.
_KEY_BITS: Final = 62


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
    """Rows are numbered as they are added. `size` is any number that goes with a row."""

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
