"""Halve images for overviews."""

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from dagmaster.geo.raster.validate import fits

Reduction = Literal["average", "nearest"]


@dataclass(frozen=True, slots=True)
class Pixels:
    """Bands x rows x columns, with a mask if the image has one. `alpha` is the index of a transparency band."""

    bands: Any
    mask: Any | None = None


def halve(pixels: Pixels, reduction: Reduction, *, nodata: float | None = None, alpha: int | None = None) -> Pixels:
    """Each new pixel is made of four, or of fewer at an odd edge. Averages ignore invalid pixels."""
    bands, mask = pixels.bands, pixels.mask
    if reduction == "nearest":
        return Pixels(bands[:, ::2, ::2], None if mask is None else mask[::2, ::2])
    halved = None if mask is None else _largest(mask)
    shared = mask if alpha is None else bands[alpha]
    averages = [
        _average(band, None if index == alpha else _validity(band, shared, nodata), nodata)
        for index, band in enumerate(bands)
    ]
    return Pixels(np.stack(averages), halved)


def _validity(band: Any, shared: Any | None, nodata: float | None) -> Any | None:
    """None if every pixel is valid, which is the most common case."""
    valid = None if shared is None else shared > 0
    if band.dtype.kind == "f":
        numbers = ~np.isnan(band)
        valid = numbers if valid is None else valid & numbers
    if nodata is not None and nodata == nodata:  # NaN is not equal to itself
        others = band != band.dtype.type(nodata) if fits(nodata, band.dtype) else None
        valid = others if valid is None else valid if others is None else valid & others
    return None if valid is None or valid.all() else valid


def _quarters(band: Any) -> list[Any]:
    """The four pixels of each new one; edges are repeated if the size is odd."""
    rows, columns = band.shape
    if rows % 2 or columns % 2:
        band = np.pad(band, ((0, rows % 2), (0, columns % 2)), mode="edge")
    return [band[0::2, 0::2], band[0::2, 1::2], band[1::2, 0::2], band[1::2, 1::2]]


def _largest(mask: Any) -> Any:
    a, b, c, d = _quarters(mask)
    return np.maximum(np.maximum(a, b), np.maximum(c, d))


def _wide(dtype: Any) -> Any:
    """A type that can hold the sum of four."""
    if dtype.kind == "f":
        return np.dtype("float64") if dtype.itemsize == 8 else np.dtype("float32")
    if dtype.itemsize <= 2:
        return np.dtype("int32")
    return np.dtype("int64") if dtype.itemsize == 4 else np.dtype("float64")


def _average(band: Any, valid: Any | None, nodata: float | None) -> Any:
    wide = _wide(band.dtype)
    if valid is None:
        a, b, c, d = _quarters(band)
        total = a.astype(wide)
        for other in (b, c, d):
            total += other
        return _divided(total, 4, band.dtype)
    counts = sum(part.astype("int8") for part in _quarters(valid))
    total = sum(part.astype(wide) for part in _quarters(np.where(valid, band, band.dtype.type(0))))
    average = _divided(total, np.maximum(counts, 1), band.dtype)
    return _filled(average, counts == 0, nodata)


def _divided(total: Any, counts: Any, dtype: Any) -> Any:
    if dtype.kind == "f":
        return (total / counts).astype(dtype)
    if total.dtype.kind == "f":
        limits = np.iinfo(dtype)
        # The largest 64-bit integers have no exact float; the next smaller float is in range.
        return np.clip(np.rint(total / counts), float(limits.min), np.nextafter(float(limits.max), 0)).astype(dtype)
    return ((total + counts // 2) // counts).astype(dtype)


def _filled(average: Any, is_empty: Any, nodata: float | None) -> Any:
    """Nodata where nothing is valid, and only there."""
    if average.dtype.kind == "f":
        empty = np.nan if nodata is None else nodata
    elif nodata is None or not fits(nodata, average.dtype):
        empty = 0
    else:
        empty = int(nodata)
        neighbour = empty + 1 if empty < np.iinfo(average.dtype).max else empty - 1
        average[average == empty] = neighbour
    average[is_empty] = empty
    return average
