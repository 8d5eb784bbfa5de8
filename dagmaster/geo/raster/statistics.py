"""Read every block of a raster once, which finds damage and computes the statistics of the bands."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import BaseModel, Field
from rasterio.errors import RasterioIOError
from rasterio.windows import Window

from dagmaster.geo.errors import UnreadableRaster
from dagmaster.geo.raster.reader import describe

OnProgress = Callable[[float], None]

# Per read: some 100 MB, whatever the block size of the file.
READ_PIXELS = 2048 * 2048
MAX_CLASSES = 64
SAMPLE = 4096
# Values converted to floating point at a time, so that they stay in the processor's cache.
CHUNK = 32768


class BandStatistics(BaseModel, frozen=True):
    """Of the valid pixels; None if there are none. `classes` counts the distinct values, None if there are many."""

    minimum: float | None
    maximum: float | None
    mean: float | None
    stddev: float | None
    valid_percent: float
    classes: int | None


class Moments(BaseModel):
    """Statistics of a part of a band, which can be combined.

    Chan's parallel algorithm: sums of squares of large values would lose digits.
    """

    total: int = 0
    count: int = 0
    minimum: float | None = None
    maximum: float | None = None
    mean: float = 0.0
    squares: float = 0.0
    values: set[float] | None = Field(default_factory=set)

    def add(self, values: Any, total: int) -> None:
        self.total += total
        if not values.size:
            return
        for start in range(0, values.size, CHUNK):
            numbers = values[start : start + CHUNK].astype("float64")
            mean = float(numbers.mean())
            numbers -= mean
            self._combine(int(numbers.size), mean, float(np.dot(numbers, numbers)))
        self._extend(float(values.min()), float(values.max()))
        # A small sample identifies most images with many values; sorting all pixels would take longer than the rest.
        for part in (values[:SAMPLE], values):
            if self.values is not None:
                self._count_values(set(np.unique(part).astype("float64").tolist()))

    def merge(self, other: "Moments") -> None:
        self.total += other.total
        if other.minimum is not None and other.maximum is not None:
            self._combine(other.count, other.mean, other.squares)
            self._extend(other.minimum, other.maximum)
            self._count_values(other.values)

    def _combine(self, count: int, mean: float, squares: float) -> None:
        delta, whole = mean - self.mean, self.count + count
        self.squares += squares + delta**2 * self.count * count / whole
        self.mean += delta * count / whole
        self.count = whole

    def _extend(self, minimum: float, maximum: float) -> None:
        self.minimum = minimum if self.minimum is None else min(self.minimum, minimum)
        self.maximum = maximum if self.maximum is None else max(self.maximum, maximum)

    def _count_values(self, values: set[float] | None) -> None:
        known = None if self.values is None or values is None else self.values | values
        self.values = None if known is None or len(known) > MAX_CLASSES else known

    def statistics(self) -> BandStatistics:
        has_any = self.count > 0
        return BandStatistics(
            minimum=self.minimum,
            maximum=self.maximum,
            mean=self.mean if has_any else None,
            stddev=math.sqrt(self.squares / self.count) if has_any else None,
            valid_percent=round(100 * self.count / self.total, 4) if self.total else 0.0,
            classes=len(self.values) if has_any and self.values is not None else None,
        )


def read_statistics(dataset: Any, on_progress: OnProgress | None = None) -> list[BandStatistics]:
    """Raises UnreadableRaster for the first unreadable block."""
    bands = [Moments() for _ in dataset.indexes]
    windows = _windows(dataset)
    for number, window in enumerate(windows, 1):
        for index, band in zip(dataset.indexes, bands, strict=True):
            values = _read(dataset, index, window)
            band.add(values.compressed(), values.size)
        if on_progress is not None:
            on_progress(number / len(windows))
    return [band.statistics() for band in bands]


def _read(dataset: Any, index: int, window: Window) -> Any:
    try:
        values = dataset.read(index, window=window, masked=True)
    except RasterioIOError as error:
        raise UnreadableRaster(
            f"{Path(dataset.name).name} is damaged: band {index} cannot be read at row {window.row_off}, column "
            f"{window.col_off}: {describe(error, Path(dataset.name))}"
        ) from error
    return np.ma.masked_invalid(values) if values.dtype.kind == "f" else values


def _windows(dataset: Any) -> list[Window]:
    """Whole blocks, as many as fit into the limit; parts of a block that does not fit."""
    block_height, block_width = dataset.block_shapes[0]
    across = max(min(READ_PIXELS // (block_height * block_width), -(-dataset.width // block_width)), 1)
    columns = min(block_width * across, READ_PIXELS)
    fitting = max(READ_PIXELS // columns, 1)
    rows = fitting // block_height * block_height or fitting
    return [
        Window(column, row, min(columns, dataset.width - column), min(rows, dataset.height - row))
        for row in range(0, dataset.height, rows)
        for column in range(0, dataset.width, columns)
    ]
